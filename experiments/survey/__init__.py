"""A survey of a whole machine in one command: what is measured, and the page about it."""

from pathlib import Path

INFO = "info.json"  # a machine's description, which a survey writes first


def is_survey(folder: Path) -> bool:
    """Return whether a folder holds a survey."""
    return (folder / INFO).exists()


def surveys_in(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a survey, else those in it that do: surveys that were joined."""
    inside = sorted(path.parent for path in folder.glob(f"[!.]*/{INFO}"))
    return [folder] if is_survey(folder) else inside
