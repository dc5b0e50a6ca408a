"""`forktask export`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

HELP = "write results for other tools: CSV, Parquet, Extra-P, TALP, LaTeX"
DESCRIPTION = "Write the results of a folder in the formats of other tools, to DIR/exports."
_KINDS = {
    "csv": "raw samples, a row each",
    "parquet": "the same as Parquet; needs pyarrow, extra `parquet`",
    "extra-p": "step times over threads and swept numbers, as Extra-P's JSON",
    "talp": "POP metrics of the logged runs, in the form of DLB's TALP",
    "latex": "the table of models and threads of every plan, for booktabs",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    for kind, text in _KINDS.items():
        parser.add_argument(f"--{kind}", dest="kinds", action="append_const", const=kind, help=text)


def call(arguments: Namespace) -> int:
    """Write the exports and print their paths."""
    from ..report.exports import export_folder

    for path in export_folder(arguments.folder, arguments.kinds or []):
        print(path)
    return 0
