"""Claims about functions and programs: with a fake machine, and with real processes."""

import sys

import pytest
from experiments.scaling.fakes import FakeMachine
from experiments.scaling.test_plugin import QUICK, rows_of

pytest_plugins = ["pytester"]

SOLVER = """
import time

def wait(seconds=0.001, threads=1):
    time.sleep(seconds / threads)

def slow(seconds=0.001, threads=1):
    wait(1.3 * seconds, threads)

def other(seconds=0.001):
    return 1.0

def by_threads(threads):
    return float(threads)

def needs(n):
    return n

def fails():
    raise ArithmeticError("no convergence")

anonymous = lambda: 1
"""
TEST = """
    import pytest
    import sys
    import solver

    @pytest.mark.scaling(threads=[1, 2]{marker})
    def test_it(scaling):
        {body}
"""


def run(pytester, body, *options, marker=""):
    """Run a test with this body beside the module `solver`."""
    pytester.makepyfile(solver=SOLVER)
    pytester.makepyfile(test_it=TEST.format(body=body, marker=marker))
    return pytester.runpytest_inprocess(*QUICK, *options)


class CallMachine(FakeMachine):
    """Calls that take half as long on two threads; of one function `slowness` times as long."""

    slowness = 1.3

    def sample(self, side, effort):
        self.times_ms = {side.model: (self.slowness if "slow" in str(side.model) else 1.0) / side.threads}
        return super().sample(side, effort)


@pytest.fixture
def machine(monkeypatch):
    """A fake machine."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return CallMachine({}, noise=0.01).install(monkeypatch)


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("assert_ratio(solver.slow, at_most=1.05)", "passed"),
        ("assert_ratio(solver.slow, at_most=0.7)", "failed"),
        ("assert_efficiency(threads=2, at_least=0.8)", "passed"),
        ("assert_efficiency(at_least=1.3)", "failed"),
    ],
)
def test_claims_about_a_function(pytester, machine, claim, outcome):
    """Check that claims are decided, and that rows name function and arguments."""
    result = run(pytester, f"scaling.function(solver.wait, seconds=0.002).{claim}", "--scaling-jsonl=rows")
    result.assert_outcomes(**{outcome: 1})
    (row,) = [row for row in rows_of("rows") if row["kind"] == "clock"]
    assert row["subject"] == "wait(seconds=0.002)" and row["verdict"] == outcome[:4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("scaling.function(solver.wait).assert_ratio('cifar10_cnn', at_most=1.0)", "write a function that runs it"),
        ("scaling.function(lambda: 1)", "must stand at the top level of a module"),
        ("scaling.function(solver.anonymous)", "must stand at the top level of a module"),
        ("scaling.function('solver:wait')", "must stand at the top level of a module"),
        ("scaling.function(solver.needs)", "missing a required argument: 'n'"),
        ("scaling.function(solver.wait, n=1)", "unexpected keyword argument 'n'"),
        ("scaling.function(solver.wait, seconds=[1])", "must be a number, a text, true or false"),
        ("scaling.program('./none')", "must be a file here or on PATH"),
        ("scaling.function(solver.wait).assert_efficiency(at_least=60)", "part of 1, got 60; write 0.6 for 60 %"),
    ],
)
def test_bad_use_is_one_sentence(pytester, machine, body, message):
    """Check that nothing is measured."""
    result = run(pytester, body)
    assert not result.parseoutcomes().get("passed") and not machine.samples
    result.stdout.fnmatch_lines([f"E *UsageError: *{message}*"])


@pytest.mark.parametrize(
    ("body", "marker", "message"),
    [
        ("scaling.function(solver.by_threads).assert_efficiency(at_least=0.1)", "", "must leave the same results"),
        ("scaling.function(solver.by_threads).assert_efficiency(at_least=0.1)", ", rtol=0.1", "more than rtol=0.1"),
        ("scaling.function(solver.wait).assert_ratio(solver.other, at_most=9)", "", "must leave the same results"),
        ("scaling.function(solver.fails).assert_efficiency(at_least=0.1)", "", "ArithmeticError: no convergence"),
        ("scaling.program([sys.executable, '-c', 'exit(3)']).assert_efficiency(at_least=0.1)", "", "exit code 3"),
    ],
)
def test_what_fails_or_differs_fails_the_test(pytester, body, marker, message):
    """Check, with real processes, that a function that raises or returns something else on two threads is named."""
    result = run(pytester, body, "--scaling-budget=60", marker=marker)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E *AssertionError: *{message}*"])


def test_a_program_and_its_own_time(pytester):
    """Check that a claim may rest on the time that a program prints, with real processes."""
    program = [sys.executable, "-c", "import os; print('time:', 0.2 / int(os.environ['OMP_NUM_THREADS']))"]
    body = f"scaling.program({program!r}, time_pattern=r'time: (\\S+)').assert_efficiency(at_least=0.8)"
    run(pytester, body, "--scaling-budget=120").assert_outcomes(passed=1)
