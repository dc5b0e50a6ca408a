"""`forktask merge`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...cython_src.errors import UsageError
from .arguments import add_json, show

DESCRIPTION = (
    "Join results folders of one configuration, such as those that the nodes of a cluster left: each generation once. "
    "The folders stay as they are; `forktask report` makes the page of the joined one. Surveys of several machines are "
    "copied into one folder, whose page has a row for each."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ..results.nodes import NODES

    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a results folder, or a survey")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="the joined folder; new, or with results of this configuration"
    )
    parser.add_argument(
        "--nodes", choices=NODES, default="", help="whether several nodes may be joined; default: as measured"
    )
    add_json(parser, "numbers of rows, or a row for each survey")


def call(arguments: Namespace) -> int:
    """Join, and say what was."""
    from pathlib import Path

    from ..cluster.merge import merge_folders
    from ..survey import surveys_in

    if any(surveys_in(Path(folder)) for folder in arguments.folders):
        from ..survey.joined import join_surveys

        if arguments.nodes:
            raise UsageError(f"--nodes is for results folders, got {arguments.nodes!r} with surveys; leave it out")
        print(join_surveys(arguments.folders, arguments.out, arguments.json))
        return 0
    merged = merge_folders(arguments.folders, arguments.out, arguments.nodes)
    text = f"{arguments.out}: {merged.text}"
    show(arguments, {"folder": arguments.out, "rows": merged.rows, "dropped": merged.dropped}, lambda _: text)
    return 0
