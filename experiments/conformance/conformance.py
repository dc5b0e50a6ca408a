"""Whether a model conforms: each case in a process of its own, which may crash or hang without harm."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ...cython_src.errors import UsageError
from ..machine.topology import available_cpus
from ..sampling.child import MeasuringProcess, ProcessFailure, clean_environment, sample_environment
from ..subjects.models import ModelSpec, counts_for, process_environment
from .cases import CASES

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.conformance.cases")
LIMIT_S = 30.0  # of a step of a case
THREADS = (1, 2, 3, 4)


def check_model(
    spec: ModelSpec, threads: Sequence[int] = THREADS, limit_s: float = LIMIT_S
) -> Iterator[dict[str, Any]]:
    """Yield a row for each case: `case`, `rule`, and `fault`, None where the model keeps the rule. A case that crashes
    or never ends is the last. Raises `UsageError`: a model of a GPU or another program, which runs no plans on
    threads."""
    if spec.is_gpu or spec.is_peer:
        raise UsageError(f"check-model takes models that run plans on threads of the CPU, got {spec}; name another one")
    counts = sorted(counts_for(spec, threads))
    settings = sample_environment(counts[-1], 0, len(available_cpus()), "passive")
    environment = clean_environment(os.environ, {**settings, **process_environment(spec)})
    for case, function in CASES.items():
        job = {"model": str(spec), "case": case, "threads": counts, "cpus": None}
        ended, tried = True, ""
        with MeasuringProcess(job, environment, limit_s, COMMAND) as process:
            try:
                while (reply := process.ask(None, limit_s) if tried else process.answer())["tries"]:
                    tried = reply["tries"]
                fault = reply["fault"]
            except ProcessFailure as failure:
                ended, fault = False, f"{failure.row['failure']}: {str(failure).splitlines()[0]} ({tried})"
        yield {"case": case, "rule": (function.__doc__ or "").rstrip("."), "fault": fault}
        if not ended:
            return
