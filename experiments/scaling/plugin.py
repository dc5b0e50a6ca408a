"""The pytest plugin: marker and fixture `scaling`, its options and reports. Imports nothing of weight until used."""

from __future__ import annotations

import json

import pytest

MODELS = ("forkjoin", "taskgraph", "taskiter")
THREADS = (1, 2)
MARKER = (
    "scaling(models=[...], threads=[1, 2], rtol=None, compare_results=True): models and numbers of threads that the "
    "fixture `scaling` compares; rtol: for plans that are not deterministic, and for what functions return; "
    "compare_results=False: that is not compared"
)


def pytest_addoption(parser):
    """Options of the plugin; all begin with --scaling."""
    group = parser.getgroup("scaling", "scaling tests (forktask)")
    group.addoption(
        "--scaling-budget",
        metavar="S",
        help="seconds for each claim about times; 0: none is measured (default: 120, or the ini value scaling_budget)",
    )
    group.addoption(
        "--scaling-on-inconclusive",
        choices=("fail", "warn", "skip"),
        default="warn",
        help="how a test ends whose claim about times found no end within the budget: as a failure, with a warning, or "
        "skipped (default: warn)",
    )
    group.addoption(
        "--scaling-null",
        type=int,
        default=0,
        metavar="N",
        help="test no claim about a ratio, but in place of each N claims of identical code: how often this machine "
        "fails it now",
    )
    group.addoption("--scaling-update-baseline", action="store_true", help="write the model tier's baselines")
    group.addoption("--scaling-summary", metavar="FILE", help="append a Markdown summary; also to $GITHUB_STEP_SUMMARY")
    group.addoption("--scaling-jsonl", metavar="FILE", help="write all results, one JSON object per line")
    parser.addini("scaling_budget", "seconds for each claim about times", default="")


_baselines = pytest.StashKey()  # of the session
_test = pytest.StashKey()


def _is_xdist(config) -> bool:
    return hasattr(config, "workerinput")


def _baselines_of(config):
    if _baselines not in config.stash:
        from .model import Baselines

        update = config.getoption("scaling_update_baseline")
        if update and _is_xdist(config):
            raise pytest.UsageError("--scaling-update-baseline must write from one process; run pytest with -n 0")
        config.stash[_baselines] = Baselines(update)
    return config.stash[_baselines]


def _budget_s(config) -> float:
    text = config.getoption("scaling_budget") or config.getini("scaling_budget") or "120"
    try:
        given = float(text)
    except ValueError:
        given = -1.0
    if not given >= 0:
        raise pytest.UsageError(f"--scaling-budget must be seconds, 0 or more, got {text!r}; give a number, such as 60")
    return given


def pytest_configure(config):
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)
    _budget_s(config)
    if (null := config.getoption("scaling_null")) < 0:
        raise pytest.UsageError(
            f"--scaling-null must be a number of claims, 0 or more, got {null}; give one, such as 20"
        )
    if not _is_xdist(config):
        outputs = [config.getoption(f"scaling_{name}") for name in ("jsonl", "summary")]
        if any(outputs):  # else known only after everything has been measured
            from ...cython_src.errors import UsageError
            from .summary import check_outputs

            try:
                check_outputs(*outputs)
            except UsageError as error:
                raise pytest.UsageError(f"--scaling-jsonl or --scaling-summary: {error}") from None
        config.pluginmanager.register(_Collector(config), "forktask-scaling-collector")


@pytest.fixture
def scaling(request):
    """Scaling test of a function, `scaling.function(module.solve, n=1000)`, or program, `scaling.program(["./solve"])`;
    of a network, `scaling("cifar10_cnn", batch=16)`, or of your own graph, `scaling(make_graph)`."""
    from ...cython_src.errors import UsageError
    from .testing import ScalingTest

    config = request.config
    marker = request.node.get_closest_marker("scaling")
    arguments = dict(marker.kwargs) if marker else {}
    unknown = sorted(set(arguments) - {"models", "threads", "rtol", "compare_results"})
    if unknown or (marker and marker.args):
        raise UsageError(
            f"the marker takes models=, threads=, rtol= and compare_results=, got "
            f"{', '.join(unknown) or marker.args!r}; see docs/guide/scaling_tests.md"
        )
    names = [part.name for part in request.node.listchain() if isinstance(part, pytest.Class)]
    test = ScalingTest(
        **{"models": MODELS, "threads": THREADS, **arguments},
        baselines=_baselines_of(config),
        folder=request.path.parent,
        test="::".join([request.path.name, *names, request.node.name]),
        budget_s=_budget_s(config),
        xdist=_is_xdist(config),
        null=config.getoption("scaling_null"),
    )
    request.node.stash[_test] = test
    return test


class InconclusiveWarning(UserWarning):
    """A claim about times is inconclusive within the budget."""


def _end_inconclusive(item, report, reason):
    """End a test whose only fault is an inconclusive claim, as --scaling-on-inconclusive says."""
    match item.config.getoption("scaling_on_inconclusive"):
        case "fail":
            report.outcome = "failed"
            report.longrepr = f"{reason} (a failure with --scaling-on-inconclusive=fail)"
        case "skip":
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {reason}")
        case _:
            item.warn(InconclusiveWarning(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Attach a test's rows to its report, which pytest-xdist sends to the main process, and to JUnit; whoever called
    the test, `unittest.TestCase` too, end it by its claims without a verdict."""
    report = yield
    test = item.stash.get(_test, None)
    if test is not None and call.when == "call":
        if test.inconclusive and report.passed and not hasattr(report, "wasxfail"):
            _end_inconclusive(item, report, "; ".join(test.inconclusive))
        rows = [{"test": item.nodeid, **row} for row in test.rows]
        rows.append({"kind": "test", "test": item.nodeid, "outcome": report.outcome})
        report.scaling_rows = json.dumps(rows, default=str)
        from .summary import junit_properties

        # JUnit reads them from the later report of the teardown; a test that is run anew has those of its last run.
        others = [(name, value) for name, value in item.user_properties if not name.startswith("scaling.")]
        item.user_properties[:] = [*others, *junit_properties(rows)]
    return report


class _Collector:
    """Collector of all reports' rows, which it writes at the end; in the main process only."""

    def __init__(self, config):
        self.config = config
        self.rows: list[dict] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.outcome != "rerun":
            self.rows += json.loads(getattr(report, "scaling_rows", "[]"))

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter):
        from ...cython_src.errors import UsageError

        try:
            self._write(terminalreporter)
        except (OSError, UsageError) as error:  # such as a full disk: the verdicts above stand
            place = f"{error.filename}: " if getattr(error, "filename", None) else ""
            pytest.exit(f"scaling: {place}{getattr(error, 'strerror', None) or error}", returncode=2)

    def _write(self, terminalreporter):
        baselines = self.config.stash.get(_baselines, None)
        for path in baselines.write() if baselines else []:
            terminalreporter.write_line(f"scaling: wrote {path}; look at git diff, then commit it")
        if not self.rows:
            return
        from . import summary

        terminalreporter.write_sep("-", "scaling")
        for line in summary.terminal_lines(self.rows):
            terminalreporter.write_line(line)
        summary.write(self.rows, *(self.config.getoption(f"scaling_{name}") for name in ("jsonl", "summary")))
