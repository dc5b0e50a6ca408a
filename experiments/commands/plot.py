"""`forktask plot`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...cython_src.errors import UsageError

HELP = "draw one figure from the samples of a folder"
DESCRIPTION = "Draw one figure from samples.jsonl, with a caption text file beside it."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    parser.add_argument(
        "--figure",
        default="speedup",
        metavar="NAME",
        help="speedup (default), or another one of the report: layers, overhead, batch, ...",
    )
    parser.add_argument(
        "--phases", action="store_true", help="speedup and efficiency of load, forward, backward and update"
    )
    parser.add_argument("--column", default="double", help="double (7 in, default) or single (3.3 in)")
    parser.add_argument("--format", default="pdf", dest="kind", help="pdf (default), svg or png")
    parser.add_argument(
        "--plan",
        metavar="ID",
        help="plan to draw, by the first characters of its id; default: the one with most samples",
    )
    parser.add_argument("--file", metavar="FILE", help="default: DIR/figures/NAME[-single].FORMAT")


def call(arguments: Namespace) -> int:
    """Draw a figure and print its path."""
    if arguments.phases and arguments.figure != "speedup":
        raise UsageError(
            f"--phases belongs to --figure speedup, got --figure {arguments.figure}; leave one of them out"
        )
    from ..report.files import plot_folder

    print(
        plot_folder(
            arguments.folder,
            "phases" if arguments.phases else arguments.figure,
            column=arguments.column,
            kind=arguments.kind,
            plan=arguments.plan,
            out=arguments.file,
        )
    )
    return 0
