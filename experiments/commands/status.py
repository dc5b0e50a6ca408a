"""`forktask status`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from .arguments import add_json, show

DESCRIPTION = (
    "Say what a results folder holds, what is missing and which command continues it; of a sweep on Slurm also how "
    "many shards run, wait and were lost, by the folder and the queue."
)
NOTHING = "nothing was measured yet; the command that began this folder, given again, goes on"
WATCH_S = 10.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results folder of compare or run")
    parser.add_argument("--watch", action="store_true", help="repeat until no job is left")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Print the status, with --watch until no job is left."""
    from ..cluster.slurm import describe_jobs, jobs_text
    from ..results.folder import read_results
    from ..sweep.status import describe_status, status_text

    while True:
        results = read_results(arguments.folder)
        if results.rows:
            results.run.check_holds("samples", arguments.folder)
        jobs = describe_jobs(arguments.folder)
        result: dict[str, Any] = {**(describe_status(results) if results.rows else {}), "jobs": jobs}
        rows = status_text if results.rows else lambda _: NOTHING
        show(arguments, result, lambda result, jobs=jobs, rows=rows: "\n".join([*jobs_text(jobs), rows(result)]))
        if not arguments.watch or not jobs or not jobs["running"] + jobs["queued"]:
            return 0
        time.sleep(WATCH_S)
