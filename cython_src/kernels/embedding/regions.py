"""What the kernels of embeddings touch, and what that costs."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches


def _row_cost(times):
    """Cost of a kernel that moves so many numbers of each feature of a row."""
    return lambda a, b, shapes: (0.0, 4.0 * times(shapes) * a["features"] * size(b["r"]))


def _positions(rows, sequence):
    """Positions of some rows; all of the sequence where they belong to several samples."""
    first = rows[0] // sequence * sequence
    return (rows[0] - first, rows[1] - first) if rows[1] - first <= sequence else (0, sequence)


@touches("embedding_forward", cost=_row_cost(lambda shapes: 2 + ("position_weight" in shapes)))
@touches("positions_forward", cost=_row_cost(lambda shapes: 3))
def look_up(a, b, shapes):
    """Any row of the table of tokens."""
    yield from (read("tokens" if "tokens" in shapes else "input", b["r"]), write("output", b["r"]))
    if "token_weight" in shapes:
        yield read("token_weight")
    if "position_weight" in shapes:
        yield read("position_weight", _positions(b["r"], a["sequence"]))
    if "type_weight" in shapes:
        yield read("type_weight", (0, 1))


@touches("trigram_forward", cost=_row_cost(lambda shapes: 4))
def trigram(a, b, shapes):
    """A token's neighbours are those of its sample."""
    first, last = b["r"]
    yield read("input", (first - (first % a["sequence"] > 0), last + (last % a["sequence"] > 0)))
    yield write("output", b["r"])


@touches("trigram_backward", cost=_row_cost(lambda shapes: 4))
def trigram_backward(a, b, shapes):
    """What the tokens before, at and after each place send back there."""
    (first, last), length, features = b["r"], a["sequence"], a["features"]
    rows = ((first - (first % length > 0), last - 1), (first, last), (first + 1, last + (last % length > 0)))
    for place, (start, stop) in enumerate(rows):
        if start < stop:
            yield read("gradient", (start, stop), (place * features, (place + 1) * features))
    yield write("output", b["r"])


@touches("first_token_forward", cost=lambda a, b, shapes: (0.0, 8.0 * a["features"] * size(b["n"])))
def first_token(a, b, shapes):
    yield write("output", b["n"])
    for sample in range(*b["n"]):
        yield read("input", (sample * a["sequence"], sample * a["sequence"] + 1))


@touches("first_token_backward", cost=lambda a, b, shapes: (0.0, 4.0 * a["features"] * a["sequence"] * size(b["n"])))
def first_token_backward(a, b, shapes):
    first, last = b["n"]
    return read("gradient", b["n"]), write("output", (first * a["sequence"], last * a["sequence"]))


def _token_cost(a, b, shapes):
    zeroed = 0 if a["accumulate"] else a["vocabulary"]
    return 0.0, 4.0 * (3 * a["rows"] + zeroed) * size(b["c"])


@touches("embedding_token_gradient", cost=_token_cost)
def token_gradient(a, b, shapes):
    yield from (read("tokens"), read("gradient", (0, a["rows"]), b["c"]))
    yield (update if a["accumulate"] else write)("output", (0, 1), (0, a["vocabulary"]), b["c"])


def _reached(a, b):
    """First and last position of a block that some token has."""
    return b["t"][0], min(b["t"][1], a["sequence"])


def _position_cost(a, b, shapes):
    first, last = _reached(a, b)
    return 0.0, 4.0 * a["features"] * (size(b["t"]) + a["batch"] * max(0, last - first))


@touches("embedding_position_gradient", cost=_position_cost)
def position_gradient(a, b, shapes):
    """Sums over samples, zeros past the sequence."""
    yield write("output", (0, 1), b["t"])
    first, last = _reached(a, b)
    for sample in range(a["batch"]) if first < last else ():
        start = sample * a["sequence"]
        yield read("gradient", (start + first, start + last))


@touches("type_gradient")
def type_gradient(a, b, shapes):
    yield read("position_gradient", (0, 1), (0, a["sequence"]), b["c"])
    yield write("output", (0, 1), (0, a["types"]), b["c"])
