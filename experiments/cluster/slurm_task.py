"""A task of a job array: it measures its shards on this node, into a folder of its own.

`python -m forktask.experiments.cluster.slurm_task ROUND`, in a batch script; the scheduler's variables say which task
it is, and which start of it. After SIGUSR1, before the time limit, it begins no further shard; SIGTERM ends it at once,
and what is measured is kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...cython_src.errors import UsageError
from ..results.files import write_atomically
from ..results.folder import read_results
from ..sweep.configuration import Shard, from_dict
from ..sweep.runner import SweepRunner
from ..sweep.shards import missing_shards
from ..tables.progress import say
from .slurm import BEGUN, JOB_ID, ArrayTask, job_id_of, name_of, read_job


def run_task(folder: Path, index: int, start: int) -> None:
    """Measure the shards of a task that its earlier starts have not. `folder`: of the round; `index`, `start`: number
    of the task, and how often it was begun again. Raises `UsageError`: what this node cannot do; a folder that cannot
    be written."""
    job, own = read_job(folder), folder / f"{index}.{start}"
    task = ArrayTask(folder, index, job.tasks[index])
    earlier = [read_results(path, "samples") for path in task.folders() if path != own]
    ending = []
    signal.signal(signal.SIGUSR1, lambda *_: ending.append(True))
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def shards() -> Iterator[Shard]:
        left = task.shards
        for results in earlier:
            left = missing_shards(left, results)
        for shard in left:
            if ending:
                say("the time limit is near: the rest is for another task")
                break
            write_atomically(own / BEGUN, name_of(shard))
            yield shard
        (own / BEGUN).unlink(missing_ok=True)  # what died before has begun a shard and not ended it

    configuration = replace(from_dict(job.configuration), how_to_read=job.how_to_read)
    SweepRunner(configuration, str(own), job.command, shards=shards()).run()


def main() -> int:
    """Run the task that the scheduler's variables name."""
    folder = Path(sys.argv[1])
    try:
        index, start = (int(os.environ.get(f"SLURM_{name}", "0")) for name in ("ARRAY_TASK_ID", "RESTART_COUNT"))
        if not job_id_of(folder) and (job_id := os.environ.get("SLURM_ARRAY_JOB_ID")):
            write_atomically(folder / JOB_ID, job_id)  # of a script that the user has submitted
        run_task(folder, index, start)
    except UsageError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
