"""`forktask overlay`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, show

HELP = "two results side by side: two machines, two commits, processor and GPU"
DESCRIPTION = (
    "Draw times and speedups of two results folders of the same network, batch and phase in one figure, or two folders "
    "of forktask trace on one time axis, with peak and capacity of each machine, and print the ratios of their times."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", metavar="DIR", help="results folder of compare or run, or folder of trace")
    parser.add_argument("second", metavar="OTHER", help="another one")
    parser.add_argument("--file", metavar="FILE", help="the figure; default: overlay-of-two.svg in DIR or its figures")
    add_json(parser, "the ratios")


def call(arguments: Namespace) -> int:
    """Compare and draw."""
    from ...cython_src.errors import UsageError
    from ..report.two_results import format_overlay, overlay_folders
    from ..report.two_traces import is_trace_folder, overlay_traces

    folders = (arguments.first, arguments.second)
    traced = [is_trace_folder(folder) for folder in folders]
    if traced[0] != traced[1]:
        raise UsageError(
            f"both folders must hold results, or both traces, got traces in {folders[traced.index(True)]!r} alone; "
            f"name another one"
        )
    overlay = overlay_traces if all(traced) else overlay_folders
    show(arguments, overlay(*folders, arguments.file), format_overlay)
    return 0
