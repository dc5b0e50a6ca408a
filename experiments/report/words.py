"""Sentences and numbers that tables, titles and captions share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ...cython_src.typed_text import rounded
from ..analysis.costs import gpu_names
from ..analysis.limits import bound_table, floor_table
from ..analysis.names import GRANULARITY, axis_label, is_graph, option_texts, value_text
from ..analysis.speeds import best_serial
from ..analysis.sweep import Sweep, kept
from ..results.rows import PlanRow
from ..subjects.calls import is_calls, label
from ..subjects.models import MODELS
from ..tables.numbers import format_time, plural

MOST_BY_ORDER = 1.25  # fork-join's bound over that of tasks, beyond which a graph's order of recording is named


def blocks_text(*plans: PlanRow) -> str:
    """Describe the granularity of plans, which is that of the first, and their numbers of tasks and loops."""
    if is_calls(plans[0].network):
        return ""
    granularity = "" if is_graph(plans[0]) else plans[0].granularity
    match = re.fullmatch(r"images=(\d+)", granularity)
    cut = (
        f"{plural(int(match[1]), 'image')} per block" if match else f"granularity {granularity}" if granularity else ""
    )
    tasks = f"{_span(plan.num_tasks for plan in plans)} tasks in {_span(len(plan.loops) for plan in plans)} loops"
    return f"{cut}: {tasks}" if cut else tasks


def _span(counts: Iterable[int]) -> str:
    result = sorted(set(counts))
    return f"{result[0]} to {result[-1]}" if len(result) > 1 else f"{result[0]}"


def order_note(sweep: Sweep, plan_id: str) -> str:
    """Warn that a user graph's recorded loops cost fork-join more than its dependences require, if even its bound is
    far above that of tasks; else nothing."""
    plan, table = sweep.plans[plan_id], bound_table(sweep)
    if not is_graph(plan) or not len(table):
        return ""
    rows = table[table["plan_id"] == plan_id].sort_values("threads")
    if not len(rows) or not (loss := rows["forkjoin_s"].iloc[-1] / rows["taskgraph_s"].iloc[-1]) > MOST_BY_ORDER:
        return ""
    return (
        f"{sweep.problem_name(plan_id)}: fork-join is at a loss by its loops. {plan.num_tasks} tasks are in "
        f"{len(plan.loops)} of them, a barrier behind each: a loop takes tasks of one kernel on the same arrays, if no "
        f"conflict lies between them. On {rows['threads'].iloc[-1]} threads it takes {loss:.2f} times what tasks can "
        f"reach, however they are run. Slices of one array, in place of many arrays, may make fewer loops."
    )


def samples_word(sweep: Sweep, plan_id: str) -> str:
    """Return what the plan's network takes: images, or sequences of tokens."""
    kernels = {loop.kernel for loop in sweep.plans[plan_id].loops}
    return "sequences" if "tokens_load" in kernels else "images"


def plan_title(sweep: Sweep, plan_id: str) -> str:
    """Return a title that tells a plan from the others of the sweep."""
    return "; ".join(filter(None, (sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]))))


def _inputs(sweep: Sweep) -> str:
    """Return what the networks of a sweep take."""
    return " and ".join(dict.fromkeys(samples_word(sweep, plan_id) for plan_id in sweep.plan_ids())) or "images"


def data_text(sweep: Sweep) -> str:
    """Return a short warning about the data, for figures."""
    return f"random {_inputs(sweep)}" if sweep.data == "synthetic" else f"smoke test data ({sweep.data})"


def data_warning(sweep: Sweep) -> str:
    """Return the warning of `data_text` as sentences."""
    if sweep.data == "synthetic":
        return (
            f"The network was fed with random {_inputs(sweep)}: step times do not depend on what is in them, and "
            "nothing is said about accuracy."
        )
    return (
        f"Smoke test: the data ({sweep.data}) are too small to represent a real training set; step times do not "
        f"depend on them, accuracies mean little."
    )


def t1_text(sweep: Sweep, plan_id: str, name: str = "T1") -> str:
    """Return the serial time and its multiples of the machine's floors."""
    floors = floor_table(sweep)
    row = floors[floors["plan_id"] == plan_id].iloc[0]
    serial = best_serial(sweep, plan_id)
    if serial is None:
        return "no serial run"
    ratios = [
        f"{row[f'{floor}_floor_ratio']:.2f} × {word}"
        for floor, word in (("flop", "FLOP"), ("roofline", "roofline"))
        if math.isfinite(row[f"{floor}_floor_ratio"]) and not sweep.reference_call
    ]
    where = "" if serial[0] == plan_id else f" at granularity {sweep.records[serial[0]][GRANULARITY]}"
    return f"{name} = {format_time(row['t1_s'])}{where}" + (f" ({', '.join(ratios)} floor)" if ratios else "")


def plan_facts(sweep: Sweep, plan_id: str) -> list[str]:
    """Return what stands above the panels of a figure: the plan, its blocks and T1."""
    facts = [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), t1_text(sweep, plan_id, "$T_1$")]
    return [*filter(None, facts)]


def axes_text(sweep: Sweep, plan_id: str) -> str:
    """Return what tells a plan from the others of its sweep: each swept axis, and its value."""
    return ", ".join(f"{axis_label(axis)} {value_text(sweep.named[plan_id][axis])}" for axis in sweep.axes)


def machine_text(sweep: Sweep) -> str:
    """Describe the machine in one sentence: processor, peak, bandwidth, capacity."""
    pieces, machine = [cpu] if (cpu := processor(sweep.environment)) else [], sweep.machine
    if machine.peak_flops_per_s_1thread:
        pieces.append(f"measured FMA peak {machine.peak_flops_per_s_1thread / 1e9:.0f} GFLOP/s per thread")
    if bandwidth := machine.bandwidth_bytes_per_s.get("1"):
        pieces.append(f"bandwidth {rounded(bandwidth / 1e9, zeros=False)} GB/s for one thread")
    if machine.capacity:
        wide = max(machine.capacity, key=int)
        pieces.append(f"{wide} spinning threads do the work of {sweep.capacity(int(wide)).value:.2f}")
    if len(sweep.core_kinds) > 1:
        pieces.append(f"threads get {', then '.join(kind['text'] for kind in sweep.core_kinds)}")
    places, bind = sweep.placement.values()
    if (places, bind) != ("cores", "close"):
        pieces.append("threads not pinned" if bind == "none" else f"threads on places {places}, {bind}")
    if pages := [pages for pages in sweep.samples.get("pages", ()) if isinstance(pages, dict)]:
        lie = sum(map(Counter, (one["bytes_by_node"] for one in pages)), Counter())
        nodes = [f"{lie[node] / lie.total():.0%} on node {node}" for node in sorted(lie, key=int)]
        pieces.append(f"memory by {pages[0]['policy']}: {' and '.join(nodes) or 'its nodes are hidden'}")
        if remote := [one["remote_share"] for one in pages if one.get("remote_share") is not None]:
            spans = dict.fromkeys(f"{share:.0%}" for share in (min(remote), max(remote)))
            pieces.append(f"{' to '.join(spans)} of the bytes that blocks access are on another node than their CPU")
    return f"Machine: {', '.join(pieces)}." if pieces else ""


def gpu_text(sweep: Sweep) -> str:
    """Name the GPU, and say what its columns mean."""
    return (
        f"GPU: {', '.join(gpu_names(sweep))}. Empty kernels: a step of the same launches. Kernels: of a step, one "
        "after the other; idle: 1 - kernels / step, below 0 where they overlap."
    )


def processor(environment: Mapping[str, Any]) -> str:
    """Return the name of an environment's processor; empty where it is not known."""
    return (environment.get("cpu") or {}).get("model") or ""


@kept
def conditions(sweep: Sweep, plan_id: str) -> tuple[str, ...]:
    """Say how a plan was measured: work, kernels, generations, machine."""
    plan, reference = sweep.plans[plan_id], sweep.reference_call
    samples = sweep.samples[sweep.samples["plan_id"] == plan_id]
    per_point = samples.groupby(["model", "threads"]).size()
    least, most = int(per_point.min()), int(per_point.max())
    count = plural(least, "generation") if least == most else f"{least} to {plural(most, 'generation')}"
    # Every option that a run recorded, whether it was swept or left at its default.
    images = samples_word(sweep, plan_id) == "images"
    unused = ("sequence",) if images else ("conv",)
    recorded = {
        name: value for name, value in sweep.records[plan_id].items() if name in plan.options and name not in unused
    }
    options = ", ".join(option_texts(recorded, tuple(recorded)))
    pinned = samples["cpus"][~samples["model"].map(lambda model: model.is_gpu)].map(bool).all()
    named = samples["instruction_set"]
    # Models of both devices name themselves too, since their bits depend on who computes which part.
    parts = {part for name in named for part in name.split(", ")}
    sets = ", ".join(sorted(part for part in parts if part.partition(":")[0] not in MODELS))
    graph = is_graph(plan)  # without convolutions, and options of a network say nothing of it
    counted = " (convolutions counted in their direct form)" if images else ""
    flops = "" if graph else f", {rounded(plan.flops / 1e9, zeros=False)} GFLOP per step{counted}"
    left = "results" if graph else "weights"
    alike = f"on one device left bit-identical {left}; the devices' losses agree within rounding"
    alike = alike if gpu_names(sweep) else f"left bit-identical {left}"
    agreed = f", and all of them {alike}; this was checked before anything was drawn"
    if not plan.deterministic:
        agreed = f"; these add in any order, so that {left} differ in their last bits and were not compared"
    generations = f"{count} of processes, one process for each model and number of threads; a step time is the slope "
    generations += "between two run lengths, after warm-up"
    if reference:
        alike = "what functions returned was compared" if sweep.config.get("compare_results", True) else "not compared"
        return (
            f"Work: a step is a call. Reference: {label(reference)}; results: {alike}"
            + (f", within {sweep.config['rtol']:g} of the largest value." if sweep.config.get("rtol") else "."),
            f"{generations}. Threads share as many CPUs as they are.",
            machine_text(sweep),
        )
    return (
        f"Work: {sweep.problem_name(plan_id)}{flops}, {blocks_text(plan)}, {plan.num_edges} dependence edges"
        + (f" ({options})." if options and not graph else "."),
        f"Every model runs the same blocks of the same kernels{f' ({sets})' if sets else ''}{agreed}.",
        generations + (", with every thread pinned to a core of its own." if pinned else ", threads not pinned."),
        machine_text(sweep),
    )
