"""`forktask overlay`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, show

HELP = "two results side by side: two machines, two commits, processor and GPU"
DESCRIPTION = (
    "Draw times and speedups of two results folders of the same network, batch and phase in one figure, with peak and "
    "capacity of each machine, and print the ratios of their times."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", metavar="DIR", help="results folder of compare, run or trace")
    parser.add_argument("second", metavar="OTHER", help="another one")
    parser.add_argument("--file", metavar="FILE", help="the figure; default: DIR/figures/overlay-of-two.svg")
    add_json(parser, "the ratios")


def call(arguments: Namespace) -> int:
    """Compare and draw."""
    from ..report.two_results import format_overlay, overlay_folders

    show(arguments, overlay_folders(arguments.first, arguments.second, arguments.file), format_overlay)
    return 0
