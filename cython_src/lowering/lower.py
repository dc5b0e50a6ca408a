"""Lowering: a network and options become a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import numpy as np

from ..errors import UsageError
from ..kernels import kernel_table
from ..kernels.convolution.algorithms import check_algorithms, loops_with_choice, read_algorithms
from ..networks.layers import Conv2d, Network
from ..networks.own import is_own, make_own
from ..networks.registry import get_network
from ..plan.builder import NameTakenError, PlanBuilder, ranges
from ..plan.model import Plan
from ..reading import Count, Number
from ..records import takes
from .layouts.nchw import NCHW16_LAYOUT, NCHW_LAYOUT, choose_lanes
from .layouts.nhwc import Nhwc
from .layouts.rows import Rows
from .options import PlanOptions, describe
from .state import DataShape, Layout, Lowering, check_end
from .step import append_step

NHWC_LAYOUT, ROWS_LAYOUT = Nhwc(), Rows()
LAYOUTS = {layout.name: layout for layout in (NCHW16_LAYOUT, NCHW_LAYOUT, NHWC_LAYOUT, ROWS_LAYOUT)}
BATCH_OF_TOKENS = 4  # samples of a step of a network of tokens, unless the user says otherwise
SPARSE = 8  # an eighth of the lanes with images: channels are faster (docs/notes/pixels_in_the_lanes.md)
MOST_ROWS = 256  # of a block, where maps have fewer
DRAWN_TOGETHER = 1 << 16  # random initial weights


@takes(PlanOptions)
def lower(
    network: Annotated[str | Network, "describe one as Network(name, ...)"],
    options: Annotated[PlanOptions | None, "name single ones: lower(network, batch=16)"] = None,
    *,
    num_images: Number | None = None,
    num_batches: Number = 1,
    num_iterations_logged: Number = 1000,
    num_learning_rates: Number = 1,
    prefix: str = "",
    read_image: Callable[[int, np.ndarray], None] | None = None,
    **changes: Any,
) -> Plan:
    """Return the plan of one step.

    Parameters
    ----------
    network : str or Network
        The name of a function may also be that of one which returns a graph; see `own_plan`.
    options : PlanOptions, optional
        What is computed and how it is cut; the defaults of `PlanOptions` if none are given.
    num_images, num_batches : int
        Size of the data set (default: the batch) and rows of "batch_order".
    num_iterations_logged, num_learning_rates : int
        Lengths of "losses" and "correct", and of "learning_rates"; both are indexed by the iteration modulo length.
    prefix : str
        Put before the names of data set, batch order and logs, so that plans with different data can share parameters.
    read_image : callable, optional
        `read_image(number, out)` writes an image of the data set to `out`, float32 of the network's input shape. The
        plan then has no "dataset.images": blocks of its loop "read" call the function in each step, from any thread;
        "read.positions" (after the prefix) must hold 0 ... batch - 1.
    **changes
        Fields of `PlanOptions` that differ from `options`.

    Raises
    ------
    UsageError
        Unknown network or option, a batch below one, or a network whose layers have no kernels.
    """
    graph = own_plan(network)
    if graph is not None:
        check_alone(network, (options or PlanOptions(batch=1)).with_changes(**changes))
        return graph
    spec = get_network(network) if isinstance(network, str) else network
    options = (options or PlanOptions(batch=default_batch(spec))).with_changes(**changes)
    data = DataShape(
        num_images=options.batch if num_images is None else num_images,
        num_batches=num_batches,
        num_iterations_logged=num_iterations_logged,
        num_learning_rates=num_learning_rates,
        prefix=prefix,
    )
    spec = lowered_form(spec, options)
    if read_image is not None and spec.tokens:
        raise UsageError(f"read_image is for networks of images, got {spec.name!r}; leave it out")
    layout = choose_layout(spec, options) if options.layout == "auto" else LAYOUTS[options.layout]
    layout.check(spec, options)
    low = _with_step(spec, options, data, layout, read_image)
    builder = low.builder
    if options.products == "bf16x6" and not any(loop.attributes.get("bf16x6") for loop in builder.loops):
        raise UsageError(
            f"products must be 'float32' unless linear layers of tokens have 256 inputs and outputs or more, got "
            f"{options.products!r} for {spec.name!r}, which has none; leave it out"
        )
    if options.chain:
        builder.rewrite_chains(options.weight_gradients)
    builder.attributes["aliases"] = low.aliases
    own = builder.attributes.get("kernels")
    taken = {loop.name: kernel_table.get(loop.kernel, own).algorithm_of(loop) for loop in builder.loops}
    builder.attributes["convolutions"] = {name: algorithm for name, algorithm in taken.items() if algorithm}
    plan = builder.build(options.memory)
    if "algorithms" in changes:  # in `options` it may name shapes of several networks
        check_algorithms(options.by_shape, loops_with_choice(plan))
    return plan


def check_shapes(text: str, plans: Iterable[tuple[str | Network, PlanOptions]]) -> None:
    """Raise `UsageError` unless each shape that the plan option `algorithms` names is in one of some plans."""
    if named := read_algorithms(text):
        check_algorithms(named, {shape for each in plans for shape in loops_with_choice(lower(*each))})


def _with_step(
    spec: Network,
    options: PlanOptions,
    data: DataShape,
    layout: Layout,
    read_image: Callable[[int, np.ndarray], None] | None,
) -> Lowering:
    """Return a lowering with the loops of a step. Where a layer has the name of another buffer, its map gets another
    name, and all begins again; views are not renamed."""
    primes: dict[str, str] = {}
    while True:
        builder = PlanBuilder(
            f"{spec.name} {options.phase} b{options.batch}",
            network=spec.name,
            **{**options.as_dict(), "layout": layout.name, "check_finite": int(options.check_finite)},
            parameters=tuple(spec.parameter_shapes()),
            num_classes=spec.num_classes,
            deviations=spec.deviations(),
            **({"vocabulary": spec.tokens.vocabulary} if spec.tokens else {}),
        )
        low = Lowering(spec, options, data, layout, builder, read_image, primes=primes)
        try:
            append_step(low)
        except NameTakenError as taken:
            primes[taken.layer] = primes.get(taken.layer, "") + "'"
            continue
        views = {n for n, b in builder.buffers.items() if b.persistent and not builder.layer_of[n]}
        views |= {f"{name}.grad" for name in (low.logits, *low.parameter_shapes)}
        if alike := sorted(views & low.shapes.keys()):
            raise UsageError(
                f"layer {alike[0]!r} of {spec.name!r} has the name of a gradient, a table or a log, which "
                f"view() shows; rename it"
            )
        return low


def check_alone(name: Any, options: PlanOptions) -> None:
    """Raise `UsageError` for options of a plan that is no network, but for threads that others are cut for."""
    if options.cut.is_auto:
        options = options.with_changes(granularity="auto")
    if options != PlanOptions(batch=1):
        others = describe(options, leave_out=("batch",))
        raise UsageError(
            f"a plan that is no network has no options but batch 1, got batch {options.batch}"
            f"{f', {others}' if others else ''} for {name!r}; leave them out"
        )


def lowered_form(spec: Network, options: PlanOptions) -> Network:
    """Return a network as options ask for it: of tokens with their sequence, and without dropout where not trained."""
    if spec.tokens:
        spec = spec.with_sequence(options.sequence)
    check_end(spec)
    most_rows = max(spec.input_shape[0 if spec.tokens else 1], MOST_ROWS)
    if options.cut.rows > most_rows:
        raise UsageError(
            f"rows of a block must be at most {most_rows} in network {spec.name!r}, got {options.cut.rows}; leave them "
            f"out where maps are not to be cut"
        )
    return spec if options.training else spec.without_dropout()


def own_plan(name: Any) -> Plan | None:
    """Return the plan of a function of the user's that makes no network but a graph: a `UserGraph`, a `Plan` or a
    `BoundPlan`; None for other names."""
    if not is_own(name):
        return None
    made = make_own(name)
    plan = getattr(made, "plan", made)  # of a graph a method, of a bound plan the plan itself
    plan = plan() if callable(plan) else plan
    return plan if isinstance(plan, Plan) else None


def default_batch(*networks: str | Network, images: int | None = None) -> int:
    """Return the default batch of networks; `images`: that of networks of images, if not `PlanOptions`' own. Raise
    `UsageError` for networks of images beside networks of tokens."""
    if all(own_plan(n) is not None for n in networks):
        return 1
    specs = [get_network(network) if isinstance(network, str) else network for network in networks]
    kinds = {spec.tokens is not None for spec in specs}
    if len(kinds) > 1:
        raise UsageError(
            f"batch must be given for networks of images and of tokens together, got none for "
            f"{', '.join(spec.name for spec in specs)}; their defaults differ"
        )
    return BATCH_OF_TOKENS if True in kinds else images or PlanOptions().batch


def choose_layout(spec: Network, options: PlanOptions) -> Layout:
    """Return the layout that computes a network at least cost: of images, images or pixels in the lanes where there are
    kernels for it, else channels."""
    if spec.tokens:
        return ROWS_LAYOUT
    able = [layout for layout in (NCHW16_LAYOUT, NCHW_LAYOUT) if layout.computes(spec, options)]
    if NCHW16_LAYOUT not in able:
        return NHWC_LAYOUT
    if NCHW_LAYOUT not in able:
        few = SPARSE * options.batch <= NCHW16_LAYOUT.lanes and options.conv == "auto" and options.cut.is_auto
        return NHWC_LAYOUT if few and NHWC_LAYOUT.computes(spec, options) else NCHW16_LAYOUT
    convolutions = [(before[0], *after) for layer, before, after in spec.shapes() if isinstance(layer, Conv2d)]
    images = choose_lanes(options.batch, options.cut, convolutions, options.conv) == NCHW16_LAYOUT.lanes
    return NCHW16_LAYOUT if images else NCHW_LAYOUT


def initialise(bound, seed: Count = 0, weights: Mapping[str, np.ndarray] | None = None) -> None:
    """Set the parameters of a bound plan: a normal distribution for weights, with the standard deviation that the layer
    says, else He's; 1 for the weights of norms, zero for biases; the optimizer's state to zero and running statistics
    to mean 0 and variance 1. Those that `weights` names get its values instead.

    Drawn in double precision and rounded, in the order of the layers: the same for every target and
    instruction set. Some at a time: the memory of a layer's numbers in double precision would stay with the process.
    """
    if not hasattr(bound, "arrays"):
        raise UsageError(f"initialise() takes a bound plan, got {bound!r}; call initialise(bind(plan))")
    generator = np.random.default_rng(seed)
    deviations = bound.plan.attributes["deviations"]
    parameters = bound.plan.attributes["parameters"]
    for name in parameters if set(parameters) - {*(weights or {})} else ():  # drawn all or none: the same in each case
        array = bound.arrays[name]
        if array.ndim > 1:
            deviation = deviations.get(name) or math.sqrt(2.0 / math.prod(array.shape[1:]))
            numbers = array.reshape(-1)
            for start, stop in ranges(numbers.size, DRAWN_TOGETHER):
                numbers[start:stop] = (generator.standard_normal(stop - start) * deviation).astype(np.float32)
        else:
            array[...] = 1 if name.endswith(".weight") else 0
    for name, buffer in bound.plan.buffers.items():
        if buffer.role in ("optimizer_state", "statistic"):
            bound.arrays[name][...] = 1 if name.endswith(".running_var") else 0
    for name, array in (weights or {}).items():
        own = bound.arrays[name] if bound.plan.buffers.get(name) else None
        if own is None or own.shape != np.shape(array):
            wanted = "no such parameter" if own is None else f"shape {own.shape}"
            raise UsageError(
                f"weights must be those of the network, and {name!r} has shape {np.shape(array)} where plan "
                f"{bound.plan.name!r} has {wanted}; use the weights of this network"
            )
        own[...] = array


def logged_losses(bound, iterations: int, first_iteration: int) -> np.ndarray:
    """Return the losses that iterations left in the log of a bound plan, as far back as it goes; none without a log."""
    names = [buffer.name for buffer in bound.plan.buffers.values() if buffer.role == "log"]
    log = next((bound.arrays[name] for name in names if name.endswith("losses")), np.zeros(0, np.float32))
    numbers = np.arange(max(0, iterations - len(log)), iterations) + first_iteration
    return log[numbers % len(log)] if len(log) else log
