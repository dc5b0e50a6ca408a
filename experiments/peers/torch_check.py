"""A network that was read from a module of PyTorch against the module itself."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import math
import random
import sys
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cython_src.errors import UsageError, optional
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.layers import Network
from ...cython_src.plan.model import Plan
from ...cython_src.reading import Count, Number
from ...cython_src.records import takes
from ...cython_src.shown import Shown
from ...cython_src.targets import bind
from ..subjects.models import SERIAL, make_executor
from ..subjects.subject import LEARNING_RATE, fill_dataset
from ..tables.progress import say

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = 3  # samples with which a module is read: that one alone mixes nothing would say little
SIZES = (2, 4)  # of the batches with which a reading is checked: others than that
SLOW_FLOPS = 5e8  # operations of a step that NumPy's kernels do within some seconds
LONGEST = 16  # tokens of a sample of the check of a large network
KEPT = ("dataset", "table")  # buffers that both runs begin with
SMALL = 1e-3  # of the norm of all tensors: errors of a smaller one are compared with that, it may be rounding alone
QUANTITIES = ("results", "loss", "gradients", "parameters", "statistics")
# Of errors; a ReLU that rounds to the other side changes gradients by a hundredth.
LIMITS = {"float64": dict.fromkeys(QUANTITIES, 1e-9), "float32": dict.fromkeys(QUANTITIES, 1e-2)}
OF_READING = {"float64": LIMITS["float64"], "float32": {"results": 1e-4, "loss": 1e-4, "gradients": 5e-2}}
PIECE = 1 << 15  # elements of a tensor that are compared at a time
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
        agreement, and the first tensor beyond it in the order of the step."""
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


@takes(PlanOptions)
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
    plan = _lowered(network, **{"batch": batch, **options})
    return TorchCheck(network.without_dropout(), _compared(module, plan, parts, example_input.shape, seed, LIMITS))


def check_reading(module: Any, network: Network, parts: Mapping[str, Any], shape: Sequence[int]) -> None:
    """Raise `UsageError` unless a network computes what the module does of which it was read; see `from_torch`.
    `shape`: of the example."""
    most = {"sequence": min(network.input_shape[0], LONGEST)} if network.tokens else {}
    lowered, kind = functools.partial(_lowered, network, fusion="none", momentum=0.0), "float64"
    plans = [lowered(batch=SIZES[0], **most)]
    if plans[0].flops * sum(SIZES) / SIZES[0] > SLOW_FLOPS:
        say(f"comparing {network.name} with PyTorch, which takes some seconds; check=False leaves that out")
        kind = "float32"
    else:
        plans.append(lowered(batch=SIZES[1]))
    results = [layer.name for layer in network.layers if not getattr(layer, "positions", "")]
    for seed, plan in enumerate(plans, 1):
        compared = functools.partial(_compared, module, plan, parts, shape, seed, {kind: OF_READING[kind]}, results)
        try:
            rows = compared(truth=kind)
            if kind != "float64" and any(not row["error"] <= row["limit"] for row in rows):
                rows = compared()
        except UsageError:
            raise
        except Exception as error:  # of each kind of failure another one
            raise UsageError(
                f"PyTorch must train a copy of the module to check what was read, and {type(module).__name__} fails: "
                f"{str(error).strip().partition(chr(10))[0].rstrip('.'):.300}; check=False leaves the check out"
            ) from error
        wrong = [row for row in rows if not row["error"] <= row["limit"]]
        if {row["quantity"] for row in wrong} - {"results"}:  # those of a module may be used in part
            raise UsageError(
                f"a network from PyTorch must compute what its module does, and {type(module).__name__} is "
                f"misunderstood: {wrong[0]['quantity']} of {wrong[0]['first']!r} are the first to differ, and "
                f"{wrong[-1]['quantity']} by {wrong[-1]['error']:.1g} in {kind}; write that part with the layers of "
                f"docs/reference/layers.md, or take it unchecked by check=False"
            )


def _lowered(network: Network, **options: Any) -> Plan:
    """Return the plan of a step without dropout, on a data set of one batch."""
    sequence = {"sequence": network.input_shape[0]} if network.tokens else {}
    data = {"num_images": options["batch"], "num_iterations_logged": 1}
    return lower(network.without_dropout(), **data, **{**sequence, **options})


def _compared(
    module: Any,
    plan: Plan,
    parts: Mapping[str, Any],
    shape: Sequence[int],
    seed: int,
    limits: Limits,
    results: Sequence[str] = (),
    truth: str = "float64",
) -> list[dict[str, Any]]:
    """Return the rows of the table: of a step in each type of numbers that has limits. `shape`: of the example;
    `results`: layers that are modules, if their results are compared too; `truth`: the type in which PyTorch's step is
    taken as free of errors."""
    bounds = {kind: bind(plan, target="cpu" if kind == "float32" else kind) for kind in limits}
    filled = bounds.get("float32") or bind(plan)
    fill_dataset(filled, seed)
    state = gathered(parts, module.state_dict())
    for bound in bounds.values():
        initialise(bound, seed, state)
        for name in (name for name, buffer in plan.buffers.items() if buffer.role in KEPT):
            bound.arrays[name][...] = filled.arrays[name]
    if "float64" in bounds:
        bounds["float64"].arrays["learning_rates"][...] = LEARNING_RATE  # as PyTorch has it, not rounded
    kinds, wanted = {truth, *limits}, {what for quantities in limits.values() for what in quantities}
    with own_randomness(seed):
        theirs = {kind: _step_of_torch(module, parts, filled, kind, shape[1:], wanted, results) for kind in kinds}
    with make_executor(SERIAL, 1) as executor:
        for bound in bounds.values():
            executor.prepare(bound)
            executor.run(1)
    ours = {kind: _step_of(bound, theirs[kind]) for kind, bound in bounds.items()}
    return [*_rows(ours, theirs, limits, truth)]


@contextlib.contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed the random numbers of PyTorch, NumPy and Python, and restore their states."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        for start in (torch.manual_seed, np.random.seed, random.seed):
            start(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


Weights = dict[str, np.ndarray]
Limits = Mapping[str, Mapping[str, float]]  # type of numbers -> quantity -> error that counts as agreement
Step = dict[str, dict[str, np.ndarray]]  # quantity -> name of a tensor -> its value


def _step_of(bound: Any, names: Step) -> Step:
    """Return what a step of the plan has left, of the tensors that PyTorch's step has."""
    views = {"loss": "losses", "gradients": "{}.grad"}
    step = {what: {n: bound.view(views.get(what, "{}").format(n)) for n in own} for what, own in names.items()}
    return {**step, "results": {name: np.sort(np.ravel(array)) for name, array in step["results"].items()}}


def _step_of_torch(
    module: Any,
    parts: Mapping[str, Any],
    bound: Any,
    kind: str,
    shape: Sequence[int],
    wanted: Container[str],
    results_of: Container[str],
) -> Step:
    """Return the wanted quantities of PyTorch's step of the module. `shape`: of a sample; `results_of`: layers whose
    results are kept, if they are modules with a view."""
    import torch

    from .torch_executor import TorchTraining
    from .torch_graph import Logits, NoDropout

    copied = copy.deepcopy(module).to(getattr(torch, kind)).requires_grad_(True)
    results: dict[str, torch.Tensor] = {}  # of modules that are layers, where each has a loop

    def kept(name: str, result: Any) -> None:
        if isinstance(result, torch.Tensor) and bound.view(name).size == result.numel():
            results.setdefault(name, result.detach().clone())

    for name, part in copied.named_modules():
        if name in results_of and name in bound.plan.attributes["aliases"] and not [*part.children()]:
            part.register_forward_hook(lambda _part, _samples, result, name=name: kept(name, result))
    training = TorchTraining(bound, "eager", module=Logits(copied))
    if training.samples.is_floating_point():
        training.samples = training.samples.to(getattr(torch, kind)).reshape(len(training.samples), *shape)
    with NoDropout():
        training.run(1)
    gradients = {name: p.grad for name, p in copied.named_parameters() if p.grad is not None}
    learned = dict(copied.named_parameters())
    if bound.plan.attributes.get("clip_norm"):  # PyTorch clips the gradient itself
        gradients = {}
    made = {
        # A module may have its axes in another order.
        "results": lambda: {name: np.sort(result.flatten().numpy()) for name, result in results.items()},
        "loss": lambda: {"loss": training.losses[0].reshape(1).numpy()},
        "gradients": lambda: gathered(parts, gradients),
        "parameters": lambda: gathered(parts, learned),
        "statistics": lambda: gathered(parts, dict(copied.named_buffers())),
    }
    return {what: make() for what, make in made.items() if what in wanted}


def _rows(ours: Mapping[str, Step], theirs: Mapping[str, Step], limits: Limits, truth: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table; `truth` as in `_compared`."""
    for kind, quantities in limits.items():
        for what, true in theirs[truth].items():
            norms = {name: _norm(array) for name, array in true.items()}
            least = max(SMALL * math.hypot(*norms.values()), 1e-300)
            own, other = (
                {n: _norm(step[kind][what][n], array) / max(norms[n], least) for n, array in true.items()}
                for step in (ours, theirs)
            )
            if true:
                worst = max(own, key=own.__getitem__)
                most = max(other.values())
                limit = max(quantities[what], FACTOR * most)
                beyond = [name for name, error in own.items() if not error <= limit]
                yield {
                    "type": kind,
                    "quantity": what,
                    "error": own[worst],
                    "pytorch": most,
                    "limit": limit,
                    "tensor": worst,
                    "first": "".join(beyond[-1:] if what == "gradients" else beyond[:1]),
                }


def _norm(array: np.ndarray, other: np.ndarray | None = None) -> float:
    """Return the norm of an array, or of its difference from another one, in float64, by pieces that fit in a cache;
    NaN counts as infinite."""
    elements, subtracted = np.ravel(array), None if other is None else np.ravel(other)
    total = 0.0
    for start in range(0, elements.size, PIECE):
        piece = elements[start : start + PIECE].astype(np.float64)
        if subtracted is not None:
            piece -= subtracted[start : start + PIECE]
        total += float(np.vdot(piece, piece))
    return math.inf if math.isnan(total) else math.sqrt(total)


def read_module(module: Any, example_input: Any, name: str, mask: int | None) -> tuple[Network, dict[str, Any]]:
    """Return a network and, for each of its parameters and statistics, the elements of the module's that it consists
    of, for `gathered`; as `from_torch`."""
    torch = optional("torch", "from_torch", "peers")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}; make one")
    samples = torch.as_tensor(example_input)
    if samples.numel() == 0 or samples.ndim not in ((2, 4) if samples.is_floating_point() else (2,)):
        raise UsageError(
            f"example_input of from_torch must be images (samples, channels, height, width), vectors (samples, "
            f"features) or tokens (samples, tokens), got shape {tuple(samples.shape)} of {samples.dtype}; give such"
        )
    if elsewhere := {str(p.device) for p in module.parameters()} - {"cpu"}:
        raise UsageError(f"from_torch reads a module on the CPU, got one on {elsewhere.pop()}; call module.cpu()")
    from .torch_graph import Logits, Reader

    samples = samples[:1].expand(EXAMPLES, *samples.shape[1:]).contiguous()
    for path, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, f"_{kind}_hooks", None) for kind in ("backward", "backward_pre", "post_accumulate_grad")):
            raise UsageError(f"gradients of a network from PyTorch must have no hooks, got one of {path!r}; remove it")
    training = {part: part.training for part in module.modules()}
    learning = {parameter: parameter.requires_grad for parameter in module.parameters()}
    try:
        with own_randomness(0):
            before = random.getstate(), str(np.random.get_state())
            module.train()  # perhaps the user's own
            logging.disable()  # a failure is reported in one sentence, below
            with contextlib.redirect_stderr(io.StringIO()):  # where PyTorch prints a graph
                exported = torch.export.export(Logits(module), (samples,), strict=False)
            drawn = before != (random.getstate(), str(np.random.get_state()))
        if drawn:
            raise UsageError(
                "a network from PyTorch must not draw random numbers of Python or NumPy, got some; use Dropout"
            )
    except UsageError:
        raise
    except Exception as error:  # of each kind of failure another one
        raise UsageError(
            f"torch.export must trace a module before it can be read, and {_place(error, module)} fails: "
            f"{str(error).strip().partition(chr(10))[0]:.300}; check the shape of example_input, and let no operation "
            f"depend on the samples' values"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
        for part, was in training.items():
            part.training = was
        for parameter, was in learning.items():
            parameter.requires_grad_(was)
    reader = Reader(module, exported, samples)
    return reader.read(name or type(module).__name__, mask), reader.weights


def _place(error: Exception, module: Any) -> str:
    """Return the innermost layer of a module that was at work when an error was raised, with the last line of
    code that is the user's."""
    inner = (str(Path(sys.modules["torch"].__file__ or "").parent), str(Path(__file__).parent), "<")
    layers = {id(part): f"{path!r} ({type(part).__name__})" for path, part in module.named_modules() if path}
    layer, line = type(module).__name__, ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        layer = layers.get(id(frame.f_locals.get("self")), layer)
        if not frame.f_code.co_filename.startswith(inner):
            line = f", {Path(frame.f_code.co_filename).name}:{number},"
    return layer + line


def gathered(parts: Mapping[str, Any], tensors: Mapping[str, Any]) -> Weights:
    """Return the parts of a module's tensors that a network's are; a parameter without a tensor is left out."""
    found = {own: (tensors.get(part.source), part) for own, part in parts.items()}
    return {own: _part(whole.detach().flatten(), part) for own, (whole, part) in found.items() if whole is not None}


def _part(elements: Any, part: Any) -> np.ndarray:
    """Return a parameter as an array, from bfloat16 as float32."""
    first = part.positions is None  # in order: not copied
    chosen = elements[: math.prod(part.shape)].view(part.shape) if first else elements[part.positions]
    array: np.ndarray = (chosen.float() if chosen.element_size() == 2 else chosen).numpy()
    return array
