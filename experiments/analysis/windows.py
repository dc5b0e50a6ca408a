"""Parts of event logs: whole iterations of a run, and dependences between their blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ...cython_src.plan.dependences import topological_order
from ..events.event_states import ready_times
from ..events.events import EventLog


@dataclass(frozen=True, eq=False)
class LogWindow:
    """Some iterations of a logged run."""

    log: EventLog
    passes: range  # numbers of passes of the run, from 0 on

    @property
    def start_ns(self) -> int:
        """Start of the first block of these passes."""
        return int(self.start[self.passes].min())

    @property
    def stop_ns(self) -> int:
        """End of the last block of these passes."""
        return int(self.stop[self.passes].max())

    @property
    def length_ns(self) -> int:
        """Time between them."""
        return self.stop_ns - self.start_ns

    @property
    def start(self) -> np.ndarray:
        """Start of each task in each pass of the run, int64, shape (passes, tasks)."""
        return _times_of(self.log)[0]

    @property
    def stop(self) -> np.ndarray:
        """End of each task in each pass of the run, int64, shape (passes, tasks)."""
        return _times_of(self.log)[1]

    @property
    def worker(self) -> np.ndarray:
        """Worker of each task in each pass of the run, int64, shape (passes, tasks)."""
        return _times_of(self.log)[2]

    @cached_property
    def events(self) -> np.ndarray:
        """Events of the log that overlap the window, cut at its ends."""
        log = self.log.events
        events = log[(log["stop_ns"] > self.start_ns) & (log["start_ns"] < self.stop_ns)].copy()
        events["start_ns"] = np.maximum(events["start_ns"], self.start_ns)
        events["stop_ns"] = np.minimum(events["stop_ns"], self.stop_ns)
        return events

    def spans(self) -> list[tuple[int, int, int]]:
        """Return (iteration, start, end) of each pass of the window."""
        log = self.log
        first, stride = log.about["first_iteration"], log.about["stride"]
        return [(first + k * stride, int(self.start[k].min()), int(self.stop[k].max())) for k in self.passes]

    def arrows(self, limit: int) -> tuple[np.ndarray, bool]:
        """Return the dependences between blocks whose both ends lie in the window.

        Returns
        -------
        arrows : int64, shape (n, 4)
            Pass and task of the predecessor, pass and task of the successor. Of the tasks before a join only the last
            one to end has an arrow.
        complete : bool
            False: there are more than `limit`, and each block has the arrow of its last predecessor only.
        """
        arrows = self._arrows
        if len(arrows) <= limit:
            return arrows, True
        end = self.stop[arrows[:, 0], arrows[:, 1]]
        arrows = arrows[np.lexsort((end, arrows[:, 3], arrows[:, 2]))]
        newest = np.r_[(np.diff(arrows[:, 2]) != 0) | (np.diff(arrows[:, 3]) != 0), True]
        return arrows[newest][:limit], False

    @cached_property
    def _arrows(self) -> np.ndarray:
        graph = self.log.graph
        num_tasks = graph.num_tasks
        source, target, token = graph.edges()
        order = np.argsort(target, kind="stable")
        source, target, token = source[order], target[order], token[order]
        order = topological_order(graph.successor_offsets, graph.successor_split, graph.successors)
        joins = order[order >= num_tasks].tolist()
        begin = np.searchsorted(target, np.arange(graph.num_nodes + 1))
        parts = []
        last: dict[tuple[int, int], tuple[int, int] | None] = {}
        for k in self.passes:
            for join in joins:
                last[k, join] = self._last_before(
                    k, source[begin[join] : begin[join + 1]], token[begin[join] : begin[join + 1]], last
                )
            of_task = target < num_tasks
            direct = of_task & (source < num_tasks) & (k - token >= self.passes.start)
            parts.append(
                np.stack([k - token[direct], source[direct], np.full(direct.sum(), k), target[direct]], axis=1).astype(
                    np.int64
                )
            )
            through = [
                (*before, k, int(v))
                for u, v, t in zip(*(a[of_task & (source >= num_tasks)] for a in (source, target, token)), strict=True)
                if (before := last.get((k - int(t), int(u)))) is not None
            ]
            parts.append(np.array(through, np.int64).reshape(-1, 4))
        return np.concatenate(parts)

    def _last_before(self, k, sources, tokens, last) -> tuple[int, int] | None:
        """Return (pass, task) of the predecessor that ended last, through joins; None: none in the window."""
        result = []
        for u, t in zip(sources.tolist(), tokens.tolist(), strict=True):
            before = last.get((k - t, u)) if u >= self.log.num_tasks else (k - t, u)
            if before is not None and before[0] >= self.passes.start:
                result.append(before)
        return max(result, key=lambda block: self.stop[block], default=None)


@lru_cache(maxsize=16)
def _times_of(log: EventLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end and worker of each task in each pass of a run."""
    shape = (int(log.about["iterations"] // log.about["stride"]), log.num_tasks)
    place = (log.blocks["iteration"] - log.about["first_iteration"]) // log.about["stride"] * shape[1]
    place += log.blocks["task"]
    start, stop, worker = np.zeros((3, *shape), np.int64)
    start.flat[place], stop.flat[place] = log.blocks["start_ns"], log.blocks["stop_ns"]
    worker.flat[place] = log.blocks["worker"]
    return start, stop, worker


def first_early_block(log: EventLog) -> str:
    """Return a sentence on the first block that began before a predecessor of it had ended; empty: none did."""
    start, stop, _ = _times_of(log)
    early = start < ready_times(log.graph, stop, 0)
    if not early.any():
        return ""
    k, task = divmod(int(np.where(early, start, np.iinfo(np.int64).max).argmin()), log.num_tasks)
    window = LogWindow(log, range(max(0, k - 1), k + 1))
    before = [(j, u) for j, u, i, v in window.arrows(len(window._arrows))[0].tolist() if (i, v) == (k, task)]
    last, pred = max(before, key=lambda block: stop[block])
    iterations = (log.about["first_iteration"] + n * log.about["stride"] for n in (k, last))
    first, other = (f"{log.task_name(n)} of iteration {i}" for n, i in zip((task, pred), iterations, strict=True))
    return f"{first} began {stop[last, pred] - start[k, task]} ns before {other}, on which it depends, had ended"


def typical(log: EventLog, iterations: int) -> LogWindow:
    """Return the window of `iterations` whose length is the median of all such windows of a run."""
    passes = int(log.about["iterations"] // log.about["stride"])
    count = max(1, min(passes, -(-iterations // log.about["stride"])))
    whole = LogWindow(log, range(passes))
    begin, end = whole.start.min(axis=1), whole.stop.max(axis=1)
    length = [end[k : k + count].max() - begin[k : k + count].min() for k in range(passes - count + 1)]
    first = int(np.argsort(length, kind="stable")[(len(length) - 1) // 2])
    return LogWindow(log, range(first, first + count))


def layer_of_loops(log: EventLog) -> list[str]:
    """Return the layer of each loop; loops without one go by their own name."""
    return [name or loop for name, loop in zip(log.loops["layer"], log.loops["name"], strict=True)]
