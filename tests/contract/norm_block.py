"""A residual block: dense, batch norm (batch statistics), ReLU, dropout, plus the input; with recomputation.

Rows play images and pixels. The dense layer's output is not kept for the backward pass but computed again.
"""

import numpy as np
from contract.common import add_partials_loop, kernel, log_loop, ranges, sgd_loop

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write

ROWS, C = 12, 6
EPSILON, KEEP, DECAY = 1e-3, 0.75, 0.9
SHAPES = {"w": (C, C), "gamma": (C,), "beta": (C,)}


def keep_mask(iteration, rows, columns, seed=77):
    """Counter-based generator: a hash of (seed, iteration, element), so that no state passes from block to block."""
    with np.errstate(over="ignore"):
        element = rows[:, None].astype(np.uint64) * np.uint64(C) + columns[None, :].astype(np.uint64)
        z = element + np.uint64((seed * 1_000_003 + iteration) % 2**32) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) < np.uint64(int(KEEP * 2**53))


@kernel("spike.norm.load", "data x t", "r0 r1")
def load(o, a, b, iteration):
    n = len(o["data"]) // (2 * ROWS)
    first = (iteration % n) * 2 * ROWS
    o["x"][b["r0"] : b["r1"]] = o["data"][first + b["r0"] : first + b["r1"]]
    o["t"][b["r0"] : b["r1"]] = o["data"][first + ROWS + b["r0"] : first + ROWS + b["r1"]]


@kernel("spike.norm.dense", "x w y", "r0 r1 c0 c1")
def dense(o, a, b, iteration):
    r, c = slice(b["r0"], b["r1"]), slice(b["c0"], b["c1"])
    o["y"][r, c] = np.einsum("rk,ck->rc", o["x"][r], o["w"][c])


@kernel("spike.norm.sum", "y partials", "part r0 r1")
def sum_rows(o, a, b, iteration):
    o["partials"][b["part"]] = o["y"][b["r0"] : b["r1"]].sum(axis=0)


@kernel("spike.norm.sum_squares", "y total partials", "part r0 r1")
def sum_squares(o, a, b, iteration):
    """Second pass: squares of the distance to the mean."""
    o["partials"][b["part"]] = ((o["y"][b["r0"] : b["r1"]] - o["total"] / ROWS) ** 2).sum(axis=0)


@kernel("spike.norm.running", "total squares running_mean running_var")
def running(o, a, b, iteration):
    o["running_mean"][...] = DECAY * o["running_mean"] + (1 - DECAY) * o["total"] / ROWS
    o["running_var"][...] = DECAY * o["running_var"] + (1 - DECAY) * o["squares"] / (ROWS - 1)


def normalise(o, r, c):
    """Normalised values and 1 / sigma, of some rows and columns."""
    inverse = 1 / np.sqrt(o["squares"][c] / ROWS + EPSILON)
    return (o["y"][r, c] - o["total"][c] / ROWS) * inverse, inverse


def activate(o, b, iteration):
    r, c = slice(b["r0"], b["r1"]), slice(b["c0"], b["c1"])
    normal, inverse = normalise(o, r, c)
    pre = o["gamma"][c] * normal + o["beta"][c]
    keep = keep_mask(iteration, np.arange(b["r0"], b["r1"]), np.arange(b["c0"], b["c1"]))
    return r, c, normal, inverse, pre, keep


@kernel("spike.norm.forward", "x y total squares gamma beta t dz losses", "r0 r1 c0 c1 part")
def forward(o, a, b, iteration):
    """z = x + dropout(relu(batchnorm(y))), its squared error and the gradient of that."""
    r, c, _, _, pre, keep = activate(o, b, iteration)
    z = o["x"][r, c] + np.where(keep, np.maximum(pre, 0), 0) / KEEP
    o["dz"][r, c] = (z - o["t"][r, c]) / (ROWS * C)
    o["losses"][b["part"]] = 0.5 * ((z - o["t"][r, c]) ** 2).sum() / (ROWS * C)


@kernel("spike.norm.backward_sums", "y total squares gamma beta dz partials", "r0 r1 c0 c1 part")
def backward_sums(o, a, b, iteration):
    """Partial gradients of gamma (row 0) and beta (row 1)."""
    r, c, normal, _, pre, keep = activate(o, b, iteration)
    gradient = np.where(keep & (pre > 0), o["dz"][r, c], 0) / KEEP
    o["partials"][b["part"], 0, c] = (gradient * normal).sum(axis=0)
    o["partials"][b["part"], 1, c] = gradient.sum(axis=0)


@kernel("spike.norm.add", "partials dgamma dbeta", "c0 c1")
def add(o, a, b, iteration):
    c = slice(b["c0"], b["c1"])
    o["dgamma"][c] = o["partials"][:, 0, c].sum(axis=0)
    o["dbeta"][c] = o["partials"][:, 1, c].sum(axis=0)


@kernel("spike.norm.backward_data", "y total squares gamma beta dz dgamma dbeta dy", "r0 r1 c0 c1")
def backward_data(o, a, b, iteration):
    r, c, normal, inverse, pre, keep = activate(o, b, iteration)
    gradient = np.where(keep & (pre > 0), o["dz"][r, c], 0) / KEEP
    o["dy"][r, c] = o["gamma"][c] * inverse * (gradient - (o["dbeta"][c] + normal * o["dgamma"][c]) / ROWS)


@kernel("spike.norm.backward_weights", "x dy partials", "part r0 r1")
def backward_weights(o, a, b, iteration):
    r = slice(b["r0"], b["r1"])
    o["partials"][b["part"]] = np.einsum("rc,rk->ck", o["dy"][r], o["x"][r])


def norm_plan(rows=4, memory="full"):
    """One training step of the block, cut into `rows` rows and half of the channels."""
    builder = PlanBuilder("spike_norm")
    groups, halves = ranges(ROWS, rows), [(0, C // 2), (C // 2, C)]
    tiles = [(r, c) for r in groups for c in halves]
    parts = len(groups)
    builder.buffer("data", (2 * 2 * ROWS, C), role="dataset")
    builder.buffer("learning_rates", (1,), role="table")
    builder.buffer("log", (8,), role="log")
    builder.buffer("running_mean", (C,), role="statistic")
    builder.buffer("running_var", (C,), role="statistic")
    for name, shape in SHAPES.items():
        builder.buffer(name, shape, role="parameter")
        builder.buffer(f"{name}.momentum", shape, role="optimizer_state")
        builder.buffer(f"{name}.grad", shape, role="gradient")
    for name in ("x", "t"):
        builder.buffer(name, (ROWS, C), role="input")
    for name in ("y", "y_again"):
        builder.buffer(name, (ROWS, C))
    for name in ("dz", "dy"):
        builder.buffer(name, (ROWS, C), role="gradient")
    for name in ("total", "squares"):
        builder.buffer(name, (C,), role="activation")
        builder.buffer(f"{name}.partials", (parts, C), role="temporary")
    builder.buffer("losses", (len(tiles),))
    builder.buffer("norm.partials", (parts, 2, C), role="temporary")
    builder.buffer("w.partials", (parts, C, C), role="temporary")

    def loop(name, kernel_name, operands, blocks, phase, layer):
        operands = {k: k for k in operands.split()} if isinstance(operands, str) else operands
        builder.loop(name, kernel_name, operands, blocks, phase=phase, layer=layer)

    def numbered(make):
        return [make(number, (number, number + 1), r) for number, r in enumerate(groups)]

    loop(
        "load",
        "spike.norm.load",
        "data x t",
        [Block(r, (read("data"), write("x", r), write("t", r))) for r in groups],
        "load",
        "input",
    )
    loop(
        "dense",
        "spike.norm.dense",
        "x w y",
        [Block((*r, *c), (read("x", r), read("w", c), write("y", r, c))) for r, c in tiles],
        "forward",
        "dense",
    )
    loop(
        "mean",
        "spike.norm.sum",
        {"y": "y", "partials": "total.partials"},
        numbered(lambda n, p, r: Block((n, *r), (read("y", r), write("total.partials", p)))),
        "forward",
        "norm",
    )
    add_partials_loop(builder, "mean.add", "total.partials", "total", parts, halves, "norm")
    loop(
        "variance",
        "spike.norm.sum_squares",
        {"y": "y", "total": "total", "partials": "squares.partials"},
        numbered(lambda n, p, r: Block((n, *r), (read("y", r), read("total"), write("squares.partials", p)))),
        "forward",
        "norm",
    )
    add_partials_loop(builder, "variance.add", "squares.partials", "squares", parts, halves, "norm")
    loop(
        "running",
        "spike.norm.running",
        "total squares running_mean running_var",
        [Block((), (read("total"), read("squares"), update("running_mean"), update("running_var")))],
        "other",
        "norm",
    )

    def statistics(y, r, c):
        return read(y, r, c), read("total", c), read("squares", c), read("gamma", c), read("beta", c)

    loop(
        "norm",
        "spike.norm.forward",
        "x y total squares gamma beta t dz losses",
        [
            Block(
                (*r, *c, n),
                (
                    *statistics("y", r, c),
                    read("x", r, c),
                    read("t", r, c),
                    write("dz", r, c),
                    write("losses", (n, n + 1)),
                ),
            )
            for n, (r, c) in enumerate(tiles)
        ],
        "forward",
        "norm",
    )
    log_loop(builder, "losses", "log")
    loop(
        "dense.again",
        "spike.norm.dense",
        {"x": "x", "w": "w", "y": "y_again"},
        [Block((*r, *c), (read("x", r), read("w", c), write("y_again", r, c))) for r, c in tiles],
        "backward",
        "dense",
    )
    again = {k: k for k in ("total", "squares", "gamma", "beta", "dz")} | {"y": "y_again"}
    loop(
        "norm.backward_sums",
        "spike.norm.backward_sums",
        {**again, "partials": "norm.partials"},
        [
            Block(
                (*r, *c, n),
                (*statistics("y_again", r, c), read("dz", r, c), write("norm.partials", (n, n + 1), (0, 2), c)),
            )
            for n, r in enumerate(groups)
            for c in halves
        ],
        "backward",
        "norm",
    )
    loop(
        "norm.add",
        "spike.norm.add",
        {"partials": "norm.partials", "dgamma": "gamma.grad", "dbeta": "beta.grad"},
        [
            Block(c, (read("norm.partials", (0, parts), (0, 2), c), write("gamma.grad", c), write("beta.grad", c)))
            for c in halves
        ],
        "backward",
        "norm",
    )
    loop(
        "norm.backward",
        "spike.norm.backward_data",
        {**again, "dgamma": "gamma.grad", "dbeta": "beta.grad", "dy": "dy"},
        [
            Block(
                (*r, *c),
                (
                    *statistics("y_again", r, c),
                    read("dz", r, c),
                    read("gamma.grad", c),
                    read("beta.grad", c),
                    write("dy", r, c),
                ),
            )
            for r, c in tiles
        ],
        "backward",
        "norm",
    )
    loop(
        "dense.backward",
        "spike.norm.backward_weights",
        {"x": "x", "dy": "dy", "partials": "w.partials"},
        numbered(lambda n, p, r: Block((n, *r), (read("x", r), read("dy", r), write("w.partials", p)))),
        "backward",
        "dense",
    )
    add_partials_loop(builder, "dense.add", "w.partials", "w.grad", parts, halves, "dense")
    for name in SHAPES:
        sgd_loop(builder, name, halves, name)
    return builder.build(memory)


def fill(bound):
    rng = np.random.default_rng(2)
    for name in ("data", *SHAPES):
        bound.arrays[name][...] = rng.normal(size=bound.arrays[name].shape).astype(np.float32)
    bound.arrays["learning_rates"][...] = 0.1


def reference_loss(x, t, keep, w, gamma, beta):
    """The block in three lines, without a plan."""
    y = x @ w.T
    z = np.maximum(gamma * (y - y.mean(axis=0)) / np.sqrt(y.var(axis=0) + EPSILON) + beta, 0)
    return 0.5 * ((x + z * keep / KEEP - t) ** 2).mean()
