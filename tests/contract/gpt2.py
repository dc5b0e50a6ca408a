"""A two-layer GPT-2 as a plan: token rows x heads, columns or vocabulary tiles, tied head, clipping, AdamW."""

import math

import numpy as np
from contract.common import add_partials_loop, kernel, log_loop, ranges

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write

SEQUENCES, LENGTH, HEADS, HEAD, VOCABULARY, LAYERS = 2, 6, 2, 4, 10, 2
N, C, F = SEQUENCES * LENGTH, HEADS * HEAD, 16
TILE = 3  # token rows; divides LENGTH
RATE, BETA1, BETA2, EPSILON, DECAY, MAX_NORM = 0.01, 0.9, 0.99, 1e-6, 0.1, 0.5
LN_EPSILON = 1e-5

SHAPES = {"wte": (VOCABULARY, C), "wpe": (LENGTH, C)}
for _layer in range(LAYERS):
    for _name, _shape in {
        "ln1.g": (C,),
        "ln1.b": (C,),
        "qkv.w": (3 * C, C),
        "qkv.b": (3 * C,),
        "proj.w": (C, C),
        "proj.b": (C,),
        "ln2.g": (C,),
        "ln2.b": (C,),
        "fc.w": (F, C),
        "fc.b": (F,),
        "out.w": (C, F),
        "out.b": (C,),
    }.items():
        SHAPES[f"h{_layer}.{_name}"] = _shape
SHAPES |= {"lnf.g": (C,), "lnf.b": (C,)}


def span(b, letter):
    return slice(b[f"{letter}0"], b[f"{letter}1"])


@kernel("spike.gpt.load", "corpus tokens targets", "s0 s1")
def load(o, a, b, iteration):
    for s in range(b["s0"], b["s1"]):
        first = (iteration * SEQUENCES + s) * LENGTH % (len(o["corpus"]) - LENGTH)
        o["tokens"][s * LENGTH : (s + 1) * LENGTH] = o["corpus"][first : first + LENGTH]
        o["targets"][s * LENGTH : (s + 1) * LENGTH] = o["corpus"][first + 1 : first + LENGTH + 1]


@kernel("spike.gpt.embed", "tokens wte wpe x", "r0 r1")
def embed(o, a, b, iteration):
    r = span(b, "r")
    o["x"][r] = o["wte"][o["tokens"][r]] + o["wpe"][np.arange(b["r0"], b["r1"]) % LENGTH]


@kernel("spike.gpt.layernorm", "x g b y stats", "r0 r1")
def layernorm(o, a, b, iteration):
    r = span(b, "r")
    x = o["x"][r]
    mean = x.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + LN_EPSILON)
    o["stats"][r] = np.concatenate([mean, inverse], axis=1)
    o["y"][r] = (x - mean) * inverse * o["g"] + o["b"]


@kernel("spike.gpt.linear", "x w y b? residual?", "r0 r1 c0 c1")
def linear(o, a, b, iteration):
    """y = x @ w.T (+ b) (+ residual) for a tile of rows and outputs."""
    r, c = span(b, "r"), span(b, "c")
    y = np.einsum("rk,ck->rc", o["x"][r], o["w"][c])
    if "b" in o:
        y = y + o["b"][c]
    if "residual" in o:
        y = y + o["residual"][r, c]
    o["y"][r, c] = y


@kernel("spike.gpt.attention", "qkv p y", "r0 r1 h")
def attention(o, a, b, iteration):
    """Causal attention of one head for query rows r, which lie in one sequence."""
    r, q, k, v = attention_slices(b)
    first = b["r0"] // LENGTH * LENGTH
    keys = slice(first, b["r1"])
    scores = np.einsum("rd,kd->rk", o["qkv"][r, q], o["qkv"][keys, k]) / math.sqrt(HEAD)
    scores = np.where(np.arange(first, b["r1"])[None, :] <= np.arange(b["r0"], b["r1"])[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    o["p"][r, b["h"]] = 0
    o["p"][r, b["h"], : b["r1"] - first] = p
    o["y"][r, q] = np.einsum("rk,kd->rd", p, o["qkv"][keys, v])


def attention_slices(b):
    columns = [slice(i * C + b["h"] * HEAD, i * C + (b["h"] + 1) * HEAD) for i in range(3)]
    return slice(b["r0"], b["r1"]), *columns


@kernel("spike.gpt.attention_backward_q", "qkv p dy ds dqkv", "r0 r1 h")
def attention_backward_q(o, a, b, iteration):
    """Gradient of the scores and of q, for query rows r."""
    r, q, k, v = attention_slices(b)
    first = b["r0"] // LENGTH * LENGTH
    keys, n = slice(first, b["r1"]), b["r1"] - first
    p = o["p"][r, b["h"], :n]
    dp = np.einsum("rd,kd->rk", o["dy"][r, q], o["qkv"][keys, v])
    ds = p * (dp - (dp * p).sum(axis=1, keepdims=True)) / math.sqrt(HEAD)
    o["ds"][r, b["h"]] = 0
    o["ds"][r, b["h"], :n] = ds
    o["dqkv"][r, q] = np.einsum("rk,kd->rd", ds, o["qkv"][keys, k])


@kernel("spike.gpt.attention_backward_kv", "qkv p dy ds dqkv", "r0 r1 h")
def attention_backward_kv(o, a, b, iteration):
    """Gradient of k and v for key rows r: from all query rows at or after the first of them."""
    r, q, k, v = attention_slices(b)
    first = b["r0"] // LENGTH * LENGTH
    queries, own = slice(b["r0"], first + LENGTH), slice(b["r0"] - first, b["r1"] - first)
    o["dqkv"][r, k] = np.einsum("rk,rd->kd", o["ds"][queries, b["h"], own], o["qkv"][queries, q])
    o["dqkv"][r, v] = np.einsum("rk,rd->kd", o["p"][queries, b["h"], own], o["dy"][queries, q])


def gelu_parts(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.tanh(inner), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


@kernel("spike.gpt.gelu", "x y", "r0 r1 c0 c1")
def gelu(o, a, b, iteration):
    tile = span(b, "r"), span(b, "c")
    o["y"][tile] = 0.5 * o["x"][tile] * (1 + gelu_parts(o["x"][tile])[0])


@kernel("spike.gpt.gelu_backward", "x dy", "r0 r1 c0 c1")
def gelu_backward(o, a, b, iteration):
    """In place: dy becomes the gradient before the activation."""
    tile = span(b, "r"), span(b, "c")
    x = o["x"][tile]
    t, slope = gelu_parts(x)
    o["dy"][tile] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope


@kernel("spike.gpt.softmax_parts", "logits parts", "r0 r1 c0 c1 part")
def softmax_parts(o, a, b, iteration):
    """Maximum and sum of exponentials over one tile of the vocabulary."""
    x = o["logits"][span(b, "r"), span(b, "c")]
    top = x.max(axis=1)
    o["parts"][b["part"], span(b, "r"), 0] = top
    o["parts"][b["part"], span(b, "r"), 1] = np.exp(x - top[:, None]).sum(axis=1)


@kernel("spike.gpt.loss", "logits parts targets lse losses", "r0 r1")
def loss(o, a, b, iteration):
    r = span(b, "r")
    parts = o["parts"][:, r]
    top = parts[..., 0].max(axis=0)
    lse = top + np.log((parts[..., 1] * np.exp(parts[..., 0] - top)).sum(axis=0))
    o["lse"][r] = lse
    o["losses"][r] = lse - o["logits"][r][np.arange(len(lse)), o["targets"][r]]


@kernel("spike.gpt.dlogits", "logits lse targets dlogits", "r0 r1 c0 c1")
def dlogits(o, a, b, iteration):
    r, c = span(b, "r"), span(b, "c")
    hit = o["targets"][r][:, None] == np.arange(b["c0"], b["c1"])
    o["dlogits"][r, c] = (np.exp(o["logits"][r, c] - o["lse"][r][:, None]) - hit) / N


@kernel("spike.gpt.linear_backward_data", "dy w dx", "r0 r1 c0 c1")
def linear_backward_data(o, a, b, iteration):
    r, c = span(b, "r"), span(b, "c")
    o["dx"][r, c] = np.einsum("ro,oc->rc", o["dy"][r], o["w"][:, c])


@kernel("spike.gpt.linear_backward_weights", "x dy dw db?", "part r0 r1 c0 c1")
def linear_backward_weights(o, a, b, iteration):
    r, c = span(b, "r"), span(b, "c")
    o["dw"][b["part"], c] = np.einsum("rc,rk->ck", o["dy"][r, c], o["x"][r])
    if "db" in o:
        o["db"][b["part"], c] = o["dy"][r, c].sum(axis=0)


@kernel("spike.gpt.layernorm_backward", "dy x g stats dx dg db residual?", "part r0 r1")
def layernorm_backward(o, a, b, iteration):
    """Partial gradients of g and b, and dx (+ the gradient that came around the block)."""
    r = span(b, "r")
    dy, inverse = o["dy"][r], o["stats"][r, 1:]
    normal = (o["x"][r] - o["stats"][r, :1]) * inverse
    o["dg"][b["part"]] = (dy * normal).sum(axis=0)
    o["db"][b["part"]] = dy.sum(axis=0)
    d = dy * o["g"]
    dx = inverse * (d - d.mean(axis=1, keepdims=True) - normal * (d * normal).mean(axis=1, keepdims=True))
    o["dx"][r] = dx + o["residual"][r] if "residual" in o else dx


@kernel("spike.gpt.embed_backward", "tokens dx dwte", "c0 c1")
def embed_backward(o, a, b, iteration):
    """Add the rows of dx to their tokens' gradients, in token order, for some tokens of the vocabulary."""
    for row, token in enumerate(o["tokens"].tolist()):
        if b["c0"] <= token < b["c1"]:
            o["dwte"][token] += o["dx"][row]


@kernel("spike.gpt.position_backward", "dx dwpe", "r0 r1")
def position_backward(o, a, b, iteration):
    o["dwpe"][span(b, "r")] = sum(o["dx"][s * LENGTH + b["r0"] : s * LENGTH + b["r1"]] for s in range(SEQUENCES))


@kernel("spike.gpt.square", "g squares", "number c0 c1")
def square(o, a, b, iteration):
    o["squares"][b["number"]] = (o["g"][span(b, "c")] ** 2).sum()


@kernel("spike.gpt.clip", "squares scale norm")
def clip(o, a, b, iteration):
    norm = np.sqrt(o["squares"].sum())
    o["norm"][iteration % len(o["norm"])] = norm
    o["scale"][0] = min(1.0, MAX_NORM / norm)


@kernel("spike.gpt.adamw", "w m v g scale", "c0 c1", reals="decay")
def adamw(o, a, b, iteration):
    """Bias correction comes from the iteration number, not from a counter in memory."""
    c, t = span(b, "c"), iteration + 1
    g = o["g"][c] * o["scale"][0]
    m = o["m"][c] = BETA1 * o["m"][c] + (1 - BETA1) * g
    v = o["v"][c] = BETA2 * o["v"][c] + (1 - BETA2) * g * g
    step = (m / (1 - BETA1**t)) / (np.sqrt(v / (1 - BETA2**t)) + EPSILON)
    o["w"][c] -= RATE * (step + a["decay"] * o["w"][c])


class _Lowering:
    def __init__(self):
        self.builder = PlanBuilder("spike_gpt2")
        self.rows = ranges(N, TILE)
        self.sequences = [(s * LENGTH, (s + 1) * LENGTH) for s in range(SEQUENCES)]

    def buffer(self, name, *shape, role="activation", dtype="float32"):
        return self.builder.buffer(name, shape, dtype, role)

    def loop(self, name, kernel_name, operands, blocks, phase="forward", **attributes):
        self.builder.loop(name, f"spike.gpt.{kernel_name}", operands, blocks, attributes=attributes, phase=phase)

    def tiles(self, columns):
        half = columns // 2
        return [(r, c) for r in self.rows for c in ((0, half), (half, columns))]

    def layernorm(self, x, name, y):
        self.buffer(y, N, C)
        self.buffer(f"{y}.stats", N, 2)
        self.loop(
            name,
            "layernorm",
            {"x": x, "g": f"{name}.g", "b": f"{name}.b", "y": y, "stats": f"{y}.stats"},
            [
                Block(r, (read(x, r), read(f"{name}.g"), read(f"{name}.b"), write(y, r), write(f"{y}.stats", r)))
                for r in self.rows
            ],
        )

    def linear(self, x, weight, y, bias=None, residual=None):
        columns = SHAPES[weight][0]
        self.buffer(y, N, columns)
        operands = {"x": x, "w": weight, "y": y}
        if bias:
            operands["b"] = bias
        if residual:
            operands["residual"] = residual
        self.loop(
            f"{weight} forward",
            "linear",
            operands,
            [
                Block(
                    (*r, *c),
                    (
                        read(x, r),
                        read(weight, c),
                        *([read(bias, c)] if bias else []),
                        *([read(residual, r, c)] if residual else []),
                        write(y, r, c),
                    ),
                )
                for r, c in self.tiles(columns)
            ],
        )

    def linear_backward(self, x, weight, dy, dx, bias=None):
        """dx, then weight gradients as one partial buffer a sequence and a tree."""
        columns, inner = SHAPES[weight]
        if dx:
            self.buffer(dx, N, inner, role="gradient")
            self.loop(
                f"{weight} backward data",
                "linear_backward_data",
                {"dy": dy, "w": weight, "dx": dx},
                [
                    Block((*r, *c), (read(dy, r), read(weight, (0, columns), c), write(dx, r, c)))
                    for r, c in self.tiles(inner)
                ],
                "backward",
            )
        partial, operands = f"{weight}.partials", {"x": x, "dy": dy, "dw": f"{weight}.partials"}
        self.buffer(partial, SEQUENCES, columns, inner, role="temporary")
        if bias:
            operands["db"] = self.buffer(f"{bias}.partials", SEQUENCES, columns, role="temporary")
        halves = ranges(columns, columns // 2)
        self.loop(
            f"{weight} backward weights",
            "linear_backward_weights",
            operands,
            [
                Block(
                    (p, *r, *c),
                    (
                        read(x, r),
                        read(dy, r, c),
                        write(partial, (p, p + 1), c),
                        *([write(f"{bias}.partials", (p, p + 1), c)] if bias else []),
                    ),
                )
                for p, r in enumerate(self.sequences)
                for c in halves
            ],
            "backward",
        )
        for name in (weight, bias) if bias else (weight,):
            add_partials_loop(self.builder, f"{name} add", f"{name}.partials", f"{name}.grad", SEQUENCES, halves, "")

    def layernorm_backward(self, dy, x, name, y, dx, residual=None):
        self.buffer(dx, N, C, role="gradient")
        operands = {"dy": dy, "x": x, "g": f"{name}.g", "stats": f"{y}.stats", "dx": dx}
        operands |= {f"d{k}": self.buffer(f"{name}.{k}.partials", len(self.rows), C, role="temporary") for k in "gb"}
        if residual:
            operands["residual"] = residual
        self.loop(
            f"{name} backward",
            "layernorm_backward",
            operands,
            [
                Block(
                    (p, *r),
                    (
                        read(dy, r),
                        read(x, r),
                        read(f"{name}.g"),
                        read(f"{y}.stats", r),
                        write(dx, r),
                        write(f"{name}.g.partials", (p, p + 1)),
                        write(f"{name}.b.partials", (p, p + 1)),
                        *([read(residual, r)] if residual else []),
                    ),
                )
                for p, r in enumerate(self.rows)
            ],
            "backward",
        )
        for k in "gb":
            add_partials_loop(
                self.builder,
                f"{name}.{k} add",
                f"{name}.{k}.partials",
                f"{name}.{k}.grad",
                len(self.rows),
                [(0, C)],
                "",
            )

    def head_columns(self, part, head):
        return part * C + head * HEAD, part * C + (head + 1) * HEAD

    def attention(self, layer):
        qkv, p, y = f"h{layer}.qkv", self.buffer(f"h{layer}.p", N, HEADS, LENGTH), self.buffer(f"h{layer}.att", N, C)
        self.loop(
            f"h{layer}.attention",
            "attention",
            {"qkv": qkv, "p": p, "y": y},
            [
                Block(
                    (*r, h),
                    (
                        read(qkv, r, q),
                        read(qkv, (r[0] // LENGTH * LENGTH, r[1]), k),
                        read(qkv, (r[0] // LENGTH * LENGTH, r[1]), v),
                        write(p, r, (h, h + 1)),
                        write(y, r, q),
                    ),
                )
                for r in self.rows
                for h in range(HEADS)
                for q, k, v in [[self.head_columns(i, h) for i in range(3)]]
            ],
        )

    def attention_backward(self, layer, dy):
        qkv, p = f"h{layer}.qkv", f"h{layer}.p"
        ds = self.buffer(f"h{layer}.ds", N, HEADS, LENGTH, role="gradient")
        dqkv = self.buffer(f"h{layer}.dqkv", N, 3 * C, role="gradient")
        operands = {"qkv": qkv, "p": p, "dy": dy, "ds": ds, "dqkv": dqkv}
        queries, keys = [], []
        for r in self.rows:
            first = r[0] // LENGTH * LENGTH
            for h in range(HEADS):
                q, k, v = (self.head_columns(i, h) for i in range(3))
                head, seen, own = (h, h + 1), (0, r[1] - first), (r[0] - first, r[1] - first)
                queries.append(
                    Block(
                        (*r, h),
                        (
                            read(p, r, head, seen),
                            read(dy, r, q),
                            read(qkv, (first, r[1]), k),
                            read(qkv, (first, r[1]), v),
                            write(ds, r, head),
                            write(dqkv, r, q),
                        ),
                    )
                )
                later = (r[0], first + LENGTH)
                keys.append(
                    Block(
                        (*r, h),
                        (
                            read(p, later, head, own),
                            read(ds, later, head, own),
                            read(dy, later, q),
                            read(qkv, later, q),
                            write(dqkv, r, k),
                            write(dqkv, r, v),
                        ),
                    )
                )
        self.loop(f"h{layer}.attention backward q", "attention_backward_q", operands, queries, "backward")
        self.loop(f"h{layer}.attention backward kv", "attention_backward_kv", operands, keys, "backward")


def gpt2_plan(memory="full"):
    """One training step."""
    low = _Lowering()
    builder = low.builder
    low.buffer("corpus", 64, role="dataset", dtype="int32")
    low.buffer("log", 8, role="log")
    low.buffer("norm", 8, role="log")
    for name, shape in SHAPES.items():
        low.buffer(name, *shape, role="parameter")
        low.buffer(f"{name}.m", *shape, role="optimizer_state")
        low.buffer(f"{name}.v", *shape, role="optimizer_state")
        low.buffer(f"{name}.grad", *shape, role="gradient")
    low.buffer("tokens", N, role="input", dtype="int32")
    low.buffer("targets", N, role="input", dtype="int32")
    low.loop(
        "load",
        "load",
        {k: k for k in ("corpus", "tokens", "targets")},
        [
            Block((s, s + 1), (read("corpus"), write("tokens", rows), write("targets", rows)))
            for s, rows in enumerate(low.sequences)
        ],
        "load",
    )
    low.buffer("x0", N, C)
    low.loop(
        "embed",
        "embed",
        {"tokens": "tokens", "wte": "wte", "wpe": "wpe", "x": "x0"},
        [
            Block(
                r, (read("tokens", r), read("wte"), read("wpe", (r[0] % LENGTH, r[0] % LENGTH + TILE)), write("x0", r))
            )
            for r in low.rows
        ],
    )
    for layer in range(LAYERS):
        h = f"h{layer}"
        low.layernorm(f"x{layer}", f"{h}.ln1", f"{h}.n1")
        low.linear(f"{h}.n1", f"{h}.qkv.w", f"{h}.qkv", f"{h}.qkv.b")
        low.attention(layer)
        low.linear(f"{h}.att", f"{h}.proj.w", f"{h}.mid", f"{h}.proj.b", residual=f"x{layer}")
        low.layernorm(f"{h}.mid", f"{h}.ln2", f"{h}.n2")
        low.linear(f"{h}.n2", f"{h}.fc.w", f"{h}.fc", f"{h}.fc.b")
        low.buffer(f"{h}.gelu", N, F)
        low.loop(
            f"{h}.gelu",
            "gelu",
            {"x": f"{h}.fc", "y": f"{h}.gelu"},
            [Block((*r, *c), (read(f"{h}.fc", r, c), write(f"{h}.gelu", r, c))) for r, c in low.tiles(F)],
        )
        low.linear(f"{h}.gelu", f"{h}.out.w", f"x{layer + 1}", f"{h}.out.b", residual=f"{h}.mid")
    low.layernorm(f"x{LAYERS}", "lnf", "xf")
    low.linear("xf", "wte", "logits")
    words = ranges(VOCABULARY, VOCABULARY // 2)
    low.buffer("parts", len(words), N, 2)
    low.loop(
        "softmax parts",
        "softmax_parts",
        {"logits": "logits", "parts": "parts"},
        [
            Block((*r, *c, p), (read("logits", r, c), write("parts", (p, p + 1), r)))
            for r in low.rows
            for p, c in enumerate(words)
        ],
    )
    low.buffer("lse", N)
    low.buffer("losses", N)
    low.loop(
        "loss",
        "loss",
        {k: k for k in ("logits", "parts", "targets", "lse", "losses")},
        [
            Block(
                r,
                (
                    read("logits", r),
                    read("parts", (0, len(words)), r),
                    read("targets", r),
                    write("lse", r),
                    write("losses", r),
                ),
            )
            for r in low.rows
        ],
    )
    log_loop(builder, "losses", "log")
    low.buffer("dlogits", N, VOCABULARY, role="gradient")
    low.loop(
        "dlogits",
        "dlogits",
        {k: k for k in ("logits", "lse", "targets", "dlogits")},
        [
            Block((*r, *c), (read("logits", r, c), read("lse", r), read("targets", r), write("dlogits", r, c)))
            for r, c in low.tiles(VOCABULARY)
        ],
        "backward",
    )
    low.linear_backward("xf", "wte", "dlogits", "dxf")
    low.layernorm_backward("dxf", f"x{LAYERS}", "lnf", "xf", f"dx{LAYERS}")
    for layer in reversed(range(LAYERS)):
        h, dy = f"h{layer}", f"dx{layer + 1}"
        low.linear_backward(f"{h}.gelu", f"{h}.out.w", dy, f"{h}.dfc", f"{h}.out.b")
        low.loop(
            f"{h}.gelu backward",
            "gelu_backward",
            {"x": f"{h}.fc", "dy": f"{h}.dfc"},
            [Block((*r, *c), (read(f"{h}.fc", r, c), update(f"{h}.dfc", r, c))) for r, c in low.tiles(F)],
            "backward",
        )
        low.linear_backward(f"{h}.n2", f"{h}.fc.w", f"{h}.dfc", f"{h}.dn2", f"{h}.fc.b")
        low.layernorm_backward(f"{h}.dn2", f"{h}.mid", f"{h}.ln2", f"{h}.n2", f"{h}.dmid", residual=dy)
        low.linear_backward(f"{h}.att", f"{h}.proj.w", f"{h}.dmid", f"{h}.datt", f"{h}.proj.b")
        low.attention_backward(layer, f"{h}.datt")
        low.linear_backward(f"{h}.n1", f"{h}.qkv.w", f"{h}.dqkv", f"{h}.dn1", f"{h}.qkv.b")
        low.layernorm_backward(f"{h}.dn1", f"x{layer}", f"{h}.ln1", f"{h}.n1", f"dx{layer}", residual=f"{h}.dmid")
    # The head wrote wte's gradient first, the embedding adds to it: the plan fixes the order of the two.
    low.loop(
        "wte embed backward",
        "embed_backward",
        {"tokens": "tokens", "dx": "dx0", "dwte": "wte.grad"},
        [Block(c, (read("tokens"), read("dx0"), update("wte.grad", c))) for c in words],
        "backward",
    )
    low.loop(
        "wpe backward",
        "position_backward",
        {"dx": "dx0", "dwpe": "wpe.grad"},
        [
            Block(
                r,
                (
                    *(read("dx0", (s * LENGTH + r[0], s * LENGTH + r[1])) for s in range(SEQUENCES)),
                    write("wpe.grad", r),
                ),
            )
            for r in ranges(LENGTH, TILE)
        ],
        "backward",
    )
    pieces = [(name, c) for name, shape in SHAPES.items() for c in ranges(shape[0], max(shape[0] // 2, 4))]
    low.buffer("squares", len(pieces), role="temporary")
    for name in SHAPES:
        own = [(i, c) for i, (other, c) in enumerate(pieces) if other == name]
        low.loop(
            f"{name} square",
            "square",
            {"g": f"{name}.grad", "squares": "squares"},
            [Block((i, *c), (read(f"{name}.grad", c), write("squares", (i, i + 1)))) for i, c in own],
            "update",
        )
    low.buffer("scale", 1, role="temporary")
    low.loop(
        "clip",
        "clip",
        {"squares": "squares", "scale": "scale", "norm": "norm"},
        [Block((), (read("squares"), write("scale"), update("norm")))],
        "update",
    )
    for name, shape in SHAPES.items():
        operands = {"w": name, "m": f"{name}.m", "v": f"{name}.v", "g": f"{name}.grad", "scale": "scale"}
        low.loop(
            f"{name} update",
            "adamw",
            operands,
            [
                Block(
                    c,
                    (
                        update(name, c),
                        update(f"{name}.m", c),
                        update(f"{name}.v", c),
                        read(f"{name}.grad", c),
                        read("scale"),
                    ),
                )
                for other, c in pieces
                if other == name
            ],
            "update",
            decay=DECAY if len(shape) == 2 else 0.0,
        )
    return builder.build(memory)


def fill(bound):
    rng = np.random.default_rng(3)
    for name in SHAPES:
        bound.arrays[name][...] = (rng.normal(size=SHAPES[name]) * 0.3 + name.endswith(".g")).astype(np.float32)
    bound.arrays["corpus"][...] = rng.integers(VOCABULARY, size=64)


def reference_loss(w, tokens, targets):
    """Mean cross-entropy of GPT-2, one sequence at a time, without a plan."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LN_EPSILON) * w[f"{name}.g"] + w[f"{name}.b"]

    total = 0.0
    for token, target in zip(tokens.reshape(-1, LENGTH), targets.reshape(-1, LENGTH), strict=True):
        x = w["wte"][token] + w["wpe"]
        for layer in range(LAYERS):
            h = f"h{layer}"
            q, k, v = np.split(norm(x, f"{h}.ln1") @ w[f"{h}.qkv.w"].T + w[f"{h}.qkv.b"], 3, axis=1)
            heads = []
            for i in range(HEADS):
                d = slice(i * HEAD, (i + 1) * HEAD)
                scores = np.exp(q[:, d] @ k[:, d].T / math.sqrt(HEAD)) * np.tri(LENGTH)
                heads.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, d])
            x = x + np.concatenate(heads, axis=1) @ w[f"{h}.proj.w"].T + w[f"{h}.proj.b"]
            y = norm(x, f"{h}.ln2") @ w[f"{h}.fc.w"].T + w[f"{h}.fc.b"]
            y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
            x = x + y @ w[f"{h}.out.w"].T + w[f"{h}.out.b"]
        logits = norm(x, "lnf") @ w["wte"].T
        total += (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(LENGTH), target]).sum()
    return total / N
