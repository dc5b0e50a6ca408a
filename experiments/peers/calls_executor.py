"""Functions and programs of the user's as executors, which make calls in place of running a plan's blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...cython_src.binding.executor import BaseExecutor
from ..subjects.calls import keep_result, prepared_call, run_program
from ..subjects.peer_models import FUNCTION, PROGRAM


class FunctionExecutor(BaseExecutor):
    """Calls of a function, one after the other."""

    about = FUNCTION

    def _prepare(self, bound, *recorded) -> None:
        self._call: Callable[[], Any] | None = prepared_call(self.options.call, self.num_threads, bound.plan)

    def _run(self, bound, first_replay: int, num_replays: int) -> None:
        call = self._call
        for _ in range(num_replays):
            result = call()
        self._result = result

    def collect(self) -> bool:
        """Write what the last call returned into the plan's arrays."""
        keep_result(self.bound, self._result)
        return True

    def _forget(self) -> None:
        self._call = self._result = None


class ProgramExecutor(BaseExecutor):
    """Runs of a program, one after the other."""

    about = PROGRAM
    _spent_s = 0.0

    def clock(self) -> float:
        """Return the seconds of all runs so far."""
        return self._spent_s

    def _prepare(self, bound, *recorded) -> None:
        pass

    def _run(self, bound, first_replay: int, num_replays: int) -> None:
        for _ in range(num_replays):
            self._spent_s += run_program(self.options, self.num_threads)

    def collect(self) -> bool:
        """Leave the plan alone: what a program computes is not known."""
        return False
