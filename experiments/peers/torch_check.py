"""A network that was read from a module of PyTorch against the module itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.networks.layers import Network
from ...cython_src.reading import Count, Number
from ...cython_src.shown import Shown
from ...cython_src.targets import bind
from ..subjects.models import SERIAL, make_executor
from ..subjects.subject import LEARNING_RATE, fill_dataset
from .from_torch import gathered, read_module

if TYPE_CHECKING:
    import pandas as pd

KEPT = ("dataset", "table", "parameter", "statistic")  # buffers that both runs begin with
SMALL = 1e-3  # of the norm of all tensors: errors of a smaller one are compared with that, it may be rounding alone
LIMITS = {"float64": 1e-9, "float32": 1e-2}  # of errors: a ReLU that rounds to the other side changes a hundredth
FACTOR = 8  # or that many times PyTorch's own error


@dataclass(frozen=True, repr=False)
class TorchCheck(Shown):
    """What `check_against_torch` returns: the network, and the rows of `table`."""

    network: Network
    rows: list[dict[str, Any]]

    @property
    def table(self) -> pd.DataFrame:
        """One row per type of numbers and quantity: the largest relative error of its tensors compared with PyTorch in
        float64, the tensor that has it, PyTorch's own error in that type, and the largest error that counts as
        agreement."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def agrees(self) -> bool:
        """Whether all errors are within their limits."""
        return all(row["error"] <= row["limit"] for row in self.rows)

    def _rows(self) -> list[dict[str, Any]]:
        return self.rows

    def __repr__(self) -> str:
        worst = {t: max(row["error"] for row in self.rows if row["type"] == t) for t in LIMITS}
        text = ", ".join(f"{error:.1g} in {kind}" for kind, error in worst.items())
        return f"<{self.network.name!r} {'agrees' if self.agrees else 'DOES NOT agree'} with PyTorch: errors {text}>"


def check_against_torch(
    module: Any, example_input: Any, *, mask: int | None = None, batch: Number = 4, seed: Count = 1, **options: Any
) -> TorchCheck:
    """Compare a module with its network: loss, gradients, and parameters and statistics after one step.

    The network's step runs in float64 (the NumPy forms of the kernels, slow) and in float32 (the compiled ones), the
    module's own by PyTorch, on the same random samples and with the module's parameters. Dropout is left out, since
    both draw other numbers.

    Parameters
    ----------
    module, example_input, mask
        As for `from_torch`; the module is not changed.
    batch : int
        Samples.
    seed : int
        Of samples and labels.
    **options
        Fields of `PlanOptions`, such as `optimizer="adamw"`.

    Raises
    ------
    UsageError
        As in `from_torch` and `lower`.
    """
    network, parts = read_module(module, example_input, "", mask)
    network = network.without_dropout()
    if network.tokens:
        options = {"sequence": network.input_shape[0], **options}
    plan = lower(network, num_images=batch, num_iterations_logged=1, **{"batch": batch, **options})
    bounds = {"float32": bind(plan), "float64": bind(plan, target="float64")}
    fill_dataset(bounds["float32"], seed)
    initialise(bounds["float32"], seed, gathered(parts, module.state_dict()))
    for name, buffer in plan.buffers.items():
        if buffer.role in KEPT:
            bounds["float64"].arrays[name][...] = bounds["float32"].arrays[name]
    bounds["float64"].arrays["learning_rates"][...] = LEARNING_RATE  # as PyTorch has it, not rounded
    shape = example_input.shape[1:]
    theirs = {kind: _step_of_torch(module, parts, bounds["float32"], kind, shape) for kind in LIMITS}
    with make_executor(SERIAL, 1) as executor:
        for bound in bounds.values():
            executor.prepare(bound)
            executor.run(1)
    ours = {kind: _step_of(bound, theirs[kind]) for kind, bound in bounds.items()}
    return TorchCheck(network, [*_rows(ours, theirs)])


Step = dict[str, dict[str, np.ndarray]]  # quantity -> name of a tensor -> its value


def _step_of(bound: Any, names: Step) -> Step:
    """Return what a step of the plan has left, of the tensors that PyTorch's step has."""
    views = {"loss": "losses", "gradients": "{}.grad"}
    return {what: {n: bound.view(views.get(what, "{}").format(n)) for n in own} for what, own in names.items()}


def _step_of_torch(module: Any, parts: Mapping[str, Any], bound: Any, kind: str, shape: Sequence[int]) -> Step:
    """Return what PyTorch's step of the module leaves: loss, gradients, parameters and statistics after it. `shape`: of
    a sample."""
    import torch

    from .torch_executor import TorchTraining
    from .torch_graph import Logits, NoDropout

    copied = copy.deepcopy(module).to(getattr(torch, kind)).requires_grad_(True)
    training = TorchTraining(bound, "eager", module=Logits(copied))
    if training.samples.is_floating_point():
        training.samples = training.samples.to(getattr(torch, kind)).reshape(len(training.samples), *shape)
    with NoDropout():
        training.run(1)
    gradients = {name: p.grad for name, p in copied.named_parameters() if p.grad is not None}
    learned = dict(copied.named_parameters())
    clipped = bound.plan.attributes.get("clip_norm")  # PyTorch clips the gradient itself
    return {
        "loss": {"loss": training.losses[0].reshape(1).numpy()},
        **({} if clipped else {"gradients": gathered(parts, gradients)}),
        "parameters": gathered(parts, learned),
        "statistics": gathered(parts, dict(copied.named_buffers())),
    }


def _rows(ours: Mapping[str, Step], theirs: Mapping[str, Step]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table."""
    for kind, least in LIMITS.items():
        for what, truth in theirs["float64"].items():
            whole = math.sqrt(sum(float(np.sum(np.square(array))) for array in truth.values()))
            own, other = (
                {n: _error(step[kind][what][n], array, SMALL * whole) for n, array in truth.items()}
                for step in (ours, theirs)
            )
            if truth:
                worst = max(own, key=own.__getitem__)
                most = max(other.values())
                yield {
                    "type": kind,
                    "quantity": what,
                    "error": own[worst],
                    "pytorch": most,
                    "limit": max(least, FACTOR * most),
                    "tensor": worst,
                }


def _error(array: np.ndarray, truth: np.ndarray, least: float) -> float:
    """Return the norm of an error over that of the truth; NaN counts as infinite."""
    error = float(np.linalg.norm(np.asarray(array, np.float64).reshape(truth.shape) - truth))
    return math.inf if math.isnan(error) else error / max(float(np.linalg.norm(truth)), least, 1e-300)
