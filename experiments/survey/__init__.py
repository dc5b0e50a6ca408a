"""A survey of a whole machine in one command: what is measured, and the page about it."""

from pathlib import Path

INFO = "info.json"  # a machine's description, which a survey writes first


def is_survey(folder: Path) -> bool:
    """Return whether a folder holds a survey."""
    return (folder / INFO).exists()
