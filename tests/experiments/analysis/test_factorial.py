"""The factorial of creation, barrier, placement and order: specs, effects that are known."""

import itertools
import math

import pytest

from experiments import synthetic_results
from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis import factorial
from forktask.experiments.subjects.models import parse_model

EFFECT = {"replayed": 0.8, "iteration": 0.95, "none": 0.9, "partitioned": 0.7, "auto": 0.6}
FOUR, THREE = factorial.FACTORIALS


@pytest.fixture(params=[FOUR, THREE], ids=len, scope="module")
def measured(request):
    """Factors, and a sweep of step times that are products of known effects: no interaction."""
    factor = {
        model: math.prod(EFFECT.get(value, 1.0) for value in cell)
        for cell, model in factorial.cells_of(request.param).items()
    }
    rows = synthetic_results.synthetic_rows(models=("serial", *factor), threads=(1, 2), noise=0.0)
    return request.param, synthetic_results.sweep_of(
        [
            {**row, "step_time_s": 0.01 * factor.get(row["model"], 0.5) * (1 + 0.1 * row["repetition"])}
            if row["kind"] == "sample"
            else row
            for row in rows
        ]
    )


def test_effects_are_found_and_multiply_up(measured):
    """Check an attribution whose parts make the whole, through disturbed blocks."""
    names, sweep = measured
    assert len(factorial.factorial_table(sweep)) == 2 * {FOUR: 12, THREE: 9}[names]
    table = factorial.effect_table(sweep)
    of = {row["effect"]: row for row in table[table["threads"] == 2].to_dict("records")}
    known = dict(zip(FOUR, (0.8, 0.9, 0.7, 0.6), strict=True))
    known = {name: known[name] for name in names}
    assert {name: row["ratio"] for name, row in of.items()} == pytest.approx(known | {"all": math.prod(known.values())})
    assert sum(of[name]["share"] for name in names) == pytest.approx(1)
    assert of["placement"]["verdict"] == "faster"
    assert f"{math.prod(known.values()):.3f}" in factorial.answer(sweep, sweep.plan_ids()[0])


def test_three_switches_make_the_task_models():
    """Check that every combination is one of the models, with further options kept, or says why it cannot be."""
    known = {("eager", "stealing"): "tasks", ("replayed", "stealing"): "task", ("replayed", "partitioned"): "task"}
    for creation, barrier, placement in itertools.product(
        ("eager", "replayed"), ("loop", "phase", "iteration", "none"), ("stealing", "partitioned")
    ):
        text = f"tasking:placement={placement}:creation={creation}:barrier={barrier}"
        if (creation, placement) not in known:
            with pytest.raises(UsageError, match="creation=replayed"):
                parse_model(text)
            continue
        spec = parse_model(text)
        assert str(spec).startswith(known[creation, placement]) and spec.barrier == barrier
    assert str(parse_model("tasking")) == "taskiter"
    assert str(parse_model("tasking:creation=eager:barrier=none:window=64")) == "tasks:taskwait=none:window=64"
    with pytest.raises(UsageError, match="twice"):
        parse_model("tasking:barrier=none:barrier=loop")
    with pytest.raises(UsageError, match="'barrier' of model 'tasking'"):
        parse_model("tasking:barrier=never")
