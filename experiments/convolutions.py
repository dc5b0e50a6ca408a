"""`forktask convolutions`: how fast and how exact each algorithm is for each convolution of a network, on one core."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import numpy as np

from ..cython_src import nhwc_conv
from ..cython_src.errors import UsageError
from ..cython_src.lowering import lower
from ..cython_src.machine_peaks import measure_peak_flops
from ..cython_src.nhwc_arrays import ChannelMap, inside
from ..cython_src.plan import UPDATE, Access, Block, BlockLoop, Plan, PlanBuilder
from ..cython_src.program import BoundPlan, Workers, bind

# Of each kernel: name and number of the pass, prefixes of the maps that it reads (operand: prefix), its result.
PASSES = {
    "nhwc_conv_forward": ("forward", nhwc_conv.FORWARD, {"input": "in"}),
    "nhwc_conv_backward_data": ("data", nhwc_conv.DATA, {"gradient": "in"}),
    "nhwc_conv_backward_weights": ("weights", nhwc_conv.WEIGHTS, {"gradient": "dy", "input": "in"}),
}
DEFAULT_ALGORITHMS = "direct,winograd2,winograd4"


def add_parser(subparsers) -> None:
    """Add `convolutions`."""
    parser = subparsers.add_parser(
        "convolutions",
        help="time, GFLOP/s and error of each convolution of a network by each algorithm",
        description="Run each convolution of a network (channels in the vector lanes) by itself, on one core, by each "
        "algorithm. GFLOP/s are those of the direct convolution, whatever the algorithm; the error is the largest, of one "
        "image, over the largest result, against float64. * marks what the default takes: the cheapest by the cost "
        f"model (`model`, direct = 1) whose error is below {nhwc_conv.ERROR_LIMIT:g} times that of direct sums.",
    )
    parser.add_argument("--network", default="resnet18", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--phase", default="train", choices=("train", "forward"), help="default: %(default)s")
    parser.add_argument("--conv", default=DEFAULT_ALGORITHMS, metavar="A[,A...]",
                        help=f"all, or some of {', '.join(nhwc_conv.ALGORITHMS)}; default: %(default)s")  # fmt: skip
    parser.add_argument("--instruction-set", help="default: the best of this processor")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each figure; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    names = nhwc_conv.ALGORITHMS if arguments.conv == "all" else tuple(arguments.conv.split(","))
    for name in names:
        if name not in nhwc_conv.ALGORITHMS:
            raise UsageError(f"--conv must name algorithms among {', '.join(nhwc_conv.ALGORITHMS)}, got {name!r}")
    plan = lower(arguments.network, arguments.batch, arguments.phase, layout="channels")
    result = measure_convolutions(plan, names, arguments.seconds, arguments.instruction_set)
    print(json.dumps(result) if arguments.json else format_table(result))
    return 0


def measure_convolutions(
    plan: Plan, algorithms: Sequence[str], seconds: float = 0.05, instruction_set: str | None = None
) -> dict:
    """Time and error of all convolutions of a plan in layout "channels".

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
    peak = max(measure_peak_flops(0.06, instruction_set, None)["flops_per_s"] for _ in range(3))
    rows = []
    for loops in alike.values():
        rows += _measure_loop(plan, loops, algorithms, seconds, instruction_set, peak)
    return {
        "peak_flops_per_s": peak,
        "instruction_set": instruction_set or "best",
        "batch": plan.attributes["batch"],
        "rows": rows,
    }


def _measure_loop(plan, loops, algorithms, seconds, instruction_set, peak) -> list[dict]:
    loop = loops[0]
    name, direction, _ = PASSES[loop.kernel]
    batch = plan.attributes["batch"]
    attributes = dict(loop.attributes)
    costs = nhwc_conv.algorithm_costs(name, attributes, batch)
    done, rows = set(), []
    picked = nhwc_conv.ALGORITHMS[attributes["algorithm"]]
    for wanted in (*algorithms, picked):
        code = nhwc_conv.choose_algorithm(wanted, name, attributes, batch)
        if code in done:
            continue
        done.add(code)
        algorithm = nhwc_conv.ALGORITHMS[code]
        bound, workers = _bind(plan, loop, code, direction, "cpu", instruction_set)
        fastest = [np.inf] * loop.num_blocks
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop or np.inf in fastest:
            for block in range(loop.num_blocks):
                start = time.perf_counter()
                bound.run_task(0, block, 0, workers)
                fastest[block] = min(fastest[block], time.perf_counter() - start)
        total = sum(fastest)
        rows.append(
            {
                "layers": [one.name for one in loops],
                "pass": name,
                "shape": _shape(attributes),
                "algorithm": algorithm,
                "picked": algorithm == picked,
                "cost": costs[algorithm] / costs["direct"] if algorithm in costs else None,
                "time_s": total,
                "flops": loop.flops,
                "flops_per_s": loop.flops / total,
                "fraction_of_peak": loop.flops / total / peak,
                "error": _error(plan, loop, code, direction, instruction_set),
            }
        )
    return rows


def _shape(attributes) -> str:
    first, second = ("in", "dy") if "dy_channels" in attributes else ("in", "out")
    k, s, g = attributes["kernel"], attributes["stride"], attributes["groups"]
    text = f"{attributes[f'{first}_channels']}->{attributes[f'{second}_channels']}, {k}x{k}"
    text += (f" /{s}" if s > 1 else "") + (f", {g} groups" if g > 1 else "")
    return f"{text}, {attributes[f'{second}_height']}x{attributes[f'{second}_width']}"


def _bind(plan, loop, code, direction, target, instruction_set, images: int = 0) -> tuple[BoundPlan, Workers]:
    """One loop by itself, with another algorithm, on random data; with `images`, of so many in one block."""
    attributes = {**loop.attributes, "algorithm": code}
    builder = PlanBuilder(loop.name)
    shapes = {operand: plan.buffers[buffer].shape for operand, buffer in loop.operands.items()}
    if "packed" in shapes:
        shapes["packed"] = nhwc_conv.packed_shape(code, direction, _weight_shape(attributes, direction), attributes["groups"])
    if images:
        shapes = {n: (images, *s[1:]) if n in ("input", "gradient") else s for n, s in shapes.items()}
        if direction != nhwc_conv.WEIGHTS:
            shapes["output"] = (images, *shapes["output"][1:])
    for operand, shape in shapes.items():
        builder.buffer(operand, shape, role="dataset")
    accesses = tuple(Access(UPDATE, operand) for operand in shapes)
    bounds = [tuple(block.bounds) for block in loop.blocks]
    if images:
        bounds = [_whole(attributes, direction, images)]
    blocks = [Block(b, accesses if i == 0 else ()) for i, b in enumerate(bounds)]
    builder.loop(loop.name, loop.kernel, {operand: operand for operand in shapes}, blocks, attributes=attributes)
    if direction == nhwc_conv.WEIGHTS:
        sizes = [attributes["dy_channels"], attributes["in_channels"]]
    else:
        sizes = [attributes["out_height"], attributes["out_channels"]]
    scratch = nhwc_conv.scratch_bytes(code, direction, attributes, images or plan.attributes["batch"], *sizes)
    builder.scratch(scratch)
    bound = bind(builder.build(), target=target, instruction_set=instruction_set)
    rng = np.random.default_rng(1)
    everything = {"n0": 0, "n1": images or plan.attributes["batch"]}
    for operand, prefix in PASSES[loop.kernel][2].items():
        part = inside(bound.arrays[operand], attributes, prefix, everything)[..., : attributes[f"{prefix}_channels"]]
        part[...] = rng.standard_normal(part.shape, np.float32)
    if "packed" in shapes:
        weight = rng.standard_normal(_weight_shape(attributes, direction), np.float32).astype(bound.arrays["packed"].dtype)
        form = {**attributes, "direction": direction}
        bound.arrays["packed"][...] = nhwc_conv.pack(weight, form, (0, shapes["packed"][0]))
    return bound, Workers(1, scratch)


def _weight_shape(attributes, direction) -> tuple[int, int, int, int]:
    out, part = attributes["out_channels"], attributes["in_channels"]
    if direction == nhwc_conv.DATA:
        out, part = part, out
    return out, part // attributes["groups"], attributes["kernel"], attributes["kernel"]


def _whole(attributes, direction, images) -> tuple[int, ...]:
    """Bounds of one block of everything."""
    if direction == nhwc_conv.WEIGHTS:
        return 0, images, 0, attributes["dy_channels"], 0, attributes["in_channels"], 0
    whole = 0, images, 0, attributes["out_height"], 0, attributes["out_channels"]
    return (*whole, 0) if direction == nhwc_conv.FORWARD else whole


def _error(plan, loop, code, direction, instruction_set) -> float:
    """Largest error for one image over the largest result."""
    results = []
    for target, algorithm in (("cpu", code), ("float64", nhwc_conv.CODES["direct"])):
        bound, workers = _bind(plan, loop, algorithm, direction, target, instruction_set, images=1)
        bound.arrays["output"][...] = 0
        bound.run_task(0, 0, 0, workers)
        bound.raise_failure(workers)
        results.append(bound.arrays["output"].astype(np.float64))
    return float(np.abs(results[0] - results[1]).max() / np.abs(results[1]).max())


def format_table(result: dict) -> str:
    """The result of `measure_convolutions` for people."""
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
        f"* the default: {total * 1e3:.2f} ms for all convolutions, {flops / total / 1e9:.1f} GFLOP/s, "
        f"{flops / total / result['peak_flops_per_s']:.1%} of peak; packing of weights comes on top"
    )
    return "\n".join(lines)
