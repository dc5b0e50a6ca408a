"""The forward pass over many images, with the time of each layer.

The table follows the OpenACC study of this network: conv1, relu1, pool1, ... softmax, sums by kind, load,
create, total. Layers are timed on a plan without fusion, block by block from the event log; on a GPU launch by launch
on one stream, as a captured graph hides them. The usual plan fuses convolution, ReLU and pooling; its time stands
beside the other's. Each column is measured in a process of its own (infer_worker.py).
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.errors import MachineError, UsageError
from ...cython_src.lowering.options import PlanOptions, describe, plan_options
from ...cython_src.networks.layers import Network
from ...cython_src.networks.own import is_own
from ...cython_src.networks.registry import get_network
from ..machine.topology import cpu_order
from ..sampling.child import clean_environment, run_sample, sample_environment
from ..sampling.models import check_threads, counts_for, parse_model, parse_models
from ..sampling.plan_check import check_together
from ..sampling.progress import ProgressBar
from .data import load_data

TIME_LIMIT_S = 600.0
DEVICE_TOLERANCE = 1e-3
CHILD_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.training.infer_worker")


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
    devices = {parse_model(column["model"]).model.device for column in columns}
    busy, peak = {
        ("cpu",): (
            "busy time summed over threads, from the event log of the run with a loop a layer",
            "measured beside the runs, of all its cores",
        ),
        ("gpu",): (
            "time of their launches on one stream (gpu_stream, in every column), as is the run with a loop a layer",
            "of the GPU, by the clock that its driver names",
        ),
    }.get(
        tuple(devices),
        (
            "busy time summed over threads, from the event log of the run with a loop a layer; of a GPU's models time "
            "of launches on one stream (gpu_stream)",
            "measured beside the runs, of all its cores, or of the GPU, by the clock that its driver names",
        ),
    )
    notes = textwrap.wrap(
        f"Layers: {busy} (input: images into the layout of the first layer). load: reading data and parameters; "
        f"create: plan, memory, recording; total: load + create + run. free: ending the threads, giving back all "
        f"memory. floor: operations over the FMA peak, {peak}. {passes}All columns{of_device} gave bit-identical "
        f"losses and probabilities.",
        110,
    )
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
    check: bool = True,
    oversubscribe: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda table: None,
) -> list[dict[str, Any]]:
    """Measure a table for each number of images and set of options; see `infer`.

    Parameters
    ----------
    check : bool
        Check the plans of a network of one's own before they are first run.
    report : callable
        Takes each table as it comes.

    Raises
    ------
    UsageError
        Data that the network cannot read, a missing checkpoint, batches that are larger than all images, or
        an unsound plan.
    """
    for count in threads:
        check_threads(count, oversubscribe=oversubscribe)
    specs = parse_models(list(models))
    spec = get_network(network)
    if spec.tokens:
        raise UsageError(
            f"infer times networks of images, got {network!r}; take forktask compare --phase forward for one of tokens"
        )
    fitted = load_data(data, spec).with_channels(spec.input_shape[0]).fit(spec)  # raises if it cannot read them
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UsageError(
            f"--checkpoint must be a safetensors file, and there is no file {checkpoint!r}; `forktask train` "
            f"leaves parameters-seed-N.safetensors"
        )
    chosen = [(images, one) for images in image_counts for one in options if one.batch <= images]
    if not chosen:
        batches = ",".join(str(one.batch) for one in options)
        raise UsageError(f"--batch must not exceed --images, got {batches} and {','.join(map(str, image_counts))}")
    subject = fitted if is_own(network) else network
    contestants = [(str(one), count) for one in specs for count in counts_for(one, threads)]
    checks = {one: check_together(_plans(subject, one), contestants, check) for _, one in chosen}
    num_columns = sum(len(counts_for(one, threads)) for one in specs)
    tables = []
    with ProgressBar(len(chosen) * num_columns, "inference") as bar:
        done = iter(range(len(chosen) * num_columns))
        for images, one in chosen:
            table = infer(
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
            tables.append({**table, "check": checks[one]})
            bar.clear()
            report(tables[-1])
    return tables


def _plans(network: str | Network, options: PlanOptions) -> list[dict[str, Any]]:
    """Return the plans of one table's columns: forward with and without fusion, and what gives the answers."""
    forms = (("forward", "all"), ("forward", "none"), ("evaluate", "all"))
    return [
        {"network": network, **options.with_changes(phase=phase, fusion=fusion).as_dict()} for phase, fusion in forms
    ]
