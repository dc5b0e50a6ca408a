"""What runs on a worker of a Dask cluster: shards, each in a child process, so that the worker goes on answering.

The child dies with the worker's thread that waits for it, and what it measures dies with the child.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from ...cython_src.kernels.simd import instruction_sets
from ..machine.environment import version_text
from ..results.rows import values_of
from ..sampling.child import MeasuringProcess, ProcessFailure, answer_job
from ..sweep.configuration import Shard, from_dict
from ..sweep.shards import Site

SHARD_COMMAND = ("-P", "-m", "forktask.experiments.cluster.dask_worker")  # arguments of the worker's Python
STOPPED = ("profile", "profile-cycle", "tick", "ticks")  # a worker's own periodic calls, some every 10 ms
UNCHANGED = ("heartbeat", "keep-alive")
SLOW_MS = 10_000  # period of all others
_measuring: set[MeasuringProcess] = set()


def greet(dask_worker: Any) -> dict[str, Any]:
    """Slow down what the worker does by itself; return what decides whether it may measure."""
    for name, calls in dask_worker.periodic_callbacks.items():
        if name in STOPPED:
            calls.stop()
        elif name not in UNCHANGED:
            calls.callback_time = max(calls.callback_time, SLOW_MS)
    return {
        "version": version_text(),
        "instruction_sets": [*instruction_sets.available()],
        "host": platform.node(),
        "is_watched": any(thread.name == "Profile" for thread in threading.enumerate()),
    }


def measure_shard(job: Mapping[str, Any], limit_s: float, command: Sequence[str]) -> dict[str, Any]:
    """Measure a shard in a child process.

    Parameters
    ----------
    job : mapping
        As for `measure_job`.
    command : sequence of str
        Arguments of Python that start the child.

    Returns
    -------
    dict
        {"rows": list of rows as JSON values}, or {"failure": reason, "message": ...}.
    """
    import dask

    # What Dask's nanny has set for the worker is no choice of the user's.
    of_nanny = dask.config.get("distributed.nanny.pre-spawn-environ")
    environment = {name: value for name, value in os.environ.items() if str(of_nanny.get(name)) != value}
    with MeasuringProcess({"cpus": None, **job}, environment, limit_s, (sys.executable, *command)) as process:
        _measuring.add(process)
        try:
            return process.row()
        except ProcessFailure as failure:
            return failure.row
        finally:
            _measuring.discard(process)


def end_shards() -> None:
    """End the children; run on the worker when their rows are no longer wanted."""
    for process in [*_measuring]:
        process.kill()


def measure_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a shard in this process. `job`: "configuration" and "how_to_read"; "shard"; "command": the user's;
    "folder": where it was given; "begin": whether rows of run, machine and plans come first."""
    with suppress(OSError):  # Files of the user's own networks are named from there.
        os.chdir(job["folder"])
    site = Site(replace(from_dict(job["configuration"]), how_to_read=job["how_to_read"]))
    rows = [site.run_row(job["command"]), site.machine_row(), *site.plans.values()] if job["begin"] else []
    rows += site.measure(msgspec.convert(job["shard"], Shard))
    return {"rows": [values_of(row) for row in rows]}


if __name__ == "__main__":
    sys.exit(answer_job(measure_job, "usage"))
