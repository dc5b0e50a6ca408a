"""Random modules of PyTorch, with operations among them that `from_torch` cannot read."""

import random
from random import Random

import torch
from torch import nn
from torch.nn import functional

CHANNELS, SIDE, VOCABULARY, LENGTH, WIDTH = 4, 8, 11, 6, 8


class Frozen(nn.BatchNorm2d):
    """The usual frozen norm."""

    def train(self, mode=True):
        return super().train(False)


class Double(torch.autograd.Function):
    """The identity with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def _no_grad(part, x):
    with torch.no_grad():
        return part(x)


def _view_then_change(x, change):
    view = x.view(x.shape)
    change(x)
    return view + 0


def _change_then_view(x, change):
    change(x)
    return x.view(x.shape)


def _checkpoint(part, x, reentrant):
    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)


def _autocast(part, x):
    with torch.autocast("cpu", torch.bfloat16):
        return part(x).float()


# Of any tensor; `part`: a layer that keeps its shape.
ANY = {
    "layer": lambda part, x: part(x),
    "relu": lambda part, x: functional.relu(x),
    "relu in place": lambda part, x: functional.relu_(part(x)),
    "sigmoid": lambda part, x: 1 / (1 + torch.exp(-x)),
    "gelu": lambda part, x: functional.gelu(x, approximate="tanh"),
    "relu6": lambda part, x: x.clamp(0, 6),
    "residual": lambda part, x: part(x) + x,
    "residual in place": lambda part, x: part(x).add_(x),
    "dropout": lambda part, x: functional.dropout(x, 0.3, part.training),
    "twice the half": lambda part, x: (x * 0.5) * 2,
    "transposed twice": lambda part, x: x.transpose(-1, -2).contiguous().transpose(-2, -1),
    "alone": lambda part, x: x.unsqueeze(0).squeeze(0),
    "checkpoint": lambda part, x: _checkpoint(part, x, False),
    "silu": lambda part, x: functional.silu(x),
    "scaled": lambda part, x: part(x) * 1.5,
    "detach": lambda part, x: part(x) + x.detach(),
    "detached": lambda part, x: part(x.detach()) + x,
    "product": lambda part, x: part(x) * x,
    "no_grad": _no_grad,
    "checkpoint, reentrant": lambda part, x: _checkpoint(part, x, True),
    "autocast": _autocast,
    "own gradient": lambda part, x: Double.apply(part(x)),
    "view, then mul_": lambda part, x: _view_then_change(part(x), lambda y: y.mul_(2)),
    "view, then relu_": lambda part, x: _view_then_change(part(x), functional.relu_),
    "relu_, then view": lambda part, x: _change_then_view(part(x), functional.relu_),
    "by a random number": lambda part, x: part(x) * (torch.rand(1) > 0.3) + x,
    "by a like one": lambda part, x: part(x) * (torch.rand_like(x[:1]) > 0.3),
    "by Python's": lambda part, x: part(x) * (random.random() > 0.3) + x,
    "by the batch": lambda part, x: part(x) * (x.shape[0] / 3),
    "by the mean": lambda part, x: x - x.mean(),
    "by the sample": lambda part, x: x + x[:1],
    "flipped": lambda part, x: x.flip(0),
    "rolled": lambda part, x: x.roll(1, -1),
    "constant": lambda part, x: x + 0.25,
    "hook": lambda part, x: _hooked(part(x)),
    "cat": lambda part, x: torch.cat([x, x], 1).narrow(1, 0, x.shape[1]),
    "own dtype": lambda part, x: part(x).bfloat16().to(x.dtype),
}  # fmt: skip
IMAGES = {
    "norm": lambda part, x: part.norm(x),
    "norm in place": lambda part, x: functional.relu_(part.norm(x)),
    "max pool": lambda part, x: functional.max_pool2d(x, 3, 1, 1),
    "depthwise": lambda part, x: functional.conv2d(x, part.thin, padding=1, groups=CHANNELS),
    "frozen norm": lambda part, x: part.frozen(x),
    "running norm": lambda part, x: functional.batch_norm(
        x, part.norm.running_mean, part.norm.running_var, part.norm.weight, part.norm.bias, False
    ),
    "expanded weight": lambda part, x: functional.conv2d(
        x, part.one.expand(CHANNELS, CHANNELS, 3, 3), padding=1
    ),
    "constant weight": lambda part, x: functional.conv2d(x, part.held, padding=1),
    "other axes": lambda part, x: part(x.transpose(2, 3)),
    "padded": lambda part, x: functional.avg_pool2d(x, 3, 1, 1),
    "channels": lambda part, x: x[:, torch.tensor([1, 0, 2, 3])],
    "spectral": lambda part, x: part.spectral(x),
}  # fmt: skip
TOKENS = {
    "norm": lambda part, x: part.norm(x),
    "attention": lambda part, x: _attention(part, x, True),
    "attention, all": lambda part, x: _attention(part, x, False),
    "other scale": lambda part, x: _attention(part, x, True, scale=0.1),
    "own positions": lambda part, x: x + part.rows[: x.shape[1]],
    "own positions, reversed": lambda part, x: x + part.rows[: x.shape[1]].flip(0),
    "shifted": lambda part, x: functional.pad(x, (0, 0, 1, 0))[:, :-1],
    "by the length": lambda part, x: part(x) * (x.shape[1] / LENGTH),
    "norm over tokens": lambda part, x: part.norm(x.transpose(1, 2).reshape(x.shape)),
}  # fmt: skip


def _hooked(x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 3)
    return x


def _attention(part, x, causal, **arguments):
    q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in part.joint(x).chunk(3, -1))
    result = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **arguments)
    return part(result.transpose(1, 2).flatten(2))


class Part(nn.Module):
    """A layer that keeps its shape, with what operations may need."""

    def __init__(self, images: bool):
        super().__init__()
        if images:
            self.layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
            self.norm, self.frozen = nn.BatchNorm2d(CHANNELS), Frozen(CHANNELS)
            self.one = nn.Parameter(torch.randn(1, CHANNELS, 3, 3) * 0.2)
            self.thin = nn.Parameter(torch.randn(CHANNELS, 1, 3, 3) * 0.3)
            self.register_buffer("held", torch.randn(CHANNELS, CHANNELS, 3, 3) * 0.2)
            self.spectral = nn.utils.parametrizations.spectral_norm(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1))
        else:
            self.layer, self.joint = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
            self.norm, self.rows = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, x):
        return self.layer(x)


class Images(nn.Module):
    """Some operations on maps, and a head."""

    def __init__(self, operations, head):
        super().__init__()
        self.stem, self.operations, self.head = nn.Conv2d(3, CHANNELS, 3, padding=1), operations, head
        self.parts = nn.ModuleList(Part(True) for _ in operations)
        self.fc = nn.Linear(CHANNELS if head == "mean" else CHANNELS * SIDE * SIDE, 5)
        self.w = nn.Parameter(torch.randn(5, CHANNELS * SIDE * SIDE) * 0.1)

    def forward(self, x):
        x = self.stem(x)
        for part, (_, operation) in zip(self.parts, self.operations, strict=True):
            x = operation(part, x)
        if self.head == "bias of the weight":
            return functional.linear(x.flatten(1), self.w, self.w[:, 0])
        return self.fc(x.mean((2, 3)) if self.head == "mean" else x.flatten(1))


class Tokens(nn.Module):
    """An embedding, some operations on its rows, and a head."""

    def __init__(self, operations, tokens, head):
        super().__init__()
        self.table, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.w = nn.Parameter(torch.randn(2 * VOCABULARY, WIDTH))
        self.operations, self.tokens, self.head = operations, tokens, head
        self.parts = nn.ModuleList(Part(False) for _ in operations)
        self.fc = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        computed = {
            "next": lambda: (x + 1) % VOCABULARY, "low": lambda: x.clamp(max=5), "reversed": lambda: x.flip(1),
            "not below": lambda: x.clamp(min=0),
        }  # fmt: skip
        length = x.shape[1]
        x = computed.get(self.tokens, lambda: x)()
        y = functional.embedding(x, self.w[:VOCABULARY]) if self.head == "part" else self.table(x)
        y = y + self.place(torch.arange(length))
        for part, (_, operation) in zip(self.parts, self.operations, strict=True):
            y = operation(part, y)
        heads = {
            "tied": lambda: functional.linear(y, self.table.weight),
            "detached": lambda: functional.linear(y, self.table.weight.detach()),
            "part": lambda: functional.linear(y, self.w[3 : 3 + VOCABULARY]),
        }
        return heads.get(self.head, lambda: self.fc(y))()


def random_module(seed: int) -> tuple[nn.Module, torch.Tensor, str]:
    """A module, its example and what it does; most operations can be read, and half of the modules have one that
    can not."""
    choose = Random(seed)
    torch.manual_seed(seed)
    images = choose.random() < 0.6
    own = IMAGES if images else TOKENS
    known = [*list(ANY.items())[:13], *list(own.items())[: 4 if images else 3]]
    strange = [*list(ANY.items())[13:], *list(own.items())[4 if images else 3 :]]
    operations = choose.choices(known, k=choose.randint(1, 4))
    if choose.random() < 0.6:
        operations.insert(choose.randint(0, len(operations)), choose.choice(strange))
    names = [name for name, _ in operations]
    if images:
        head = choose.choice(("mean", "flat", "flat", "flat", "bias of the weight"))
        return Images(operations, head), torch.zeros(choose.randint(1, 4), 3, SIDE, SIDE), f"{names}, {head}"
    tokens = choose.choice(("", "", "", "", "", "next", "low", "reversed", "not below"))
    head = choose.choice(("", "", "", "tied", "tied", "detached", "part"))
    example = torch.zeros(choose.randint(1, 4), LENGTH, dtype=torch.int64)
    return Tokens(operations, tokens, head), example, f"{names}, {tokens}, {head}"
