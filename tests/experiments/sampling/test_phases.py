"""Times of phases: from an event log made by hand, and from runs of every model."""

import numpy as np
import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import EVENT_DTYPE
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update
from forktask.experiments.analysis.accounting import phase_table
from forktask.experiments.report import figures
from forktask.experiments.sampling.phases import phase_walls, phases_beside
from forktask.experiments.sampling.profile import measure_profile
from forktask.experiments.subjects.models import parse_model

PHASES = ("load", "forward", "backward", "update")


def plan_of(*phases):
    """A plan of loops of two blocks each, in these phases."""
    builder = PlanBuilder("phases")
    builder.buffer("x", (2,), "uint64", role="parameter")
    for number, phase in enumerate(phases):
        blocks = [Block((i, i, i + 1), (update("x", (i, i + 1)),)) for i in range(2)]
        builder.loop(f"loop{number}", "hash_chain", {"out": "x", "in": "x"}, blocks, phase=phase)
    return builder.build()


def log(*events):
    """An event log of (start, stop, task, worker), in nanoseconds; a task's events belong to passes in turn."""
    seen, rows = {}, []
    for start, stop, task, worker in events:
        seen[task] = seen.get(task, -1) + 1
        rows.append((start, stop, seen[task], task, worker))
    return np.array(rows, EVENT_DTYPE)


def test_walls_run_from_end_to_end():
    """Check that a phase holds the wait before it, that stretches of one phase are summed, and means over passes."""
    plan = plan_of("forward", "backward", "update", "backward")
    events = []
    for base, scale in ((1000, 1), (1600, 3)):  # the second pass begins 200 ns after the first one's end
        starts = [base + scale * t for t in (0, 110, 210, 310)]
        for loop, start in enumerate(starts):
            events += [(start, start + scale * 40, 2 * loop, 0), (start, start + scale * 90, 2 * loop + 1, 1)]
    walls = phase_walls(log(*events), plan, 2)
    # First pass: 90, then 110 of backward, 100, 100. Second pass: 200 of waiting more, all else three times as long.
    expected = {"forward": (90 + 200 + 270) / 2, "backward": (210 + 630) / 2, "update": (100 + 300) / 2}
    assert walls == pytest.approx({name: 1e-9 * time for name, time in expected.items()})
    last, first = max(e[1] for e in events), min(e[0] for e in events)
    assert sum(walls.values()) == pytest.approx((last - first) / 2 * 1e-9)


def test_overlap_agrees_with_counting():
    """Check random logs against nanoseconds that are counted one by one."""
    plan, rng = plan_of(*PHASES), np.random.default_rng(5)
    for _ in range(20):
        events = [(int(a), int(a + rng.integers(1, 40)), task, task) for task, a in enumerate(rng.integers(0, 90, 8))]
        result = phases_beside(log(*events), plan, 1)
        busy_ns = {name: [] for name in PHASES}
        for start, stop, task, _ in events:
            busy_ns[PHASES[task // 2]] += range(start, stop)
        for name in PHASES:
            for other in PHASES:
                expected = 0 if name == other else sum(ns in busy_ns[other] for ns in busy_ns[name])
                assert result[name].get(other, 0.0) == pytest.approx(expected * 1e-9, abs=1e-15)


MODELS = forms_of_models("region", "schedule", "taskwait", "barrier", "unroll")


@pytest.mark.parametrize(
    ("model", "threads"),
    [(model, 1) for model in MODELS]
    + [pytest.param(model, 2, marks=pytest.mark.two_cpus) for model in MODELS if threads_of(model, 2) == 2],
)
def test_phases_add_up_in_every_model(model, threads):
    """Check that phases' walls stay within the pass, busy sums within the threads' time, overlap within busy times."""
    plan = {"network": "lenet5", "batch": 64, "granularity": "images=16"}
    job = {"kind": "profile", "model": parse_model(model), "threads": threads, "cpus": None, "plan": plan, "seed": 1}
    row = measure_profile({**job, "target_s": 0.02, "memory_limit": None})
    busy = sum(row["loop_time_s"].values())
    assert busy <= threads * row["pass_time_s"]
    waits = row["barrier"] in ("loop", "phase")
    assert waits == (row["phase_wall_s"] is not None)
    if waits:
        walls = row["phase_wall_s"]
        assert tuple(walls) == PHASES and min(walls.values()) > 0
        assert busy / threads <= sum(walls.values()) <= row["pass_time_s"]
        assert not any(row["phase_beside_s"].values())
    assert threads > 1 or not any(row["phase_beside_s"].values())
    for beside in row["phase_beside_s"].values():
        assert all(0 < time <= busy for time in beside.values())


@pytest.fixture(scope="module")
def sweep():
    return sweep_of(synthetic_rows(threads=(1, 2, 4), repeats=6))


def of(sweep, model, threads):
    """The row of a point."""
    table = phase_table(sweep)
    return table[(table["model"] == model) & (table["threads"] == threads)].iloc[0]


def test_part_of_the_update_beside_the_backward_phase(sweep):
    """Check the column against the rows: none where a barrier stands between, or with one thread."""
    assert of(sweep, "forkjoin", 2)["update_beside_backward"] == of(sweep, "taskiter", 1)["update_beside_backward"] == 0
    assert of(sweep, "taskgraph", 2)["update_beside_backward"] == pytest.approx(0.2)
    assert of(sweep, "taskiter", 4)["update_beside_backward"] == pytest.approx(0.6)


def test_other_runs_have_no_phases():
    """Check that there is no row where the runs with the event log took half as long again as the timed ones."""
    rows = synthetic_rows(models=("serial", "forkjoin"), repeats=5)
    for row in rows:
        if row["kind"] == "profile" and (row["model"], row["threads"]) == ("forkjoin", 2):
            row["pass_time_s"] *= 1.5
    points = phase_table(sweep_of(rows))[["model", "threads"]].to_numpy().tolist()
    assert ["forkjoin", 2] not in points and ["forkjoin", 1] in points


def test_a_figure_of_phases_needs_profiles():
    """Check the sentence where there are none."""
    rows = [r for r in synthetic_rows(models=("serial", "taskiter"), repeats=5) if r["kind"] != "profile"]
    with pytest.raises(UsageError, match="profile rows, got none"):
        figures.draw(sweep_of(rows), "run_time")
