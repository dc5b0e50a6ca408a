"""Kinds of tests: what is skipped, what fails where a kind is required, and that no other skip passes."""

from pathlib import Path

import kinds
import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.here
def test_here():
    pass

@pytest.mark.absent
def test_absent():
    pass

def test_plain():
    pass
"""


@pytest.fixture
def session(pytester, monkeypatch):
    """A project with this one's conftest.py and two kinds, of which one cannot run."""
    monkeypatch.setattr(kinds, "KINDS", kinds.KINDS.copy())
    kinds.KINDS["here"] = kinds.Kind("needs nothing", lambda: True)
    kinds.KINDS["absent"] = kinds.Kind("needs what nobody has", lambda: False)
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(TESTS)
    return pytester


def test_a_kind_that_cannot_run_is_skipped_with_its_need(session):
    """Check that tests of other kinds run, and that the report says what the skipped one needs."""
    result = session.runpytest("-ra")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs what nobody has"])
    assert result.ret == pytest.ExitCode.OK


def test_a_required_kind_that_cannot_run_fails(session):
    """Check that the test fails with what it needs, and that the end of the report names the kind."""
    result = session.runpytest("--require", "here,absent")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*needs what nobody has*", "*no test of the required kind 'absent' passed*"])
    assert "'here'" not in result.stdout.str()


def test_a_required_kind_without_tests_fails(session):
    """Check that a selection of tests that leaves out a required kind fails, though all selected tests pass."""
    result = session.runpytest("--require", "here", "-k", "plain")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*no test of the required kind 'here' passed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert session.runpytest("--require", "here").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    pytest.skip('no reason')",
        "@pytest.mark.skip\ndef test_it():\n    pass",
        "pytest.importorskip('no_such_module')",
    ],
    ids=["call", "marker", "file"],
)
def test_any_other_skip_is_a_failure(session, body):
    """Check skips inside a test, by pytest's own markers, and of a whole file."""
    session.makepyfile(f"import pytest\n\n{body}\n")
    result = session.runpytest()
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    result.stdout.fnmatch_lines(["*A test may be skipped only by the marker of a kind*"])
