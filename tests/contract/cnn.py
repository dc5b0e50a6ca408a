"""A small CNN as plans: cut by images, rows and channels; weight gradients in a chain or as partials; unrolled."""

import numpy as np
from contract.common import add_partials_loop, kernel, log_loop, ranges, sgd_loop

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write

IMAGES, CLASSES = 8, 3
C0, C1, C2, SIZE = 2, 4, 6, 8
SHAPES = {"w1": (C1, C0, 3, 3), "w2": (C2, C1, 3, 3), "w3": (CLASSES, C2, 4, 4)}


def windows(x, rows, columns):
    """x[n, c, y + i, x + j] as an array [n, c, y, x, i, j] of 3x3 windows."""
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, :rows, :columns]


@kernel("spike.load_images", "images labels batch_order x t", "i0 i1")
def load_images(o, a, b, iteration):
    """Copy images of this iteration's batch, with a halo of zeros."""
    which = o["batch_order"][iteration % len(o["batch_order"]), b["i0"] : b["i1"]]
    o["x"][b["i0"] : b["i1"]] = 0
    o["x"][b["i0"] : b["i1"], :, 1:-1, 1:-1] = o["images"][which]
    o["t"][b["i0"] : b["i1"]] = o["labels"][which]


@kernel("spike.conv", "x w y", "i0 i1 o0 o1 r0 r1")
def conv(o, a, b, iteration):
    """y = relu(conv(x, w)) for images, output channels and rows."""
    i, c, r = slice(b["i0"], b["i1"]), slice(b["o0"], b["o1"]), slice(b["r0"], b["r1"])
    x = o["x"][i, :, b["r0"] : b["r1"] + 2]
    y = np.einsum("ncyxij,ocij->noyx", windows(x, b["r1"] - b["r0"], o["y"].shape[3]), o["w"][c], optimize=False)
    o["y"][i, c, r] = np.maximum(y, 0)


@kernel("spike.pool", "y p", "i0 i1 c0 c1")
def pool(o, a, b, iteration):
    """2x2 maxima, with a halo of zeros."""
    i, c = slice(b["i0"], b["i1"]), slice(b["c0"], b["c1"])
    y = o["y"][i, c]
    n, k, h, w = y.shape
    o["p"][i, c] = 0
    o["p"][i, c, 1:-1, 1:-1] = y.reshape(n, k, h // 2, 2, w // 2, 2).max(axis=(3, 5))


@kernel("spike.classify", "y w t losses dlogits", "i0 i1", integers="batch")
def classify(o, a, b, iteration):
    """Fully connected layer, softmax, cross-entropy and the gradient of the logits."""
    i = slice(b["i0"], b["i1"])
    n = b["i1"] - b["i0"]
    w = o["w"].reshape(len(o["w"]), -1)
    logits = o["y"][i].reshape(n, -1) @ w.T
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(n)
    o["losses"][i] = -np.log(p[rows, o["t"][i]])
    p[rows, o["t"][i]] -= 1
    o["dlogits"][i] = p / a["batch"]


@kernel("spike.dense_backward_data", "dlogits w y dy", "i0 i1 c0 c1")
def dense_backward_data(o, a, b, iteration):
    """Gradient of the last map before its ReLU, for some channels, with a halo of zeros."""
    i, c = slice(b["i0"], b["i1"]), slice(b["c0"], b["c1"])
    o["dy"][i, c] = 0
    gradient = np.einsum("nk,kcyx->ncyx", o["dlogits"][i], o["w"][:, c])
    o["dy"][i, c, 1:-1, 1:-1] = np.where(o["y"][i, c] > 0, gradient, 0)


@kernel("spike.dense_backward_weights", "dlogits y g", "part i0 i1", integers="accumulate")
def dense_backward_weights(o, a, b, iteration):
    i = slice(b["i0"], b["i1"])
    gradient = np.einsum("nk,ncyx->kcyx", o["dlogits"][i], o["y"][i])
    target = o["g"][b["part"]] if o["g"].ndim == 5 else o["g"]
    target[...] = target + gradient if a["accumulate"] else gradient


@kernel("spike.conv_backward_data", "dy w dx", "i0 i1 c0 c1")
def conv_backward_data(o, a, b, iteration):
    """dx = dy (with halo) correlated with the flipped weights, for some input channels."""
    i, c = slice(b["i0"], b["i1"]), slice(b["c0"], b["c1"])
    size = o["dx"].shape[2]
    o["dx"][i, c] = np.einsum("noyxij,ocij->ncyx", windows(o["dy"][i], size, size), o["w"][:, c, ::-1, ::-1])


@kernel("spike.pool_backward", "dp y dy", "i0 i1 c0 c1")
def pool_backward(o, a, b, iteration):
    """Send the gradient to each window's first maximum, through the ReLU."""
    i, c = slice(b["i0"], b["i1"]), slice(b["c0"], b["c1"])
    y = o["y"][i, c]
    n, k, h, w = y.shape
    cells = y.reshape(n, k, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, k, h // 2, w // 2, 4)
    first = cells.argmax(axis=-1)[..., None] == np.arange(4)
    gradient = np.where(first & (cells > 0), o["dp"][i, c][..., None], 0).reshape(n, k, h // 2, w // 2, 2, 2)
    o["dy"][i, c] = gradient.transpose(0, 1, 2, 4, 3, 5).reshape(n, k, h, w)


@kernel("spike.conv_backward_weights", "x dy g", "part i0 i1 r0 r1", integers="accumulate halo")
def conv_backward_weights(o, a, b, iteration):
    """Weight gradient of some images and rows; dy has `halo` border elements."""
    i, h = slice(b["i0"], b["i1"]), a["halo"]
    dy = o["dy"][i, :, b["r0"] + h : b["r1"] + h]
    dy = dy[..., h : dy.shape[3] - h]
    x = windows(o["x"][i, :, b["r0"] : b["r1"] + 2], b["r1"] - b["r0"], dy.shape[3])
    gradient = np.einsum("ncyxij,noyx->ocij", x, dy)
    target = o["g"][b["part"]] if o["g"].ndim == 5 else o["g"]
    target[...] = target + gradient if a["accumulate"] else gradient


def cnn_plan(batch=4, images=2, weight_gradients="partial", memory="full", unroll=1, slots=1, narrow=False, wide=False):
    """One training step, or `unroll` of them with `slots` input buffers.

    Negative controls: `narrow` leaves the lower rows out of what pool1 reads, `wide` makes pool1 read all images.
    """
    builder = PlanBuilder("spike_cnn", batch=batch)
    builder.buffer("images", (IMAGES, C0, SIZE, SIZE), role="dataset")
    builder.buffer("labels", (IMAGES,), "int32", role="dataset")
    builder.buffer("batch_order", (3, batch), "int32", role="table")
    builder.buffer("learning_rates", (4,), role="table")
    builder.buffer("log", (16,), role="log")
    for name, shape in SHAPES.items():
        builder.buffer(name, shape, role="parameter")
        builder.buffer(f"{name}.momentum", shape, role="optimizer_state")
        builder.buffer(f"{name}.grad", shape, role="gradient")
    for slot in range(slots):
        builder.buffer(f"x{slot}", (batch, C0, SIZE + 2, SIZE + 2), role="input")
        builder.buffer(f"t{slot}", (batch,), "int32", role="input")
    builder.buffer("y1", (batch, C1, SIZE, SIZE))
    builder.buffer("p1", (batch, C1, SIZE // 2 + 2, SIZE // 2 + 2))
    builder.buffer("y2", (batch, C2, SIZE // 2, SIZE // 2))
    builder.buffer("losses", (batch,))
    builder.buffer("dlogits", (batch, CLASSES), role="gradient")
    builder.buffer("dy2", (batch, C2, SIZE // 2 + 2, SIZE // 2 + 2), role="gradient")
    builder.buffer("dp1", (batch, C1, SIZE // 2, SIZE // 2), role="gradient")
    builder.buffer("dy1", (batch, C1, SIZE, SIZE), role="gradient")
    builder.unrolled(unroll)
    for offset in range(unroll):
        _step(builder, batch, ranges(batch, images), weight_gradients, offset, f"{offset % slots}", narrow, wide)
    return builder.build(memory)


def _step(builder, batch, groups, weight_gradients, offset, slot, narrow, wide):
    x, t = f"x{slot}", f"t{slot}"
    half = SIZE // 2

    def loop(name, kernel_name, operands, blocks, phase, layer, **attributes):
        builder.loop(
            name,
            kernel_name,
            operands,
            blocks,
            attributes=attributes,
            layer=layer,
            phase=phase,
            iteration_offset=offset,
        )

    def grid(*cuts):
        return [(i, c) for i in groups for c in cuts]

    loop(
        "load",
        "spike.load_images",
        {"images": "images", "labels": "labels", "batch_order": "batch_order", "x": x, "t": t},
        [Block(i, (read("images"), read("labels"), read("batch_order"), write(x, i), write(t, i))) for i in groups],
        "load",
        "input",
    )
    loop(
        "conv1",
        "spike.conv",
        {"x": x, "w": "w1", "y": "y1"},
        [
            Block((*i, 0, C1, *r), (read(x, i, (0, C0), (r[0], r[1] + 2)), read("w1"), write("y1", i, (0, C1), r)))
            for i, r in grid((0, half), (half, SIZE))
        ],
        "forward",
        "conv1",
    )
    loop(
        "pool1",
        "spike.pool",
        {"y": "y1", "p": "p1"},
        [
            Block(
                (*i, *c), (read("y1", (0, batch) if wide else i, c, (0, half if narrow else SIZE)), write("p1", i, c))
            )
            for i, c in grid((0, 2), (2, C1))
        ],
        "forward",
        "pool1",
    )
    loop(
        "conv2",
        "spike.conv",
        {"x": "p1", "w": "w2", "y": "y2"},
        [Block((*i, *c, 0, half), (read("p1", i), read("w2", c), write("y2", i, c))) for i, c in grid((0, 4), (4, C2))],
        "forward",
        "conv2",
    )
    loop(
        "fc",
        "spike.classify",
        {"y": "y2", "w": "w3", "t": t, "losses": "losses", "dlogits": "dlogits"},
        [Block(i, (read("y2", i), read("w3"), read(t, i), write("losses", i), write("dlogits", i))) for i in groups],
        "forward",
        "fc",
        batch=batch,
    )
    log_loop(builder, "losses", "log", offset)
    loop(
        "fc.backward_data",
        "spike.dense_backward_data",
        {"dlogits": "dlogits", "w": "w3", "y": "y2", "dy": "dy2"},
        [
            Block((*i, *c), (read("dlogits", i), read("w3", (0, CLASSES), c), read("y2", i, c), write("dy2", i, c)))
            for i, c in grid((0, 3), (3, C2))
        ],
        "backward",
        "fc",
    )
    loop(
        "conv2.backward_data",
        "spike.conv_backward_data",
        {"dy": "dy2", "w": "w2", "dx": "dp1"},
        [
            Block((*i, *c), (read("dy2", i), read("w2", (0, C2), c), write("dp1", i, c)))
            for i, c in grid((0, 1), (1, C1))
        ],
        "backward",
        "conv2",
    )
    loop(
        "pool1.backward",
        "spike.pool_backward",
        {"dp": "dp1", "y": "y1", "dy": "dy1"},
        [Block((*i, *c), (read("dp1", i, c), read("y1", i, c), write("dy1", i, c))) for i, c in grid((0, 2), (2, C1))],
        "backward",
        "pool1",
    )

    def weight_gradient(name, layer, kernel_name, operands, pieces, **attributes):
        """Pieces are (bounds without the part, accesses): partial buffers and a tree, or a chain of loops."""
        whole, partial = f"{name}.grad", f"{name}.partials"
        if weight_gradients == "chain":
            for number, (bounds, accesses) in enumerate(pieces):
                change = update(whole) if number else write(whole)
                loop(
                    f"{layer}.backward_weights",
                    kernel_name,
                    {**operands, "g": whole},
                    [Block((0, *bounds), (*accesses, change))],
                    "backward",
                    layer,
                    accumulate=int(number > 0),
                    **attributes,
                )
            return
        builder.buffer(partial, (len(pieces), *SHAPES[name]), role="temporary")
        loop(
            f"{layer}.backward_weights",
            kernel_name,
            {**operands, "g": partial},
            [
                Block((number, *bounds), (*accesses, write(partial, (number, number + 1))))
                for number, (bounds, accesses) in enumerate(pieces)
            ],
            "backward",
            layer,
            accumulate=0,
            **attributes,
        )
        rows = ranges(SHAPES[name][0], 2)
        add_partials_loop(builder, f"{layer}.add_partials", partial, whole, len(pieces), rows, layer)

    weight_gradient(
        "w3",
        "fc",
        "spike.dense_backward_weights",
        {"dlogits": "dlogits", "y": "y2"},
        [(i, (read("dlogits", i), read("y2", i))) for i in groups],
    )
    weight_gradient(
        "w2",
        "conv2",
        "spike.conv_backward_weights",
        {"x": "p1", "dy": "dy2"},
        [((*i, 0, half), (read("p1", i), read("dy2", i))) for i in groups],
        halo=1,
    )
    weight_gradient(
        "w1",
        "conv1",
        "spike.conv_backward_weights",
        {"x": x, "dy": "dy1"},
        [
            ((*i, *r), (read(x, i, (0, C0), (r[0], r[1] + 2)), read("dy1", i, (0, C1), r)))
            for i, r in grid((0, half), (half, SIZE))
        ],
        halo=0,
    )
    for name, shape in SHAPES.items():
        sgd_loop(builder, name, ranges(shape[0], 2), name, offset)


def fill(bound):
    """Deterministic data and parameters, in whatever dtype the plan is bound to."""
    rng = np.random.default_rng(1)
    for name in ("images", *SHAPES):
        bound.arrays[name][...] = rng.normal(size=bound.arrays[name].shape).astype(np.float32) * 0.5
    bound.arrays["labels"][...] = rng.integers(CLASSES, size=IMAGES)
    order = bound.arrays["batch_order"]
    for row in order:
        row[...] = rng.permutation(IMAGES)[: order.shape[1]]
    bound.arrays["learning_rates"][...] = [0.1, 0.05, 0.2, 0.1]


def reference_loss(images, labels, w1, w2, w3):
    """Mean cross-entropy, written without a plan: one image at a time, loops over channels."""
    total = 0.0
    for image, label in zip(images, labels, strict=True):
        y = _reference_conv(image, w1)
        y = np.max([y[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)
        logits = np.tensordot(w3, _reference_conv(y, w2), axes=3)
        total += np.log(np.exp(logits).sum()) - logits[label]
    return total / len(images)


def _reference_conv(image, w):
    size = image.shape[1]
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    out = np.zeros((len(w), size, size))
    for o in range(len(w)):
        for c in range(len(image)):
            for i in range(3):
                for j in range(3):
                    out[o] += w[o, c, i, j] * padded[c, i : i + size, j : j + size]
    return np.maximum(out, 0)
