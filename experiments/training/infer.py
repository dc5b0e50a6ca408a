"""The forward pass over many images, with the time of each layer.

The table follows the OpenACC study of this network: conv1, relu1, pool1, ... softmax, sums by kind, load,
create, total. Layers are timed on a plan without fusion, block by block from the event log; on a GPU launch by launch
on one stream, as a captured graph hides them. The usual plan fuses convolution, ReLU and pooling; its time stands
beside the other's. Each column is measured in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import MachineError, UsageError
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import PlanOptions, describe, plan_options
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ..machine import machine_peaks
from ..machine.topology import cpu_order
from ..sampling.child import answer_job, clean_environment, run_sample, sample_environment
from ..sampling.models import (
    MODELS,
    bind_for,
    check_threads,
    convolution_for,
    counts_for,
    make_executor,
    parse_model,
    parse_models,
    storage_for,
)
from ..sampling.progress import ProgressBar
from .checkpoints import set_arrays, share_data
from .data import load_data
from .dataset import Dataset
from .safetensors import read_safetensors

WARMUP_S = 0.05
PEAK_S = 0.1
EVENTS_A_RUN = 200_000  # events of a run; the log is then read and emptied, which bounds its memory
TIME_LIMIT_S = 600.0
FIRST_LOSSES = 16  # that devices are compared by
# A fused and an unfused plan may add the same numbers in another order.
FUSION_TOLERANCE = 1e-5
DEVICE_TOLERANCE = 1e-3
CHILD_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.training.infer")


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
            options = plan_options(job["options"])
            plan = lower(
                network,
                options,
                conv=convolution_for(job["model"], options.conv),
                batch=size,
                phase=phase,
                fusion="all" if fusion else "none",
                num_images=len(data.labels),
                num_batches=len(rows),
                num_iterations_logged=len(rows),
                prefix=prefix,
            )
            bound = bind_for(job["model"], plan, storage)
            bound.arrays[f"{prefix}batch_order"][:] = rows
            executor = self._executors.enter_context(
                make_executor(job["model"], job["threads"], cpus=job["cpus"], event_capacity=event_capacity)
            )
            executor.prepare(bound)
            self.parts.append((prefix, bound, executor, len(rows)))

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
        "total_unfused_s": loaded - start + created - loaded + unfused_s,
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


def infer(
    network: str,
    options: PlanOptions,
    images: int,
    models: Sequence[str],
    threads: Sequence[int],
    *,
    data: str = "digits",
    checkpoint: str | None = None,
    repeats: int = 3,
    progress=None,
) -> dict[str, Any]:
    """Measure all columns of one table, each in a fresh process.

    Parameters
    ----------
    network : str
    options : PlanOptions
        Options of the plan; the function sets phase and fusion.
    images : int
    models : sequence of str
        Specs of execution models; a model of one thread has one column.
    threads : sequence of int
    data : str
        Spec of a data set, whose images are used in turn.
    checkpoint : str, optional
        safetensors file with the parameters; default: random ones.
    repeats : int
        Passes over all images; the one of median time counts.
    progress : callable, optional
        Called with the name of each column before it is measured.

    Returns
    -------
    dict
        The conditions and "columns": results of `measure_inference`.

    Raises
    ------
    UsageError
        A column could not be measured.
    RuntimeError
        Two models of one device disagree about losses or probabilities.
    """
    cores = len(os.sched_getaffinity(0))
    columns = []
    for spec in parse_models(list(models)):
        for count in counts_for(spec, threads):
            if progress is not None:
                progress(f"{spec}, {count} threads")
            job = {
                "network": network,
                "options": options.as_dict(),
                "images": images,
                "model": str(spec),
                "threads": count,
                "cpus": cpu_order(count, oversubscribe=True),
                "data": data,
                "checkpoint": checkpoint,
                "repeats": repeats,
            }
            settings = sample_environment(count, 0, cores)
            column = run_sample(job, clean_environment(os.environ, settings), TIME_LIMIT_S, CHILD_COMMAND)
            if column.get("failure") == "usage":
                raise UsageError(column["message"])
            if "failure" in column:
                message = column["message"].splitlines()[0]
                raise MachineError(f"{spec} on {count} threads could not be timed: {column['failure']}: {message}")
            columns.append(column)
    # Devices, and forms of a GPU's kernels, add in other orders.
    firsts: dict[str, dict[str, Any]] = {}
    for column in columns:
        first = firsts.setdefault(column["instruction_set"], column)
        alike = np.allclose(column["answer"], columns[0]["answer"], rtol=DEVICE_TOLERANCE, atol=0)
        if (column["reproducible"] and column["answers_hash"] != first["answers_hash"]) or not alike:
            raise RuntimeError(
                f"{column['model']} on {column['threads']} threads and {first['model']} on {first['threads']} give "
                "different losses or probabilities; no time is shown"
            )
    return {
        "network": network,
        **{k: v for k, v in options.as_dict().items() if k not in ("phase", "fusion")},
        "images": images,
        "data": data,
        "checkpoint": checkpoint,
        "repeats": repeats,
        "columns": columns,
    }


def format_table(result: dict[str, Any]) -> str:
    """Format the result as text: a row for each layer, a column for each model and thread count."""
    columns = result["columns"]
    others = "".join(f", {text}" for text in [describe(plan_options(result), leave_out=("batch",))] if text)
    heads = [f"{column['model']} x{column['threads']}" for column in columns]
    width = max(10, *(len(head) + 2 for head in heads))

    def line(label: str, values) -> str:
        return label.ljust(28) + "".join(f"{value:{width}.4f}" for value in values)

    rows = [f"{'seconds':28}" + "".join(head.rjust(width) for head in heads)]
    for layer in columns[0]["layers_s"]:
        rows.append(line(layer, [column["layers_s"][layer] for column in columns]))
    rows.append("")
    for kind in columns[0]["kinds_s"]:
        rows.append(line(f"all {kind}", [column["kinds_s"][kind] for column in columns]))
    rows.append("")
    for label, name in (
        ("load", "load_s"),
        ("create", "create_s"),
        ("run, a loop a layer", "run_unfused_s"),
        ("total, a loop a layer", "total_unfused_s"),
        ("run, fused", "run_fused_s"),
        ("total, fused", "total_fused_s"),
        ("free", "free_s"),
    ):
        rows.append(line(label, [column[name] for column in columns]))
    rows.append(
        f"{'images/s, fused':28}" + "".join(f"{result['images'] / c['run_fused_s']:{width}.0f}" for c in columns)
    )
    rows.append(line("floor: FLOP / peak", [column["floor_s"] for column in columns]))
    rows.append(
        f"{'run, fused / floor':28}" + "".join(f"{c['run_fused_s'] / c['floor_s']:{width}.2f}" for c in columns)
    )
    parameters = "random parameters" if result["checkpoint"] is None else f"parameters of {result['checkpoint']}"
    title = (
        f"{result['network']}, forward of {result['images']} images in batches of {result['batch']}{others} "
        f"(images of {result['data']} in turn, {parameters})"
    )
    passes = f"Of {result['repeats']} passes the one of median time. " if result["repeats"] > 1 else ""
    of_device = " of one device" if len({column["instruction_set"] for column in columns}) > 1 else ""
    notes = [
        "Layers: busy time summed over threads, from the event log of the run with a loop a layer (input: images",
        "into the layout of the first layer). load: reading data and parameters; create: plan, memory, recording;",
        "total: load + create + run. free: ending the threads, giving back all memory. floor: operations over the FMA",
        f"peak, measured beside the runs, of all its cores. {passes}All columns{of_device}",
        "gave bit-identical losses and probabilities.",
    ]
    if columns[0]["error_rate"] is not None:
        notes.append(f"Error rate {100 * columns[0]['error_rate']:.2f} % (training images of the data set included).")
    return "\n".join([title, "", *rows, "", *notes])


def infer_tables(
    network: str,
    options: Sequence[PlanOptions],
    image_counts: Sequence[int],
    models: Sequence[str],
    threads: Sequence[int],
    *,
    data: str = "digits",
    checkpoint: str | None = None,
    repeats: int = 3,
    oversubscribe: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda table: None,
) -> list[dict[str, Any]]:
    """Measure a table for each number of images and set of options; see `infer`.

    Parameters
    ----------
    report : callable
        Takes each table as it comes.

    Raises
    ------
    UsageError
        Data that the network cannot read, a missing checkpoint, or batches that are larger than all images.
    """
    for count in threads:
        check_threads(count, oversubscribe=oversubscribe)
    specs = parse_models(list(models))
    spec = get_network(network)
    if spec.tokens:
        raise UsageError(
            f"infer times networks of images, got {network!r}; take forktask compare --phase forward for one of tokens"
        )
    load_data(data, spec).with_channels(spec.input_shape[0]).fit(spec)  # raises if the network cannot read them
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UsageError(
            f"--checkpoint must be a safetensors file, and there is no file {checkpoint!r}; `forktask train` "
            f"leaves parameters-seed-N.safetensors"
        )
    chosen = [(images, one) for images in image_counts for one in options if one.batch <= images]
    if not chosen:
        batches = ",".join(str(one.batch) for one in options)
        raise UsageError(f"--batch must not exceed --images, got {batches} and {','.join(map(str, image_counts))}")
    num_columns = sum(len(counts_for(one, threads)) for one in specs)
    tables = []
    with ProgressBar(len(chosen) * num_columns, "inference") as bar:
        done = iter(range(len(chosen) * num_columns))
        for images, one in chosen:
            tables.append(
                infer(
                    network,
                    one,
                    images,
                    models,
                    threads,
                    data=data,
                    checkpoint=checkpoint,
                    repeats=repeats,
                    progress=lambda name: bar.show(next(done), name),
                )
            )
            bar.clear()
            report(tables[-1])
    return tables


def _measure_job(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return measure_inference(job)
    except MemoryError as error:
        raise UsageError(f"not enough memory for {job['images']} images ({error}); use fewer") from error


if __name__ == "__main__":
    sys.exit(answer_job(_measure_job, usage_failure="usage"))
