"""Rate and memory of the ways to load image files: alone by Python's usual means, and as part of a training step.

python -P -m forktask.experiments.training.loading < job.json
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks.registry import get_network
from ..machine.topology import available_cpus
from ..sampling.child import answer_job, clean_environment, run_sample, sample_environment
from ..sampling.measured_memory import peak_resident_bytes, resident_bytes
from ..sampling.memory import format_bytes
from ..sampling.models import check_counts, check_threads, parse_models
from .config import TrainingConfig
from .data import load_data
from .dataset import Dataset
from .folders import LOADS
from .trainer import Trainer

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.training.loading")
TIME_LIMIT_S = 3600.0
TRAINING = "training alone"
WITHOUT_TORCH = "PyTorch's DataLoader is left out: PyTorch is not installed; pip install 'forktask[peers]'"


def ways(threads: int, models: Sequence[str]) -> list[str]:
    """Return the names of all ways: a loop on one thread, joblib, PyTorch's loader where PyTorch is installed, and
    loading within the step of each model, beside training on images that are in memory."""
    workers = dict.fromkeys((0, 1, threads) if find_spec("torch") else ())
    return [
        "one thread",
        f"joblib, {threads} threads",
        *(f"DataLoader, {count} workers" for count in workers),
        *(f"{TRAINING}, {model}" for model in models),
        *(f"in the step, {model}" for model in models),
    ]


def measure_way(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one way in this process.

    Parameters
    ----------
    job : mapping
        "way", of `ways`; "config": fields of `TrainingConfig`.

    Returns
    -------
    dict
        "images_per_s"; "peak_bytes" (of this process) and its parts "python_bytes" (Python and libraries before there
        are data) and "loader_bytes" (what came with data and loader); "workers_bytes" (of the largest worker process,
        times their number).
    """
    python = resident_bytes()
    config, way = TrainingConfig(**job["config"]), job["way"]
    kind, _, detail = way.partition(", ")
    count = int(detail.split()[0]) if detail and detail[0].isdecimal() else 0
    if kind in (TRAINING, "in the step"):
        config = config.with_changes(model=detail, load="memory" if kind == TRAINING else config.load)
    data = load_data(config.data, get_network(config.network), config.image_options())
    parts = {"python_bytes": python, "loader_bytes": max(resident_bytes() - python, 0)}
    if kind in (TRAINING, "in the step"):
        with Trainer(config, data, 0) as trainer:
            trainer.train_epoch()  # also touches what only the first epoch touches
            before = trainer.history[-1]["time_s"]
            seconds = trainer.train_epoch()["time_s"] - before
            done = trainer.num_batches * config.batch
        return {"images_per_s": done / seconds, "peak_bytes": peak_resident_bytes(), **parts, "workers_bytes": 0}
    order = data.train[: len(data.train) // config.batch * config.batch].reshape(-1, config.batch)
    load: Callable[[Dataset, np.ndarray, int], float] = {
        "one thread": _load_in_turn,
        "joblib": _load_with_joblib,
        "DataLoader": _load_with_torch,
    }[kind]
    seconds = load(data, order, count)
    workers = _largest_child_bytes() * count if kind == "DataLoader" else 0
    peak = peak_resident_bytes()
    parts["loader_bytes"] = max(peak - python, 0)
    return {"images_per_s": order.size / seconds, "peak_bytes": peak, **parts, "workers_bytes": workers}


def _load_in_turn(data: Dataset, order: np.ndarray, count: int) -> float:
    batch = np.empty((order.shape[1], *data.images.shape[1:]), np.float32)
    start = time.perf_counter()
    for numbers in order.tolist():
        for out, number in zip(batch, numbers, strict=True):
            data.source.read(number, out)
    return time.perf_counter() - start


def _load_with_joblib(data: Dataset, order: np.ndarray, count: int) -> float:
    from joblib import Parallel, delayed

    batch = np.empty((order.shape[1], *data.images.shape[1:]), np.float32)
    with Parallel(n_jobs=count, prefer="threads") as parallel:
        start = time.perf_counter()
        for numbers in order.tolist():
            parallel(delayed(data.source.read)(number, out) for out, number in zip(batch, numbers, strict=True))
        return time.perf_counter() - start


class _Images:
    """Images in the order of a training epoch, as PyTorch's loader indexes them."""

    def __init__(self, data: Dataset, order: np.ndarray):
        self.data, self.order = data, order.ravel()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        out = np.empty(self.data.images.shape[1:], np.float32)
        self.data.source.read(int(self.order[index]), out)
        return out, int(self.data.labels[self.order[index]])


def _load_with_torch(data: Dataset, order: np.ndarray, count: int) -> float:
    from torch.utils.data import DataLoader

    # Workers are forked before any thread of ours runs: the usual way, and the quickest to start.
    loader = DataLoader(_Images(data, order), batch_size=order.shape[1], num_workers=count)
    start = time.perf_counter()
    found = sum(len(labels) for _, labels in loader)
    seconds = time.perf_counter() - start
    if found != order.size:
        raise AssertionError(f"PyTorch's loader gave {found} of {order.size} images")
    return seconds


def _largest_child_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def compare_loading(
    config: TrainingConfig, models: Sequence[str], report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure all ways, each in a fresh process.

    Parameters
    ----------
    config : TrainingConfig
        Image files, with `load` "cache" or "files".
    models : sequence of str
        Specs of execution models that load within their steps.
    report : callable
        Takes the name of each way before it is measured.

    Returns
    -------
    dict
        "config"; "left_out", sentences; "rows": {"way", "images_per_s", "peak_bytes", "workers_bytes"} or {"way",
        "failure", "message"}.
        Ways within the step also have "share_of_lower", the rate over the lower of the highest rate of loading alone
        and the rate of training alone under the same model, and "share_of_both", over the rate of the two one after
        the other on the same cores, which overlap cannot beat where both keep all cores busy.
    """
    if config.load == "memory":
        raise UsageError(f"--load must be one of {', '.join(LOADS[1:])} to be measured, got memory; use --load files")
    check_threads(config.threads)
    check_counts(parse_models(models), [config.threads])
    settings = sample_environment(config.threads, 0, len(available_cpus()))
    rows = []
    for way in ways(config.threads, models):
        report(way)
        job = {"way": way, "config": config.as_dict(), "cpus": None}
        rows.append({"way": way, **run_sample(job, clean_environment(os.environ, settings), TIME_LIMIT_S, COMMAND)})
        if len(rows) == 1 and rows[0].get("failure") == "usage":
            raise UsageError(rows[0]["message"])  # all ways need these data
    rates = {row["way"]: row["images_per_s"] for row in rows if "failure" not in row}
    alone = max(
        (rate for way, rate in rates.items() if ", " not in way or way.startswith(("joblib", "Data"))), default=0
    )
    for row in rows:
        model = row["way"].partition(", ")[2]
        training = rates.get(f"{TRAINING}, {model}")
        if row["way"].startswith("in the step") and "failure" not in row and alone and training:
            row["share_of_lower"] = row["images_per_s"] / min(alone, training)
            row["share_of_both"] = row["images_per_s"] * (1 / alone + 1 / training)
    left_out = [] if find_spec("torch") else [WITHOUT_TORCH]
    return {"config": config.as_dict(), "rows": rows, "left_out": left_out}


def as_text(result: Mapping[str, Any]) -> str:
    """Format the result of `compare_loading` for a terminal."""
    config = result["config"]
    lines = [
        f"{config['network']} on {config['data']}, --load {config['load']}, batch {config['batch']}, "
        f"{config['threads']} threads",
        "",
        f"{'':44}{'images/s':>10}{'of lower':>10}{'of both':>9}{'memory':>12}{'Python':>10}{'loader':>10}"
        f"{'workers':>10}",
    ]
    for row in result["rows"]:
        if "failure" in row:
            lines.append(f"{row['way']:44}{row['failure']}: {row['message']}")
            continue
        lower, both = (f"{row[name]:.2f}" if name in row else "" for name in ("share_of_lower", "share_of_both"))
        workers = format_bytes(row["workers_bytes"]) if row["workers_bytes"] else ""
        python, loader = (format_bytes(row[name]) for name in ("python_bytes", "loader_bytes"))
        lines.append(
            f"{row['way']:44}{row['images_per_s']:10.1f}{lower:>10}{both:>9}{format_bytes(row['peak_bytes']):>12}"
            f"{python:>10}{loader:>10}{workers:>10}"
        )
    lines += [
        "",
        *result["left_out"],
        "of lower: rate in the step over the lower of the best rate of loading alone and the rate of training alone.",
        "of both: over the rate of the two one after the other on the same cores. memory: most that was resident in",
        "the process; Python: before there were data; loader: what came with data and loader, PyTorch's or joblib's",
        "code too; the rest is the training's. workers: of the largest worker process, times their number.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(answer_job(measure_way, usage_failure="usage"))
