"""Convolutions of the layout "nhwc": algorithms, shapes of packed weights, choice by cost.

Y[n, y, x, o] = bias[o] + sum over (ky, kx, i) of W[o, i, ky, kx] X[n, s y - p + d ky, s x - p + d kx, i], with stride
s, padding p, dilation d; i runs over the channels of o's group. In the attributes of all kernels "in" is the map that
the kernel reads and "out" the one that it writes (the data gradient reads dY and writes dX); the weight gradient has
"dy" and "in". The maps' halos must be as wide as `required_halo` says. A map is read with its padding channels: they
are zero.

Packed weights are cut into panels of LANES channels of the map that is written. A panel is (taps, K, LANES) for sums
over the K channels of the groups that the panel's channels belong to, with the taps in the order of growing address;
Winograd's has its transformed taps, 16 or 36.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ...errors import UsageError, did_you_mean
from ...plan.model import Plan
from ..simd.instruction_sets import LANES
from .nhwc_sizes import MAX_CHANNELS, MAX_KERNEL, inputs_of_panels
from .specs import ALGORITHMS, COMPARED

FORWARD, DATA, WEIGHTS = 0, 1, 2

SHAPE = re.compile(rf"(forward|data|weights):\d+(x\d+){{4}}=({'|'.join(ALGORITHMS)})")
DIRECTIONS = {
    "nhwc_conv_forward": "forward",
    "nhwc_conv_backward_data": "data",
    "nhwc_conv_backward_weights": "weights",
}
CODES = {name: code for code, name in enumerate(ALGORITHMS)}
# What a user may ask for; "winograd" leaves the tile's size to the cost model.
NHWC_OPTIONS = ("auto", "winograd", *ALGORITHMS)
CONV_OPTIONS = ("auto", "winograd", "direct", *COMPARED, *ALGORITHMS[1:])

# Winograd by the outputs a tile has in a row: interpolation points (infinity besides). Points 0, 1/sqrt(2), sqrt(2)
# and their negatives have half the rounding error of the customary 0, 1, 2.
WINOGRAD_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))}

# Root mean square of the error over that of the result, over that of the direct sum, for 256 channels of normal
# numbers; F(4x4, 5x5) with images in the lanes is "winograd". The default takes none above ERROR_LIMIT, in any layout.
RELATIVE_ERROR = {"winograd2": 0.6, "winograd4": 1.9, "winograd": 5.0}
ERROR_LIMIT = 5.0


def winograd_side(algorithm: int) -> int:
    """Outputs in a row of a Winograd tile; 0 for other algorithms."""
    return {"winograd2": 2, "winograd4": 4}.get(ALGORITHMS[algorithm], 0)


def winograd_filter_transform(side: int) -> np.ndarray:
    """Matrix that takes the 3 taps to the interpolation points, shape (side + 2, 3)."""
    points = WINOGRAD_POINTS[side]
    rows = [[p**j / math.prod(p - q for q in points if q != p) for j in range(3)] for p in points]
    return np.array([*rows, [0, 0, 1]], float)


def panel_inputs(direction: int, shape: Sequence[int], groups: int) -> tuple[list[int], int]:
    """First channel of the map that is read for each panel, and how many follow, the same for all: K."""
    channels = shape[0], shape[1] * groups
    written, read = channels[::-1] if direction == DATA else channels
    return inputs_of_panels(written, read, groups)


def packed_shape(algorithm: int, direction: int, shape: Sequence[int], groups: int) -> tuple[int, int, int, int]:
    """(panels, taps, K, LANES); K is the most channels that a panel sums over, at least 4 (an image's pitch).
    `algorithm`, `direction`: direction 0 for the forward pass, 1 for the data gradient; `shape`: of the weights."""
    side = winograd_side(algorithm)
    taps = (side + 2) ** 2 if side else shape[2] * shape[3]
    starts, inputs = panel_inputs(direction, shape, groups)
    return len(starts), taps, inputs, LANES


def weight_box(direction: int, panels: tuple[int, int], shape: Sequence[int], groups: int):
    """Region of the weights that packing these panels reads."""
    start, stop = panels[0] * LANES, panels[1] * LANES
    if direction == FORWARD:
        return ((start, min(stop, shape[0])),)
    if groups == 1:
        return ((0, shape[0]), (start, min(stop, shape[1])))
    return ((0, shape[0]),)


def required_halo(direction: int, attributes: Mapping[str, int]) -> int:
    """Halo that a kernel needs around the map that it reads. `direction`: 0 forward (and the weight gradient's input):
    around X; 1 data gradient: around dY; `attributes`: in_height, out_height, in_width, out_width, kernel, stride,
    padding, dilation, as the kernel takes them."""
    reach = (attributes["kernel"] - 1) * attributes["dilation"]
    s, p = attributes["stride"], attributes["padding"]
    if direction != DATA:
        return p
    beyond = max(
        (attributes[f"out_{side}"] - 1 + p) // s + 1 - attributes[f"in_{side}"] for side in ("height", "width")
    )
    return max(0, (reach - p) // s, beyond)


def winograd_applies(attributes: Mapping[str, int]) -> bool:
    """Kernels of 3 x 3 that move one pixel at a time, and groups of whole panels."""
    groups = attributes["groups"]
    channels = [attributes[name] for name in ("in_channels", "out_channels", "dy_channels") if name in attributes]
    whole = groups == 1 or all(c // groups % LANES == 0 for c in channels)
    return (
        attributes["kernel"] == 3
        and attributes["stride"] == 1
        and attributes["dilation"] == 1
        and attributes["padding"] <= 2
        and min(channels) >= LANES
        and whole
    )


# Cost model, in multiply-adds (a vector of sixteen a cycle). Transforms: of a channel of a tile, measured.
INPUT_TRANSFORM = {2: 90.0, 4: 250.0}
OUTPUT_TRANSFORM = {2: 60.0, 4: 200.0}
# A float of packed weights that is written and read again: it comes from memory. Measured 20 to 110.
PACKED_FLOAT = 32.0
# A float of a weight gradient's sums: they stay in the L2 cache until they are transformed.
SUMMED_FLOAT = 8.0


def _sizes(direction: str, attributes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Channels of the layer's input and output, height and width of the output; see `algorithm_costs`."""
    prefix = "dy" if "dy_height" in attributes else "in" if direction == "data" else "out"
    other = "in" if prefix != "in" else "out"
    names = f"{other}_channels", f"{prefix}_channels", f"{prefix}_height", f"{prefix}_width"
    return tuple(attributes[name] for name in names)


def shape_text(direction: str, attributes: Mapping[str, int], batch: int) -> str:
    """Name of the shape of a convolution's loop, such as "weights:16x256x256x8x8": images, channels of the layer's
    input and output, height and width of the output."""
    return f"{direction}:{'x'.join(map(str, (batch, *_sizes(direction, attributes))))}"


def read_algorithms(text: str) -> dict[str, str]:
    """The algorithm of each shape that a text such as "weights:16x256x256x8x8=winograd4" names, between commas."""
    parts = [part for part in text.split(",") if part]
    for part in parts:
        if not SHAPE.fullmatch(part):
            raise UsageError(
                f"algorithms must name a direction (forward, data or weights), images, channels of input and output, "
                f"height, width and one of {', '.join(ALGORITHMS)}, such as weights:16x256x256x8x8=winograd4, between "
                f"commas, got {part!r}"
            )
    return dict(part.split("=") for part in parts)


def loops_with_choice(plan: Plan) -> dict[str, str]:
    """Return the algorithm of each shape of a plan's convolutions for which Winograd applies."""
    result = {}
    for loop in plan.loops:
        direction, attributes = DIRECTIONS.get(loop.kernel), loop.attributes
        if direction and attributes["groups"] == 1 and winograd_applies(attributes):
            shape = shape_text(direction, attributes, plan.attributes["batch"])
            result[shape] = ALGORITHMS[attributes["algorithm"]]
    return result


def check_algorithms(named: Mapping[str, str], shapes: Collection[str]) -> None:
    """Raise `UsageError` unless each shape that `read_algorithms` found is one of some plans' `loops_with_choice`."""
    for shape in named:
        if shape not in shapes:
            raise UsageError(
                f"algorithms must name convolutions of these plans, 3 x 3 with stride 1 and channels in the lanes: "
                f"{', '.join(sorted(shapes)) or 'there are none'}; got {shape}{did_you_mean(shape, shapes)}"
            )


def algorithm_costs(direction: str, attributes: Mapping[str, int], batch: int) -> dict[str, float]:
    """Cost of each algorithm that applies, in multiply-adds of a step: products, transforms, packed weights."""
    read, written, height, width = _sizes(direction, attributes)
    weights = read * written / attributes["groups"]
    taps, of_float = attributes["kernel"] ** 2, SUMMED_FLOAT if direction == "weights" else PACKED_FLOAT
    costs = {"direct": batch * height * width * weights * taps + of_float * weights * taps}
    if winograd_applies(attributes):
        for side in (2, 4):
            tiles = batch * -(-height // side) * -(-width // side)
            costs[f"winograd{side}"] = (
                tiles * (side + 2) ** 2 * weights
                + tiles * (read * INPUT_TRANSFORM[side] + written * OUTPUT_TRANSFORM[side])
                + of_float * weights * (side + 2) ** 2
            )
    return costs


def choose_algorithm(
    option: str,
    direction: str,
    attributes: Mapping[str, int],
    batch: int,
    by_shape: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Code of the algorithm for one convolution, as `by_shape` says of its `shape_text`, else as one of NHWC_OPTIONS
    asks for, or direct where that does not apply (Winograd to kernels that are not 3 x 3). `direction`: "forward",
    "data" or "weights"; `batch`: images of a step. Raises `UsageError`: a kernel that is too large, or too many
    channels."""
    if by_shape and attributes["groups"] == 1 and winograd_applies(attributes):
        option = by_shape.get(shape_text(direction, attributes, batch), option)
    if attributes["kernel"] > MAX_KERNEL:
        raise UsageError(f"kernels of convolutions must be at most {MAX_KERNEL} wide, got {attributes['kernel']}")
    channels = max(attributes[name] for name in ("in_channels", "out_channels", "dy_channels") if name in attributes)
    if channels > MAX_CHANNELS:
        raise UsageError(f"convolutions must have at most {MAX_CHANNELS} channels, got {channels}")
    costs = algorithm_costs(direction, attributes, batch)
    if option == "auto":
        costs = {name: cost for name, cost in costs.items() if RELATIVE_ERROR.get(name, 1.0) <= ERROR_LIMIT}
        return CODES[min(costs, key=costs.get)]
    if option == "winograd":
        costs = {name: cost for name, cost in costs.items() if name.startswith("winograd")}
        return CODES[min(costs, key=costs.get)] if costs else CODES["direct"]
    if option.startswith("winograd") and option not in costs:
        return CODES["direct"]
    return CODES[option]


def unpack(packed: np.ndarray, attributes: Mapping[str, int], direction: int) -> np.ndarray:
    """Weights (written channels, read channels, k, k) behind packed ones; zero where groups do not meet."""
    k, groups = attributes["kernel"], attributes["groups"]
    written, read = attributes["out_channels"], attributes["in_channels"]
    shape = (written, read // groups, k, k) if direction == FORWARD else (read, written // groups, k, k)
    side = winograd_side(attributes["algorithm"])
    if side:
        inverse = np.linalg.pinv(winograd_filter_transform(side))
        points = packed.reshape(*packed.shape[:1], side + 2, side + 2, *packed.shape[2:])
        taps = np.einsum("ya,xb,pabkl->pyxkl", inverse, inverse, points)
    else:
        taps = packed.reshape(*packed.shape[:1], k, k, *packed.shape[2:])
    result = np.zeros((written, read, k, k), packed.dtype)
    starts, count = panel_inputs(direction, shape, groups)
    count = min(count, read)
    for panel, start in enumerate(starts):
        lanes = min(LANES, written - panel * LANES)
        part = taps[panel, :, :, :count, :lanes].transpose(3, 2, 0, 1)
        result[panel * LANES : panel * LANES + lanes, start : start + count] = part
    return result


def pack(weight: np.ndarray, attributes: Mapping[str, int], panels: tuple[int, int]) -> np.ndarray:
    """Panels [panels) of the packed form of weights (O, I / groups, k, k): what `nhwc_conv_pack` computes."""
    direction, groups, side = attributes["direction"], attributes["groups"], winograd_side(attributes["algorithm"])
    shape = packed_shape(attributes["algorithm"], direction, weight.shape, groups)
    result = np.zeros((panels[1] - panels[0], *shape[1:]), weight.dtype)
    full = np.zeros((weight.shape[0], weight.shape[1] * groups, *weight.shape[2:]), weight.dtype)
    out, part = weight.shape[0] // groups, weight.shape[1]
    for g in range(groups):
        full[g * out : (g + 1) * out, g * part : (g + 1) * part] = weight[g * out : (g + 1) * out]
    if direction == DATA:
        full = full.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    if side:
        g = winograd_filter_transform(side).astype(weight.dtype)
        full = np.einsum("ay,bx,oiyx->oiab", g, g, full)
    starts, count = panel_inputs(direction, weight.shape, groups)
    for panel in range(*panels):
        part = full[panel * LANES : (panel + 1) * LANES, starts[panel] : starts[panel] + count]
        flat = part.reshape(*part.shape[:2], shape[1]).transpose(2, 1, 0)
        result[panel - panels[0], :, : flat.shape[1], : flat.shape[2]] = flat
    return result
