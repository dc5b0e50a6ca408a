"""The plugin in pytest sessions of its own."""

import json
import re
from xml.etree import ElementTree

import pytest
from experiments.scaling.fakes import QUIET, FakeMachine
from experiments.scaling.test_exact import GRAPH, fact

from forktask.experiments.scaling import exact, plugin

pytest_plugins = ["pytester"]

PREDICTED = {
    "work_us": 4.0,
    "span_us": 1.0,
    "cycle_mean_us": 1.0,
    "threads": {"2": {"forkjoin_us": 2.0, "speedup": {"forkjoin": 2.0, "taskgraph": 2.0, "taskiter": 2.0}}},
}
ENTRY = {"graph": GRAPH, "block_ns": {"f": [1000] * 4}, "predicted": PREDICTED, "assumed": []}
CLAIM = """
    import pytest

    @pytest.mark.scaling(models=["forkjoin", "taskiter"], threads=[2])
    def test_step(scaling):
        scaling("cifar10_cnn", batch=16).assert_ratio("taskiter/forkjoin", at_most=1.05)
"""

UNITTEST = """
    import pytest, unittest

    class Test(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def take(self, scaling):
            self.scaling = scaling

        def test_step(self):
            self.scaling("cifar10_cnn", batch=16).assert_ratio("taskiter/forkjoin", at_most=1.05, threads=2)
"""


# Hypothesis's own plugin imports all of it at the end of each session.
QUICK = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def machine(monkeypatch):
    """A fake machine, and processes of the exact and the model tier that find all well."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    models = (("serial", 1), ("forkjoin", 2), ("taskiter", 2))
    facts = [{**fact(name, threads), "kind": "exact", "model": name} for name, threads in models]
    facts[0]["entry"] = ENTRY
    monkeypatch.setattr(exact, "facts_of", lambda plan, models, threads, folder, predict: facts)
    return FakeMachine({"taskiter": 1.0, "forkjoin": 1.0, "serial": 2.0}, noise=0.01).install(monkeypatch)


def run(pytester, text, *options, baseline=True):
    """Run a test file; with a baseline for its tests, as a first run would have written."""
    pytester.makepyfile(test_it=text)
    if baseline:
        pytester.inline_run("--scaling-update-baseline", "--scaling-budget=0", *QUICK)
    return pytester.runpytest_inprocess("-rs", *QUICK, *options)


def rows_of(path):
    """The rows of a file of results, in pytester's folder."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_fail(pytester, machine):
    """Check that a ratio beyond the limit fails the test, with the interval and without the plugin's own traceback."""
    machine.times_ms["taskiter"] = 1.2
    result = run(pytester, CLAIM)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *AssertionError: cifar10_cnn(batch=16): taskiter/forkjoin on 2 is 1.?*claimed at most 1.05*"]
    )
    result.stdout.no_fnmatch_line("*testing.py*_claim*")


@pytest.mark.parametrize(
    "claim, said",
    [
        ("at_least=2", "*: cifar10_cnn(batch=16): forkjoin on 2 threads must run 2 blocks at once, ran 1*"),
        ("at_least=3", "UsageError: at_least must be a whole number of blocks, up to 2 threads, got 3"),
        ("threads=4", "*an overlap needs a model that runs on 4 threads, got serial*"),
    ],
)
def test_overlap(pytester, machine, monkeypatch, claim, said):
    """Check that a claim about blocks at once fails the test, also without a budget for the clock."""
    rows = [{"model": "forkjoin", "threads": 2, "most": 1, "hold_gil": []}]
    monkeypatch.setattr(exact, "overlaps_of", lambda *_: rows)
    text = CLAIM.replace('"forkjoin", "taskiter"', '"serial"') if "=4" in claim else CLAIM
    text = text.replace('assert_ratio("taskiter/forkjoin", at_most=1.05)', f"assert_overlap({claim})")
    result = run(pytester, text, "--scaling-budget=0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E *{said}"])


@pytest.mark.parametrize("text", [CLAIM, UNITTEST], ids=["function", "unittest"])
@pytest.mark.parametrize(
    "option, outcome, said",
    [
        ((), {"passed": 1, "warnings": 1}, "*InconclusiveWarning: *inconclusive: taskiter/forkjoin on 2 is 1.0*"),
        (("--scaling-on-inconclusive=skip",), {"skipped": 1}, "SKIPPED*inconclusive: taskiter/forkjoin on 2 is 1.0*"),
        (("--scaling-on-inconclusive=fail",), {"failed": 1}, "*(a failure with --scaling-on-inconclusive=fail)*"),
    ],
)
def test_inconclusive(pytester, machine, text, option, outcome, said):
    """Check that a claim without an end warns, skips or fails as asked for, and is counted in the summary; a method of
    a `unittest.TestCase` ends like a function."""
    machine.times_ms["taskiter"] = 1.05
    result = run(pytester, text, "--scaling-budget=30", *option)
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([said])
    result.stdout.fnmatch_lines(["claims about times: 1 inconclusive"])


def test_how_often_identical_code_fails(pytester, machine):
    """Check that in place of a claim so many of identical code are tested, and that efficiencies have none."""
    machine.times_ms["taskiter"] = 5.0
    text = (
        CLAIM
        + """
        scaling("cifar10_cnn", batch=16).assert_efficiency("forkjoin", at_least=0.9)
    """
    )
    result = run(pytester, text, "--scaling-null=4")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "null *: taskiter/forkjoin on 2, at most 1.05: identical code failed in 0 of 4 claims*",
            "clock *efficiency of forkjoin on 2 was not timed, an efficiency compares no identical code",
            "in all identical code failed in 0 of 4 claims, so a rate of 0 to 60 % (95 % interval); 0 ended*",
        ]
    )


def test_all_claims_are_looked_at(pytester, machine):
    """Check that a claim without an end does not hide a later one that fails."""
    machine.times_ms["taskiter"] = 1.05
    result = run(
        pytester,
        CLAIM.replace(
            'scaling("cifar10_cnn", batch=16).assert_ratio("taskiter/forkjoin", at_most=1.05)',
            'step = scaling("cifar10_cnn", batch=16)\n        step.assert_ratio("taskiter/forkjoin", at_most=1.05)\n'
            '        step.assert_efficiency("taskiter", at_least=1.1)',
        ),
        "--scaling-budget=30",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *efficiency of taskiter on 2 is 0.9*claimed at least 1.1*"])


@pytest.mark.parametrize("factor", [1.3, 4.0, 1e5])
@pytest.mark.parametrize("claim", ['ratio("taskiter/forkjoin", at_most=1.05)', 'efficiency("taskiter", at_least=0.9)'])
def test_a_regression_in_time_fails(pytester, machine, claim, factor):
    """Check a change that makes steps slower, and leaves results and graphs as they were, on a made-up clock: the
    same test passes before it, fails with it, and passes without it again."""
    text = CLAIM.replace('ratio("taskiter/forkjoin", at_most=1.05)', claim)
    run(pytester, text, "--scaling-jsonl=rows").assert_outcomes(passed=1)
    for slower, outcome, verdict in ((factor, {"failed": 1}, "fail"), (1.0, {"passed": 1}, "pass")):
        machine.times_ms["taskiter"] = slower
        result = run(pytester, text, "--scaling-jsonl=rows", "--scaling-on-inconclusive=skip", baseline=False)
        result.assert_outcomes(**outcome)
        assert result.ret == (verdict == "fail")
        rows = rows_of("rows")
        assert [row["verdict"] for row in rows if row["kind"] == "clock"] == [verdict]
        assert [row["failures"] for row in rows if row["kind"] == "tier"] == [[], []]


def test_missing_and_changed_baselines(pytester, machine, monkeypatch):
    """Check that a test without an entry, and one with another graph, fail and say what to do."""
    result = run(pytester, CLAIM, baseline=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*has no entry for cifar10_cnn(batch=16); run pytest --scaling-update-baseline once*"])
    run(pytester, CLAIM).assert_outcomes(passed=1)
    result = run(pytester, CLAIM.replace("batch=16", "batch=8"), baseline=False)
    result.stdout.fnmatch_lines(["*no entry for cifar10_cnn(batch=8), only for cifar10_cnn(batch=16)*"])
    changed = json.loads(json.dumps(ENTRY))
    changed["predicted"]["span_us"] = 2.0
    changed["graph"]["loops"]["f"]["edges"] = 9
    rows = exact.facts_of(*[None] * 5)
    monkeypatch.setitem(rows[0], "entry", changed)
    result = run(pytester, CLAIM, baseline=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*span (µs): 1 -> 2 (+100.00%)*", "*loop f: edges 7 -> 9*"])


@pytest.mark.parametrize(
    "option",
    [
        "--scaling-jsonl=none/rows",
        "--scaling-jsonl=/dev/full",
        "--scaling-jsonl=test_it.py",
        "--scaling-summary=none/rows",
        "--scaling-summary=/dev/full",
        "--scaling-budget=-1",
        "--scaling-budget=minute",
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(pytester, machine, option):
    """Check the sentence, and that no test ran."""
    result = run(pytester, CLAIM, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and "collected" not in result.stdout.str()
    result.stderr.fnmatch_lines([f"*{option.partition('=')[0]}*{option.partition('=')[2]}*"])
    assert "invalid" not in result.stderr.str()


def test_reports(pytester, machine, monkeypatch):
    """Check JUnit properties, Markdown with disturbed rounds, the job summary of GitHub and JSON Lines of one run."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "step.md"))
    machine.disturbance = lambda *number: {**QUIET, "steal_ticks": 6 * (number == (3, 1))}
    run(pytester, CLAIM, "--junitxml=j.xml", "--scaling-summary=out.md", "--scaling-jsonl=out.jsonl").assert_outcomes(
        passed=1
    )
    properties = {p.get("name"): p.get("value") for p in ElementTree.parse(pytester.path / "j.xml").iter("property")}
    assert properties["scaling.exact cifar10_cnn(batch=16)"] == "ok"
    assert properties["scaling.clock taskiter/forkjoin on 2, cifar10_cnn(batch=16)"].startswith(
        "taskiter/forkjoin on 2 is "
    )
    text = (pytester.path / "out.md").read_text()
    assert "| cifar10_cnn(batch=16) | taskiter/forkjoin on 2 |" in text and "| within |" in text
    assert re.search(r"\| \d+ \| \d+ \| 1 \| \d+ s \|", text) and text in (pytester.path / "step.md").read_text()
    rows = rows_of("out.jsonl")
    assert rows[0]["kind"] == "run" and "cpu" in rows[0]["environment"]
    assert {row["kind"] for row in rows[1:]} == {"exact", "tier", "model", "clock", "test"}
    (clock,) = [row for row in rows if row["kind"] == "clock"]
    assert len(clock["generations"]) == clock["num_generations"] + clock["num_moved"]
    first = clock["generations"][0]
    assert len(first["turns"]["A"]["long_times_s"]) == len(first["rounds"]["order"])


@pytest.mark.parametrize(
    "change, said",
    [
        (("taskiter/forkjoin", "taskiter"), "two models with a slash"),
        (("taskiter/forkjoin", "taskiter/no_such"), "no model is called 'no_such'"),
        (("at_most=1.05", "at_most=-1"), "at_most must be a positive number"),
        (("batch=16", "batch={1}"), "JSON"),
        (("threads=[2]", "threads=[0]"), "threads of a scaling test must be a list, each a whole number of at least 1"),
        (('models=["forkjoin", "taskiter"]', "models='taskiter'"), "models of a scaling test must be a list"),
        (("threads=[2]", "threads=[2], rtol=float('nan')"), "rtol of a scaling test must be in [0, "),
        (("at_most=1.05", "at_most=1.05, threads=True"), "threads must be a whole number from 1 on"),
        (('ratio("taskiter/forkjoin", at_most=1.05)', "efficiency(3, at_least=0.5)"), "a claim names a model"),
        (("threads=[2]", "thread=[2]"), "the marker takes models=, threads=, rtol= and compare_results="),
    ],
)
def test_bad_use(pytester, machine, change, said):
    """Check that wrong arguments give one sentence with the remedy."""
    result = run(pytester, CLAIM.replace(*change))
    assert result.parseoutcomes().get("passed", 0) == 0 and not machine.samples
    result.stdout.fnmatch_lines([f"E *UsageError: *{said}*"])


def test_too_few_cpus(pytester, machine, monkeypatch):
    """Check that a claim about more threads than there are CPUs is inconclusive, nothing is measured, and that it is in
    every report."""
    from forktask.experiments.scaling import testing

    monkeypatch.setattr(testing, "available_cpus", lambda: [0])
    options = ("--scaling-jsonl=rows", "--scaling-summary=summary.md", "--junitxml=junit.xml")
    result = run(pytester, CLAIM, "--scaling-on-inconclusive=skip", *options)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*it needs 2 CPUs to be timed, this process may use 1"])
    result.stdout.fnmatch_lines(["claims about times: 1 inconclusive"])
    assert not machine.samples
    assert [row["verdict"] for row in rows_of("rows") if row["kind"] == "clock"] == ["inconclusive"]
    for path in ("summary.md", "junit.xml"):
        assert "taskiter/forkjoin on 2" in (pytester.path / path).read_text()


def test_a_test_that_is_run_anew_reports_once(pytester, machine):
    """Check that JUnit and the rows have the claims of the last run of a test, whoever runs it several times."""
    pytester.makeconftest(
        """
        import pytest
        from _pytest.runner import runtestprotocol

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            for last in (False, True):
                item._initrequest()
                for report in runtestprotocol(item, nextitem=nextitem, log=False):
                    if not last and report.when == "call":
                        report.outcome = "rerun"
                    if last or report.when == "call":
                        item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    run(pytester, CLAIM, "--scaling-jsonl=rows", "--junitxml=junit.xml")
    assert [row["kind"] for row in rows_of("rows")].count("clock") == 1
    names = [each.get("name") for each in ElementTree.parse(pytester.path / "junit.xml").iter("property")]
    assert len(names) == len(set(names)) > 0


def test_no_times_side_by_side(pytester, machine, monkeypatch):
    """Check that under pytest-xdist claims about times and writing baselines are refused."""
    run(pytester, CLAIM)
    monkeypatch.setattr(plugin, "_is_xdist", lambda config: True)
    run(pytester, CLAIM, "--scaling-budget=0", baseline=False).assert_outcomes(passed=1)  # nothing is timed
    result = run(pytester, CLAIM, baseline=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*need the machine for themselves, got pytest-xdist; run such tests with -n 0"])
    result = run(pytester, CLAIM, "--scaling-update-baseline", baseline=False)
    result.stdout.fnmatch_lines(["*must write from one process*"])


def test_plans_that_are_not_deterministic(pytester):
    """Check that commutative sums need a tolerance, and pass with one."""
    text = """
        import pytest
        from experiments.scaling.graphs import sums_in_any_order

        @pytest.mark.scaling(models=["taskiter"], threads=[2], rtol=1e-9)
        def test_sums(scaling):
            scaling(sums_in_any_order)
    """
    run(pytester, text).assert_outcomes(passed=1)
    result = run(pytester, text.replace(", rtol=1e-9", ""), baseline=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not deterministic*rtol=1e-6*"])
