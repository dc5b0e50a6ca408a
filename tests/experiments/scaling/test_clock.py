"""The clock tier on a machine that takes no time."""

import random

import pytest
from experiments.scaling.fakes import QUIET, FakeMachine

from forktask.cython_src.errors import UsageError
from forktask.experiments.scaling.bench import Side
from forktask.experiments.scaling.clock import FAIL, INCONCLUSIVE, PASS, SampleError, run_clock_test
from forktask.experiments.subjects.models import parse_model

PLAN = {"network": "cifar10_cnn", "batch": 16}
SIDES = (Side(parse_model("taskiter"), 2, PLAN), Side(parse_model("forkjoin"), 2, PLAN))


def run(machine, limit=1.05, budget_s=120.0, sides=SIDES, **options):
    """A test on a fake machine."""
    return run_clock_test("taskiter/forkjoin", sides, limit, budget_s=budget_s, bench=machine, **options)


@pytest.mark.parametrize("ratio, verdict", [(1.0, PASS), (0.7, PASS), (0.001, PASS), (1.1, FAIL), (3.0, FAIL)])
def test_verdicts(ratio, verdict):
    """Check that a claim passes within the limit and fails beyond, long before the budget ends."""
    result = run(FakeMachine({"taskiter": ratio, "forkjoin": 1.0}, noise=0.02))
    assert result.verdict == verdict and result.elapsed_s < 60
    assert result.ratio.value == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("base_ms", [0.01, 30.0])
@pytest.mark.parametrize("ratio", [1.5, 30.0, 164.867, 1e6])
@pytest.mark.parametrize("limit", [1.1, 3.0])
def test_gross_regressions_fail_whatever_they_cost(ratio, base_ms, limit):
    """Check that the slower the code the surer the failure, within a budget that holds only short samples of it."""
    if ratio <= limit:
        ratio *= 4
    machine = FakeMachine({"taskiter": ratio * base_ms, "forkjoin": base_ms}, noise=0.05)
    result = run(machine, limit=limit, budget_s=60.0)
    assert result.verdict == FAIL and result.elapsed_s <= 60
    assert result.ratio.low > limit
    # The same claim the other way round passes as surely.
    machine = FakeMachine({"taskiter": base_ms, "forkjoin": ratio * base_ms}, noise=0.05)
    assert run(machine, limit=limit, budget_s=60.0).verdict == PASS


def test_a_side_that_is_stopped_gives_a_bound():
    """Check that what a slow side had not finished counts as a bound of the ratio, and is marked."""
    result = run(FakeMachine({"taskiter": 1e6, "forkjoin": 1.0}), budget_s=60.0)
    assert {take.unfinished for take in result.takes} == {"A"} and not result.disturbed
    assert 2 < result.ratio.value < 1e6


def test_a_budget_that_is_too_small_is_an_error():
    """Check that a budget without room for a verdict is an error before any round, and that what it names suffices."""
    times_ms = {"taskiter": 1.0, "forkjoin": 1.0}
    machine = FakeMachine(times_ms, noise=0.02, start_s=1.2)
    with pytest.raises(
        UsageError, match=r"must hold the 10 generations that a verdict needs, .*; give (\d+) s"
    ) as caught:
        run(machine, budget_s=20.0)
    assert len(machine.samples) == 2
    enough = float(str(caught.value).rpartition("give ")[2].split()[0])
    result = run(FakeMachine(times_ms, noise=0.02, start_s=1.2), limit=1.2, budget_s=enough)
    assert result.verdict == PASS


def slower_after_the_trial(start_s):
    """A machine on which processes take longer to start once the trial samples are over."""
    machine = FakeMachine({"taskiter": 2.0, "forkjoin": 1.0})

    def disturbance(generation, number):
        machine.start_s = start_s if generation >= -1 else machine.start_s  # the last trial
        return QUIET

    machine.disturbance = disturbance
    return machine


def test_a_verdict_that_is_near_may_take_longer_than_the_budget():
    """Check that a gross regression fails although rounds turn out longer than planned; beyond, that it is an error."""
    result = run(slower_after_the_trial(1.0), budget_s=15.0)
    assert result.verdict == FAIL and 15 < result.elapsed_s <= 22.5
    with pytest.raises(UsageError, match=r"must hold the 6 generations .*, it held \d in \d+ s; give \d+ s"):
        run(slower_after_the_trial(1.6), budget_s=15.0)


def test_two_sides_too_slow_for_the_budget():
    """Check that two sides that do not finish a trial give the reason."""
    with pytest.raises(UsageError, match="those of neither side did; give more seconds, or a smaller plan"):
        run(FakeMachine({"taskiter": 1e5, "forkjoin": 1e5}), budget_s=20.0)


def test_inconclusive_within_the_budget():
    """Check that a ratio at the limit ends inconclusive, with the reason, and that no round begins that has no room."""
    result = run(FakeMachine({"taskiter": 1.05, "forkjoin": 1.0}, noise=0.02), budget_s=61)
    assert result.verdict == INCONCLUSIVE and 59 < result.elapsed_s <= 61
    assert f"after {len(result.takes)} generations in" in result.reason
    assert "would decide" in result.reason or "not likely to decide" in result.reason


@pytest.mark.parametrize("name, value", [("spin_s", 1.5), ("pressure_us", 60_000), ("steal_ticks", 6)])
def test_disturbed_rounds_are_left_out(name, value):
    """Check that a round that stands out by what is the same for all moves nothing, and is counted."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    machine.disturbance = lambda generation, number: {**QUIET, name: value} if number == 1 else QUIET
    slowed = {"long_times_s": lambda t: [t[0], 9 * t[1], *t[2:]], "short_times_s": lambda t: [t[0], 3 * t[1], *t[2:]]}

    def change(side, row):
        slow = side.model == "taskiter" and len(row["rounds"]) > 1
        return {**row, **{field: by(row[field]) for field, by in slowed.items()}} if slow else row

    machine.change = change
    result = run(machine)
    assert result.verdict == PASS and result.disturbed == len(result.takes)
    times = result.quiet.times
    assert times.keys() == {"A", "B"} and all(number != 1 for own in times.values() for *_, number in own)


def slower_when_far(is_far, by=1.9, times_ms=None):
    """A machine whose CPUs lie far apart in some generations, in which models on two threads take longer."""
    machine = FakeMachine(times_ms or {"taskiter": 0.55, "serial": 1.0}, noise=0.01)
    machine.disturbance = lambda generation, number: {**QUIET, "handover_s": 3.5e-7 if is_far(generation) else 1.5e-7}

    def change(side, row):
        factor = by if side.threads > 1 and is_far(machine.generation) else 1.0
        return {**row, **{name: [factor * t for t in row[name]] for name in ("short_times_s", "long_times_s")}}

    machine.change = change
    return machine


EFFICIENCY = {"sides": (Side("taskiter", 2, PLAN), Side("serial", 1, PLAN)), "per_capacity": True, "limit": 1 / 0.7}


def test_efficiencies_are_judged_on_near_cpus():
    """Check that generations on CPUs that lie far apart decide nothing, however many they are, and that the test ends
    open where the near ones are too few."""
    result = run(slower_when_far(lambda generation: 1 < generation < 12), **EFFICIENCY)
    assert result.verdict == PASS and result.moved == 10
    assert result.ratio.inverse().value == pytest.approx(1 / 1.1, rel=0.02)
    result = run(slower_when_far(lambda generation: generation > 4), budget_s=30, **EFFICIENCY)
    assert result.verdict == INCONCLUSIVE and result.moved == len(result.takes) - 5
    assert "CPUs lay elsewhere" in result.reason and "more generations would decide" in result.reason
    # A model against itself bears both states alike.
    machine = slower_when_far(lambda generation: generation > 2, times_ms={"taskiter": 1.0})
    result = run(machine, sides=(Side("taskiter", 2, PLAN),) * 2)
    assert result.verdict == PASS and len(result.takes) == 6


def test_what_is_far_off_fails_however_busy_the_machine():
    """Check that a ratio far above the limit in every generation fails without an undisturbed round; that one near it,
    one that is far off in most generations, and an efficiency, which load changes as much, do not."""
    busy = {**QUIET, "spin_s": 1.5, "pressure_us": 700_000}

    def test_on(times_ms, change=None, **options):
        machine = FakeMachine(times_ms, noise=0.3)
        machine.disturbance = lambda generation, number: {**busy, "spin_s": 1.0 if number < 1 else 1.5}
        machine.change = change(machine) if change else machine.change
        return run(machine, budget_s=60, **options)

    result = test_on({"taskiter": 19.0, "forkjoin": 1.0})
    assert result.verdict == FAIL and len(result.takes) == 6 and not result.ratio.enough
    assert "3 times the limit in every generation" in result.as_row()["reason"]
    assert test_on({"taskiter": 2.0, "forkjoin": 1.0}).verdict == INCONCLUSIVE

    def once(machine):
        return lambda side, row: (
            {**row, "long_times_s": [t / 30 for t in row["long_times_s"]]}
            if (side.model == "taskiter" and machine.generation == 3)
            else row
        )

    assert test_on({"taskiter": 19.0, "forkjoin": 1.0}, once).verdict == INCONCLUSIVE
    assert test_on({"taskiter": 8.0, "serial": 1.0}, **EFFICIENCY).verdict == INCONCLUSIVE


def test_a_budget_that_load_has_spent_is_no_error():
    """Check that beside load a test without room for a verdict ends open, before its rounds or after them."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.02, start_s=1.2)
    machine.disturbance = lambda generation, number: {**QUIET, "pressure_us": 700_000}
    result = run(machine, budget_s=20.0)
    assert result.verdict == INCONCLUSIVE and "must hold the 10 generations" in result.reason
    machine = slower_after_the_trial(1.6)
    quiet = machine.disturbance
    machine.disturbance = lambda generation, number: {**quiet(generation, number), "pressure_us": 700_000}
    assert run(machine, budget_s=15.0).verdict == INCONCLUSIVE


def test_no_verdict_rests_on_disturbed_rounds():
    """Check that beside load that never ends rounds are kept, and decide only when enough others are there."""
    machine = FakeMachine({"taskiter": 1.2, "forkjoin": 1.0}, noise=0.02)
    machine.disturbance = lambda generation, number: {**QUIET, "spin_s": 1.5 if number > 1 else 1.0}
    result = run(machine)
    assert result.verdict == FAIL and result.ratio.rounds == 2 * len(result.takes) >= result.ratio.needed
    machine = FakeMachine({"taskiter": 1.2, "forkjoin": 1.0}, noise=0.02)
    machine.disturbance = lambda generation, number: {**QUIET, "spin_s": 1.5}
    result = run(machine, budget_s=60)
    assert result.verdict == INCONCLUSIVE and result.ratio.low > 1.05
    assert f"0 undisturbed rounds, a verdict needs {result.ratio.needed}" in result.reason


def test_efficiency_is_relative_to_the_capacity():
    """Check that two threads that run 1.6 times as fast are efficient where the machine gives 1.6, and not where 2."""
    sides = (Side("forkjoin", 2, PLAN), Side("serial", 1, PLAN))
    for capacity, verdict in ((1.6, PASS), (2.0, FAIL)):
        machine = FakeMachine({"forkjoin": 1 / 1.6, "serial": 1.0}, noise=0.01)
        machine.capacity_of = lambda number, c=capacity: c
        assert run(machine, limit=1 / 0.9, sides=sides, per_capacity=True).verdict == verdict


def test_efficiency_is_not_judged_beside_load():
    """Check that generations in which threads waited for a CPU decide nothing, however low the efficiency is there, and
    that others do."""
    sides = (Side("forkjoin", 2, PLAN), Side("serial", 1, PLAN))
    machine = FakeMachine({"forkjoin": 5.0, "serial": 1.0}, noise=0.01)
    machine.disturbance = lambda generation, number: {**QUIET, "pressure_us": 700_000}
    result = run(machine, limit=1 / 0.6, sides=sides)
    assert result.verdict == INCONCLUSIVE and "is not judged beside such load; measure without it" in result.reason
    machine = FakeMachine({"forkjoin": 5.0, "serial": 1.0}, noise=0.01)
    machine.disturbance = lambda generation, number: {**QUIET, "pressure_us": 700_000 * (generation < 6)}
    result = run(machine, limit=1 / 0.6, sides=sides)
    loaded = sum(take.rounds.pressure_us[0] > 0 for take in result.takes)
    assert result.verdict == FAIL and result.ratio.count == len(result.takes) - loaded < len(result.takes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda side, row: {**row, "weights_hash": side.model}, "same results"),
        (lambda side, row: {"failure": "crash", "message": "killed by SIGSEGV"}, "taskiter on 2 .*SIGSEGV"),
    ],
)
def test_other_results_and_crashes_are_errors(change, message):
    """Check that no ratio is given between models that computed something else, and that a crash is no slow sample."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})
    machine.change = change
    with pytest.raises(SampleError, match=message):
        run(machine)


def test_samples_that_do_not_finish_on_a_loaded_machine():
    """Check that a generation in which neither side finished counts for nothing, and that the test still ends."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    stopped = {"failure": "timeout", "message": ""}
    machine.change = lambda side, row: stopped if len(machine.samples) in (7, 8) else row
    result = run(machine)
    assert result.verdict == PASS and [take.unfinished for take in result.takes[:4]] == ["", "", "AB", ""]
    assert result.ratio.count == len(result.takes) - 1


def test_false_alarms_of_the_whole_procedure():
    """Check the whole procedure on made-up machines: no false alarm in 100 A/A tests with noise of 1 to 30 %."""
    alarms, rng = 0, random.Random(4)
    for seed in range(100):
        machine = FakeMachine({"taskiter": 1.0}, noise=rng.choice([0.01, 0.03, 0.1, 0.3]), seed=seed, start_s=0.5)
        same = Side("taskiter", 2, PLAN)
        alarms += run(machine, sides=(same, same), budget_s=25).verdict == FAIL
    assert alarms == 0


@pytest.mark.parametrize("slowdown, least", [(0.1, 19), (2.0, 20), (999.0, 20)])
def test_power_of_the_whole_procedure(slowdown, least):
    """Check that a slowdown is found, and a gross one always: on 20 made-up machines."""
    result = 0
    for seed in range(20):
        machine = FakeMachine({"slow": 1 + slowdown, "fast": 1.0}, noise=0.03, seed=seed)
        slower = (Side("slow", 2, PLAN), Side("fast", 2, PLAN))
        result += run(machine, sides=slower, budget_s=60).verdict == FAIL
    assert result >= least
