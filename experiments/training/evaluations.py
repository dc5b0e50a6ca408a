"""Evaluation of a network on data: loss and error rate, and the time of each layer where it is asked for."""

from __future__ import annotations

import gc
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BlockFailure
from ...cython_src.closing import Closing
from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.networks.layers import Network
from ..subjects.memory import GRAPH, planned_bytes
from ..subjects.models import bind_for, make_executor, options_for
from ..subjects.subject import kept_names
from .checkpoints import names_of_last_layer, set_arrays, share_data
from .config import TrainingConfig
from .dataset import Dataset
from .phase_times import MOST_EVENTS
from .text import Text
from .weights import read_weights

EVALUATION_BATCH = 64
LARGE_IMAGE = 1 << 16  # values; 64 larger ones would take more memory than most batches that are trained
# Kinds of memory that an evaluating plan has to itself.
OF_A_PLAN = ("activations", "activations and gradients, shared", "temporaries", GRAPH)


class Evaluations(Closing):
    """Plans that evaluate a network on data, with the parameters in a storage. A context manager; it owns executors.

    Parameters
    ----------
    batch : int
        Samples of a step; a plan with a smaller batch takes the rest.
    timed : bool
        Whether to sum up, in `times`, how long each layer took: seconds in blocks, of all threads.

    Attributes
    ----------
    largest_bytes : int
        Most that its plans have held at once beside what they share with other plans of the storage.
    """

    def __init__(
        self,
        config: TrainingConfig,
        data: Dataset | Text,
        network: Network,
        storage: Any,
        batch: int,
        timed: bool = False,
    ):
        self.config, self.data, self.network, self.storage, self.batch = config, data, network, storage, batch
        self.timed = timed
        self.times: dict[str, float] = {}
        self.largest_bytes = 0
        self._executors = ExitStack()
        self._plans: dict[tuple[int, int], tuple[str, Any, Any]] = {}

    def close(self) -> None:
        """End the threads, and give the memory of the plans back."""
        self._executors.close()
        if self._plans:
            self._plans.clear()
            gc.collect()  # a bound plan and its Python kernels name each other

    def prepare(self, indices: np.ndarray) -> Any:
        """Bind what evaluates these samples, and return one of the bound plans."""
        for part, batch in self._parts(indices):
            _, bound, _ = self._plan(batch, len(part) // batch)
        return bound

    def _parts(self, indices: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Divide samples into whole batches and the rest; return each part with its batch."""
        whole = len(indices) // self.batch * self.batch
        parts = (indices[:whole], self.batch), (indices[whole:], len(indices) - whole)
        return [(part, batch) for part, batch in parts if len(part)]

    def evaluate(self, indices: np.ndarray) -> tuple[float, float]:
        """Return mean loss and error rate over samples, at the current parameters.

        Whole batches come first; a plan with a smaller batch takes the rest, on the same parameters.
        """
        total_loss, total_correct = 0.0, 0
        for part, batch in self._parts(indices):
            num_batches = len(part) // batch
            prefix, bound, executor = self._plan(batch, num_batches)
            bound.arrays[f"{prefix}batch_order"][:] = part.reshape(num_batches, batch)
            self._run(bound.plan, executor, num_batches)
            total_loss += batch * float(bound.arrays[f"{prefix}losses"].astype(np.float64).sum())
            total_correct += int(bound.arrays[f"{prefix}correct"].sum())
            if self.config.memory_limit:  # one evaluating plan at a time
                del bound, executor
                self.close()
        return total_loss / len(indices), 1 - total_correct / (len(indices) * self.data.answers)

    def _run(self, plan: Any, executor: Any, count: int) -> None:
        """Run iterations, as many at a time as the log holds."""
        if not self.timed:
            return run_steps(executor, count)
        for first in range(0, count, _logged_steps(plan)):
            executor.workers.clear_events()
            run_steps(executor, min(_logged_steps(plan), count - first), first)
            events = executor.workers.events()
            loops = plan.task_loop[events["task"]]
            busy = np.bincount(loops, events["stop_ns"] - events["start_ns"], len(plan.loops)) * 1e-9
            for loop, seconds in zip(plan.loops, busy.tolist(), strict=True):
                self.times[loop.layer] = self.times.get(loop.layer, 0.0) + seconds
        return None

    def _plan(self, batch: int, num_batches: int) -> tuple[str, Any, Any]:
        """Return prefix, bound plan and executor for evaluating `num_batches` batches at the present parameters."""
        key, config = (batch, num_batches), self.config
        if key not in self._plans:
            # Logs and order have other sizes than in training, so each of these plans has names of its own.
            prefix = f"evaluate{num_batches}x{batch}."
            share_data(self.storage, self.data, prefix)
            plan = lower(
                self.network,
                config.evaluation(batch),
                **options_for(config.spec, config.conv, config.granularity),
                num_images=self.data.num_samples,
                num_batches=num_batches,
                num_iterations_logged=num_batches,
                prefix=prefix,
                read_image=self.data.source.read if isinstance(self.data, Dataset) and self.data.source else None,
            )
            bound = bind_for(config.spec, plan, self.storage)
            number_positions(bound, prefix)
            capacity = _logged_steps(plan) * plan.num_tasks if self.timed else 0
            executor = make_executor(config.spec, config.threads, cpus=config.cpus, event_capacity=capacity)
            self._executors.enter_context(executor)
            executor.prepare(bound)
            self._plans[key] = (prefix, bound, executor)
            held = sum(own_bytes(bound.plan, config.threads) for _, bound, _ in self._plans.values())
            self.largest_bytes = max(self.largest_bytes, held)
        return self._plans[key]


def _logged_steps(plan: Any) -> int:
    return max(1, MOST_EVENTS // plan.num_tasks)


def evaluation_batch(config: TrainingConfig, data: Dataset | Text) -> int:
    """Return the samples of a step that evaluates. Logits of a vocabulary take much memory: samples of tokens are
    evaluated in batches as small as in training, and so are large images."""
    large = not isinstance(data, Dataset) or math.prod(data.images.shape[1:]) > LARGE_IMAGE
    return config.batch if large else EVALUATION_BATCH


def own_bytes(plan: Any, threads: int) -> int:
    """Return the bytes of an evaluating plan that no other plan of its storage has."""
    return sum(count for kind, count in planned_bytes(plan, threads).items() if kind in OF_A_PLAN)


def number_positions(bound: Any, prefix: str) -> None:
    """Fill the numbers of a batch's images in the buffer that they are read into, where a plan has one."""
    positions = bound.arrays.get(f"{prefix}read.positions")
    if positions is not None:
        positions[:] = np.arange(positions.shape[1])


def run_steps(executor: Any, count: int, first: int = 0) -> None:
    """Run iterations; bad input that a block meets, such as an image that cannot be decoded, is the caller's."""
    try:
        executor.run(count, first_iteration=first)
    except BlockFailure as failure:
        if isinstance(failure.__cause__, UsageError):
            raise failure.__cause__ from None
        raise


def load_weights(path: Path, network: Network, bound: Any, new_head: bool = False) -> str:
    """Copy parameters and statistics from a file into a bound plan; return what was loaded, and what was not.
    `new_head`: leave the last layer of a classifier as it is where the file has none, or one of another size. Raises
    `UsageError`: a file that cannot be read, or that lacks an array, or has one of another shape."""
    read, names, arrays = read_weights(path, network), kept_names(bound.plan), bound.arrays
    last: set[str] = set()
    if new_head and not (network.tokens and network.tokens.answers != "class"):
        last = names_of_last_layer(bound.plan.attributes["parameters"])
    fitting = [n for n in names if n not in last or (n in read and read[n].shape == arrays[n].shape)]
    set_arrays(arrays, read, fitting, path)
    fresh, unused = [n for n in names if n not in fitting], sorted({*read} - {*fitting})
    text = [f"loaded {len(fitting)} of {len(names)} arrays from {path}"]
    text += [f"begin at random: {', '.join(fresh)}"] if fresh else []
    more = f" and {len(unused) - 4} more" if len(unused) > 4 else ""
    text += [f"not used: {', '.join(unused[:4])}{more}"] if unused else []
    return "; ".join(text)
