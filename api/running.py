"""Running a bound plan under an execution model, and the result of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from .cython_src.binding.executor import BaseExecutor, check_cpus
from .cython_src.closing import Closing
from .cython_src.errors import UsageError, refuse_copies
from .cython_src.lowering import PlanOptions, initialise, lower
from .cython_src.lowering.lower import check_shapes, default_batch, logged_losses
from .cython_src.networks.layers import Network
from .cython_src.networks.registry import get_network
from .cython_src.plan.model import Plan
from .cython_src.reading import Count, Number, Positive
from .cython_src.records import takes
from .cython_src.shown import Shown
from .cython_src.targets import bind
from .experiments.machine.topology import core_counts
from .experiments.plan_check.checking import check_together
from .experiments.subjects.models import built_models, check_ours, make_executor, runnable
from .experiments.subjects.subject import build, result_hashes
from .experiments.tables.numbers import plural
from .experiments.training.dataset import Dataset

__all__ = ["Executor", "Run", "executor", "fit", "model_names", "run", "weights_hash"]


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """Result of `Executor.run`.

    Attributes
    ----------
    model : str
    threads : int
    iterations : int
    elapsed_s : float
        From the call to its return: threads are not pinned, nothing was warmed up, and start and end count, so it is no
        measurement; `compare` measures.
    losses : ndarray
        Of these iterations, as far back as the plan logs them.
    bound : BoundPlan
        The plan with its arrays as they are now, with which a later run continues.
    """

    model: str
    threads: int
    iterations: int
    elapsed_s: float
    losses: np.ndarray = field(compare=False)
    bound: Any = field(compare=False)

    @property
    def mean_loss(self) -> float | None:
        """Mean of the losses; None where there are none."""
        return float(self.losses.mean(dtype=np.float64)) if len(self.losses) else None

    def __repr__(self) -> str:
        loss = "" if self.mean_loss is None else f", mean loss {self.mean_loss:.4g}"
        run = f"{self.iterations} iterations in {self.elapsed_s:.3g} s{loss}"
        return f"<{self.model} on {plural(self.threads, 'thread')}: {run}>"

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "plan": self.bound.plan.name,
                "model": self.model,
                "threads": self.threads,
                "iterations": self.iterations,
                "elapsed_s": self.elapsed_s,
                "mean loss": self.mean_loss,
            }
        ]


class Executor(Closing):
    """Runner of bound plans under one execution model, made by `executor`: a context manager that ends its threads.

    Attributes
    ----------
    model : str
        Canonical spec: options that are the default are left out.
    threads : int
        Threads that execute blocks.
    """

    def __init__(self, model: str, threads: int, runner: BaseExecutor):
        self.model = model
        self.threads = threads
        self._runner = runner

    def __repr__(self) -> str:
        bound = self._runner.bound
        plan = f", prepared for {bound.plan.name!r}" if bound is not None else ""
        return f"<{self.model} on {plural(self.threads, 'thread')}{plan}>"

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

    def run(self, iterations: int, first_iteration: int = 0) -> Run:
        """Run iterations and wait for them.

        Parameters
        ----------
        iterations, first_iteration : int
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
        self._runner.run(iterations, first_iteration)
        elapsed_s = time.perf_counter() - start
        bound = self._runner.bound
        losses = logged_losses(bound, iterations, first_iteration)
        return Run(self.model, self.threads, iterations, elapsed_s, losses, bound)

    def run_while(
        self, stop: np.ndarray, *, max_iterations: Count, lookahead: Count = 0, first_iteration: Count = 0
    ) -> int:
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


refuse_copies(Executor, "call executor() where it is needed")


def executor(
    model: str = "taskiter", threads: int | None = None, *, cpus: list[int] | None = None, event_capacity: int = 0
) -> Executor:
    """Return an executor of a model.

    Parameters
    ----------
    model : str
        Name and options: "taskiter", "forkjoin:schedule=dynamic", "taskiter:placement=stealing"; see `model_names`.
    threads : int, optional
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
    if threads is None:
        threads = spec.model.max_threads or core_counts()[-1]
    check_cpus(cpus, threads)  # a measuring process may name more
    return Executor(str(spec), threads, make_executor(spec, threads, cpus=cpus, event_capacity=event_capacity))


def model_names() -> tuple[str, ...]:
    """Return the names of all models of this installation; `forktask compare --help` has their options."""
    return (*built_models(), *built_models("gpu"))


@takes(PlanOptions)
def run(
    network: str | Network,
    options: PlanOptions | None = None,
    *,
    model: str = "taskiter",
    threads: int | None = None,
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
    model, threads
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
    check_shapes(chosen.algorithms, [(network, chosen)])
    with executor(model, threads) as runner:
        plan = {"network": network, **chosen.as_dict()}
        spec = runnable(runner.model)
        check_together([plan], [(spec, runner.threads)], check)
        job = {"plan": plan, "seed": seed, "threads": runner.threads}
        bound = build(job, spec)
        runner.prepare(bound)
        return runner.run(iterations)


@takes(PlanOptions)
def fit(
    network: str | Network,
    data: Annotated[Dataset | tuple[np.ndarray, np.ndarray], "give load_data(...), or images and labels"],
    *,
    epochs: Number = 1,
    learning_rate: Positive = 0.01,
    model: str = "taskiter",
    threads: int | None = None,
    seed: Count = 1,
    weights: Mapping[str, np.ndarray] | None = None,
    check: bool = True,
    **changes: Any,
) -> Run:
    """Train a network on images in memory, in an order that is drawn anew for each epoch.

    `train` does so with an evaluation, checkpoints and curves.

    Parameters
    ----------
    network : str or Network
        Of data of `load_data` with their image size and classes.
    data : Dataset, or images and labels
        What `load_data` returns, of which the training images are taken; or a pair of arrays.
    epochs : int
        Each of whole batches.
    learning_rate : float
    model, threads, check
        As for `run`.
    seed : int
        Of weights and order.
    weights : mapping, optional
        Initial weights by name, such as those of `from_torch`; others are drawn.
    **changes
        Fields of `PlanOptions`, such as `batch=32`.

    Returns
    -------
    Run
        `losses` has one of each iteration; `bound` the trained parameters.

    Raises
    ------
    UsageError
        Data that the network cannot read, fewer images than a batch, or as in `run`.
    """
    spec = get_network(network) if isinstance(network, str) else network
    images, labels = (data.images, data.labels) if isinstance(data, Dataset) else data
    images, used = np.asarray(images, np.float32), data.train if isinstance(data, Dataset) else np.arange(len(labels))
    spec = data.fit(spec) if isinstance(data, Dataset) else spec
    options = PlanOptions(batch=default_batch(spec)).with_changes(**changes)
    check_shapes(options.algorithms, [(spec, options)])
    if len(used) < options.batch:
        raise UsageError(f"fit() needs the images of a batch, {options.batch}, got {len(used)}; give a smaller batch")
    batches = len(used) // options.batch
    generator = np.random.default_rng(seed)
    order = [generator.permutation(used)[: batches * options.batch] for _ in range(epochs)]
    total = epochs * batches
    bound = bind(lower(spec, options, num_images=len(images), num_batches=total, num_iterations_logged=total))
    bound.load(images, labels, order=np.concatenate(order), learning_rate=learning_rate)
    initialise(bound, seed, weights)
    with executor(model, threads) as runner:
        check_together([{"network": spec, **options.as_dict()}], [(runnable(runner.model), runner.threads)], check)
        runner.prepare(bound)
        return runner.run(total)


def weights_hash(bound: Any) -> str:
    """Return the SHA-256 hash of all parameters of a bound plan as they are now, as samples hold it.

    A graph of one's own has no parameters; all its arrays are hashed.
    """
    if not hasattr(bound, "plan"):
        raise UsageError(f"weights_hash() takes a bound plan, got {bound!r}; of a run take its .bound")
    return str(result_hashes(bound)["weights_hash"])
