"""Random networks in which each kernel has exactly the scratch memory that it asks for; a process of its own.

`python -P -m cython_src.kernels.scratch_runs INSTRUCTION_SET SEED ...` prints as JSON which kernels ran with scratch
memory, how often, and which of them were caught with a row less. A fault ends the process: by SIGSEGV, or with the
sentence of `Fault`.
"""

import json
import os
import signal
import sys
from collections import Counter

import numpy as np
from cython_src.kernels.guarded_scratch import GuardedScratch
from cython_src.networks_for_tests import fill

from forktask.cython_src.binding.bind import Workers, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.convolution.algorithms import NHWC_OPTIONS
from forktask.cython_src.kernels.convolution.specs import ALGORITHMS, NCHW16_FORMS
from forktask.cython_src.lowering.layouts.nchw.algorithms import CONVOLUTIONS
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import FUSIONS
from forktask.cython_src.networks.layers import (
    Add,
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    MaxPool,
    Network,
    ReLU,
    ReLU6,
    SoftmaxCrossEntropy,
)
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import UPDATE, Access, Block

PATTERNS = 0xFF, 0x3F  # that scratch memory is full of: NaN, and about 0.75
TRIES = 30  # of a kernel with a row less


class Fault(Exception):
    """A kernel does not keep to its scratch memory."""


# --- random plans ---------------------------------------------------------------------------------------------------


def nhwc_network(rng):
    """Convolutions of all kinds, norms, sums; for the layout "nhwc"."""

    def below(limit):
        return int(rng.integers(1, limit))

    channels = below(40)
    layers = [Conv2d("stem", channels, below(6), int(rng.integers(0, 3)), below(3))]
    for k in range(below(6)):
        kind = rng.choice(["dense", "dense", "grouped", "depthwise", "depthwise", "depthwise", "skip"])
        size, stride = below(8), int(rng.choice([1, 1, 2, 3]))
        padding = int(rng.integers(0, size))
        bias = rng.integers(3) == 0
        if kind == "skip":
            before = layers[-1].name
            layers += [BatchNorm(f"norm{k}"), ReLU(f"relu{k}"), Conv2d(f"conv{k}", channels, 3, 1)]
            layers.append(Add(f"sum{k}", (f"conv{k}", before)))
            continue
        groups = {"dense": 1, "grouped": int(rng.choice([n for n in (1, 2, 3, 4) if channels % n == 0]))}
        if kind == "depthwise":
            layers.append(Conv2d(f"conv{k}", channels, size, padding, stride, channels, bias=bias))
        else:
            g = groups[kind]
            channels = g * below(80 // g)
            three = bool(rng.integers(2))  # what Winograd needs
            shape = (3, 1, 1, g) if three else (size, padding, stride, g, below(3))
            layers.append(Conv2d(f"conv{k}", channels, *shape, bias=bias))
        if rng.integers(5):
            layers.append(BatchNorm(f"norm{k}"))
        if rng.integers(2):
            layers.append((ReLU, ReLU6)[rng.integers(2)](f"relu{k}"))
    layers += [GlobalAvgPool("pool"), Linear("linear", 5), SoftmaxCrossEntropy()]
    height, width = below(40), below(70)
    if rng.integers(4) == 0:  # rows that are long against a strip, and against a list of pixels
        height, width = (below(60), 150 + below(200)) if rng.integers(4) else (below(4), 1500 + below(1200))
    return Network("random", (below(20), height, width), tuple(layers))


def nchw_network(rng):
    """Convolutions of 5 x 5, pooling, fully connected layers; for the layouts "nchw16" and "nchw"."""
    height, width = 4 * int(rng.integers(1, 8)), 4 * int(rng.integers(1, 13))
    layers = []
    for k in range(int(rng.integers(1, 4))):
        layers.append(Conv2d(f"conv{k}", int(rng.integers(1, 24)), 5, int(rng.choice([0, 1, 2, 2, 2, 2]))))
        layers += [ReLU(f"relu{k}"), MaxPool(f"pool{k}")][: rng.choice([0, 1, 2, 2, 2])]
    layers += [Linear("linear", int(rng.integers(2, 12))), SoftmaxCrossEntropy()]
    return Network("random", (int(rng.integers(1, 8)), height, width), tuple(layers))


def random_plan(rng):
    """Return the plan of a random network with random options, or None where these do not go together."""
    layout = str(rng.choice(["nhwc", "nchw16", "nchw"], p=[0.6, 0.25, 0.15]))
    network = (nhwc_network if layout == "nhwc" else nchw_network)(rng)
    convolutions = {"nhwc": NHWC_OPTIONS, "nchw16": CONVOLUTIONS, "nchw": CONVOLUTIONS[:2]}[layout]
    images = 16 if layout == "nchw16" else 1
    cut = (
        f"images={images * int(rng.integers(1, 4))},channels={16 * int(rng.integers(1, 5))},rows={rng.integers(1, 20)}"
    )
    fusion = "all" if rng.integers(2) else ",".join(n for n in FUSIONS if n != "norm" and rng.integers(2)) or "none"
    try:
        return lower(
            network,
            batch=int(rng.integers(1, 2 * images + 3)),
            layout=layout,
            conv=str(rng.choice(convolutions)),
            granularity=str(rng.choice(["auto", cut])),
            fusion=fusion,
            weight_gradients=str(rng.choice(["partial", "chain"], p=[0.8, 0.2])),
            phase=str(rng.choice(["train", "evaluate"], p=[0.8, 0.2])),
        )
    except UsageError:
        return None


def linear_layers(rng):
    """Yield kernel, shapes of operands, attributes and bounds for the kernels of linear layers of tokens."""
    rows, inputs, outputs = (int(rng.integers(1, limit)) for limit in (600, 1200, 700))
    pitch = outputs + int(rng.integers(0, 20))
    x, w, y = (rows, inputs), (outputs, inputs), (rows, pitch)
    r, c, o = (int(rng.integers(n)) for n in (rows, inputs, outputs))
    sizes = {"inputs": inputs, "outputs": outputs}
    backward = {**sizes, "gradient_pitch": pitch, "accumulate": 0}
    operands = {"input": x, "weight": w, "output": y}
    yield "linear_forward", operands, {**sizes, "output_pitch": pitch, "activation": 0}, (r, rows, 0, o + 1)
    further = 1 + 7 * rows % 600  # no draw: the networks that are drawn after stay those that need every kernel
    operands = {**operands, "input": (rows, inputs + further), "further_weight": (outputs, further)}
    attributes = {**sizes, "output_pitch": pitch, "activation": 0, "further_inputs": further}
    yield "linear_forward", operands, attributes, (r, rows, 0, o + 1)
    yield "linear_backward_data", {"gradient": y, "weight": w, "output": x}, backward, (0, r + 1, c, inputs)
    operands = {"gradient": y, "input": x, "weights": (1, outputs, inputs)}
    yield "linear_backward_weights", operands, backward, (r, rows, 0, o + 1, 0)


def attention(rng):
    """Yield the same for the kernels of attention."""
    batch, sequence, heads, size = (int(rng.integers(1, limit)) for limit in (3, 600, 4, 130))
    rows, features = batch * sequence, heads * size
    attributes = {"sequence": sequence, "heads": heads, "features": features, "rows": rows}
    attributes["causal"] = int(rng.integers(2))
    map_, qkv, numbers = (rows, features), (rows, 3 * features), (heads, rows)
    bounds = (0, batch, 0, heads, int(rng.integers(sequence)) if rng.integers(2) else 0, sequence)
    yield "attention_forward", {"qkv": qkv, "output": map_, "logsumexp": numbers}, attributes, bounds
    operands = {"qkv": qkv, "output": map_, "gradient": map_, "logsumexp": numbers, "dqkv": qkv}
    yield "attention_backward", operands, attributes, (*bounds, 0)


def single_kernels(rng, instruction_set):
    """Bind kernels of networks of tokens one by one, on random sizes."""
    for kernel, shapes, attributes, bounds in (linear_layers, attention)[rng.integers(2)](rng):
        builder = PlanBuilder(kernel)
        for operand, shape in shapes.items():
            builder.buffer(operand, shape, "float32", role="dataset")
        block = Block(bounds, tuple(Access(UPDATE, operand) for operand in shapes))
        builder.loop("loop", kernel, {operand: operand for operand in shapes}, [block], attributes=attributes)
        bound = bind(builder.build(), instruction_set=instruction_set)
        for array in bound.arrays.values():
            array[...] = rng.standard_normal(array.shape)
        yield bound


# --- runs -----------------------------------------------------------------------------------------------------------


def run_loop(bound, number, num_bytes):
    """Run a loop's blocks twice, on two patterns in scratch memory, and leave the results.

    Raises
    ------
    Fault
        Spare bytes were written to, or the results depend on the pattern.
    """
    loop = bound.plan.loops[number]
    before = {name: bound.arrays[name].copy() for name in loop.buffers}
    results = []
    for pattern in PATTERNS:
        for name, array in before.items():
            bound.arrays[name][...] = array
        scratch = GuardedScratch()
        workers = Workers(1, num_bytes, allocate=scratch.allocate)
        for block in range(loop.num_blocks):
            scratch.fill(pattern)
            bound.run_task(number, block, 0, workers)
            bound.raise_failure(workers)
            if not scratch.spare_is(pattern):
                raise Fault(f"{loop.name}[{block}], kernel {loop.kernel}: writes outside of its {num_bytes} bytes")
        results.append([bound.arrays[name].tobytes() for name in before])
    if results[0] != results[1]:
        raise Fault(f"{loop.name}, kernel {loop.kernel}: what its {num_bytes} bytes held before shows in its results")


def is_caught(bound, number, num_bytes):
    """Return whether a process of its own shows that so many bytes of scratch memory are not enough."""
    child = os.fork()
    if child == 0:
        try:
            run_loop(bound, number, num_bytes)
        except Fault:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in (signal.SIGSEGV, signal.SIGBUS)
    return os.WEXITSTATUS(status) == 1


def run(bound, ran, caught, tries):
    """Run each loop of a plan on exactly the scratch memory that it asks for, and TRIES times a kernel on less."""
    for number, loop in enumerate(bound.plan.loops):
        num_bytes = kernel_table.get(loop.kernel).scratch_of(loop)
        kernel = loop.kernel.rstrip("0123456789")  # a kernel of Task Bench for each number of predecessors
        if "algorithm" in loop.attributes:  # which has a formula of its own
            names = NCHW16_FORMS if kernel.startswith("conv_") else ALGORITHMS
            kernel += f" {names[loop.attributes['algorithm']]}"
        pitch = 16 if "in_lanes" in loop.attributes else loop.attributes.get("in_pitch", 16)
        row = loop.attributes.get("in_width", 16) * pitch
        if num_bytes and kernel not in caught and tries[kernel] < TRIES:
            tries[kernel] += 1
            if is_caught(bound, number, max(0, num_bytes - 4 * row)):
                caught.add(kernel)
        print(f"{loop.name}, kernel {loop.kernel}, {num_bytes} bytes: {dict(loop.attributes)}", file=sys.stderr)
        run_loop(bound, number, num_bytes)
        if num_bytes:
            ran[kernel] += 1


def main(instruction_set, *seeds):
    """Run the random plans of these seeds."""
    np.seterr(all="ignore")
    ran, caught, tries = Counter(), set(), Counter()
    run(bind(task_bench("no_comm", 1, 2, kernel="memory", work=40_000)), ran, caught, tries)
    for seed in seeds:
        print(f"seed {seed}", file=sys.stderr)
        rng = np.random.default_rng(int(seed))
        if rng.integers(6) == 0:
            for bound in single_kernels(rng, instruction_set):
                run(bound, ran, caught, tries)
            continue
        plan = random_plan(rng)
        if plan is not None:
            bound = bind(plan, instruction_set=instruction_set)
            fill(bound)
            run(bound, ran, caught, tries)
    print(json.dumps({"ran": ran, "caught": sorted(caught)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
