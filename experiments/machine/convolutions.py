"""Speed and error of each algorithm for each convolution of a network, on one core.

In the layout "channels" a loop is taken from the plan and run by itself with each algorithm. In the layout "lanes" the
network is lowered once for each algorithm, nothing fused, and the loops of equal names are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BoundPlan, Workers, bind
from ...cython_src.errors import UsageError
from ...cython_src.kernels.convolution import algorithms
from ...cython_src.kernels.maps.channels import inside
from ...cython_src.kernels.maps.lanes import interior
from ...cython_src.lowering.layouts.lanes.algorithms import CONVOLUTIONS, direct_cost, winograd_cost
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.plan.builder import PlanBuilder
from ...cython_src.plan.model import UPDATE, Access, Block, BlockLoop, Plan
from .kernel_timing import Limits, loop_times, one_loop

# Each kernel's name and number of the pass, prefixes of the maps that it reads (operand: prefix), and result.
PASSES = {
    "channels_conv_forward": ("forward", algorithms.FORWARD, {"input": "in"}),
    "channels_conv_backward_data": ("data", algorithms.DATA, {"gradient": "in"}),
    "channels_conv_backward_weights": ("weights", algorithms.WEIGHTS, {"gradient": "dy", "input": "in"}),
}
DEFAULT_ALGORITHMS = {"channels": "direct,winograd2,winograd4", "lanes": "direct,winograd"}
# End of a loop's name in the layout "lanes" -> the pass.
LANES_PASSES = {".data_gradient": "data", ".weight_gradient": "weights", "": "forward"}


def compare_algorithms(
    network: str,
    options: PlanOptions,
    wanted: str = "",
    seconds: float = 0.05,
    instruction_set: str | None = None,
    cpu: int | None = None,
) -> dict[str, Any]:
    """Measure each convolution of a network by each algorithm, in the layout that the options say.

    Parameters
    ----------
    network : str
    options : PlanOptions
    wanted : str
        "all", or names with commas between; "": `DEFAULT_ALGORITHMS` of the layout.
    seconds : float
        Time to spend on each number.

    Raises
    ------
    UsageError
        An algorithm that the layout does not have, or a layout without such a table.
    """
    plan = lower(network, options)
    layout = plan.attributes["layout"]
    if layout == "tokens":
        raise UsageError(f"a network for this table must have convolutions, {network!r} has none; choose another")
    if layout not in DEFAULT_ALGORITHMS:
        raise UsageError(f"batch must be a multiple of 16 for this table, or layout channels, got {options.batch}")
    known = CONVOLUTIONS[1:] if layout == "lanes" else algorithms.ALGORITHMS
    names = known if wanted == "all" else tuple((wanted or DEFAULT_ALGORITHMS[layout]).split(","))
    for name in names:
        if name not in known:
            raise UsageError(
                f"--convolutions must name algorithms of layout {layout!r}, {', '.join(known)}; got {name!r}"
            )
    if layout == "lanes":
        return measure_lanes(network, options, names, seconds, instruction_set, cpu)
    return measure_convolutions(plan, names, seconds, instruction_set, cpu)


def measure_convolutions(
    plan: Plan,
    wanted_algorithms: Sequence[str],
    seconds: float = 0.05,
    instruction_set: str | None = None,
    cpu: int | None = None,
) -> dict:
    """Measure time and error of all convolutions of a plan in layout "channels".

    Layers of one shape are measured once. A time is the sum over the plan's blocks of each one's fastest run.

    Returns
    -------
    dict
        "peak_flops_per_s", "instruction_set", "batch" and "rows": dicts of "layers", "pass", "shape", "algorithm",
        "picked", "cost" (by the model, direct = 1), "time_s", "flops", "flops_per_s", "fraction_of_peak", "error".

    Raises
    ------
    UsageError
        A plan without such convolutions.
    """
    alike: dict[tuple, list[BlockLoop]] = {}
    for loop in plan.loops:
        if loop.kernel in PASSES:
            alike.setdefault((loop.kernel, *sorted(loop.attributes.items())), []).append(loop)
    if not alike:
        raise UsageError(f"plan {plan.name!r} has no convolutions in layout 'channels'; name another network")
    peak = Limits(instruction_set, cpu).peak_flops_per_s
    rows = []
    for loops in alike.values():
        rows += _measure_loop(plan, loops, wanted_algorithms, seconds, instruction_set, cpu, peak)
    return {
        "peak_flops_per_s": peak,
        "instruction_set": instruction_set or "best",
        "batch": plan.attributes["batch"],
        "rows": rows,
    }


def _measure_loop(plan, loops, wanted_algorithms, seconds, instruction_set, cpu, peak) -> list[dict]:
    loop = loops[0]
    name, direction, _ = PASSES[loop.kernel]
    batch = plan.attributes["batch"]
    attributes = dict(loop.attributes)
    costs = algorithms.algorithm_costs(name, attributes, batch)
    done, rows = set(), []
    picked = algorithms.ALGORITHMS[attributes["algorithm"]]
    for wanted in (*wanted_algorithms, picked):
        code = algorithms.choose_algorithm(wanted, name, attributes, batch)
        if code in done:
            continue
        done.add(code)
        algorithm = algorithms.ALGORITHMS[code]
        bound, _ = _bind(plan, loop, code, direction, "cpu", instruction_set)
        rows.append(
            {
                "layers": [one.name for one in loops],
                "pass": name,
                "shape": _shape(attributes),
                "algorithm": algorithm,
                "picked": algorithm == picked,
                "cost": costs[algorithm] / costs["direct"] if algorithm in costs else None,
                **_rates(float(loop_times(bound, seconds, cpu)[0][0]), loop.flops, peak),
                "error": _error(plan, loop, code, direction, instruction_set),
            }
        )
    return rows


def _rates(time_s: float, flops: int, peak: float) -> dict[str, float]:
    return {"time_s": time_s, "flops": flops, "flops_per_s": flops / time_s, "fraction_of_peak": flops / time_s / peak}


def measure_lanes(
    network: str,
    options: PlanOptions,
    wanted_algorithms: Sequence[str],
    seconds: float = 0.05,
    instruction_set: str | None = None,
    cpu: int | None = None,
) -> dict:
    """Like `measure_convolutions`, for a network with sixteen images in the vector lanes.

    Parameters
    ----------
    network : str
    options : PlanOptions
    wanted_algorithms : sequence of str
        Some of `lowering.CONVOLUTIONS`, without "auto".
    """
    picked = lower(network, options, layout="lanes").attributes["convolutions"]
    plans = {
        name: lower(network, options, layout="lanes", conv=name, fusion="none")
        for name in dict.fromkeys((*wanted_algorithms, *picked.values(), "direct"))
    }
    peak = Limits(instruction_set, cpu).peak_flops_per_s
    rows = []
    for name in picked:
        kind = _lanes_pass(name)
        direct = next(loop for loop in plans["direct"].loops if loop.name == name)
        truth = _run_lanes(plans["direct"], name, "float64", None)[0]
        shape = _lanes_shape(direct.attributes, kind)
        model = {"direct": 1.0, "winograd": winograd_cost(*shape) / direct_cost(*shape)}
        for algorithm in dict.fromkeys((*wanted_algorithms, picked[name])):
            result, time_s = _run_lanes(plans[algorithm], name, "cpu", instruction_set, seconds, cpu)
            rows.append(
                {
                    "layers": [name],
                    "pass": kind,
                    "shape": "{}->{}, 5x5, {}x{}".format(
                        *(shape[1::-1] if kind == "weights" else shape[:2]), *shape[2:]
                    ),
                    "algorithm": algorithm,
                    "picked": algorithm == picked[name],
                    "cost": model.get(algorithm),
                    **_rates(time_s, direct.flops, peak),
                    "error": float(np.abs(result - truth).max() / np.abs(truth).max()),
                }
            )
    return {
        "peak_flops_per_s": peak,
        "instruction_set": instruction_set or "best",
        "batch": options.batch,
        "rows": rows,
    }


def _lanes_pass(name: str) -> str:
    return next(kind for end, kind in LANES_PASSES.items() if name.endswith(end))


def _lanes_shape(attributes, kind) -> tuple[int, int, int, int]:
    """Return channels read and written, height and width of the result, for `lowering.choose_convolution`."""
    if kind == "weights":
        return attributes["dy_channels"], attributes["in_channels"], attributes["dy_height"], attributes["dy_width"]
    return attributes["in_channels"], attributes["out_channels"], attributes["out_height"], attributes["out_width"]


def _run_lanes(
    plan: Plan, name: str, target: str, instruction_set: str | None, seconds: float = 0.0, cpu: int | None = None
) -> tuple[np.ndarray, float]:
    """Run a convolution of an unfused plan, with its transform of weights, on random data: result and time."""
    wanted = [loop for loop in plan.loops if loop.name in (name, f"{name}.transform")]
    builder = PlanBuilder(name)
    for loop in wanted:
        for buffer in loop.operands.values():
            builder.buffer(buffer, plan.buffers[buffer].shape, role="dataset")
        accesses = tuple(Access(UPDATE, buffer) for buffer in loop.operands.values())
        blocks = [Block(tuple(b.bounds), () if i else accesses) for i, b in enumerate(loop.blocks)]
        builder.loop(loop.name, loop.kernel, loop.operands, blocks, attributes=loop.attributes)
    bound = bind(builder.build(), target=target, instruction_set=instruction_set)
    workers = Workers(1, bound.scratch_bytes)
    convolution = wanted[-1]
    weights = _lanes_pass(name) == "weights"
    maps = {"gradient": "dy" if weights else "in", "input": "in"}
    rng = np.random.default_rng(1)
    for operand in ("weight", "bias", *maps):
        buffer = next((loop.operands[operand] for loop in wanted if operand in loop.operands), None)
        if buffer is None:
            continue
        part = bound.arrays[buffer]
        if operand in maps:
            part = interior(part, convolution.attributes, maps[operand])
        part[...] = rng.standard_normal(part.shape, np.float32)
    for number, loop in enumerate(wanted):
        for block in range(loop.num_blocks):
            bound.run_task(number, block, 0, workers)
            bound.raise_failure(workers)
    time_s = np.inf
    if target == "cpu":
        time_s = float(loop_times(bound, seconds, cpu)[0][-1])
    result = bound.arrays[convolution.operands["output"]].astype(np.float64)
    if weights:
        return result.sum(axis=0), time_s  # Each block leaves a partial sum.
    return interior(result, convolution.attributes, "out"), time_s


def _shape(attributes) -> str:
    first, second = ("in", "dy") if "dy_channels" in attributes else ("in", "out")
    k, s, g = attributes["kernel"], attributes["stride"], attributes["groups"]
    text = f"{attributes[f'{first}_channels']}->{attributes[f'{second}_channels']}, {k}x{k}"
    text += (f" /{s}" if s > 1 else "") + (f", {g} groups" if g > 1 else "")
    return f"{text}, {attributes[f'{second}_height']}x{attributes[f'{second}_width']}"


def _bind(plan, loop, code, direction, target, instruction_set, images: int = 0) -> tuple[BoundPlan, Workers]:
    """Bind one loop by itself, with another algorithm, on random data; with `images`, so many images in a block."""
    attributes = {**loop.attributes, "algorithm": code}
    shapes = {operand: plan.buffers[buffer].shape for operand, buffer in loop.operands.items()}
    if "packed" in shapes:
        shapes["packed"] = algorithms.packed_shape(
            code, direction, _weight_shape(attributes, direction), attributes["groups"]
        )
    if images:
        shapes = {n: (images, *s[1:]) if n in ("input", "gradient") else s for n, s in shapes.items()}
        if direction != algorithms.WEIGHTS:
            shapes["output"] = (images, *shapes["output"][1:])
    bounds = [tuple(block.bounds) for block in loop.blocks]
    if images:
        bounds = [_whole(attributes, direction, images)]
    buffers = {operand: (shape, "float32") for operand, shape in shapes.items()}
    bound = one_loop(loop.kernel, buffers, attributes, bounds, target=target, instruction_set=instruction_set)
    rng = np.random.default_rng(1)
    everything = {"n0": 0, "n1": images or plan.attributes["batch"]}
    for operand, prefix in PASSES[loop.kernel][2].items():
        part = inside(bound.arrays[operand], attributes, prefix, everything)[..., : attributes[f"{prefix}_channels"]]
        part[...] = rng.standard_normal(part.shape, np.float32)
    if "packed" in shapes:
        weight = rng.standard_normal(_weight_shape(attributes, direction), np.float32).astype(
            bound.arrays["packed"].dtype
        )
        form = {**attributes, "direction": direction}
        bound.arrays["packed"][...] = algorithms.pack(weight, form, (0, shapes["packed"][0]))
    return bound, Workers(1, bound.scratch_bytes)


def _weight_shape(attributes, direction) -> tuple[int, int, int, int]:
    out, part = attributes["out_channels"], attributes["in_channels"]
    if direction == algorithms.DATA:
        out, part = part, out
    return out, part // attributes["groups"], attributes["kernel"], attributes["kernel"]


def _whole(attributes, direction, images) -> tuple[int, ...]:
    """Return the bounds of one block that covers the whole loop."""
    if direction == algorithms.WEIGHTS:
        return 0, images, 0, attributes["dy_channels"], 0, attributes["in_channels"], 0
    whole = 0, images, 0, attributes["out_height"], 0, attributes["out_channels"]
    return (*whole, 0) if direction == algorithms.FORWARD else whole


def _error(plan, loop, code, direction, instruction_set) -> float:
    """Return the largest error for one image over the largest result."""
    results = []
    for target, algorithm in (("cpu", code), ("float64", algorithms.CODES["direct"])):
        bound, workers = _bind(plan, loop, algorithm, direction, target, instruction_set, images=1)
        bound.arrays["output"][...] = 0
        bound.run_task(0, 0, 0, workers)
        bound.raise_failure(workers)
        results.append(bound.arrays["output"].astype(np.float64))
    return float(np.abs(results[0] - results[1]).max() / np.abs(results[1]).max())


def format_algorithms(result: dict) -> str:
    """Format the result of `compare_algorithms` for a terminal."""
    lines = [
        f"batch {result['batch']}, one core, peak {result['peak_flops_per_s'] / 1e9:.1f} GFLOP/s "
        f"({result['instruction_set']} instruction set)",
        f"{'layer':34s} {'pass':8s} {'shape':34s} {'algorithm':13s} {'us':>9s} {'GFLOP/s':>8s} {'of peak':>8s} "
        f"{'error':>8s} {'model':>6s}",
    ]
    for row in result["rows"]:
        others = f" (+{len(row['layers']) - 1})" if len(row["layers"]) > 1 else ""
        cost = f"{row['cost']:6.2f}" if row["cost"] is not None else f"{'':6s}"
        lines.append(
            f"{row['layers'][0].split('.weight_gradient')[0].split('.data_gradient')[0] + others:34s} {row['pass']:8s} "
            f"{row['shape']:34s} {row['algorithm'] + ('*' if row['picked'] else ''):13s} {row['time_s'] * 1e6:9.1f} "
            f"{row['flops_per_s'] / 1e9:8.1f} {row['fraction_of_peak']:8.1%} {row['error']:8.1e} {cost}"
        )
    picked = [row for row in result["rows"] if row["picked"]]
    total = sum(row["time_s"] * len(row["layers"]) for row in picked)
    flops = sum(row["flops"] * len(row["layers"]) for row in picked)
    lines.append(
        "GFLOP/s are those of the direct convolution, whatever the algorithm; error: the largest of one image (of "
        "sixteen in the lanes) over the largest result, against float64"
    )
    lines.append("model: cost that the default compares, over that of direct sums; without one, never taken by default")
    lines.append(
        f"* the default: {total * 1e3:.2f} ms for all convolutions, {flops / total / 1e9:.1f} GFLOP/s, "
        f"{flops / total / result['peak_flops_per_s']:.1%} of peak; packing of weights comes on top"
    )
    return "\n".join(lines)
