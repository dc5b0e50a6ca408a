"""Rates of layers' kernels on maps of given sizes, beside plain loops that move as many bytes.

Each kernel runs as one block over a whole map (batch x height x width x channels). Bytes count each map that the
kernel reads or writes once, without halo. The bandwidth beside it is what plain loops reach that read and write as
many bytes over arrays of the same size: as much as it writes is copied, the rest of what it reads is only read (or,
where it writes more than it reads, filled). Reads and writes differ, because a line is fetched before it is written.
The loops run in turns with the kernel; the fastest time of each counts, because other programs' load only adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.kernels.maps.channels import ChannelsMap, statistics_shape
from .kernel_timing import Limits, format_rows, loop_times, one_loop, plain_loops

NORM_VECTORS = ("scale", "shift", "mean", "inv_std")
DEFAULT_MAPS = ("1x32x32x64", "4x8x8x256", "16x32x32x256")


class Case(NamedTuple):
    """One kernel on one map: operands, attributes and bounds of a block; number of maps read and written; operations.

    A map that is both read and written counts twice.
    """

    kernel: str
    operands: dict[str, np.ndarray]
    attributes: dict[str, Any]
    bounds: tuple[int, ...]
    read: float
    written: float
    flops: float = 0


def _vectors(m: ChannelsMap, *names: str) -> dict[str, np.ndarray]:
    """Return some of the vectors of a norm."""
    return {name: np.full(m.pitch, 0.5, np.float32) for name in names}


def _values(m: ChannelsMap) -> np.ndarray:
    """Return a map of random numbers with a halo of zeros."""
    values = np.zeros(m.shape, np.float32)
    h = m.halo
    values[:, h : h + m.height, h : h + m.width] = np.random.default_rng(0).standard_normal(
        (m.batch, m.height, m.width, m.pitch), np.float32
    )
    return values


def _norms_and_sums(m: ChannelsMap) -> dict[str, Case]:
    """Return cases of batch norm, activations, sums and global pooling."""
    whole = (0, m.batch, 0, m.height, 0, m.channels)
    rows = (*whole[:4], 0)
    padded = ChannelsMap("padded", m.batch, m.channels, m.height, m.width, 1)
    x, affine = _values(m), _vectors(m, "scale", "shift")
    merged = np.zeros(statistics_shape(1, m.pitch), np.float32)
    sums = {"partials": np.zeros((1, 2, m.pitch), np.float32)}
    three = {"coefficients": np.ones((3, m.pitch), np.float32)}
    pooled = np.zeros((m.batch, m.channels, 1), np.float32)
    base = m.attributes("in")
    out = {**base, "out_halo": 0, "activation": 1}
    apply = {**out, "residual_halo": 0}
    backward = {**base, "gradient_halo": 0, "activations_halo": 0, "activation": 1}
    back_to = {**backward, "out_halo": 0, "branch_halo": 0, "accumulate_branch": 0}
    gradients = {"gradient": x, "input": x, **_vectors(m, "mean")}
    statistics = {**gradients, **sums, **_vectors(m, "inv_std")}
    return {
        "norm_statistics": Case("channels_norm_statistics", {"input": x, "partials": merged}, base, rows, 1, 0),
        "norm_apply": Case("channels_norm_apply", {"input": x, "output": x, **affine}, apply, whole, 1, 1),
        "norm_apply, halo": Case(
            "channels_norm_apply",
            {"input": x, "output": _values(padded), **affine},
            {**apply, "out_halo": 1},
            whole,
            1,
            1,
        ),
        "norm_apply, residual": Case(
            "channels_norm_apply", {"input": x, "residual": x, "output": x, **affine}, apply, whole, 2, 1
        ),
        "norm_backward_statistics": Case(
            "channels_norm_backward_statistics", {**statistics, **affine}, backward, rows, 2, 0
        ),
        "norm_backward_statistics, result": Case(
            "channels_norm_backward_statistics", {**statistics, "activations": x}, backward, rows, 3, 0
        ),
        "norm_backward_apply": Case(
            "channels_norm_backward_apply", {**gradients, **three, "output": x, **affine}, back_to, whole, 2, 1
        ),
        "activation": Case("channels_activation", {"input": x, "output": x}, out, whole, 1, 1),
        "add": Case("channels_add", {"first": x, "second": x, "output": x}, {**out, "second_halo": 0}, whole, 2, 1),
        "global_pool": Case(
            "channels_global_pool", {"input": x, "output": pooled}, base, (0, m.batch, 0, m.channels), 1, 0
        ),
    }


def _pools(m: ChannelsMap) -> dict[str, Case]:
    """Return cases of maximum and average pooling."""
    whole = (0, m.batch, 0, m.height, 0, m.channels)
    base = m.attributes("in")
    result: dict[str, Case] = {}
    for kernel, stride, padding in ((2, 2, 0), (3, 2, 1)):
        small = ChannelsMap(
            "small",
            m.batch,
            m.channels,
            (m.height + 2 * padding - kernel) // stride + 1,
            (m.width + 2 * padding - kernel) // stride + 1,
        )
        window = {"kernel": kernel, "stride": stride, "padding": padding}
        index = np.zeros(small.shape, np.uint8)
        box = (0, m.batch, 0, small.height, 0, m.channels)
        forward = {**base, **small.attributes("out"), **window}
        backward = {**small.attributes("in"), **m.attributes("out"), **window, "accumulate": 0}
        result |= {
            f"max_pool {kernel}x{kernel}": Case(
                "channels_max_pool",
                {"input": _values(m), "output": _values(small), "index": index},
                forward,
                box,
                read=1,
                written=1.25 / stride**2,
            ),
            f"max_pool_backward {kernel}x{kernel}": Case(
                "channels_max_pool_backward",
                {"gradient": _values(small), "index": index, "output": _values(m)},
                backward,
                whole,
                read=1.25 / stride**2,
                written=1,
            ),
            f"average_pool {kernel}x{kernel}": Case(
                "channels_average_pool",
                {"input": _values(m), "output": _values(small)},
                forward,
                box,
                read=1,
                written=1 / stride**2,
            ),
        }
    return result


def _depthwise(m: ChannelsMap) -> dict[str, Case]:
    """Return cases of depthwise convolutions, by themselves and between norms."""
    whole = (0, m.batch, 0, m.height, 0, m.channels)
    norm = _vectors(m, "scale", "shift", "mean")
    input_norm = {f"input_{name}": vector for name, vector in _vectors(m, *NORM_VECTORS).items()}
    merged = {"statistics": np.zeros(statistics_shape(1, m.pitch), np.float32)}
    result: dict[str, Case] = {}
    for kernel, stride, halo in ((3, 1, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1), (5, 1, 2)):
        padding = kernel // 2
        large = ChannelsMap("large", m.batch, m.channels, m.height, m.width, halo)
        size = (m.height - 1) // stride + 1, (m.width - 1) // stride + 1
        small = ChannelsMap("small", m.batch, m.channels, *size, halo if stride == 1 else 0)
        window = {"kernel": kernel, "stride": stride, "padding": padding}
        x, y = _values(large), _values(small)
        weight = {"weight": np.ones((m.channels, 1, kernel, kernel), np.float32)}
        partials = np.zeros((1, m.channels, kernel**2), np.float32)
        share = 1 / stride**2  # of the small map in the large one
        flops = 2.0 * m.batch * m.height * m.width * share * m.channels * kernel**2
        box = (0, m.batch, 0, small.height, 0, m.channels, 0)
        forward = {**large.attributes("in"), **small.attributes("out"), **window, "activation": 0}
        data = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": 0}
        weights = {**small.attributes("gradient"), **large.attributes("in"), **window, "accumulate": 0}
        maps = {"input": x, **weight, "output": y}
        name = f"{kernel}x{kernel} / {stride}{', halo' if halo else ''}"
        result |= {
            f"depthwise {name}": Case("channels_depthwise_forward", maps, forward, box, 1, share, flops),
            f"depthwise, statistics {name}": Case(
                "channels_depthwise_forward", {**maps, **merged}, forward, box, 1, share, flops
            ),
            f"depthwise_backward_data {name}": Case(
                "channels_depthwise_backward_data", {"gradient": y, **weight, "output": x}, data, whole, share, 1, flops
            ),
            f"depthwise_backward_weights {name}": Case(
                "channels_depthwise_backward_weights",
                {"gradient": y, "input": x, "output": partials},
                weights,
                box,
                1 + share,
                0,
                flops,
            ),
        }
        if halo:
            continue
        between = {**small.attributes("out"), **large.attributes("in"), **window, "input_activation": 1}
        before = {n: input_norm[n] for n in ("input_scale", "input_shift")}
        both = {"gradient": y, "result": y, "coefficients": np.ones((3, m.pitch), np.float32), **weight}
        both |= {"input": x, "output": x, "weight_partials": partials, **norm, **input_norm}
        both["statistics"] = np.zeros((1, 2, m.pitch), np.float32)
        result |= {
            f"depthwise, norm before {name}": Case(
                "channels_norm_depthwise",
                {**maps, **merged, **before},
                {**between, "activation": 0},
                box,
                1,
                share,
                flops,
            ),
            f"depthwise_backward, both norms {name}": Case(
                "channels_depthwise_norm_backward",
                both,
                {**between, "activation": 1, "gradient_halo": 0, "output_halo": 0},
                (0, m.batch, 0, m.channels, 0),
                1 + 2 * share,
                1,
                2 * flops,
            ),
        }
    return result


def _optimizers(m: ChannelsMap) -> dict[str, Case]:
    """Return cases of updates of as many parameters as the map has numbers."""
    result: dict[str, Case] = {}
    size = m.batch * m.height * m.width * m.channels
    flat = {"num_partials": 1, "partial_stride": size, "row_length": size, "row_stride": size, "row_offset": 0}
    flat |= {"num_rates": 1, "weight_decay": 1e-4}
    state = {n: np.ones(size, np.float32) for n in ("partials", "gradient", "parameter", "first", "second")}
    shared = {n: state[n] for n in ("partials", "gradient", "parameter")}
    shared["learning_rates"] = np.full(1, 1e-6, np.float32)
    result["optimizer_sgd"] = Case(
        "optimizer_sgd", {**shared, "velocity": state["first"]}, {**flat, "momentum": 0.9}, (0, size), read=3, written=3
    )
    result["optimizer_adam"] = Case(
        "optimizer_adam",
        {**shared, "first_moment": state["first"], "second_moment": state["second"]},
        {**flat, "decoupled": 0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        (0, size),
        read=4,
        written=4,
    )
    return result


def cases(m: ChannelsMap) -> dict[str, Case]:
    """Return all kernels on a map, by name."""
    return {**_norms_and_sums(m), **_pools(m), **_depthwise(m), **_optimizers(m)}


def measure_case(m: ChannelsMap, name: str, case: Case, seconds: float, limits: Limits) -> dict[str, Any]:
    """Time a kernel on a map, in turns with plain loops that read and write as much; see `Limits.row`."""
    bound = one_loop(
        case.kernel,
        {n: (array.shape, array.dtype.name) for n, array in case.operands.items()},
        case.attributes,
        [case.bounds],
        instruction_set=limits.instruction_set,
    )
    for operand, array in case.operands.items():
        bound.arrays[operand][...] = array
    map_bytes = 4 * m.batch * m.height * m.width * m.channels
    moved = (case.read + case.written) * map_bytes
    streams = plain_loops(case.read * map_bytes, case.written * map_bytes)
    rates: dict[str, list[float]] = {stream: [] for stream in streams}

    def measure_streams() -> None:
        for stream, values in rates.items():
            values.append(limits.stream(stream, moved))

    fastest, median = loop_times(bound, seconds, limits.cpu, measure_streams)
    bandwidth = moved / sum(streams[stream] / max(values) for stream, values in rates.items())
    return limits.row(name, float(fastest[0]), float(median[0]), case.flops, moved, bandwidth)


def measure_maps(
    maps: Sequence[str],
    kernels: Sequence[str] = (),
    seconds: float = 0.05,
    instruction_set: str | None = None,
    cpu: int | None = None,
) -> list[dict[str, Any]]:
    """Measure kernels on maps.

    Parameters
    ----------
    maps : sequence of str
        Sizes, see `parse_map`.
    kernels : sequence of str
        Parts of names; none: all.
    seconds : float
        For each kernel and map.

    Returns
    -------
    list of dict
        A dict for each map: "map", "peak_flops_per_s" and "rows".

    Raises
    ------
    UsageError
        No map, or no kernel of such a name.
    """
    sizes = {text: parse_map(text) for text in maps}
    limits = Limits(instruction_set, cpu)
    tables = []
    for text, m in sizes.items():
        known = cases(m)
        chosen = {n: c for n, c in known.items() if not kernels or any(part in n for part in kernels)}
        if not chosen:
            raise UsageError(f"kernels must be parts of {', '.join(known)}; got {', '.join(kernels)}")
        rows = [measure_case(m, name, case, seconds, limits) for name, case in chosen.items()]
        tables.append({"map": text, "peak_flops_per_s": limits.peak_flops_per_s, "rows": rows})
    return tables


def format_maps(tables: Sequence[Mapping[str, Any]]) -> str:
    """Format the result of `measure_maps` for a terminal."""
    lines = []
    for table in tables:
        lines += [
            f"map {table['map']}, one core, peak {table['peak_flops_per_s'] / 1e9:.0f} GFLOP/s",
            *format_rows(table["rows"]),
            "",
        ]
    return "\n".join(lines[:-1])


def parse_map(text: str) -> ChannelsMap:
    """Parse batch x height x width x channels, such as 1x32x32x64."""
    try:
        batch, height, width, channels = (int(n) for n in text.split("x"))
    except ValueError:
        raise UsageError(
            f"a map must be given as batch x height x width x channels (1x32x32x64), got {text!r}"
        ) from None
    if min(batch, height, width) < 1 or channels < 16 or channels % 16:
        raise UsageError(f"a map must have positive sizes and a multiple of 16 channels, got {text!r}")
    return ChannelsMap("map", batch, channels, height, width)
