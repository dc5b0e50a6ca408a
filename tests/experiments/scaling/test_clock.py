"""The clock tier on a machine that takes no time."""

import random

import pytest
from experiments.scaling.fakes import QUIET, FakeMachine

from forktask.experiments.scaling.clock import FIRST_ROUNDS, INCONCLUSIVE, Side, run_clock_test
from forktask.experiments.scaling.sequential import FAIL, PASS

PLAN = {"network": "cifar10_cnn", "batch": 16}
SIDES = (Side("taskiter", 2, PLAN), Side("forkjoin", 2, PLAN))


def run(machine, limit=1.05, budget_s=120.0, sides=SIDES, **options):
    """A test on a fake machine."""
    return run_clock_test(
        "taskiter/forkjoin",
        sides,
        limit,
        budget_s=budget_s,
        sampler=machine.sample,
        measure_capacity=machine.capacity,
        clock=machine.clock,
        toss=machine.toss,
        **options,
    )


@pytest.mark.parametrize("ratio, verdict", [(1.0, PASS), (0.7, PASS), (1.1, FAIL), (3.0, FAIL)])
def test_verdicts(ratio, verdict):
    """Check that a claim passes within the limit and fails beyond, long before the budget ends."""
    result = run(FakeMachine({"taskiter": ratio, "forkjoin": 1.0}, noise=0.02))
    assert result.verdict == verdict and result.elapsed_s < 60
    assert result.decision.ratio == pytest.approx(ratio, rel=0.05)


def test_inconclusive_within_the_budget():
    """Check that a ratio at the limit ends inconclusive, with the reason, and that no round begins that has no room."""
    result = run(FakeMachine({"taskiter": 1.05, "forkjoin": 1.0}, noise=0.02), budget_s=61)
    assert result.verdict == INCONCLUSIVE and result.elapsed_s == 60 and len(result.rounds) == 30
    assert "after 30 rounds in 60 s" in result.reason


def test_no_budget_measures_nothing():
    """Check that a budget of zero starts no process."""
    machine = FakeMachine({})
    assert run(machine, budget_s=0).verdict == INCONCLUSIVE
    assert not machine.samples and not machine.num_capacities


def test_order_is_tossed():
    """Check that rounds are A B B A or B A A B by the toss, and that a drift of the machine cancels."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})

    def drifting(side):
        sample = machine.sample(side)
        return {**sample, "run_lengths": [1], "run_times_s": [1.0 + 0.1 * len(machine.samples)]}

    tosses = iter([True, False, True])
    result = run_clock_test(
        "c",
        SIDES,
        1.05,
        budget_s=120,
        sampler=drifting,
        measure_capacity=machine.capacity,
        clock=machine.clock,
        toss=lambda: next(tosses),
        max_rounds=3,
    )
    assert [r.order for r in result.rounds] == ["ABBA", "BAAB", "ABBA"]
    assert [side.model for side in machine.samples[:4]] == ["taskiter", "forkjoin", "forkjoin", "taskiter"]
    assert all(abs(r.log_ratio) < 0.01 for r in result.rounds)


@pytest.mark.parametrize(
    "name, value, said",
    [("pressure_some_us", 50_000, "pressure"), ("steal_ticks", 4, "steal"), ("throttled_us", 10_000, "throttled")],
)
def test_disturbed_rounds_are_discarded_and_repeated(name, value, said):
    """Check that rounds with pressure, steal or a spent quota count for nothing and are listed with the reason."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    machine.disturbance = lambda number: {**QUIET, name: value} if 4 <= number < 8 or 16 <= number < 20 else QUIET
    result = run(machine)
    assert [k for k, r in enumerate(result.rounds) if r.discarded] == [1, 4]
    assert said in result.rounds[1].discarded
    assert result.verdict == PASS and result.decision.rounds == len(result.rounds) - 2


def test_changed_capacity_is_a_disturbance():
    """Check that a round during which the machine's capacity changed is discarded."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    machine.capacity_of = lambda number: 2.0 if number < 5 else 1.5
    result = run(machine)
    assert [k for k, r in enumerate(result.rounds) if r.discarded] == [4]
    assert "capacity change" in result.rounds[4].discarded


def test_a_machine_that_is_always_disturbed_is_measured_as_it_is():
    """Check that constant pressure discards nothing, and only what stands out does."""
    machine = FakeMachine({"taskiter": 1.2, "forkjoin": 1.0}, noise=0.02)
    loud = {**QUIET, "pressure_some_us": 30_000}
    machine.disturbance = lambda number: {**loud, "pressure_some_us": 95_000} if 16 <= number < 20 else loud
    result = run(machine)
    assert result.verdict == FAIL
    assert [k for k, r in enumerate(result.rounds) if r.discarded] == [4]


def test_hidden_counters_are_no_objection():
    """Check that a machine that shows no counters can be measured on."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    machine.disturbance = lambda number: dict.fromkeys(QUIET)
    assert run(machine).verdict == PASS


def test_efficiency_is_relative_to_the_capacity():
    """Check that two threads that run 1.6 times as fast are efficient where the machine gives 1.6, and not where 2."""
    sides = (Side("forkjoin", 2, PLAN), Side("serial", 1, PLAN))
    for capacity, verdict in ((1.6, PASS), (2.0, FAIL)):
        machine = FakeMachine({"forkjoin": 1 / 1.6, "serial": 1.0}, noise=0.01)
        machine.capacity_of = lambda number, c=capacity: c
        assert run(machine, limit=1 / 0.9, sides=sides, per_capacity=True).verdict == verdict


def test_other_results_are_an_error():
    """Check that no ratio is given between models that computed something else."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})

    def wrong(side):
        return {**machine.sample(side), "weights_hash": side.model}

    with pytest.raises(RuntimeError, match="must leave the same results"):
        run_clock_test(
            "c", SIDES, 1.05, budget_s=9, sampler=wrong, measure_capacity=machine.capacity, clock=machine.clock
        )


def test_a_process_that_fails_is_an_error():
    """Check that a crash is no slow sample."""

    def broken(side):
        return {"failure": "crash", "message": "killed by SIGSEGV"}

    with pytest.raises(RuntimeError, match="taskiter on 2 threads did not run .* SIGSEGV"):
        run_clock_test("c", SIDES, 1.05, budget_s=9, sampler=broken, measure_capacity=lambda n: 2.0, toss=lambda: True)


def test_false_alarms_and_power_of_the_whole_procedure():
    """Check the whole procedure on made-up machines: no false alarm in 150 A/A tests; a slowdown of 10 % is found."""
    alarms, found, rng = 0, 0, random.Random(4)
    for seed in range(150):
        machine = FakeMachine({"taskiter": 1.0}, noise=rng.choice([0.01, 0.05]), seed=seed)
        same = Side("taskiter", 2, PLAN)
        alarms += run(machine, sides=(same, same)).verdict == FAIL
    for seed in range(40):
        machine = FakeMachine({"taskiter": 1.0}, noise=0.03, seed=seed)
        slower = (Side("taskiter", 2, PLAN, slowdown=0.1), Side("taskiter", 2, PLAN))
        found += run(machine, sides=slower).verdict == FAIL
    assert alarms == 0 and found >= 38


def test_first_rounds_are_judged_together():
    """Check that one loud round among the first few is seen although nothing came before it."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})
    machine.disturbance = lambda number: {**QUIET, "pressure_some_us": 60_000} if number < 4 else QUIET
    result = run(machine, max_rounds=FIRST_ROUNDS)
    assert result.rounds[0].discarded and not result.rounds[1].discarded
