"""What must hold of a network that is accepted: regions, bits under every model, and the numbers of the reference.

`check(case)` lowers a case and raises `Deviation` where something differs:

1. `check_accesses` of the compiled kernels, some blocks of each loop, with guards around all buffers.
2. Two serial runs from memory poisoned in two ways leave the same bits, and guards as they were.
3. Other models and numbers of threads, and random legal orders, leave the bits of the serial run.
4. Losses, answers, gradients, their norm, updates and statistics, by an instruction set drawn by the seed, are those of
   the reference in float64, which knows no plans, up to what changes in it where every result of a layer, and what it
   sends back, is perturbed by some roundings.
5. Those of the NumPy forms in float64, for one case in four, are the reference's.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from unittest import mock

import numpy as np
from cython_src.tokens_for_tests import batch_of
from kinds import forms_of_models
from random_networks.cases import Case

from cython_src import reference
from forktask.cython_src.binding.bind import BlockFailure, BoundPlan, bind
from forktask.cython_src.binding.checks import AccessError, check_accesses, check_orders
from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.layers import Dropout
from forktask.cython_src.plan.model import Plan
from forktask.experiments.subjects.models import make_executor

STEPS, BATCHES, RATE = 3, 2, 0.02
GUARD_BYTES = 4096
SPECS = forms_of_models(
    "region", "schedule", "taskwait", "placement", has=lambda m: m.max_threads != 1 and not m.far_behind
)
THREADS = (1, 2, 3, 4)
MOST_TASKS = 1500  # of a plan whose orders and NumPy forms are run too: these are Python
PERTURBATION = 2.0**-21  # eight roundings of float32
ALLOWED = 30.0  # times what a perturbation changes
FLOOR = 2e-5  # and this share of the largest number
OF_NUMPY_FORMS = 4
TRIES = 3  # with other data: next to a kink of ReLU or of a maximum rounding decides


class Deviation(AssertionError):
    """A network that was accepted computes something else than it must.

    Attributes
    ----------
    kind : str
        Which of the checks failed.
    """

    def __init__(self, kind: str, explanation: object):
        super().__init__(f"{kind}: {explanation}")
        self.kind = kind


def check(case: Case, models: Iterable[tuple[str, int]] | None = None) -> bool:
    """Return whether a case was accepted, having checked it.

    Parameters
    ----------
    models : iterable of (spec, threads), optional
        Default: three, drawn by the seed of the data.

    Raises
    ------
    Deviation
    """
    try:
        plan = _lower(case)
    except UsageError as error:
        if _raised_by_a_builder(error):
            raise Deviation("lowering", error) from error
        return False
    except Exception as error:
        raise Deviation("lowering", repr(error)) from error
    _check_accesses(case, plan)
    truth = _run(case, plan, "serial", 1, "nan")
    _compare_bits(truth, _run(case, plan, "serial", 1, "huge"), "serial, other memory")
    if plan.deterministic:
        for spec, threads in _drawn_models(case) if models is None else models:
            _compare_bits(truth, _run(case, plan, spec, threads, "nan"), f"{spec} on {threads} threads")
    if plan.num_tasks <= MOST_TASKS:
        if plan.deterministic:
            _check_orders(case, plan)
        _check_numbers(case, plan)
    return True


def _raised_by_a_builder(error: BaseException) -> bool:
    """Whether a plan broke the rules of plans, which is no fault of the network."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return "/cython_src/plan/" in last.filename


def _lower(case: Case) -> Plan:
    return lower(
        case.network,
        num_images=case.options["batch"] + 1,
        num_batches=BATCHES,
        num_iterations_logged=STEPS,
        **case.options,
    )


def _drawn_models(case: Case) -> list[tuple[str, int]]:
    rng = np.random.default_rng(case.seed)
    return [(SPECS[i], int(rng.choice(THREADS))) for i in rng.choice(len(SPECS), 3, replace=False)]


def fill(bound: BoundPlan, seed: int) -> None:
    """Fill in parameters, statistics and data, the same float32 numbers for every target."""
    initialise(bound, seed)
    rng = np.random.default_rng(seed)
    arrays = bound.arrays
    masked = any("ignored" in loop.attributes for loop in bound.plan.loops)

    def put(name: str, values: np.ndarray) -> None:
        arrays[name][...] = values.astype(np.float32)

    for name, buffer in bound.plan.buffers.items():
        shape = buffer.shape
        if buffer.role == "parameter":
            put(name, arrays[name] + (rng.normal(size=shape) * 0.2 if len(shape) == 1 else 0))
        elif buffer.role == "statistic":
            put(name, rng.uniform(0.5, 2, shape) if name.endswith("_var") else rng.normal(size=shape) * 0.2)
        elif name == "dataset.images":
            put(name, rng.normal(size=shape))
        elif name == "dataset.tokens":
            arrays[name][...] = rng.integers(bound.plan.attributes["vocabulary"], size=shape)
        elif name == "dataset.labels":
            arrays[name][...] = rng.integers(bound.plan.attributes["num_classes"], size=shape)
            if masked:
                arrays[name][rng.random(shape) < 0.5] = IGNORED
        elif name == "batch_order":
            arrays[name][...] = rng.integers(bound.plan.attributes["batch"] + 1, size=shape)
        elif name == "learning_rates":
            arrays[name][...] = RATE


def _poison(bound: BoundPlan, pattern: str) -> None:
    """Overwrite all transient memory: every number that a step reads must have been written by it."""
    for name, buffer in bound.plan.buffers.items():
        if not buffer.persistent:
            array = bound.arrays[name]
            array.reshape(-1).view(np.uint8)[...] = 0xFF if pattern == "nan" else 0x7E


def _run(case: Case, plan: Plan, spec: str, threads: int, pattern: str) -> dict[str, np.ndarray]:
    """Return what some steps from poisoned memory leave in all buffers that outlive a step."""
    storage = Storage(guard_bytes=GUARD_BYTES)
    bound = bind(plan, storage)
    fill(bound, case.seed)
    _poison(bound, pattern)
    storage.fill_guards(0x7E)
    try:
        with make_executor(spec, threads) as executor:
            executor.prepare(bound)
            executor.run(STEPS)
    except BlockFailure as error:
        raise Deviation("failure", error) from error
    hit = storage.broken_guard()
    if hit is not None:
        raise Deviation("guard", f"{spec} writes outside of buffer {hit[0]!r}, {hit[1]} bytes from its start")
    return {name: bound.arrays[name].copy() for name, buffer in plan.buffers.items() if buffer.persistent}


def _compare_bits(truth: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], what: str) -> None:
    for name, expected in truth.items():
        if expected.tobytes() != other[name].tobytes():
            raise Deviation("bits", f"{what} leaves other bits in buffer {name!r}")


def _check_accesses(case: Case, plan: Plan) -> None:
    def filled(bound: BoundPlan) -> None:
        fill(bound, case.seed)

    options = {"initialise": filled, "num_replays": 1, "blocks_per_loop": 2, "seed": case.seed}
    try:
        check_accesses(plan, "cpu", **options)
        if case.seed % OF_NUMPY_FORMS == 0:
            check_accesses(plan, "numpy", **options)
    except AccessError as error:
        raise Deviation("accesses", error) from error
    except BlockFailure as error:
        raise Deviation("failure", error) from error


def _check_orders(case: Case, plan: Plan) -> None:
    bound = bind(plan)
    fill(bound, case.seed)
    try:
        check_orders(bound, num_orders=2, num_replays=2, seed=case.seed)
    except AssertionError as error:
        raise Deviation("orders", error) from error


# --- numbers ------------------------------------------------------------------------------------------------------


def _check_numbers(case: Case, plan: Plan) -> None:
    """Compare the compiled kernels, and sometimes the NumPy forms in float64, with the reference."""
    for attempt in range(TRIES):
        seed = case.seed + attempt
        try:
            exact = _reference(case, plan, seed)
            spread: dict[str, float] = {}
            for perturbed in (1, 2):
                moved = _reference(case, plan, seed, perturbed)
                for name, values in exact.items():
                    change = float(np.abs(moved[name] - values).max(initial=0))
                    spread[name] = max(spread.get(name, 0.0), ALLOWED * change)
            _compare(_numbers(plan, "cpu", seed), exact, spread, FLOOR, "float32")
            if case.seed % OF_NUMPY_FORMS == 0:
                _compare(_numbers(plan, "float64", seed), exact, {}, 1e-8, "float64")
        except Deviation:
            if attempt == TRIES - 1:
                raise
        else:
            return


def _numbers(plan: Plan, target: str, seed: int) -> dict[str, np.ndarray]:
    """Return losses, answers, parameters, statistics and gradients after the serial run."""
    sets = instruction_sets.available()
    bound = bind(plan, target=target, instruction_set=sets[seed % len(sets)] if target == "cpu" else None)
    fill(bound, seed)
    _poison(bound, "nan")
    with make_executor("serial", 1) as executor, np.errstate(all="ignore"):
        executor.prepare(bound)
        executor.run(STEPS)
    names = [name for name, b in plan.buffers.items() if b.role in ("parameter", "statistic")]
    results = ("losses", "correct", "predictions", "probabilities", "gradient_norms")
    names += [name for name in results if name in plan.buffers]
    names += [name for name in plan.attributes["aliases"] if name == "logits" or _parameter_of(name, plan)]
    return {name: np.array(bound.view(name), np.float64) for name in names}


def _parameter_of(alias: str, plan: Plan) -> str:
    """Return the parameter whose gradient a plan shows under this name, if it is one."""
    name = alias.removesuffix(".grad")
    return name if alias.endswith(".grad") and name in plan.attributes["parameters"] else ""


def _compare(actual: Mapping, expected: Mapping, spread: Mapping[str, float], relative: float, kind: str) -> None:
    # A gradient that is zero by the formulas, of a bias before a norm, holds the rounding errors of the others.
    largest_of = {name: float(np.abs(expected[name]).max(initial=0)) for name in actual}
    gradients = max((value for name, value in largest_of.items() if name.endswith(".grad")), default=0.0)
    for name, values in actual.items():
        wanted = expected[name]
        difference = np.abs(values - wanted.reshape(values.shape))
        largest = max(gradients if name.endswith(".grad") else 0.0, largest_of[name], 0.5)
        limit = spread.get(name, 0.0) + relative * largest
        if not (difference <= limit).all():
            worst = float(np.nanmax(difference)) if np.isfinite(difference).any() else np.nan
            raise Deviation(kind, f"{name!r} differs by {worst:.3g}, allowed are {limit:.3g}")


class _Optimizer:
    """SGD, Adam and AdamW by PyTorch's formulas, in float64."""

    def __init__(self, attributes: Mapping, parameters: Mapping[str, np.ndarray], trained: set[str]):
        self.o, self.parameters, self.trained = attributes, parameters, trained
        self.norms: list[float] = []
        self.first = {name: np.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: np.zeros_like(p) for name, p in parameters.items()}

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        o, beta = self.o, self.o["betas"]
        norm = np.sqrt(sum((gradients[name] ** 2).sum() for name in self.trained))
        self.norms.append(norm)
        scale = min(1.0, o["clip_norm"] / (norm + 1e-6)) if o["clip_norm"] else 1.0
        corrections = [1 - b ** len(self.norms) for b in beta]
        for name in self.trained:
            p, m, v = self.parameters[name], self.first[name], self.second[name]
            g = scale * gradients[name]
            decay = o["weight_decay"] if o["decay"] == "all" or p.ndim > 1 else 0.0
            if o["optimizer"] == "adamw":
                p *= 1 - RATE * decay
            else:
                g = g + decay * p
            if o["optimizer"] == "sgd":
                m *= o["momentum"]
                m += g
                p -= RATE * m
                continue
            m += (1 - beta[0]) * (g - m)
            v += (1 - beta[1]) * (g * g - v)
            p -= RATE * (m / corrections[0]) / (np.sqrt(v / corrections[1]) + o["eps"])


@contextlib.contextmanager
def _perturbed(seed: int) -> Iterator[None]:
    """Let the reference make errors as float32 does: in what each layer computes and in what it sends back."""
    if not seed:
        yield
        return
    rng = np.random.default_rng(seed)

    def moved(values: np.ndarray) -> np.ndarray:
        return values * (1 + PERTURBATION * rng.choice((-1.0, 1.0), values.shape))

    forward, backward = reference._layer_forward, reference._layer_backward

    def noisy_back(*arguments):
        parts, own = backward(*arguments)
        if arguments[-1].ndim == 3:  # of tokens: gradients of parameters beside those of the inputs
            own = {name: moved(part) for name, part in own.items()}
        return [moved(part) for part in parts], own

    noisy = {"_layer_forward": lambda *arguments: moved(forward(*arguments)), "_layer_backward": noisy_back}
    with mock.patch.multiple(reference, **noisy):
        yield


def _reference(case: Case, plan: Plan, seed: int, perturbed: int = 0) -> dict[str, np.ndarray]:
    """Return what the reference computes from the same data; with errors, if `perturbed` gives their seed."""
    with _perturbed(perturbed):
        return _reference_steps(case, plan, seed)


def _reference_steps(case: Case, plan: Plan, seed: int) -> dict[str, np.ndarray]:
    network, attributes = case.network, plan.attributes
    bound = bind(plan, target="float64")
    fill(bound, seed)
    arrays, training = bound.arrays, attributes["phase"] == "train"
    parameters = {name: np.array(arrays[name]) for name in attributes["parameters"] if name in arrays}
    frozen = tuple(f"{name}." for name in case.options.get("frozen", "").split(",") if name)
    trained = {name for name in parameters if not name.startswith(frozen)}
    optimizer = _Optimizer(attributes, parameters, trained)
    statistics = {name: np.array(arrays[name]) for name in network.statistic_shapes()}
    losses, correct, step = [], [], None
    for iteration in range(STEPS):
        chosen, smoothing = arrays["batch_order"][iteration % BATCHES], attributes["label_smoothing"]
        if network.tokens:
            data = batch_of(bound, iteration)
        else:
            data = arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen]
        if training:
            masks = _masks(case, plan, iteration)
            step = reference.forward_backward(network, parameters, *data, statistics, smoothing, masks)
        else:
            step = reference.forward(network, parameters, *data, statistics, False, smoothing)
        statistics = step.statistics
        losses.append(step.loss)
        correct.append(step.correct)
        if training:
            optimizer.step(step.gradients)
    answer = step.activations["softmax"]
    logits = step.activations[network.inputs()[network.layers[-1].name][0]]
    result = {**parameters, **statistics, "losses": np.array(losses), "correct": np.array(correct), "logits": logits}
    result |= {"probabilities": answer, "predictions": answer.argmax(axis=-1)}
    result["gradient_norms"] = np.array(optimizer.norms)
    return result | {f"{name}.grad": step.gradients[name] for name in parameters if training}


def _masks(case: Case, plan: Plan, iteration: int) -> dict[str, np.ndarray]:
    """Return what each dropout layer multiplies with, from the NumPy form of its kernel on ones."""
    layers = {layer.name for layer in case.network.layers if isinstance(layer, Dropout)}
    masks = {}
    for loop in plan.loops:
        if loop.name not in layers or "dropout" not in loop.kernel:
            continue
        kernel = kernel_table.get(loop.kernel, plan.attributes.get("kernels"))
        arrays = {name: np.zeros(plan.buffers[name].shape) for name in loop.operands.values()}
        arrays[loop.operands["input"]][...] = 1
        operands = {operand: arrays[name] for operand, name in loop.operands.items()}
        for block in loop.blocks:
            bounds = dict(zip(kernel.bounds, block.bounds, strict=True))
            kernel.reference(operands, loop.attributes, bounds, iteration)
        masks[loop.name] = plan.attributes["aliases"][loop.name](arrays)
    return masks
