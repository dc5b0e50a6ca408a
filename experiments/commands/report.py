"""`forktask report`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json

HELP = "write summary, figures and report.html again from the samples of a folder"
DESCRIPTION = "Write summary.csv, figures/ and report.html again from samples.jsonl, and print the tables."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    add_json(parser, "the tables")


def call(arguments: Namespace) -> int:
    """Write the report again."""
    from ..report.files import report_folder

    print(report_folder(arguments.folder, arguments.json))
    return 0
