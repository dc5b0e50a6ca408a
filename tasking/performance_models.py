"""Durations of tasks on host and device: histories by kernel, size and place, with their outliers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CALIBRATION = 3  # durations that a history needs before it is used
FULL = 10  # after so many durations its mean changes little
OUTLIER = 3.0  # times the mean: longer durations are outliers
OUTLIERS = ("first call", "transfer wait", "contention")


@dataclass
class History:
    """Lengths of one kernel at one size in one place."""

    count: int = 0
    mean_s: float = 0.0  # of durations that are no outliers
    # "first call": compilation, page faults, cold caches; "transfer wait": the duration holds a copy that had to come
    # first; "contention": `OUTLIER` times the mean or more, for none of these reasons.
    outliers: dict[str, list[float]] = field(default_factory=dict)

    def add(self, length_s: float, first: bool = False, transfer: bool = False) -> str | None:
        """Add a duration; return its kind of outlier, or None."""
        name = None
        if first:
            name = "first call"
        elif self.count >= CALIBRATION and length_s > OUTLIER * self.mean_s:
            name = "transfer wait" if transfer else "contention"
        if name is not None:
            self.outliers.setdefault(name, []).append(length_s)
            return name
        self.count += 1
        self.mean_s += (length_s - self.mean_s) / self.count
        return None


class PerformanceModels:
    """Histories of all kernels, sizes and places, and the cost of copies. `latency_s`, `bandwidth_bytes_per_s`: of a
    copy, until copies have been timed."""

    def __init__(self, latency_s: float = 1e-5, bandwidth_bytes_per_s: float = 1e10):
        self.histories: dict[tuple[str, int, str], History] = {}
        self.latency_s, self.bandwidth_bytes_per_s = latency_s, bandwidth_bytes_per_s
        self._seen: set[tuple[str, int, str]] = set()

    def add(self, kernel: str, size: int, place: str, length_s: float, transfer: bool = False) -> str | None:
        """Note how long a task took; see `History.add`."""
        key = (kernel, size, place)
        first = key not in self._seen
        self._seen.add(key)
        return self.histories.setdefault(key, History()).add(length_s, first, transfer)

    def expected_s(self, kernel: str, size: int, place: str) -> float | None:
        """Return the expected duration; None until the history is long enough."""
        history = self.histories.get((kernel, size, place))
        return history.mean_s if history and history.count >= CALIBRATION else None

    def count(self, kernel: str, size: int, place: str) -> int:
        """Return the number of usual durations and first calls."""
        history = self.histories.get((kernel, size, place))
        return 0 if history is None else history.count + len(history.outliers.get("first call", ()))

    def transfer_s(self, sizes: Iterable[int]) -> float:
        """Expected time of copies of so many bytes each."""
        return sum(self.latency_s + size / self.bandwidth_bytes_per_s for size in sizes)

    def table(self) -> list[Mapping]:
        """A row for each history: kernel, size, place, count, mean_s and each kind of outlier's number and largest."""
        return [
            {
                "kernel": kernel,
                "size": size,
                "place": place,
                "count": h.count,
                "mean_s": h.mean_s,
                **{
                    name: (len(h.outliers.get(name, ())), max(h.outliers.get(name, ()), default=0.0))
                    for name in OUTLIERS
                },
            }
            for (kernel, size, place), h in sorted(self.histories.items())
        ]
