"""A progress bar for the terminal, and lines now and then elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def format_seconds(seconds: float) -> str:
    """Format a duration for people: 0.4 s, 12 s, 3:05 min, 1.3 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{whole / 3600:.{0 if whole >= 36_000 else 1}f} h"


def say(message: str) -> None:
    """Print a line for people; to standard error, so that tables and JSON on standard output stay clean."""
    if sys.stderr is not None:  # a program may have none
        print(f"forktask: {message}", file=sys.stderr, flush=True)


@contextmanager
def continued_by(command: str, kept: Callable[[], str], write: Callable[[str], object] = say) -> Iterator[None]:
    """Say, where Ctrl-C ends a `with` block, what is kept by then and which command goes on."""
    try:
        yield
    except KeyboardInterrupt:
        write(f"interrupted; {kept()}. To continue: {command}")
        raise


class ProgressBar:
    """A line that is drawn again and again; where standard error is no terminal, a new line at most every `LINE_S`
    seconds, or, without `lines`, none, since the caller says by itself how far it is. `total`: amount of work, in any
    unit; 0: not known, and no bar is drawn."""

    WIDTH = 24
    LINE_S = 20.0

    def __init__(self, total: float, label: str, lines: bool = True):
        self.total = total
        self.label = label
        self.stream = sys.stderr or io.StringIO()  # a program may have no standard error
        self.visible = self.stream.isatty()
        self._start = time.monotonic()
        self._length = 0
        self._lines = lines
        self._said = self._start  # when the last line was printed

    def show(self, done: float, note: str = "") -> None:
        """Draw `done` of the total, the time left at the pace so far, and a note."""
        now = time.monotonic()
        if not self.visible and not (self._lines and now - self._said >= self.LINE_S):
            return
        fraction = min(max(done / self.total, 0.0), 1.0) if self.total else 0.0
        elapsed = now - self._start
        left = f"{format_seconds(elapsed * (1 - fraction) / fraction)} left" if fraction > 0 else ""
        if not self.visible:
            parts = [f"{100 * fraction:.0f} %" if self.total else "", left, note]
            say(f"{self.label}: {', '.join(part for part in parts if part)}")
            self._said = now
            return
        filled = round(fraction * self.WIDTH)
        drawn = f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {100 * fraction:3.0f} %" if self.total else ""
        parts = [self.label, drawn, left, note]
        line = " ".join(part for part in parts if part)
        self.stream.write("\r" + line.ljust(self._length))
        self.stream.flush()
        self._length = len(line)

    def clear(self) -> None:
        """Wipe the line, before something else is printed."""
        if self.visible and self._length:
            self.stream.write("\r" + " " * self._length + "\r")
            self.stream.flush()
            self._length = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error) -> None:
        self.clear()
