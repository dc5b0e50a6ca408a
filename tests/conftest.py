"""Options and rules of all tests: which kinds must run, and that no test is skipped for a reason of its own."""

import atexit
import os
import shutil
import signal
import tempfile

# Idle OpenMP threads sleep: tests are about results, and spinning threads take the CPUs from tests beside them. libgomp
# reads this when it is loaded, which the import of an executor does.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# StarPU keeps durations, and forktask what it finds about networks and graphs, in folders of the user; those of tests
# are gone when this process ends.
os.environ["STARPU_HOME"] = tempfile.mkdtemp(prefix="forktask-starpu-")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="forktask-cache-")

import builds
import pytest
from hypothesis import HealthCheck, settings
from kinds import KINDS, LONG

for folder in ("STARPU_HOME", "XDG_CACHE_HOME"):
    atexit.register(shutil.rmtree, os.environ[folder], ignore_errors=True)
builds.share()
# The same examples in every run, so that a change of the sources is what turns a test red; new ones in long forms. A
# failure prints the decorator that reproduces it.
settings.register_profile(
    "forktask",
    deadline=None,
    derandomize=not LONG,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a machine may be slow, emulated or busy
)
settings.load_profile("forktask")

# A shell starts background jobs with SIGINT ignored, and Python then leaves it so: Ctrl-C is tested all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)

_missing = pytest.StashKey[list[str]]()


def pytest_addoption(parser):
    """Add `--require`."""
    parser.addoption(
        "--require",
        default="",
        metavar="KINDS",
        help=f"kinds of tests, with commas, that must run here: where one cannot, or no test of it passed, the session "
        f"fails. Kinds: {', '.join(KINDS)}",
    )


def pytest_configure(config):
    """Make the markers known and check `--require`."""
    for name, kind in KINDS.items():
        config.addinivalue_line("markers", f"{name}: {kind.need}")
    required = [name for name in config.getoption("require").split(",") if name]
    if unknown := sorted(set(required) - set(KINDS)):
        raise pytest.UsageError(f"--require names kinds of tests ({', '.join(KINDS)}), got {', '.join(unknown)}")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Required(required))


def _kinds_of(item) -> list[str]:
    return [name for name in KINDS if item.get_closest_marker(name)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test whose kind cannot run here; fail it where the kind is required."""
    item.stash[_missing] = [name for name in _kinds_of(item) if not KINDS[name].is_available()]
    required = item.config.getoption("require").split(",")
    for name in item.stash[_missing]:
        (pytest.fail if name in required else pytest.skip)(KINDS[name].need)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fail a test that was skipped for anything but a kind: such a skip hides an outcome."""
    report = yield
    report.kinds = _kinds_of(item)
    if report.skipped and not item.stash.get(_missing, []):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Fail a file that is skipped as a whole."""
    report = yield
    if report.skipped:
        _fail(report)
    return report


def _fail(report) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{reason}\nA test may be skipped only by the marker of a kind (tests/kinds.py)."


class _Required:
    """Fails the session where no test of a required kind passed; in the main process only."""

    def __init__(self, required: list[str]):
        self.required = required
        self.passed: set[str] = set()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.update(report.kinds)

    @pytest.hookimpl
    def pytest_sessionfinish(self, session):
        if session.exitstatus == pytest.ExitCode.OK and set(self.required) - self.passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter):
        for name in self.required:
            if name not in self.passed:
                terminalreporter.write_line(f"ERROR no test of the required kind {name!r} passed", red=True)
