"""The progress bar."""

import io

import pytest

from forktask.experiments.sampling import progress
from forktask.experiments.sampling.progress import ProgressBar, format_seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_redrawn_and_wiped():
    """Check amount, time left and note on one line, and that nothing stays."""
    stream = Terminal()
    with ProgressBar(4, "training", stream) as bar:
        bar.show(0, "a long first note")
        bar.show(1, "epoch 2")
        text = stream.getvalue()
    assert "\n" not in text
    lines = text.split("\r")
    assert "0 %" in lines[1] and "left" not in lines[1]
    assert lines[2].startswith("training [######....") and "25 %" in lines[2] and "left" in lines[2]
    assert lines[2].endswith("epoch 2") or lines[2].rstrip().endswith("epoch 2")
    assert stream.getvalue().split("\r")[-2].strip() == ""


def test_no_bar_without_a_terminal():
    """Check that a file gets nothing, so that logs stay readable."""
    stream = io.StringIO()
    with ProgressBar(4, "training", stream) as bar:
        bar.show(2)
    assert stream.getvalue() == ""


def test_a_program_without_standard_error(monkeypatch):
    """Check that the bar is shown to nobody."""
    monkeypatch.setattr(progress.sys, "stderr", None)
    with ProgressBar(4, "training") as bar:
        bar.show(2)
    assert not bar.visible


def test_lines_without_a_terminal(monkeypatch):
    """Check that a long command says now and then how far it is, and one that says so by itself does not."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream, silent = io.StringIO(), io.StringIO()
    bars = [ProgressBar(8, "tuning", stream), ProgressBar(8, "measuring", silent, lines=False)]
    for done in range(8):
        for bar in bars:
            bar.show(done, f"candidate {done}")
            bar.clear()
        clock[0] += 0.4 * ProgressBar.LINE_S
    assert stream.getvalue().splitlines() == [
        "forktask: tuning: 38 %, 40 s left, candidate 3",
        "forktask: tuning: 75 %, 16 s left, candidate 6",
    ]
    assert silent.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185, "3:05 min"), (4800, "1:20:00 h")]
)
def test_durations_are_readable(seconds, text):
    """Check the forms of a duration."""
    assert format_seconds(seconds) == text
