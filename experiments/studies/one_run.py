"""One run of a study in a process of its own: python -P -m forktask.experiments.studies.one_run < job.json"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..results.training_rows import Stage
from ..sampling.child import answer_job
from ..training.config import TrainingConfig
from ..training.train import histories_of, train

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.studies.one_run")


def train_stages(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train the stages of a run, from where an earlier process ended.

    Parameters
    ----------
    job : mapping
        "stages": fields of `TrainingConfig`, in order; "folder".

    Returns
    -------
    dict
        "stages", as a `TrainingRow` has them.
    """
    folder, stages = Path(job["folder"]), []
    for number, values in enumerate(job["stages"]):
        out = folder / f"stage-{number}"
        config = TrainingConfig(**{**values, "out": str(out)})
        if stages:
            config = config.with_changes(start=str(folder / f"stage-{number - 1}" / stages[-1].end.parameters))
        # Drawing would load libraries that take more memory than many networks, and a later stage would count them.
        resume = any(out.glob("checkpoint-*"))
        summary = train(config, resume=resume, report=lambda line: print(line, file=sys.stderr), draw=False)
        (history,) = histories_of(out).values()
        stages.append(Stage(summary=summary, history=history))
    return msgspec.to_builtins({"stages": stages})


if __name__ == "__main__":
    sys.exit(answer_job(train_stages, usage_failure="usage"))
