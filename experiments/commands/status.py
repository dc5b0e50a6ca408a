"""`forktask status`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, show

HELP = "what a results folder holds, what is missing, how to go on"
DESCRIPTION = "Say what a results folder holds, what failed, what is missing, and which command goes on."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Describe a results folder."""
    from ..results.folder import read_results
    from ..sweep.status import describe_status, status_text

    results = read_results(arguments.folder)
    if not results.rows:
        print("no row has been written completely; give the command that began it again")
        return 0
    show(arguments, describe_status(results), status_text)
    return 0
