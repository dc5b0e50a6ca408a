"""Files of event logs: what each worker did at every moment of a run, with the plan's loops and dependences."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from ...cython_src.plan.dependences import TaskGraph
from ...cython_src.reading import Count, Number, Real, Text, checked, decode_json, decoding, read_arrays
from ..results.files import write_atomically
from ..subjects.models import ModelSpec, model_in_file, read_model
from ..tables.numbers import plural
from .event_states import CAUSES, IN_BLOCK, RUNNING, STATE_DTYPE, STATES

DISTURBED = 0.2  # range of what logging cost in pairs of runs from which on they say nothing
EVENTS_FOLDER = "events"  # of a results folder
_LOOP_FIELDS = ("name", "layer", "phase")
_Moment = Annotated[int, Meta(ge=0, lt=2**62)]  # in nanoseconds


class About(msgspec.Struct, kw_only=True):
    """Fields of `EventLog.about` that are read; the log of a run holds more."""

    model: ModelSpec
    threads: Number
    plan: dict[str, Any]
    plan_name: Text
    run_start_ns: _Moment
    run_stop_ns: _Moment
    first_iteration: Count
    iterations: Number
    stride: Number
    barrier: Text
    overhead: Real
    overheads: Annotated[list[Real], Meta(min_length=1)]
    lost: Count
    injected: Text | UnsetType = UNSET


@dataclass(frozen=True, eq=False, repr=False)
class EventLog:
    """The event log of one run.

    Attributes
    ----------
    about : mapping
        model, threads, plan (its options), run_start_ns, run_stop_ns, iterations, stride (iterations of a pass),
        barrier, overhead (part by which logging made runs longer), lost (spells past the capacity), ...
    events : structured array `STATE_DTYPE`
        Sorted by worker and time; the events of a worker follow each other without gaps.
    loops : mapping of str to list
        name, layer, phase, first_task and num_blocks of each loop.
    edges : int32, shape (3, num_edges)
        Predecessor, successor and token (1: in the next pass); nodes from `num_tasks` on are joins.
    """

    about: Mapping[str, Any]
    events: np.ndarray
    loops: Mapping[str, list]
    edges: np.ndarray

    def __repr__(self) -> str:
        return f"<event log of {self.title}: {len(self.events)} events in {1e-6 * self.wall_ns:.3g} ms>"

    @property
    def title(self) -> str:
        """Model and threads, and what was injected."""
        text = f"{self.model}, {plural(self.threads, 'thread')}"
        return text + (f", {self.about['injected']} injected" if self.about.get("injected") else "")

    @cached_property
    def model(self) -> ModelSpec:
        """The model that ran."""
        return read_model(self.about["model"])

    @property
    def threads(self) -> int:
        """Number of threads that ran blocks."""
        return self.about["threads"]

    @property
    def step_s(self) -> float:
        """Mean time of an iteration."""
        return self.wall_ns * 1e-9 / self.about["iterations"]

    @property
    def overhead_text(self) -> str:
        """Write the cost of logging, or that disturbances of the runs hide it."""
        return overhead_text(self.about["overhead"], self.about["overheads"])

    @property
    def wall_ns(self) -> int:
        """Time of the run."""
        return int(self.about["run_stop_ns"] - self.about["run_start_ns"])

    @property
    def num_tasks(self) -> int:
        """Blocks of one pass."""
        return sum(self.loops["num_blocks"])

    @cached_property
    def task_loop(self) -> np.ndarray:
        """Number of each task's loop."""
        return np.repeat(np.arange(len(self.loops["name"])), self.loops["num_blocks"])

    @cached_property
    def blocks(self) -> np.ndarray:
        """First to last event of each block that ran: structured array `STATE_DTYPE`, by worker and time."""
        own = self.events[(self.events["state"] == RUNNING) | (self.events["cause"] == IN_BLOCK)]
        if not len(own):
            return own
        place = (own["iteration"] // self.about["stride"]) * self.num_tasks + own["task"]
        first = np.flatnonzero(np.r_[True, (place[1:] != place[:-1]) | (own["worker"][1:] != own["worker"][:-1])])
        blocks = own[first].copy()
        blocks["stop_ns"] = own["stop_ns"][np.r_[first[1:] - 1, len(own) - 1]]
        return blocks

    @cached_property
    def running_ns(self) -> np.ndarray:
        """Mean running time of each task in a pass, float64, shape (num_tasks,)."""
        running = self.events[self.events["state"] == RUNNING]
        time = np.bincount(running["task"], running["stop_ns"] - running["start_ns"], self.num_tasks)
        return time * self.about["stride"] / self.about["iterations"]

    @cached_property
    def graph(self) -> TaskGraph:
        """The closed graph of the plan's dependences."""
        return graph_of_edges(self.num_tasks, self.edges)

    def task_name(self, task: int) -> str:
        """Loop and block of a task."""
        loop = int(self.task_loop[task])
        return f"{self.loops['name'][loop]}[{task - self.loops['first_task'][loop]}]"


def number_at(events: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return how many of some events last at each moment, which counts for an event's start and not for its end.

    Parameters
    ----------
    events : structured array with `start_ns` and `stop_ns`
    moments : int64, shape (n,)

    Returns
    -------
    int64, shape (n,)
    """
    begun = np.searchsorted(np.sort(events["start_ns"]), moments, "right")
    return begun - np.searchsorted(np.sort(events["stop_ns"]), moments, "right")


def graph_of_edges(num_tasks: int, edges: np.ndarray) -> TaskGraph:
    """Return the closed graph with these edges, see `EventLog.edges`; they are in order of predecessor, then token."""
    source, target, token = edges
    num_nodes = max(num_tasks, int(edges[:2].max()) + 1 if edges.size else 0)
    offsets = np.searchsorted(source, np.arange(num_nodes + 1)).astype(np.int32)
    intra, cross = (np.bincount(target[token == t], minlength=num_nodes).astype(np.int32) for t in (0, 1))
    split = (offsets[:-1] + np.bincount(source[token == 0], minlength=num_nodes)).astype(np.int32)
    joins = num_nodes - num_tasks
    return TaskGraph(num_tasks, joins, offsets, split, np.ascontiguousarray(target), intra, cross, True)


def overhead_text(overhead: float, overheads: Sequence[float]) -> str:
    """Return what logging cost, by its median and that of each pair, or that what disturbed the runs hides it."""
    low, high = min(overheads), max(overheads)
    if high - low > DISTURBED:
        return f"an unknown part (disturbed: {low:+.0%} to {high:+.0%})"
    return f"{overhead:+.1%}"


def write_events(path: str | os.PathLike, log: EventLog) -> Path:
    """Write a log as a NumPy archive (`docs/reference/event_log.md`), whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        about=json.dumps(dict(log.about)),
        events=log.events,
        edges=log.edges,
        loop_first_task=np.array(log.loops["first_task"], np.int64),
        loop_num_blocks=np.array(log.loops["num_blocks"], np.int64),
        **{f"loop_{name}": np.array(log.loops[name], dtype=np.str_) for name in _LOOP_FIELDS},
    )
    write_atomically(path, content.getvalue())
    return path


def read_events(path: str | os.PathLike) -> EventLog:
    """Read a log. Raises `UsageError`: no such file, a damaged one, or no event log."""
    title, remedy = "event log of forktask trace", "measure again"
    arrays = read_arrays(path, title, remedy)
    with decoding(path, title, remedy):
        about = decode_json(str(arrays["about"]).encode(), dict)
        checked(about, About, dec_hook=model_in_file)
        loops = {name: arrays[f"loop_{name}"].tolist() for name in (*_LOOP_FIELDS, "first_task", "num_blocks")}
        log = EventLog(about, arrays["events"], loops, arrays["edges"])
        if fault := _fault(log):
            raise ValueError(fault)
    return log


def _fault(log: EventLog) -> str:
    """Return what is wrong with a log whose parts could be read, or an empty text."""
    events = log.events
    edges = log.edges if log.edges.ndim == 2 else np.zeros((0, 0), np.int32)
    if len({len(values) for values in log.loops.values()}) != 1 or len(edges) != 3 or not len(events):
        return "its loops, edges or events are not whole"
    if events.dtype != STATE_DTYPE:
        return "its events have other fields"
    ranges = {"task": log.num_tasks, "worker": log.threads, "state": len(STATES), "cause": len(CAUSES)}
    # A worker that ran no block has task -1.
    if any(not -(name == "task") <= events[name].min() <= events[name].max() < n for name, n in ranges.items()):
        return f"the numbers of its events are not below those of {', '.join(ranges)}"
    if (events["stop_ns"] - events["start_ns"]).sum() != log.threads * log.wall_ns:
        return "its events do not sum to threads x wall time"
    return ""


def events_files(folder: str | os.PathLike) -> list[Path]:
    """Return the event logs of a results folder, in the order in which they were written."""
    files = sorted(Path(folder, EVENTS_FOLDER).glob("*.npz"))
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)
