"""The progress bar."""

import io

import pytest

from forktask.experiments.tables import progress
from forktask.experiments.tables.progress import ProgressBar, format_seconds


def test_no_bar_without_a_terminal(capsys):
    """Check that a file gets nothing, so that logs stay readable."""
    with ProgressBar(4, "training") as bar:
        bar.show(2)
    assert capsys.readouterr().err == ""


def test_work_of_an_unknown_amount_has_no_bar(monkeypatch):
    """Check that only the label and the note stand there, not a full bar."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(progress.sys, "stderr", stream)
    with ProgressBar(0, "measuring") as bar:
        bar.show(3, "repetition 4")
    assert "measuring repetition 4" in stream.getvalue() and "%" not in stream.getvalue()


def test_a_program_without_standard_error(monkeypatch):
    """Check that the bar is shown to nobody."""
    monkeypatch.setattr(progress.sys, "stderr", None)
    with ProgressBar(4, "training") as bar:
        bar.show(2)
    assert not bar.visible


def test_lines_without_a_terminal(monkeypatch, capsys):
    """Check that a long command says now and then how far it is, and one that says so by itself does not."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    bars = [ProgressBar(8, "tuning"), ProgressBar(8, "measuring", lines=False)]
    for done in range(8):
        for bar in bars:
            bar.show(done, f"candidate {done}")
            bar.clear()
        clock[0] += 0.4 * ProgressBar.LINE_S
    assert capsys.readouterr().err.splitlines() == [
        "forktask: tuning: 38 %, 40 s left, candidate 3",
        "forktask: tuning: 75 %, 16 s left, candidate 6",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185, "3:05 min"), (4800, "1.3 h"), (36_099, "10 h")],
)
def test_durations_are_readable(seconds, text):
    """Check the forms of a duration."""
    assert format_seconds(seconds) == text
