"""What the kernels of attention touch, and what that costs: bytes are those of all regions."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches


def _columns(a, b, third):
    """Columns of a block's heads in queries (0), keys (1) or values (2); the output has those of the queries."""
    width = a["features"] // a["heads"]
    return tuple(third * a["features"] + head * width for head in b["h"])


def _rows(a, b, tokens):
    """Rows of a slice of tokens of each of a block's samples, as few ranges as possible."""
    length = a["sequence"]
    if tokens == (0, length):
        return [(b["n0"] * length, b["n1"] * length)]
    return [(n * length + tokens[0], n * length + tokens[1]) for n in range(*b["n"])]


def _part(a, rows, part):
    """Rows of a part of the queries' gradient; the first lies elsewhere."""
    return rows[0] + (part - 1) * a["rows"], rows[1] + (part - 1) * a["rows"]


def _cost(times):
    """Cost of a kernel with so many operations for each pair of tokens and feature."""

    def cost(a, b, shapes):
        first, last = b["t"]
        pairs = (last - first) * (a["sequence"] - (a["sequence"] - (first + last) / 2) * a["causal"])
        return times * size(b["n"]) * pairs * size(b["h"]) * a["features"] / a["heads"], None

    return cost


@touches("attention_forward", cost=_cost(4.0))
def attention(a, b, shapes):
    """Queries of the block, and the keys and values that they see."""
    q, k, v = (_columns(a, b, third) for third in range(3))
    for rows in _rows(a, b, b["t"]):
        yield from (read("qkv", rows, q), write("output", rows, q), write("logsumexp", b["h"], rows))
    for rows in _rows(a, b, (0, b["t1"] if a["causal"] else a["sequence"])):
        yield from (read("qkv", rows, k), read("qkv", rows, v))


@touches("attention_backward", cost=_cost(10.0))
def attention_backward(a, b, shapes):
    """Keys and values of the block, and the queries that see them, whose gradient is a part of its own."""
    q, k, v = (_columns(a, b, third) for third in range(3))
    for rows in _rows(a, b, b["t"]):
        yield from (read("qkv", rows, k), read("qkv", rows, v), write("dqkv", rows, k), write("dqkv", rows, v))
    for rows in _rows(a, b, (b["t0"] if a["causal"] else 0, a["sequence"])):
        yield from (read("qkv", rows, q), read("output", rows, q), read("gradient", rows, q))
        yield read("logsumexp", b["h"], rows)
        yield write("parts", _part(a, rows, b["part"]), q) if b["part"] else write("dqkv", rows, q)


@touches("attention_add_parts")
def add_parts(a, b, shapes):
    q = _columns(a, b, 0)
    for rows in _rows(a, b, b["t"]):
        yield update("dqkv", rows, q)
        for part in range(1, b["part"] + 1):
            yield read("parts", _part(a, rows, part), q)
