"""Loading image files alone, by Python's usual means, in addition to the runs of a study that load in their steps.

python -P -m forktask.experiments.studies.loaders < job.json
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...cython_src.errors import optional
from ...cython_src.networks.registry import get_network
from ..machine.disturbance import Disturbance, peak_resident_bytes, resident_bytes
from ..results.disturbance import SPAN_S, undisturbed
from ..sampling.child import answer_job
from ..training.config import TrainingConfig
from ..training.data import load_data
from ..training.dataset import Dataset
from .configuration import Study

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.studies.loaders")
EPOCHS = 3  # of each way at least, whose median counts; more where they are short
# Fields of a run that loading alone depends on.
CONDITIONS = ("network", "data", "image_size", "load", "decoder", "broken", "cache", "batch", "threads")


def jobs(study: Study) -> list[dict[str, Any]]:
    """Return what is measured, if the study asks for it: a loop, joblib's threads and PyTorch's loader for each way in
    which runs load."""
    configs = [run.stages[0] for run in study.trainings() if study.options.loaders and run.stages[0].load != "memory"]
    conditions = {tuple(getattr(config, name) for name in CONDITIONS): config.threads for config in configs}
    return [
        {"way": way, "count": count, "config": dict(zip(CONDITIONS, values, strict=True))}
        for values, threads in conditions.items()
        for way, count in (("loop", 1), ("joblib", threads), *(("DataLoader", n) for n in sorted({0, 1, threads})))
    ]


def measure_loader(job: Mapping[str, Any]) -> dict[str, Any]:
    """Load all training images of some epochs, in this process; return the fields of a `LoadingRow`."""
    libraries = resident_bytes()
    config, count = TrainingConfig(**job["config"]), job["count"]
    data = load_data(config.data, get_network(config.network), config)
    order = data.train[: len(data.train) // config.batch * config.batch].reshape(-1, config.batch)
    load = {"loop": _load_in_turn, "joblib": _load_with_joblib, "DataLoader": _load_with_torch}[job["way"]]
    times: list[float] = []
    disturbances: list[dict[str, Any]] = []
    while len(times) < EPOCHS or sum(times) < SPAN_S:
        disturbance = Disturbance()
        before, workers_before = disturbance.read(), _ended_workers_us()
        times.append(load(data, order, count))
        lost = disturbance.since(before)
        if lost["others_us"] is not None:  # worker processes end with their epoch, and disturb nobody but themselves
            lost["others_us"] -= _ended_workers_us() - workers_before
        disturbances.append(lost)
    usable = undisturbed(times, disturbances)
    kept = [time for time, quiet in zip(times, usable, strict=True) if quiet]
    largest = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak = max(peak_resident_bytes(), libraries)  # the kernel keeps the peak less exactly than the memory of now
    return {
        "images_per_s": order.size / float(np.median(kept or times)),
        "epoch_time_s": times,
        "usable": usable,
        "peak_bytes": peak,
        "libraries_bytes": libraries,
        "loader_bytes": peak - libraries,
        "workers_bytes": largest * count if job["way"] == "DataLoader" else 0,
    }


def _ended_workers_us() -> float:
    """CPU time of the worker processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e6 * (used.ru_utime + used.ru_stime)


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
    data_loader = optional("torch.utils.data", "the loader of PyTorch", "peers").DataLoader
    # Workers are forked before any thread of ours runs: the usual way, and the quickest to start.
    loader = data_loader(_Images(data, order), batch_size=order.shape[1], num_workers=count)
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(answer_job(measure_loader, usage_failure="usage"))
