"""`forktask diagnose`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, show

HELP = "say what costs time, what to try, and what that would gain"
DESCRIPTION = (
    "Look through the results of compare or run, and the event logs of trace, for what costs time: chains of dependent "
    "blocks, imbalance, barriers, creation, block sizes, bandwidth, outliers. Gains are estimated by simulation."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    add_json(parser, "the findings")


def call(arguments: Namespace) -> int:
    """Print the findings."""
    from ..report.findings import diagnose_folder, format_findings

    show(arguments, diagnose_folder(arguments.folder), format_findings)
    return 0
