"""Base of all executors: their arguments, their life cycle, and who may use one when.

An executor is made, prepared with a bound plan, runs it, and is closed; a closed one stays closed. It does one thing at
a time, for any thread of the process that made it, and the plans of a storage are run by one executor at a time.
Whatever breaks these rules raises `UsageError` at once, in every model alike; nothing waits for another caller.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Sequence
from operator import index
from typing import Any, ClassVar

import numpy as np

from ..affinity import usable_cpus
from ..closing import Closing
from ..errors import UsageError
from ..typed_text import MOST_THREADS
from .bind import TARGETS
from .execution_model import ExecutionModel

MOST_EVENTS = 1 << 26  # of a worker: 2 GiB
MOST_PASSES = 2**31 - 1  # of the plan in a run: task models count them in 32 bits
MOST_ITERATIONS = 2**63  # kernels see the iteration as a signed number of 64 bits


def check_whole(name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number in [least, most], or raise `UsageError`."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} must be a whole number in [{least}, {most}], got {value!r}")
    return number


def check_cpus(cpus: Sequence[int] | None, num_threads: int) -> list[int] | None:
    """Return the CPUs of an executor's threads, or raise `UsageError` unless each thread has one that it may use."""
    allowed = usable_cpus()  # also where threads only inherit the caller's mask
    if cpus is None:
        return None
    try:
        result = [index(cpu) for cpu in cpus]
    except TypeError:
        result = []
    if len(result) != num_threads or not set(result) <= set(allowed):
        raise UsageError(
            f"cpus must name one CPU out of {allowed} for each of {num_threads} threads, got {cpus!r}; leave it out to "
            f"let the system place them"
        )
    return result


class _Use:
    """A call of an executor that is under way: its name, plan and thread, for messages about calls that collide."""

    def __init__(self, name: str):
        self.name, self.plan_name = name, ""
        self.thread = threading.current_thread().name


def check_run(num_iterations: int, first_iteration: int, stride: int) -> tuple[int, int]:
    """Return (number of passes, first pass) of a run, of `stride` iterations each. Raises `UsageError`: no whole
    number, a negative one, one that `stride` does not divide, too many passes, or iterations from 2**63 on."""
    try:
        num_iterations, first_iteration = index(num_iterations), index(first_iteration)
    except TypeError:
        raise UsageError(
            f"iterations and first_iteration must be whole numbers, got {num_iterations!r} and {first_iteration!r}"
        ) from None
    if num_iterations < 0 or num_iterations % stride or first_iteration < 0 or first_iteration % stride:
        raise UsageError(
            f"iterations and first_iteration must be multiples of {stride} (the plan's iteration_stride) and not "
            f"negative, got {num_iterations} and {first_iteration}; count iterations from 0"
        )
    if first_iteration + num_iterations >= MOST_ITERATIONS:
        raise UsageError(
            f"first_iteration + iterations must be less than 2**63, got {first_iteration} + {num_iterations}; "
            f"begin at a smaller number"
        )
    if num_iterations // stride > MOST_PASSES:
        raise UsageError(
            f"iterations must be at most {stride * MOST_PASSES} in one run, got {num_iterations}; split the run"
        )
    return num_iterations // stride, first_iteration // stride


class BaseExecutor(Closing):
    """Base of all executors. Models have `_prepare` and `_run`, and `_forget` and `_end` where they own something.

    `num_threads` execute blocks, each on its CPU where `cpus` are given, and log `event_capacity` events each; 0: none.
    `places`: numbers of the socket, NUMA node, last-level cache and core of each; threads that steal look near first.
    `options` are fields of the model's record. Raises `UsageError`: a number out of its range, a CPU that this process
    may not use, or an unknown option or value.
    """

    about: ClassVar[ExecutionModel]
    targets: tuple[str, ...] = TARGETS  # what plans may be bound to

    def __init__(
        self,
        num_threads: int = 1,
        *,
        cpus: Sequence[int] | None = None,
        event_capacity: int = 0,
        places: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ):
        self._closed = False
        self._pid = os.getpid()
        self._uses: dict[str, _Use] = {}  # one at most; `setdefault` is one step for all threads
        self._workers: Any = None
        self.bound: Any = None
        self.num_threads = check_whole("threads", num_threads, 1, MOST_THREADS)
        self.cpus = check_cpus(cpus, self.num_threads)
        self.places = places
        self.event_capacity = check_whole("event_capacity", event_capacity, 0, MOST_EVENTS)
        self.options: Any = self.about.options.from_mapping(options, f"options of model {self.model!r}")
        if self.about.max_threads not in (None, self.num_threads):
            raise UsageError(f"model {self.model!r} runs on one thread, got {num_threads}; use 1")

    def __repr__(self) -> str:
        return f"<executor {self.model!r} on {self.num_threads} thread{'s' if self.num_threads > 1 else ''}>"

    @property
    def model(self) -> str:
        """Name of the model, without options."""
        return self.about.name

    @property
    def state(self) -> str:
        """Return "made", "prepared", "running" (or preparing, or closing) or "closed"."""
        if self._uses:
            return "running"
        return "closed" if self._closed else "made" if self.bound is None else "prepared"

    @property
    def workers(self) -> Any:
        """State of the workers, with the event log. Raises `UsageError`: no plan was prepared."""
        if self._workers is None:
            raise self._unprepared()
        return self._workers

    @property
    def iteration_stride(self) -> int:
        """Iterations that one pass of the prepared plan takes; 1 without a plan."""
        return 1 if self.bound is None else int(self.bound.iteration_stride)

    def prepare(self, bound: Any, *recorded: Any) -> None:
        """Take a bound plan in place of the one before; models that record, close or compile a graph do so here, or
        take what `record` returned for the same plan. Raises `UsageError`: the plan is not bound, or not for this
        model, or the executor is closed, in use, or another process's. The executor has no plan then, unless it is in
        use."""
        use = _Use("prepare()")
        try:
            self._begin(use)
            self._release()
            if getattr(bound, "target", None) not in self.targets:
                result = getattr(bound, "target", type(bound).__name__)
                raise UsageError(
                    f"model {self.model!r} needs a plan bound with target {' or '.join(map(repr, self.targets))}, got "
                    f"{result!r}; call prepare(bind(plan))"
                )
            self.bound = bound
            try:
                self._prepare(bound, *recorded)
            except BaseException:
                self._release()
                raise
        finally:
            self._uses_end(use)

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        """Run iterations first_iteration ... first_iteration + num_iterations - 1, both multiples of the plan's
        `iteration_stride`, and wait for them.

        Raises `BlockFailure`: a kernel failed; `KeyboardInterrupt`: Ctrl-C, as whatever a signal handler raises; after
        both the data are undefined, and the executor stays usable. `UsageError`: no plan was prepared, impossible
        numbers, an array that was exchanged or changed its shape since the plan was bound, or an executor or plan that
        is in use, closed, or another process's. `MachineError`: the threads asked for did not come.
        """
        use = _Use("run()")
        bound = None
        try:
            self._begin(use)
            if self.bound is None:
                raise self._unprepared()
            use.plan_name = self.bound.plan.name
            num_replays, first_replay = check_run(num_iterations, first_iteration, self.iteration_stride)
            if (other := self.bound.storage.in_use.setdefault(self._pid, use)) is not use:
                raise UsageError(
                    f"a bound plan, like all plans of its storage, is run by one executor at a time, and another one "
                    f"runs {other.plan_name!r} now; wait until it returns, or bind the plan again"
                )
            bound = self.bound
            self._run(bound, first_replay, num_replays)
        finally:
            if bound is not None:
                del bound.storage.in_use[self._pid]
            self._uses_end(use)

    def run_while(self, stop: np.ndarray, *, max_iterations: int, lookahead: int = 0, first_iteration: int = 0) -> int:
        """Run until a task decides to stop; the decision of iteration k ends the run after iteration k + lookahead.

        That number is exact under every model: lookahead is how many iterations may run before the decision is
        known, and they all run, so results do not depend on how far a model overlaps them.

        Parameters
        ----------
        stop : ndarray, shape (length,), length > lookahead
            What tasks decide: element i % length not zero says that iteration i decided to stop. It is cleared here.
        max_iterations : int
            The run ends after these in any case.

        Returns
        -------
        int
            Iterations that were run.

        Raises
        ------
        UsageError
            A negative number, a `stop` that is too short, or a plan whose passes take several iterations.

        Notes
        -----
        The executor's `run` is called for lookahead + 1 iterations at a time: whatever it overlaps it overlaps within
        these, and the price is its start and end once for all of them.
        """
        for name, value in (
            ("max_iterations", max_iterations),
            ("lookahead", lookahead),
            ("first_iteration", first_iteration),
        ):
            if not isinstance(value, (int, np.integer)) or value < 0:
                raise UsageError(f"{name} must be a whole number and not negative, got {value!r}")
        if not isinstance(stop, np.ndarray) or stop.ndim != 1 or len(stop) <= lookahead:
            value = f"shape {stop.shape}" if isinstance(stop, np.ndarray) else repr(stop)
            raise UsageError(
                f"stop must be an array of one dimension with more than lookahead = {lookahead} elements, got {value}; "
                f"make it longer"
            )
        if self.iteration_stride != 1:
            raise UsageError(
                f"a run can end after any iteration only where a pass of the plan is one, got a plan whose pass takes "
                f"{self.iteration_stride}; use a plan that is not unrolled"
            )
        done = 0
        while done < max_iterations:
            # No decision is known so far, so none of these iterations can be too many.
            chunk = min(lookahead + 1, max_iterations - done)
            numbers = np.arange(first_iteration + done, first_iteration + done + chunk) % len(stop)
            stop[numbers] = 0
            self.run(chunk, first_iteration + done)
            decided = np.flatnonzero(stop[numbers])
            done += chunk
            if len(decided):
                rest = min(int(decided[0]) + lookahead + 1 - chunk, max_iterations - done)
                if rest > 0:
                    self.run(rest, first_iteration + done)
                    done += rest
                break
        return done

    def collect(self) -> bool:
        """See to it that the plan's arrays hold the results of all runs, and return whether they do."""
        return True

    def close(self) -> None:
        """End the threads and release the plan; the executor cannot be used any more. Closing it again does nothing.
        Raises `UsageError`: the executor is in use."""
        if self._closed:
            return
        if self._pid != os.getpid():  # the threads are those of the process that was forked
            self._closed = True
            self._release()
            return
        use = _Use("close()")
        try:
            self._begin(use)
            self._end()
            self._closed = True
            self._release()
        finally:
            self._uses_end(use)

    def _begin(self, use: _Use) -> None:
        """Take the executor, or raise `UsageError` where it may not be used now."""
        if self._pid != os.getpid():
            raise UsageError(
                f"an executor runs only in the process that made it (pid {self._pid}, this is {os.getpid()}): threads "
                f"do not survive a fork; make a new executor here, or start processes with 'spawn'"
            )
        if self._closed:
            raise UsageError("a closed executor runs no plan; make a new one")
        other = self._uses.setdefault("use", use)
        if other is not use:
            raise UsageError(
                f"an executor does one thing at a time, and {other.name} is under way in thread {other.thread!r}; wait "
                f"until it returns, or use a second executor with a plan bound anew"
            )

    def _uses_end(self, use: _Use) -> None:
        if self._uses.get("use") is use:
            self._uses.clear()

    def _release(self) -> None:
        self._forget()
        self.bound = self._workers = None

    def _unprepared(self) -> UsageError:
        return UsageError(f"executor {self.model!r} needs a plan before it can run; call prepare(bound) first")

    @abstractmethod
    def _prepare(self, bound: Any, *recorded: Any) -> None:
        """Make ready for runs of `self.bound`, which is `bound`, and set `_workers`."""

    @abstractmethod
    def _run(self, bound: Any, first_replay: int, num_replays: int) -> None:
        """Run passes and wait for them."""

    def _forget(self) -> None:
        """Drop what `_prepare` has made; there may be none of it, or a part."""

    def _end(self) -> None:
        """End what was started with the executor, such as its threads; the plan is still there."""
