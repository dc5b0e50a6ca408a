"""`forktask infer`: the forward pass over many images, with the time of each layer.

The table follows the OpenACC study of this network: conv1, relu1, pool1, ... softmax, sums by kind, load,
create, total. Layers are timed on a plan without fusion, block by block from the event log. The plan that one
would use fuses convolution, ReLU and pooling; its time stands beside the other's. Each column is measured in
a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import UsageError
from ..sampling.progress import ProgressBar
from .data import Dataset, load_data
from .safetensors import read_safetensors
from .train import set_arrays, share_images

MAX_IMAGES = 10_000_000
WARMUP_S = 0.05
PEAK_S = 0.1
EVENTS_A_RUN = 200_000  # then the log is read out and emptied, which bounds its memory
TIME_LIMIT_S = 600.0
# A fused and an unfused plan may add the same numbers in another order.
FUSION_TOLERANCE = 1e-5
CHILD_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.training.infer")


class Pass:
    """A plan for so many images in batches, and its executor; what is left over has a plan of its own.

    Parameters
    ----------
    job : mapping
        "network", "granularity", "conv", "images", "batch", "model", "threads", "cpus".
    data : Dataset
        Its images are taken in order, again from the beginning where there are too few.
    storage : Storage
        Owner of the parameters.
    phase : {"forward", "evaluate"}
    fusion : bool
    event_capacity : int
        Events that each worker can log; 0: no log.
    """

    def __init__(self, job, data: Dataset, storage: Storage, phase: str, fusion: bool = True, event_capacity: int = 0):
        from ...cython_src.binding.bind import bind
        from ...cython_src.lowering.lower import lower
        from ..sampling.models import make_executor

        self.parts = []
        self._executors = ExitStack()
        images, batch = job["images"], job["batch"]
        order = np.arange(images, dtype=np.int32) % len(data.labels)
        whole = images // batch * batch
        for part, size in ((order[:whole], batch), (order[whole:], images - whole)):
            if not len(part):
                continue
            # Plans of other sizes, with and without fusion, share the parameters and nothing else.
            prefix = f"{phase}{size}{'f' if fusion else 'u'}."
            share_images(storage, data, prefix)
            rows = part.reshape(-1, size)
            plan = lower(
                job["network"],
                batch=size,
                phase=phase,
                granularity=job["granularity"],
                conv=job["conv"],
                fusion=fusion,
                num_images=len(data.labels),
                num_batches=len(rows),
                num_iterations_logged=len(rows),
                prefix=prefix,
            )
            bound = bind(plan, storage)
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
        """Run all images once: seconds."""
        start = time.perf_counter()
        for _, _, executor, count in self.parts:
            executor.run(count)
        return time.perf_counter() - start

    def run_logged(self) -> tuple[float, dict[str, float]]:
        """Run all images with the event log: seconds, and busy seconds of each layer over all threads."""
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
        """A buffer, or what users know by that name, of all parts one after the other, flat."""
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
    """Seconds of conv1, conv2, layer1.0.conv1, ... summed: kind -> seconds. Numbered parts of a name do not count."""
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
        "network", "granularity", "conv", "images", "batch", "model", "threads", "cpus", "data",
        "checkpoint" (a path or None),
        "repeats": passes over all images, of which that of median time counts.

    Returns
    -------
    dict
        Times in seconds, error rate (with a checkpoint), and a hash of losses and probabilities. "floor_s": floating-point
        operations (convolutions in their direct form) over the FMA peak of all cores, measured beside the runs.
    """
    from ...cython_src.lowering.lower import initialise
    from ...cython_src.networks.registry import get_network
    from ..machine import machine_peaks

    start = time.perf_counter()
    network = get_network(job["network"])
    data = load_data(job["data"], network).with_channels(network.input_shape[0])
    parameters = read_safetensors(job["checkpoint"])[0] if job["checkpoint"] else None
    loaded = time.perf_counter()
    storage = Storage()
    fused = Pass(job, data, storage, "forward")
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
    fused.close()
    flops = sum(part.plan.flops * count for _, part, _, count in fused.parts)
    cores = min(job["threads"], len(os.sched_getaffinity(0)))
    peak = machine_peaks.measure_peak_flops(PEAK_S, bound.instruction_set)["flops_per_s"] * cores

    unfused = Pass(job, data, storage, "forward", fusion=False, event_capacity=EVENTS_A_RUN + 10_000)
    unfused.warm_up()
    passes = sorted((unfused.run_logged() for _ in range(job["repeats"])), key=lambda times: times[0])
    unfused_s, layers = passes[job["repeats"] // 2]
    unfused_probabilities = unfused.results("softmax").copy()
    unfused.close()
    if not np.allclose(fused_probabilities, unfused_probabilities, rtol=0, atol=FUSION_TOLERANCE):
        raise AssertionError("the plans with and without fusion give different probabilities")

    # The answers, over every image: what all models must agree on.
    check = Pass(job, data, storage, "evaluate")
    check.run()
    losses, correct = check.results("losses"), check.results("correct")
    check.close()
    digest = hashlib.sha256()
    for array in (losses, correct, fused_probabilities, unfused_probabilities):
        digest.update(array.tobytes())
    return {
        "model": job["model"],
        "threads": job["threads"],
        "load_s": loaded - start,
        "create_s": created - loaded,
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
        "instruction_set": bound.instruction_set,
    }


def infer(
    network: str,
    images: int,
    batch: int,
    models: Sequence[str],
    threads: Sequence[int],
    *,
    data: str = "digits",
    checkpoint: str | None = None,
    granularity: str = "auto",
    conv: str = "auto",
    repeats: int = 3,
    progress=None,
) -> dict[str, Any]:
    """Measure all columns of one table, each in a fresh process.

    Parameters
    ----------
    network : str
    images, batch : int
    models : sequence of str
        Specs of execution models; a model of one thread has one column.
    threads : sequence of int
    data : str
        Spec of a data set, whose images are used in turn.
    checkpoint : str, optional
        safetensors file with the parameters; default: random ones.
    granularity : str
    repeats : int
        Passes over all images; the one of median time counts.
    progress : callable, optional
        Called with the name of each column before it is measured.

    Returns
    -------
    dict
        The conditions and "columns": what `measure_inference` returns.

    Raises
    ------
    UsageError
        A column could not be measured.
    RuntimeError
        Two models disagree about losses or probabilities.
    """
    from ..sampling.environment import cpu_order
    from ..sampling.models import parse_models
    from ..sweep.configuration import Measure
    from ..sweep.run import clean_environment, run_sample, sample_environment

    cores = len(os.sched_getaffinity(0))
    columns = []
    for spec in parse_models(list(models)):
        for count in (1,) if spec.model.max_threads == 1 else threads:
            if progress is not None:
                progress(f"{spec}, {count} threads")
            job = {
                "network": network,
                "granularity": granularity,
                "conv": conv,
                "images": images,
                "batch": batch,
                "model": str(spec),
                "threads": count,
                "cpus": cpu_order(count, oversubscribe=True),
                "data": data,
                "checkpoint": checkpoint,
                "repeats": repeats,
            }
            settings = sample_environment(Measure(), count, 0, cores)
            column = run_sample(job, clean_environment(os.environ, settings), TIME_LIMIT_S, CHILD_COMMAND)
            if column.get("failure") == "usage":
                raise UsageError(column["message"])
            if "failure" in column:
                raise RuntimeError(f"{spec} on {count} threads: {column['failure']}: {column['message']}")
            columns.append(column)
    first = columns[0]
    for column in columns[1:]:
        if column["answers_hash"] != first["answers_hash"]:
            raise RuntimeError(
                f"{column['model']} on {column['threads']} threads and {first['model']} on "
                f"{first['threads']} give different "
                f"losses or probabilities; no time is shown"
            )
    return {
        "network": network,
        "images": images,
        "batch": batch,
        "data": data,
        "checkpoint": checkpoint,
        "granularity": granularity,
        "conv": conv,
        "repeats": repeats,
        "columns": columns,
    }


def format_table(result: dict[str, Any]) -> str:
    """The result as text: a row for each layer, a column for each model and thread count."""
    columns = result["columns"]
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
        f"{result['network']}, forward of {result['images']} images in batches of {result['batch']} "
        f"(images of {result['data']} in turn, {parameters})"
    )
    notes = [
        "Layers: busy time summed over threads, from the event log of the run with a loop a layer (input: "
        "images into the",
        "layout of the first layer). load: reading data and parameters; create: plan, memory, recording; total: load +",
        "create + run. floor: operations over the FMA peak measured beside the runs, of all its cores. "
        + (f"Of {result['repeats']} passes the one" if result["repeats"] > 1 else ""),
        ("of median time. " if result["repeats"] > 1 else "")
        + "All columns gave bit-identical losses and probabilities.",
    ]
    if columns[0]["error_rate"] is not None:
        notes.append(f"Error rate {100 * columns[0]['error_rate']:.2f} % (training images of the data set included).")
    return "\n".join([title, "", *rows, "", *notes])


def _numbers(text: str, option: str, high: int) -> list[int]:
    """Whole numbers in [1, high], separated by commas."""
    try:
        numbers = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = [0]
    if min(numbers) < 1 or max(numbers) > high:
        raise UsageError(f"{option} must be whole numbers in [1, {high}] separated by commas, got {text!r}")
    return numbers


def run_command(arguments: argparse.Namespace) -> int:
    """`forktask infer`."""
    from ...cython_src.lowering.granularity import Granularity
    from ...cython_src.networks.registry import get_network
    from ..sampling.models import check_threads, parse_models

    image_counts = _numbers(arguments.images, "--images", MAX_IMAGES)
    batches = _numbers(arguments.batch, "--batch", 65_536)
    threads = _numbers(arguments.threads, "--threads", 4096)
    for count in threads:
        check_threads(count, oversubscribe=arguments.oversubscribe)
    if not 1 <= arguments.repeats <= 1000:
        raise UsageError(f"--repeats must be in [1, 1000], got {arguments.repeats}")
    models = arguments.models.split(",")
    specs = parse_models(models)
    network = get_network(arguments.network)
    Granularity.parse(arguments.granularity)
    data = load_data(arguments.data, network).with_channels(network.input_shape[0])
    if network.input_shape != data.images.shape[1:] or network.num_classes != data.num_classes:
        raise UsageError(
            f"network {network.name!r} takes images of shape {network.input_shape} in {network.num_classes} "
            f"classes; "
            f"--data {arguments.data} has {data.images.shape[1:]} in {data.num_classes}; choose another, or synthetic:N"
        )
    if arguments.checkpoint is not None and not Path(arguments.checkpoint).is_file():
        raise UsageError(
            f"--checkpoint must be a safetensors file, and there is no file {arguments.checkpoint!r}; `forktask train` "
            f"leaves parameters-seed-N.safetensors"
        )
    del data
    tables = [(images, batch) for images in image_counts for batch in batches if batch <= images]
    if not tables:
        raise UsageError(f"--batch must not exceed --images, got {arguments.batch} and {arguments.images}")
    num_columns = sum(1 if spec.model.max_threads == 1 else len(threads) for spec in specs)
    results = []
    with ProgressBar(len(tables) * num_columns, "inference") as bar:
        done = iter(range(len(tables) * num_columns))
        for images, batch in tables:
            results.append(
                infer(
                    arguments.network,
                    images,
                    batch,
                    models,
                    threads,
                    data=arguments.data,
                    checkpoint=arguments.checkpoint,
                    granularity=arguments.granularity,
                    conv=arguments.conv,
                    repeats=arguments.repeats,
                    progress=lambda name: bar.show(next(done), name),
                )
            )
            bar.clear()
            if not arguments.json:
                print(("\n" if len(results) > 1 else "") + format_table(results[-1]), flush=True)
    if arguments.json:
        print(json.dumps({"schema_version": 1, "tables": results}, indent=1))
    return 0


def add_parser(subparsers) -> None:
    """Add `infer` to the command line."""
    from ..sweep.configuration import core_counts

    parser = subparsers.add_parser(
        "infer",
        help="time the forward pass over many images, layer by layer",
        description="Time the forward pass over many images: load, create and run, and each layer's share.",
    )
    for name, default, text in (
        ("network", "cifar10_cnn", "network to run"),
        ("images", "1200", "numbers of images, e.g. 1200,50000"),
        ("batch", "1,64", "batches: 1 is one image at a time"),
        ("models", "serial,forkjoin,taskiter", "execution models"),
        ("threads", ",".join(map(str, core_counts(min(2, core_counts()[-1])))), "numbers of threads"),
        ("data", "digits", "data set whose images are used in turn"),
        ("granularity", "auto", "how layers are cut into blocks: auto, or ranges such as images=16"),
        ("conv", "auto", "form of the convolutions: auto, direct, winograd, im2col, if, if_blocked, pad, pad_blocked"),
    ):
        parser.add_argument(f"--{name}", default=default, metavar=name.upper(), help=f"{text} (default: {default})")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        metavar="R",
        help="passes over all images; the one of median time counts (default: 3)",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="safetensors file with parameters (default: random ones)")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_command)


def _measure_job(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return measure_inference(job)
    except MemoryError as error:
        raise UsageError(f"not enough memory for {job['images']} images ({error}); use fewer") from error


def main() -> int:
    """Measure one column of the table."""
    from ..sampling.measure import answer_job

    return answer_job(_measure_job, usage_failure="usage")


if __name__ == "__main__":
    sys.exit(main())
