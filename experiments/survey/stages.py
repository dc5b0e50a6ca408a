"""What a survey measures, most valuable first, each part in a folder of its own within a share of the time."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..machine.info import describe_machine
from ..machine.topology import available_cpus, core_counts, read_topology
from ..metg.graphs import requested_graphs
from ..metg.metg import MetgSettings, default_models, measure_metg
from ..report.files import write_report
from ..results.files import output_folder, write_atomically
from ..results.folder import SAMPLES, read_results
from ..simulate.measured_machine import write_machine
from ..simulate.predict import MACHINE
from ..subjects.models import DEFAULT_GPU_MODELS, DEFAULT_MODELS, built_models, parse_model, runnable
from ..sweep.comparison import measure_comparison
from ..sweep.configuration import Configuration, Grid, Measure
from ..sweep.expected import expected_duration_s, plan_row
from ..tables.progress import say
from . import INFO
from .handovers import HANDOVERS, measure_handovers

LEAST_S = 5.0  # without which nothing more is begun
NO_TIME = "no time left, give a larger budget and the same folder"
METG_S = 4.0  # about what METG of a model takes in one process
# Beside the default models, as far as they can run here.
OTHERS = ("forkjoin:region=persistent:runtime=libomp", "taskiter:placement=stealing", "torch")


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a survey."""

    name: str  # of its folder
    title: str
    share: float  # of the time of all stages that this machine can run
    axes: dict[str, Any] = field(default_factory=dict)  # keys of a sweep's [grid]; empty: METG
    measure: dict[str, Any] = field(default_factory=dict)  # keys of its [measure]


STAGES = (
    Stage("cifar10_cnn", "A small network: its barriers weigh", 0.40, {"network": ("cifar10_cnn",), "batch": (64,)}),
    Stage("metg", "What a task costs", 0.10),
    Stage("gpt2_small", "A small transformer", 0.20, {"network": ("gpt2_small",), "batch": (4,)}),
    Stage("resnet18", "A large network", 0.20, {"network": ("resnet18",), "batch": (16,)}),
    Stage(
        "spread",
        "The small network, threads far apart",
        0.20,
        {"network": ("cifar10_cnn",), "batch": (64,)},
        {"bind": "spread"},
    ),
    Stage("gpu", "A GPU", 0.10, {"network": ("cifar10_cnn",), "batch": (16, 256), "conv": ("direct",)}),
)


def surveyed_models() -> list[str]:
    """Return the models that take part: the default ones, the outside references, and PyTorch, as far as they are
    here."""
    return [*DEFAULT_MODELS, *filter(_runs, (*default_models(), *OTHERS))]


def _runs(model: str) -> bool:
    if model in DEFAULT_MODELS:
        return False
    try:
        runnable(model)
    except UsageError:
        return False
    return True


def stages() -> tuple[Stage, ...]:
    """Return the stages that this machine can run, and that differ there from others."""
    topology = read_topology()
    absent = {"spread"} if topology["sockets"] == topology["nodes"] == 1 else set()
    absent |= set() if "gpu_stream" in built_models() and _runs("gpu_stream") else {"gpu"}
    return tuple(stage for stage in STAGES if stage.name not in absent)


def take_survey(folder: Path, budget_s: float, command: str) -> None:
    """Measure what a folder lacks: a new one, or of an earlier survey of this machine, which goes on by `command`.
    `budget_s`: seconds of all; what does not fit is left out."""
    end = time.monotonic() + budget_s
    output_folder(folder, INFO)
    say("the machine and its limits")
    todo = stages()
    result = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "stages": [stage.name for stage in todo],
        **describe_machine(),
    }
    write_atomically(folder / INFO, json.dumps(result, indent=1, default=str) + "\n")
    write_machine(str(folder / MACHINE))
    cpus = available_cpus()
    if len(cpus) > 1:
        say(f"hand-overs between {len(cpus)} CPUs")
        write_atomically(folder / HANDOVERS, measure_handovers(cpus))
    for number, stage in enumerate(todo):
        left_s = end - time.monotonic()
        share_s = left_s * stage.share / math.fsum(later.share for later in todo[number:])
        if share_s < LEAST_S:
            say(f"{stage.name}: {NO_TIME}")
            continue
        say(f"{stage.name}: {share_s:.0f} s")
        if stage.axes:
            _measure_sweep(stage, folder, share_s, left_s, command)
        else:
            _measure_metg(folder / stage.name, share_s, command)


def fitting(stage: Stage, budget_s: float, left_s: float, out: Path) -> Configuration | None:
    """Return the sweep of a stage: that of its folder where it goes on, else with all models and numbers of threads.

    Where their first generation would outlast the budget, models far behind the others are left out, then all but the
    most cores, then all but the default models; None where that would outlast even the time that is left for all.
    """
    counts, axes, models = core_counts(), dict(stage.axes), surveyed_models()
    near, default = ([m for m in some if not parse_model(m).model.far_behind] for some in (models, DEFAULT_MODELS))
    choices = [(models, counts), (near, counts), (near, counts[-1:]), (default, counts[-1:])]
    if stage.name == "gpu":
        choices = [(["serial", *DEFAULT_GPU_MODELS], (1,))]
    else:
        axes["granularity"] = (f"threads={counts[-1]}",)
    if (out / SAMPLES).exists():
        before = read_results(out).run.config
        choices = [(before["models"], before["threads"])]
        axes["granularity"] = tuple(before.get("granularity", ("auto",)))
    measure = Measure(budget_s=budget_s, target_s=0.1, warmup_s=0.2, profile_repeats=1, **stage.measure)
    rows = {}  # of the plans, which are the same in all choices
    for models, threads in choices:
        grid = Grid(**axes, models=tuple(models), threads=tuple(threads))
        configuration = Configuration(grid=grid, measure=measure)
        once = configuration.with_measure(repeats=1)
        for point in once.points():
            if point.plan_id not in rows:
                rows[point.plan_id] = plan_row(point.plan_id, point.plan)
        expected_s = expected_duration_s(once, rows)
        if expected_s <= budget_s:
            break
    return configuration if expected_s <= left_s else None


def _measure_sweep(stage: Stage, folder: Path, budget_s: float, left_s: float, command: str) -> None:
    out = folder / stage.name
    if (configuration := fitting(stage, budget_s, left_s, out)) is None:
        say(f"{stage.name}: {NO_TIME}")
        return
    compared = measure_comparison(configuration, str(out), command)
    if compared.usable:
        shutil.copy(folder / MACHINE, out / MACHINE)
        write_report(out)


def _measure_metg(out: Path, budget_s: float, command: str) -> None:
    counts, models = core_counts(), default_models()
    repeats = max(1, min(5, int(budget_s / (METG_S * len(models) * len(counts)))))
    graphs = requested_graphs(("stencil_1d",), None, {}, {})
    measure_metg(graphs, models, counts, MetgSettings(repeats=repeats), out, command)
