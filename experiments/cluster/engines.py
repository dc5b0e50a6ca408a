"""Engines by the names that `forktask run --on` has for them, and a whole sweep that one of them measures."""

from __future__ import annotations

from contextlib import nullcontext

from ...cython_src.errors import UsageError
from ..results.folder import ResultsWriter
from ..sweep.comparison import Compared, judge
from ..sweep.configuration import Configuration
from ..sweep.status import describe_status, undecided
from ..tables.progress import continued_by, say
from .client import measure_on, next_shards
from .dask_engine import DaskEngine
from .slurm import SlurmEngine, check_program

SLURM = "slurm"


def check_engine(name: str, configuration: Configuration, trace: bool) -> None:
    """Raise `UsageError` for an unknown engine, and for settings that engines do not support."""
    kind, _, address = name.partition(":")
    if name != SLURM and not (kind == "dask" and address):
        raise UsageError(f"--on must be slurm or dask:ADDRESS, such as dask:tcp://10.0.0.1:8786, got {name!r}")
    if configuration.measure.sessions > 1:
        raise UsageError(
            f"sessions are of one machine, got {configuration.measure.sessions} with --on, where each node's start is "
            f"one; leave sessions out"
        )
    if trace or configuration.measure.inject:
        raise UsageError(
            "traces are of one machine, got --trace or inject with --on; leave it out, and trace on a node without --on"
        )


def measure_by(
    name: str, configuration: Configuration, out_dir: str, command: str, *, detach: bool = False
) -> Compared | None:
    """Measure a sweep by an engine, and say what failed; None: jobs were submitted and go on by themselves. `command`:
    the user's, which continues the sweep."""
    if name == SLURM:
        check_program("sbatch")  # before there is a folder
        chosen = nullcontext(SlurmEngine(configuration, out_dir, command, wait=not detach))
    else:
        chosen = DaskEngine(name.partition(":")[2], configuration, command)
    kept = "what was measured is kept" + ", and jobs go on" * (name == SLURM)
    with chosen as engine, continued_by(command, lambda: kept):
        results = measure_on(engine, configuration, out_dir, undecided=undecided)
    if results is None:
        text = f"submitted; `forktask status {out_dir}` shows its progress"
        say(f"{text}, and this command fetches the results: {command}")
        return None
    compared = judge(results)
    for line in compared.failures:
        say(line)
    status = describe_status(results)
    if status["samples_missing"] or status["profiles_missing"]:
        say(f"some shards were lost. To submit them again: {command}")
        compared.complete = False
    return compared


def write_batch(configuration: Configuration, out_dir: str, command: str) -> str:
    """Write Slurm's batch script of what is missing, and return the command that submits it."""
    engine = SlurmEngine(configuration, out_dir, command, wait=False)
    with ResultsWriter(out_dir) as writer:
        shards = next_shards(configuration, writer.results, undecided, set())
        return f"sbatch {engine.write_script(shards)}/batch.sh" if shards else "nothing is missing"
