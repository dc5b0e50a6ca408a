"""`forktask survey`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import add_out, duration, folder_of
from .sweeping import command_line

DESCRIPTION = (
    "Measure a whole machine, most valuable first: its limits, hand-overs between all CPUs, and networks and METG on "
    "1, 2, 4, ... all cores under every model and installed outside runtime, PyTorch and a GPU too. It writes one "
    "folder with a page. An interrupted one, or one that did not fit into the time, continues in its folder."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--budget", type=duration, default=600.0, metavar="TIME", help="such as 90s or 10min; default: 10min"
    )
    add_out(parser, "survey")


def call(arguments: Namespace) -> int:
    """Measure, and write the page, also of what an interrupted survey has."""
    from ..survey.page import survey_machine

    folder = folder_of(arguments)
    print(survey_machine(Path(folder), arguments.budget, command_line(folder)))
    return 0
