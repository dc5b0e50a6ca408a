"""The process that measures one column of the table of `forktask infer`.

python -P -m forktask.experiments.training.infer_worker < job.json
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import plan_options
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.model import Plan
from ..machine import machine_peaks
from ..sampling.child import answer_job
from ..sampling.memory import what_fits_gpu
from ..sampling.models import MODELS, bind_for, convolution_for, make_executor, parse_model, storage_for
from .checkpoints import set_arrays, share_data
from .data import load_data
from .dataset import Dataset
from .safetensors import read_safetensors

WARMUP_S = 0.05
PEAK_S = 0.1
EVENTS_A_RUN = 200_000  # events of a run; the log is then read and emptied, which bounds its memory
FIRST_LOSSES = 16  # that devices are compared by
FUSION_TOLERANCE = 1e-5  # a fused and an unfused plan may add the same numbers in another order


class Pass:
    """A plan for so many images in batches, and its executor; an incomplete last batch has a plan of its own.

    Parameters
    ----------
    job : mapping
        "options" (fields of `PlanOptions`), "images", "model", "threads", "cpus".
    network : Network
        Of the data's image size and classes.
    data : Dataset
        Its images are taken in order, again from the beginning where there are too few.
    storage : Storage
        Owner of the parameters.
    phase : {"forward", "evaluate"}
    fusion : bool
    event_capacity : int
        Events that each worker can log; 0: no log.
    """

    def __init__(
        self,
        job,
        network: Network,
        data: Dataset,
        storage: Storage,
        phase: str,
        fusion: bool = True,
        event_capacity: int = 0,
    ):
        self.parts = []
        self._executors = ExitStack()
        images, batch = job["images"], job["options"]["batch"]
        order = np.arange(images, dtype=np.int32) % len(data.labels)
        whole = images // batch * batch
        for part, size in ((order[:whole], batch), (order[whole:], images - whole)):
            if not len(part):
                continue
            # Plans of other sizes, with and without fusion, share the parameters and nothing else.
            prefix = f"{phase}{size}{'f' if fusion else 'u'}."
            share_data(storage, data, prefix)
            rows = part.reshape(-1, size)
            options = plan_options(job["options"]).as_dict()
            options |= {"conv": convolution_for(job["model"], options["conv"]), "batch": size, "phase": phase}
            options |= {"fusion": "all" if fusion else "none"}
            make = partial(self._lower, network, len(data.labels), rows.size, prefix)
            bound = bind_for(job["model"], make(**options), storage, what_fits_gpu(options, storage, make))
            bound.arrays[f"{prefix}batch_order"][:] = rows
            executor = self._executors.enter_context(
                make_executor(job["model"], job["threads"], cpus=job["cpus"], event_capacity=event_capacity)
            )
            executor.prepare(bound)
            self.parts.append((prefix, bound, executor, len(rows)))

    @staticmethod
    def _lower(network: Network, num_images: int, count: int, prefix: str, *, batch: int, **options: Any) -> Plan:
        """Lower the plan for `count` of the data's images."""
        return lower(
            network,
            batch=batch,
            **options,
            num_images=num_images,
            num_batches=count // batch,
            num_iterations_logged=count // batch,
            prefix=prefix,
        )

    def close(self) -> None:
        """End all threads."""
        self._executors.close()

    def warm_up(self) -> None:
        """Run a few batches, for a short time at most."""
        start = time.perf_counter()
        for _, _, executor, count in self.parts:
            for iteration in range(min(count, 8)):
                executor.run(1, first_iteration=iteration)
                if time.perf_counter() - start > WARMUP_S:
                    break

    def run(self) -> float:
        """Run all images once and return the seconds."""
        start = time.perf_counter()
        for _, _, executor, count in self.parts:
            executor.run(count)
        return time.perf_counter() - start

    def run_logged(self) -> tuple[float, dict[str, float]]:
        """Run all images with the event log; return seconds, and busy seconds of each layer over all threads."""
        seconds, layers = 0.0, {}
        for _, bound, executor, count in self.parts:
            step = max(1, EVENTS_A_RUN // bound.num_tasks)
            for first in range(0, count, step):
                executor.workers.clear_events()
                start = time.perf_counter()
                executor.run(min(step, count - first), first_iteration=first)
                seconds += time.perf_counter() - start
                add_layer_times(bound.plan, executor.workers.events(), layers)
        return seconds, layers

    def results(self, name: str) -> np.ndarray:
        """Return the elements of a buffer (losses or probabilities) of all images, flat."""
        arrays = []
        for prefix, bound, _, _ in self.parts:
            known = f"{prefix}{name}" in bound.arrays
            arrays.append(np.ravel(bound.arrays[f"{prefix}{name}"] if known else bound.view(name)))
        return np.concatenate(arrays)


def add_layer_times(plan, events: np.ndarray, layers: dict[str, float]) -> None:
    """Add each event's duration, in seconds, to the time of its layer."""
    busy = np.bincount(
        plan.task_loop[events["task"]], (events["stop_ns"] - events["start_ns"]) * 1e-9, minlength=len(plan.loops)
    )
    for loop, seconds in zip(plan.loops, busy, strict=True):
        name = loop.layer or loop.name
        layers[name] = layers.get(name, 0.0) + float(seconds)


def sum_by_kind(layers: dict[str, float]) -> dict[str, float]:
    """Sum the seconds of conv1, conv2, layer1.0.conv1, ... by kind; the numbers in a name do not count."""
    sums: dict[str, float] = {}
    for layer, seconds in layers.items():
        words = [word for word in layer.split(".") if not word.isdigit()] or [layer]
        kind = words[-1].rstrip("0123456789")
        sums[kind] = sums.get(kind, 0.0) + seconds
    return sums


def measure_inference(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one column of the table in this process.

    Parameters
    ----------
    job : dict
        The keys of `Pass`, "network", "data", "checkpoint" (a path or None), "repeats": passes over all images, of
        which the one of median time counts.

    Returns
    -------
    dict
        Times in seconds, error rate (with a checkpoint), and a hash of losses and probabilities. "floor_s":
        floating-point operations (convolutions in their direct form) over the FMA peak of all cores, measured beside
        the runs.
    """
    start = time.perf_counter()
    spec, network = parse_model(job["model"]), get_network(job["network"])
    data = load_data(job["data"], network).with_channels(network.input_shape[0])
    network = data.fit(network)
    parameters = read_safetensors(job["checkpoint"])[0] if job["checkpoint"] else None
    loaded = time.perf_counter()
    storage = storage_for(job["model"])
    fused = Pass(job, network, data, storage, "forward")
    bound = fused.parts[0][1]
    if parameters is None:
        initialise(bound, 0)
    else:
        statistics = [name for name, buffer in bound.plan.buffers.items() if buffer.role == "statistic"]
        set_arrays(bound.arrays, parameters, [*bound.plan.attributes["parameters"], *statistics], job["checkpoint"])
    created = time.perf_counter()
    fused.warm_up()
    fused_s = sorted(fused.run() for _ in range(job["repeats"]))[job["repeats"] // 2]
    fused_probabilities = fused.results("softmax").copy()
    ending = time.perf_counter()
    fused.close()
    ended_s = time.perf_counter() - ending
    flops = sum(part.plan.flops * count for _, part, _, count in fused.parts)
    if bound.target == "gpu":
        peak = bound.device.peak_flops_per_s
    else:
        cores = min(job["threads"], len(os.sched_getaffinity(0)))
        peak = machine_peaks.measure_peak_flops(PEAK_S, bound.instruction_set)["flops_per_s"] * cores

    unfused = Pass(_logged(job), network, data, storage, "forward", fusion=False, event_capacity=EVENTS_A_RUN + 10_000)
    unfused.warm_up()
    passes = sorted((unfused.run_logged() for _ in range(job["repeats"])), key=lambda times: times[0])
    unfused_s, layers = passes[job["repeats"] // 2]
    unfused_probabilities = unfused.results("softmax").copy()
    unfused.close()
    if not np.allclose(fused_probabilities, unfused_probabilities, rtol=0, atol=FUSION_TOLERANCE):
        raise AssertionError("the plans with and without fusion give different probabilities")

    # The answers for every image, on which all models must agree.
    check = Pass(job, network, data, storage, "evaluate")
    check.run()
    losses, correct = check.results("losses"), check.results("correct")
    check.close()
    digest = hashlib.sha256()
    for array in (losses, correct, fused_probabilities, unfused_probabilities):
        digest.update(array.tobytes())
    instruction_set = bound.instruction_set
    releasing = time.perf_counter()
    del bound, fused, unfused, check, storage
    free_s = ended_s + time.perf_counter() - releasing
    return {
        "model": job["model"],
        "threads": job["threads"],
        "load_s": loaded - start,
        "create_s": created - loaded,
        "free_s": free_s,
        "layers_s": layers,
        "kinds_s": sum_by_kind(layers),
        "run_unfused_s": unfused_s,
        "run_fused_s": fused_s,
        "flops": flops,
        "peak_flops_per_s": peak,
        "floor_s": flops / peak,
        "total_unfused_s": created - start + unfused_s,
        "total_fused_s": created - start + fused_s,
        "error_rate": None if parameters is None else 1 - int(correct.sum()) / job["images"],
        "answers_hash": digest.hexdigest(),
        "reproducible": spec.model.reproducible,
        "answer": [float(loss) for loss in losses[:FIRST_LOSSES]],
        "instruction_set": f"{instruction_set}, {spec}" if spec.model.mixes_devices else instruction_set,
    }


def _logged(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job under which layers are timed: on a GPU one stream, bound alike, on one thread of the host."""
    spec = parse_model(job["model"])
    if spec.model.device == "cpu":
        return job
    binding = [f"{name}={value}" for name, value in spec.options if name in MODELS["gpu_stream"].all_options]
    return {**job, "model": ":".join(["gpu_stream", *binding]), "threads": 1, "cpus": None}


def _measure_job(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return measure_inference(job)
    except MemoryError as error:
        raise UsageError(f"not enough memory for {job['images']} images ({error}); use fewer") from error


if __name__ == "__main__":
    sys.exit(answer_job(_measure_job, usage_failure="usage"))
