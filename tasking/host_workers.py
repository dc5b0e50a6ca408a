"""Threads that run tasks of `gpu_both` on the host, in any order that the tasks before them allow.

The caller submits tasks in an order in which everything that a task waits for comes before it. A task starts once those
have ended, on the first thread that is free; kernels run without Python's lock.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence


class HostTask:
    """Something to run; `ended` once it has, or was left out after a failure. `run`: function of the worker's number;
    true if it failed."""

    def __init__(self, run: Callable[[int], object]):
        self.run, self.ended = run, False
        self.missing = 1  # tasks before it that have not ended, and its own submission
        self.followers: list[HostTask] = []


class HostWorkers:
    """Threads for tasks, pinned to a CPU each where `cpus` are given."""

    def __init__(self, num_workers: int, cpus: Sequence[int] | None = None):
        self.num_workers = num_workers
        self.failed = False  # whether a task has failed since `clear`; those that start later are left out
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._ready: deque[HostTask] = deque()
        self._pending = 0
        self._closed = False
        self._threads = [
            threading.Thread(
                target=self._work, args=(number, cpus and cpus[number]), name=f"host worker {number}", daemon=True
            )
            for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: HostTask, before: Iterable[HostTask]) -> None:
        """Run a task once those `before` it have ended."""
        with self._changed:
            self._pending += 1
            for other in before:
                if not other.ended:
                    other.followers.append(task)
                    task.missing += 1
            self._count_down(task)

    def wait(self, tasks: Sequence[HostTask]) -> None:
        """Wait until tasks have ended."""
        with self._changed:
            self._changed.wait_for(lambda: all(task.ended for task in tasks))

    def drain(self) -> None:
        """Wait until all tasks have ended. Raises `BaseException`: what a task has raised, other than a kernel's
        failure."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def clear(self) -> None:
        """Forget a failure; no task is pending."""
        self.failed, self._error = False, None

    def close(self) -> None:
        """End the threads, after the tasks that are pending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _count_down(self, task: HostTask) -> None:
        task.missing -= 1
        if not task.missing:
            self._ready.append(task)
            self._changed.notify_all()

    def _work(self, number: int, cpu: int | None) -> None:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})  # of this thread
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or (self._closed and not self._pending))
                if not self._ready:
                    return
                task = self._ready.popleft()
            if not self.failed:
                try:
                    if task.run(number):
                        self.failed = True
                except BaseException as error:
                    self._error, self.failed = error, True
            with self._changed:
                task.ended = True
                self._pending -= 1
                for follower in task.followers:
                    self._count_down(follower)
                self._changed.notify_all()
