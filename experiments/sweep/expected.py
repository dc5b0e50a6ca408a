"""What a sweep would measure, without measuring it: its plans, and about how long it would take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cython_src.lowering.lower import lower, own_plan
from ...cython_src.lowering.options import describe, plan_options
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.dependences import record_graph
from ...forkjoin.executor import JOBLIB_WAKES_NS
from ...forkjoin.models import JOBLIB
from ..machine.environment import collect, environment_id
from ..machine.topology import available_cpus
from ..results.rows import Loop, PlanRow
from ..sampling.timing import LONG_PASS_S, turn_lengths
from ..subjects.calls import calls_text, is_calls, label
from ..subjects.memory import allowed_bytes, format_bytes, memory_bounds
from ..tables.numbers import plural
from ..tables.progress import format_seconds
from .configuration import Configuration

OF_LOOPS = tuple(name for name in Loop.__struct_fields__ if name != "least_bytes")
OF_PLANS = ("flops", "bytes", "num_tasks", "iteration_stride", "deterministic")
STARTUP_S = 0.7  # start of a measuring process on a CPU: interpreter, NumPy, plan; for the expected duration only
LIMITS_S = 3.0  # measurement of the machine's limits
GUESSED_FLOPS_PER_S = 1e11  # rate of one thread; for the expected duration only


def plan_row(plan_id: str, plan: Mapping[str, Any]) -> PlanRow:
    """Return the row of a plan: options, loops with their costs, and the size of the closed task graph. Raises
    `UsageError`: options that cannot be lowered."""
    lowered = lower(**plan)
    graph = record_graph(lowered.accesses, closed=True)
    return PlanRow(
        plan_id=plan_id,
        options=dict(plan),
        loops=[
            Loop(**{name: getattr(loop, name) for name in OF_LOOPS}, least_bytes=lowered.least_bytes(loop))
            for loop in lowered.loops
        ],
        **{name: getattr(lowered, name) for name in OF_PLANS},
        **{name: getattr(graph, name) for name in ("num_edges", "num_joins")},
        memory_bytes=lowered.memory_bytes(),
        num_parameters=len(lowered.attributes.get("parameters", ())),
        layers_id="" if own_plan(plan["network"]) else get_network(plan["network"]).layers_id,
    )


def expected_duration_s(configuration: Configuration, plan_rows: Mapping[str, PlanRow]) -> float:
    """Estimate the duration of a sweep before anything was measured. With a budget, repetitions after the first end
    with it."""
    measure = configuration.measure
    samples_s, profiles_s = generation_s(configuration, plan_rows)
    first = LIMITS_S + samples_s + (profiles_s if measure.profiles else 0.0)
    later = (measure.repeats - 1) * samples_s + max(measure.profiles - 1, 0) * profiles_s
    return first + (min(later, max(measure.budget_s - first, 0.0)) if measure.budget_s else later)


def generation_s(
    configuration: Configuration, plan_rows: Mapping[str, PlanRow], later: bool = False
) -> tuple[float, float]:
    """Estimate the duration of a generation's samples and of its profiles, from FLOPs at a typical rate; plans that do
    not fit into memory take no time. `later`: of a generation without models that are far behind."""
    measure, samples, profiles = configuration.measure, 0.0, 0.0
    start_s = STARTUP_S / len(available_cpus())  # processes of a generation start side by side
    allowed, _ = allowed_bytes(*memory_bounds(measure.memory_limit))
    for point in configuration.points():
        far_behind = point.model.is_far_behind(point.threads)
        if later and far_behind:
            continue
        plan = plan_rows[point.plan_id]
        fits = sum(plan.memory_bytes.values()) <= allowed
        step_s = fits * plan.flops / (GUESSED_FLOPS_PER_S * point.threads)
        if point.model.model is JOBLIB and point.threads > 1:  # most loops wait for its next look for results
            step_s += fits * len(plan.loops) * JOBLIB_WAKES_NS * 1e-9
        sample_s = start_s + step_s * measure.checked(plan.flops)
        sample_s += min(measure.warmup_s, 0.3) if step_s < LONG_PASS_S else 0.0
        turn_s = sum(turn_lengths(step_s, 0.0)) * step_s if step_s else 0.0
        rounds = 1 if far_behind else measure.least_rounds
        samples += min(sample_s + max(measure.target_s, rounds * turn_s), measure.time_limit_s)
        profiles += min(max(measure.target_s, 6 * step_s), measure.time_limit_s)
    return samples, profiles


def expected(configuration: Configuration) -> dict[str, Any]:
    """Return the grid of a sweep and about how long it would take, without measuring anything.

    Returns
    -------
    dict
        title, how_to_read, obstacles (what this machine lacks for it), configurations (config_id, model, threads,
        interference, plan_id and the plan's options), plans (the "plan" rows by id), repeats, measurements,
        expected_duration_s, environment, environment_id.

    Raises
    ------
    UsageError
        A plan that cannot be lowered.
    """
    points = configuration.points()
    plans = {point.plan_id: point.plan for point in points}
    rows = {plan_id: plan_row(plan_id, plan) for plan_id, plan in plans.items()}
    environment = collect()
    return {
        "title": configuration.title,
        "how_to_read": configuration.how_to_read,
        "obstacles": configuration.obstacles(),
        "configurations": [{**point.identity, "plan_id": point.plan_id, **point.plan} for point in points],
        "plans": rows,
        "repeats": configuration.measure.repeats,
        "measurements": len(points) * (configuration.measure.repeats + configuration.measure.profiles),
        "expected_duration_s": expected_duration_s(configuration, rows),
        "environment": environment,
        "environment_id": environment_id(environment),
    }


def expected_text(result: Mapping[str, Any]) -> str:
    """Format the result of `expected` for a terminal."""
    lines = [result["title"], *(["", result["how_to_read"]] if result["how_to_read"] else [])]
    for plan_id, row in result["plans"].items():
        others = describe(plan_options(row.options), leave_out=("batch",))
        lines.append(
            f"\nplan {plan_id}: {row.network}, batch {row.batch}{', ' + others if others else ''}; "
            f"{row.num_tasks} tasks, {row.num_edges} edges, {row.flops / 1e9:.2f} GFLOP, "
            f"{format_bytes(sum(row.memory_bytes.values()))}"
            if not is_calls(row.network)
            else f"\n{calls_text(row.network)}"
        )
        for c in result["configurations"]:
            if c["plan_id"] == plan_id:
                count = c["interference"]
                beside = f", {plural(count, 'competing process', 'competing processes')}" if count else ""
                lines.append(f"  {c['config_id']}  {label(c['model'])} on {plural(c['threads'], 'thread')}{beside}")
    environment = result["environment"]
    lines += ["", *(f"cannot run: {text}" for text in result["obstacles"])] if result["obstacles"] else []
    count, repeats = len(result["configurations"]), result["repeats"]
    lines.append(
        f"\n{environment['cpu']['model']}, {plural(environment['topology']['cores'], 'core')}, "
        f"CPUs {environment['affinity']}, Python {environment['python']['version']}, "
        f"environment {result['environment_id']}"
    )
    lines.append(
        f"{count} configurations x {repeats} repeats"
        f"{' and a profile each' if result['measurements'] > count * repeats else ''}: {result['measurements']} "
        f"measurements, about {format_seconds(result['expected_duration_s'])}"
    )
    return "\n".join(lines)
