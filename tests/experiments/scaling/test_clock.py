"""The clock tier on a machine that takes no time."""

import random

import pytest
from experiments.scaling.fakes import QUIET, FakeMachine

from forktask.cython_src.errors import UsageError
from forktask.experiments.scaling.bench import Side
from forktask.experiments.scaling.clock import INCONCLUSIVE, SampleError, run_clock_test
from forktask.experiments.scaling.sequential import FAIL, PASS, least_rounds

PLAN = {"network": "cifar10_cnn", "batch": 16}
SIDES = (Side("taskiter", 2, PLAN), Side("forkjoin", 2, PLAN))


def run(machine, limit=1.05, budget_s=120.0, sides=SIDES, **options):
    """A test on a fake machine."""
    return run_clock_test("taskiter/forkjoin", sides, limit, budget_s=budget_s, bench=machine, **options)


@pytest.mark.parametrize("ratio, verdict", [(1.0, PASS), (0.7, PASS), (0.001, PASS), (1.1, FAIL), (3.0, FAIL)])
def test_verdicts(ratio, verdict):
    """Check that a claim passes within the limit and fails beyond, long before the budget ends."""
    result = run(FakeMachine({"taskiter": ratio, "forkjoin": 1.0}, noise=0.02))
    assert result.verdict == verdict and result.elapsed_s < 60
    assert result.decision.ratio == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("base_ms", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("ratio", [1.5, 3.0, 30.0, 164.867, 1000.0, 1e6])
@pytest.mark.parametrize("limit", [1.1, 3.0])
def test_gross_regressions_fail_whatever_they_cost(ratio, base_ms, limit):
    """Check that the slower the code the surer the failure, within a budget that holds only short samples of it."""
    if ratio <= limit:
        ratio *= 4
    machine = FakeMachine({"taskiter": ratio * base_ms, "forkjoin": base_ms}, noise=0.05)
    result = run(machine, limit=limit, budget_s=60.0)
    assert result.verdict == FAIL and result.elapsed_s <= 60
    assert result.decision.low > limit
    # The same claim the other way round passes as surely.
    machine = FakeMachine({"taskiter": base_ms, "forkjoin": ratio * base_ms}, noise=0.05)
    assert run(machine, limit=limit, budget_s=60.0).verdict == PASS


def test_a_side_that_is_stopped_gives_a_bound():
    """Check that what a slow side had not finished counts as a bound of the ratio, and is marked."""
    result = run(FakeMachine({"taskiter": 1e6, "forkjoin": 1.0}), budget_s=60.0)
    assert {r.unfinished for r in result.rounds} == {"A"} and not result.discarded
    assert 2 < result.decision.ratio < 1e6


def test_a_budget_that_is_too_small_is_an_error():
    """Check that a budget without room for a verdict is an error before any round, and that what it names suffices."""
    times_ms = {"taskiter": 1.0, "forkjoin": 1.0}
    machine = FakeMachine(times_ms, noise=0.02, start_s=1.2)
    with pytest.raises(UsageError, match=r"must hold the 16 rounds that a verdict needs, .*; give (\d+) s") as caught:
        run(machine, budget_s=20.0)
    assert len(machine.samples) == 2
    enough = float(str(caught.value).rpartition("give ")[2].split()[0])
    result = run(FakeMachine(times_ms, noise=0.02, start_s=1.2), limit=1.2, budget_s=enough)
    assert result.verdict == PASS


def slower_after_the_trial(start_s):
    """A machine on which processes take longer to start once the trial samples are over."""
    machine = FakeMachine({"taskiter": 2.0, "forkjoin": 1.0})

    def disturbance(number):
        machine.start_s = start_s if number else machine.start_s  # the second sample is the last trial
        return QUIET

    machine.disturbance = disturbance
    return machine


def test_a_verdict_that_is_near_may_take_longer_than_the_budget():
    """Check that a gross regression fails although rounds turn out longer than planned; beyond, that it is an error."""
    result = run(slower_after_the_trial(1.5), budget_s=30.0)
    assert result.verdict == FAIL and 30 < result.elapsed_s <= 45
    with pytest.raises(UsageError, match=r"must hold the 10 rounds .*, it held \d in \d+ s; give \d+ s"):
        run(slower_after_the_trial(4.0), budget_s=30.0)


def test_two_sides_too_slow_for_the_budget():
    """Check that two sides that do not finish a trial give the reason."""
    with pytest.raises(UsageError, match="those of neither side did; give more seconds, or a smaller plan"):
        run(FakeMachine({"taskiter": 1e5, "forkjoin": 1e5}), budget_s=20.0)


def test_inconclusive_within_the_budget():
    """Check that a ratio at the limit ends inconclusive, with the reason, and that no round begins that has no room."""
    result = run(FakeMachine({"taskiter": 1.05, "forkjoin": 1.0}, noise=0.02), budget_s=61)
    assert result.verdict == INCONCLUSIVE and 59 < result.elapsed_s <= 61
    assert f"after {len(result.rounds)} rounds in" in result.reason
    assert "would decide" in result.reason or "not likely to decide" in result.reason


def test_order_is_tossed():
    """Check that rounds are A B or B A by the toss, and that a drift of the machine favours neither."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})

    machine.change = lambda side, row: {**row, "long_times_s": [2e-3 * (1 + 0.001 * len(machine.samples))]}
    tosses = iter([True, False, True] * 50)
    machine.toss = lambda: next(tosses)
    result = run(machine)
    assert [r.order for r in result.rounds[:3]] == ["AB", "BA", "AB"]
    assert [side.model for side in machine.samples[2:6]] == ["taskiter", "forkjoin", "forkjoin", "taskiter"]
    assert [r.log_ratio > 0 for r in result.rounds[:3]] == [False, True, False]


def test_both_sides_measure_alike():
    """Check that all samples of a test are of one length, however unlike the models are."""
    machine = FakeMachine({"taskiter": 2.0, "forkjoin": 1.0})
    run(machine)
    assert len({effort.rounds for effort in machine.efforts[2:]}) == 1
    assert machine.efforts[0] == machine.efforts[1]


@pytest.mark.parametrize(
    "name, value, said",
    [("pressure_some_us", 50_000, "pressure"), ("steal_ticks", 4, "steal"), ("throttled_us", 10_000, "throttled")],
)
def test_disturbed_rounds_are_discarded_and_repeated(name, value, said):
    """Check that rounds with pressure, steal or a spent quota count for nothing and are listed with the reason."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    machine.disturbance = lambda number: {**QUIET, name: value} if number in (4, 5, 10, 11) else QUIET
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
    machine.disturbance = lambda number: {**loud, "pressure_some_us": 95_000} if number in (10, 11) else loud
    result = run(machine)
    assert result.verdict == FAIL
    assert [k for k, r in enumerate(result.rounds) if r.discarded] == [4]


@pytest.mark.parametrize("ratio, counted", [(30.0, True), (0.03, True), (1.3, False)])
def test_no_disturbance_explains_a_gross_ratio(ratio, counted):
    """Check that a disturbed round counts where its ratio is far from the limit, on either side, and only there."""
    machine = FakeMachine({"taskiter": ratio, "forkjoin": 1.0}, noise=0.02)
    machine.disturbance = lambda number: {**QUIET, "pressure_some_us": 60_000} if number in (4, 5) else QUIET
    assert bool(run(machine).discarded) != counted


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
    machine.change = lambda side, row: {**row, "weights_hash": side.model}
    with pytest.raises(SampleError, match="same results"):
        run(machine)


def test_a_process_that_fails_is_an_error():
    """Check that a crash is no slow sample."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})
    machine.change = lambda side, row: {"failure": "crash", "message": "killed by SIGSEGV"}
    with pytest.raises(SampleError, match="taskiter on 2 .*SIGSEGV"):
        run(machine)


def test_samples_that_do_not_finish_on_a_loaded_machine():
    """Check that a round in which neither side finished counts for nothing, and that the test still ends."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0}, noise=0.01)
    stopped = {"failure": "timeout", "message": ""}
    machine.change = lambda side, row: stopped if len(machine.samples) in (7, 8) else row
    result = run(machine)
    assert result.verdict == PASS and [k for k, r in enumerate(result.rounds) if r.discarded] == [2]
    assert result.discarded[0].discarded == "neither sample was finished in time"


def test_false_alarms_of_the_whole_procedure():
    """Check the whole procedure on made-up machines: no false alarm in 300 A/A tests with noise of 1 to 30 %."""
    alarms, rng = 0, random.Random(4)
    for seed in range(300):
        machine = FakeMachine({"taskiter": 1.0}, noise=rng.choice([0.01, 0.03, 0.1, 0.3]), seed=seed)
        same = Side("taskiter", 2, PLAN)
        alarms += run(machine, sides=(same, same), budget_s=60).verdict == FAIL
    assert alarms == 0


@pytest.mark.parametrize("slowdown, least", [(0.1, 38), (0.5, 40), (2.0, 40), (29.0, 40), (999.0, 40)])
def test_power_of_the_whole_procedure(slowdown, least):
    """Check that a slowdown is found, and a gross one always: on 40 made-up machines."""
    found = 0
    for seed in range(40):
        machine = FakeMachine({"slow": 1 + slowdown, "fast": 1.0}, noise=0.03, seed=seed)
        slower = (Side("slow", 2, PLAN), Side("fast", 2, PLAN))
        found += run(machine, sides=slower, budget_s=60).verdict == FAIL
    assert found >= least


def test_stopping_a_side_keeps_the_coin_fair():
    """Check that at the limit itself, with tails so heavy that samples are stopped, sides win equally often."""
    signs = []
    for seed in range(200):
        machine = FakeMachine({"taskiter": 1.5 * 200, "forkjoin": 200}, noise=1.0, seed=seed)
        try:
            result = run(machine, limit=1.5, budget_s=100)
        except UsageError:
            continue
        signs += [r.log_ratio > 0.4054651 for r in result.rounds[:10] if not r.discarded]
    assert len(signs) > 1000 and abs(sum(signs) / len(signs) - 0.5) < 0.04


def test_least_rounds():
    """Check how many rounds a verdict takes where all say the same."""
    assert (least_rounds(0.005), least_rounds(0.025)) == (10, 7)


def test_first_rounds_are_judged_together():
    """Check that one loud round among the first few is seen although nothing came before it."""
    machine = FakeMachine({"taskiter": 1.0, "forkjoin": 1.0})
    machine.disturbance = lambda number: {**QUIET, "pressure_some_us": 60_000} if number in (2, 3) else QUIET
    result = run(machine)
    assert result.rounds[0].discarded and not result.rounds[1].discarded
