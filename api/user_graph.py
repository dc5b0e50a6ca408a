"""The user's own graphs, run under any model: `UserGraph` records tasks and runs them."""

from __future__ import annotations

from .cython_src.binding.bind import BoundPlan
from .cython_src.closing import Closing
from .cython_src.errors import UsageError
from .cython_src.graphs.user_graph import STOP, TaskArray, TaskRecorder
from .cython_src.reading import Count, Name, Number
from .running import Executor, Run, executor

__all__ = ["UserGraph"]


class UserGraph(Closing, TaskRecorder):
    """A graph of the user's tasks that can be run. See `TaskRecorder` for recording.

    A context manager: `close` ends the threads.

    Parameters
    ----------
    name : str
    reduction_groups : int
        As for `TaskRecorder`.
    """

    def __init__(self, name: Name = "user_graph", *, reduction_groups: Number = 8):
        super().__init__(name, reduction_groups=reduction_groups)
        self._executor: Executor | None = None
        self._runs_as: tuple[str, int | None] | None = None
        self._prepared: BoundPlan | None = None

    def run(
        self, iterations: int = 1, *, model: str = "taskiter", threads: int | None = None, first_iteration: int = 0
    ) -> Run:
        """Run all tasks, `iterations` times, and return when all is done.

        The first call records and compiles the graph; later ones with the same model and threads replay it, unless
        tasks were added.

        Parameters
        ----------
        iterations : int
        model : str
            A model of `forktask info`, with options: "taskiter", "forkjoin:schedule=dynamic", ...
        threads : int, optional
            Default: one for each CPU that this process may use; 1 for `serial`.
        first_iteration : int
            Number of the first iteration, as tasks see it.

        Raises
        ------
        BlockFailure
            A task failed: names task, loop and iteration, with a Python task's exception as cause. The arrays hold
            whatever was written until then; the graph stays usable.
        UsageError
            No tasks, an array that changed, an unknown model.
        """
        if iterations < 0:
            raise UsageError(f"the number of iterations must not be negative, got {iterations}")
        return self._prepare(model, threads).run(iterations, first_iteration)

    def run_while(
        self,
        *,
        max_iterations: Count,
        lookahead: int = 0,
        stop: TaskArray | None = None,
        model: str = "taskiter",
        threads: int | None = None,
        first_iteration: int = 0,
    ) -> int:
        """Run until a task decides to stop: OmpSs-2's `taskiter while`. Returns the number of iterations that ran.

        A decision in iteration k ends the run after iteration k + lookahead, exactly, under every model: what comes out
        does not depend on how far iterations overlap. They overlap within lookahead + 1 iterations.

        Parameters
        ----------
        max_iterations : int
            Ends the run in any case.
        lookahead : int
            Iterations that run after the deciding one.
        stop : TaskArray, optional
            One-dimensional; a task of iteration i sets element i % length to other than zero to stop. Default: what
            `stop_when` records.
        model, threads, first_iteration
            As for `run`.

        Raises
        ------
        BlockFailure, UsageError
            As `run`; nothing in the graph that could stop it.
        """
        decisions = stop or self.arrays.get(STOP)
        if decisions is None:
            raise UsageError(
                "a run ends by a task that decides so, and the graph has none; record one with stop_when()"
            )
        return self._prepare(model, threads).run_while(
            decisions.view, max_iterations=max_iterations, lookahead=lookahead, first_iteration=first_iteration
        )

    def _prepare(self, model: str, threads: int | None) -> Executor:
        """The executor for a model, which has this graph as it is now."""
        bound = self.bind()
        if self._executor is None or self._runs_as != (model, threads):
            self.close()
            self._executor = executor(model, threads)
            self._runs_as = (model, threads)
        if self._prepared is not bound:
            self._executor.prepare(bound)
            self._prepared = bound
        return self._executor

    def taskiter(self, iterations: int, model: str = "taskiter", threads: int | None = None) -> Run:
        """OmpSs-2's `taskiter`: all tasks, `iterations` times, iterations overlapping. Short for `run`."""
        return self.run(iterations, model=model, threads=threads)

    def close(self) -> None:
        """End the threads. The graph can be run again."""
        if self._executor is not None:
            self._executor.close()
        self._executor = self._runs_as = self._prepared = None
