"""One run of a study in a process of its own: python -P -m forktask.experiments.studies.one_run < job.json"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sampling.child import answer_job
from ..sampling.measured_memory import resident_bytes
from ..training.config import TrainingConfig
from ..training.train import MARKER, train

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
        "stages": the summary of each, with "history"; "libraries_bytes": resident memory before the training.
    """
    libraries = resident_bytes()
    folder, stages = Path(job["folder"]), []
    for number, values in enumerate(job["stages"]):
        out = folder / f"stage-{number}"
        config = TrainingConfig(**{**values, "out": str(out)})
        if number:
            config = config.with_changes(
                start=str(folder / f"stage-{number - 1}" / f"parameters-seed-{config.seed}.safetensors")
            )
        # Drawing would load libraries that take more memory than many networks, and a later stage would count them.
        resume = (out / MARKER).exists()
        summary = train(config, resume=resume, report=lambda line: print(line, file=sys.stderr), draw=False)
        stages.append({**summary, "history": _read_history(out / "epochs.csv")})
    return {"stages": stages, "libraries_bytes": libraries}


def _read_history(path: Path) -> list[dict[str, float]]:
    """Rows of the epochs that `train` left."""
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


if __name__ == "__main__":
    sys.exit(answer_job(train_stages, usage_failure="usage"))
