"""Running a bound plan under an execution model, and the result of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cython_src.binding.executor import BaseExecutor
from .cython_src.errors import UsageError
from .cython_src.lowering import PlanOptions
from .cython_src.lowering.lower import default_batch
from .cython_src.networks.layers import Network
from .cython_src.plan.model import Plan
from .cython_src.reading import Count
from .cython_src.shown import Shown
from .experiments.machine.topology import core_counts
from .experiments.plan_check.checking import check_together
from .experiments.subjects.models import built_models, check_ours, make_executor, runnable
from .experiments.subjects.subject import build, result_hashes
from .experiments.tables.numbers import plural

__all__ = ["Executor", "Run", "executor", "model_names", "run", "weights_hash"]


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """Result of `Executor.run`.

    Attributes
    ----------
    model : str
    num_threads : int
    iterations : int
    seconds : float
        From the call to its return. It includes the run's start and end, so it is no measurement (see `compare`).
    mean_loss : float or None
        Mean over these iterations, as far back as the plan logs them; None if it logs none.
    bound : BoundPlan
        The plan with its arrays as they are now, with which a later run continues.
    """

    model: str
    num_threads: int
    iterations: int
    seconds: float
    mean_loss: float | None
    bound: Any = field(compare=False)

    def __repr__(self) -> str:
        each = f" ({1e3 * self.seconds / self.iterations:.3g} ms each)" if self.iterations else ""
        loss = "" if self.mean_loss is None else f", mean loss {self.mean_loss:.4g}"
        run = f"{self.iterations} iterations in {self.seconds:.3g} s{each}{loss}"
        return f"<{self.model} on {plural(self.num_threads, 'thread')}: {run}>"

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "plan": self.bound.plan.name,
                "model": self.model,
                "threads": self.num_threads,
                "iterations": self.iterations,
                "seconds": self.seconds,
                "ms each": 1e3 * self.seconds / self.iterations if self.iterations else None,
                "mean loss": self.mean_loss,
            }
        ]


class Executor(Shown):
    """Runner of bound plans under one execution model, made by `executor`: a context manager that ends its threads.

    Attributes
    ----------
    model : str
        Canonical spec: options that are the default are left out.
    num_threads : int
        Threads that execute blocks.
    """

    def __init__(self, model: str, num_threads: int, runner: BaseExecutor):
        self.model = model
        self.num_threads = num_threads
        self._runner = runner

    def __repr__(self) -> str:
        bound = self._runner.bound
        plan = f", prepared for {bound.plan.name!r}" if bound is not None else ""
        return f"<{self.model} on {plural(self.num_threads, 'thread')}{plan}>"

    def _rows(self) -> list[dict[str, Any]]:
        bound = self._runner.bound
        return [
            {
                "model": self.model,
                "threads": self.num_threads,
                "plan": None if bound is None else bound.plan.name,
                "tasks": None if bound is None else bound.num_tasks,
            }
        ]

    def prepare(self, bound: Any) -> None:
        """Take a bound plan. Models that record, close or compile a graph do so here.

        Raises
        ------
        UsageError
            The plan was not bound, or cannot run under this model.
        """
        if isinstance(bound, Plan):
            raise UsageError(f"prepare() takes a bound plan, got plan {bound.name!r}; call prepare(bind(plan))")
        self._runner.prepare(bound)

    def run(self, num_iterations: int, first_iteration: int = 0) -> Run:
        """Run iterations and wait for them.

        Parameters
        ----------
        num_iterations, first_iteration : int
            Multiples of the plan's `iteration_stride`. Tables (batches, learning rates) and logs (losses) are indexed
            by the iteration, so a run that continues after 100 has `first_iteration=100`.

        Raises
        ------
        BlockFailure
            A kernel failed; names task, loop and iteration.
        UsageError
            Nothing was prepared, impossible numbers, or an array that was exchanged since the plan was bound.
        """
        start = time.perf_counter()
        self._runner.run(num_iterations, first_iteration)
        seconds = time.perf_counter() - start
        bound = self._runner.bound
        loss = _mean_loss(bound, num_iterations, first_iteration)
        return Run(self.model, self.num_threads, num_iterations, seconds, loss, bound)

    def run_while(self, stop: np.ndarray, *, max_iterations: int, lookahead: int = 0, first_iteration: int = 0) -> int:
        """Run until a task decides to stop, and return the number of iterations that ran.

        A decision in iteration k ends the run after iteration k + lookahead, exactly, under every model.

        Parameters
        ----------
        stop : ndarray, shape (length,), length > lookahead
            Element i % length other than zero says that iteration i decided to stop. It is cleared here.
        max_iterations : int
            Ends the run in any case.
        lookahead : int
            Iterations that run after the deciding one.
        first_iteration : int
        """
        return int(
            self._runner.run_while(
                stop, max_iterations=max_iterations, lookahead=lookahead, first_iteration=first_iteration
            )
        )

    def events(self) -> np.ndarray:
        """Return the event log, ordered by start: start_ns, stop_ns, iteration, task and worker of each block.

        Raises
        ------
        UsageError
            The executor was made without `event_capacity`, or no plan was prepared.
        """
        if not self._runner.event_capacity:
            raise UsageError("events() takes an executor with an event_capacity, got 0; give that to executor()")
        events: np.ndarray = self._runner.workers.events()
        return events

    def close(self) -> None:
        """End the threads and release the plan."""
        self._runner.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def executor(
    model: str = "taskiter", num_threads: int | None = None, *, cpus: list[int] | None = None, event_capacity: int = 0
) -> Executor:
    """Return an executor of a model.

    Parameters
    ----------
    model : str
        Name and options: "taskiter", "forkjoin:schedule=dynamic", "taskiter:placement=stealing"; see `model_names`.
    num_threads : int, optional
        Default: one for each physical core that this process may use; 1 for `serial`.
    cpus : list of int, optional
        Logical CPU of each thread, to pin it to; default: threads are not pinned.
    event_capacity : int
        Events that each worker can log, for `Executor.events`; 0: no log.

    Raises
    ------
    UsageError
        An unknown model or option, or an impossible number of threads.
    """
    (spec,) = check_ours([runnable(model)])
    if num_threads is None:
        num_threads = spec.model.max_threads or core_counts()[-1]
    return Executor(str(spec), num_threads, make_executor(spec, num_threads, cpus=cpus, event_capacity=event_capacity))


def model_names() -> tuple[str, ...]:
    """Return the names of all models of this installation; `forktask compare --help` has their options."""
    return (*built_models(), *built_models("gpu"))


def run(
    network: str | Network,
    options: PlanOptions | None = None,
    *,
    model: str = "taskiter",
    num_threads: int | None = None,
    iterations: Count = 20,
    seed: Count = 1,
    check: bool = True,
    **changes: Any,
) -> Run:
    """Lower a network, give it random images and initial weights, and run it under one model.

    All models leave the same weights: `weights_hash(run(...).bound)` is that of the samples of `compare` with this
    seed and as many iterations.

    Parameters
    ----------
    network : str or Network
    options : PlanOptions, optional
    model, num_threads
        See `executor`.
    iterations : int
    seed : int
        Seed of images, order and weights.
    check : bool
        Check the plan of a network or graph that is not shipped, once, before it first runs.
    **changes
        Fields of `PlanOptions` that differ from `options`, such as `batch=16`.

    Raises
    ------
    UsageError
        An unknown network, model or option; or a plan of one's own that failed its check.
    MemoryError
        The plan needs more memory than there is; says what would fit.
    """
    chosen = (options or PlanOptions(batch=changes.get("batch") or default_batch(network))).with_changes(**changes)
    with executor(model, num_threads) as runner:
        plan = {"network": network, **chosen.as_dict()}
        spec = runnable(runner.model)
        check_together([plan], [(spec, runner.num_threads)], check)
        job = {"plan": plan, "seed": seed, "threads": runner.num_threads}
        bound = build(job, spec)
        runner.prepare(bound)
        return runner.run(iterations)


def weights_hash(bound: Any) -> str:
    """Return the SHA-256 hash of all parameters of a bound plan as they are now, as samples hold it.

    A graph of one's own has no parameters; all its arrays are hashed.
    """
    if not hasattr(bound, "plan"):
        raise UsageError(f"weights_hash() takes a bound plan, got {bound!r}; of a run take its .bound")
    return str(result_hashes(bound)["weights_hash"])


def _mean_loss(bound: Any, num_iterations: int, first_iteration: int) -> float | None:
    """Return the mean of the losses that iterations left in the plan's log; None without a log or iteration."""
    names = [b.name for b in bound.plan.buffers.values() if b.role == "log" and b.name.endswith("losses")]
    if not names or not num_iterations:
        return None
    losses = bound.arrays[names[0]]
    numbers = np.arange(max(0, num_iterations - len(losses)), num_iterations) + first_iteration
    return float(np.mean(losses[numbers % len(losses)], dtype=np.float64))
