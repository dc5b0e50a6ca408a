"""How fast the kernels of the layers are that move data rather than compute: bytes per second on one core.

    python -m forktask.experiments.machine.layer_bench
    python -m forktask.experiments.machine.layer_bench --kernels norm_apply max_pool --maps 1x32x32x64 64x32x32x128

Each kernel runs as one block over a whole map (batch x height x width x channels). Bytes count each map that the
kernel reads or writes once, without halo. The bandwidth beside it is what plain loops reach that read and write as
many bytes over arrays of the same size: as much as it writes is copied, the rest of what it reads is only read (or,
where it writes more than it reads, filled). Reads and writes differ, because a line is fetched before it is written.
The loops run in turns with the kernel; the fastest time of each counts, because other programs' load only adds.
Depthwise convolutions also show GFLOP/s and the fraction of the multiply-add peak. The last column is the fraction of
the kernel's limit, the longer of the times that its bytes take at that bandwidth and its arithmetic at the peak.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from ...cython_src.binding.bind import bind
from ...cython_src.errors import UsageError
from ...cython_src.kernels.maps.channels import ChannelsMap, statistics_shape
from ...cython_src.plan.model import Access, Block, PlanBuilder
from ...forkjoin.executor import SerialExecutor
from .machine_peaks import measure_bandwidth, measure_peak_flops

DEFAULT_MAPS = ("1x32x32x64", "4x8x8x256", "16x32x32x256")
UPDATE = 2


def cases(m: ChannelsMap) -> dict[str, tuple]:
    """Name -> kernel, operands (arrays), attributes, bounds, maps read, maps written, flops. What is read and written
    counts in both."""
    whole = (0, m.batch, 0, m.height, 0, m.channels)
    rows = (*whole[:4], 0)
    pixels = m.batch * m.height * m.width
    vectors = {n: np.full(m.pitch, 0.5, np.float32) for n in ("scale", "shift", "mean", "inv_std")}
    padded = ChannelsMap("padded", m.batch, m.channels, m.height, m.width, 1)

    def array(of=m):
        values = np.zeros(of.shape, np.float32)
        h = of.halo
        values[:, h : h + of.height, h : h + of.width] = np.random.default_rng(0).standard_normal(
            (of.batch, of.height, of.width, of.pitch), np.float32
        )
        return values

    def picked(*names):
        return {n: vectors[n] for n in names}

    base = m.attributes("in")
    halos = {"gradient_halo": 0, "activations_halo": 0, "activation": 1}
    outs = {"out_halo": 0, "branch_halo": 0, "accumulate_branch": 0}
    result = {
        "norm_statistics": (
            "channels_norm_statistics",
            {"input": array(), "partials": np.zeros(statistics_shape(1, m.pitch), np.float32)},
            base,
            rows,
            1,
            0,
            0,
        ),
        "norm_apply": (
            "channels_norm_apply",
            {"input": array(), "output": array(), **picked("scale", "shift")},
            {**base, "residual_halo": 0, "out_halo": 0, "activation": 1},
            whole,
            1,
            1,
            0,
        ),
        "norm_apply, halo": (
            "channels_norm_apply",
            {"input": array(), "output": array(padded), **picked("scale", "shift")},
            {**base, "residual_halo": 0, "out_halo": 1, "activation": 1},
            whole,
            1,
            1,
            0,
        ),
        "norm_apply, residual": (
            "channels_norm_apply",
            {"input": array(), "residual": array(), "output": array(), **picked("scale", "shift")},
            {**base, "residual_halo": 0, "out_halo": 0, "activation": 1},
            whole,
            2,
            1,
            0,
        ),
        "norm_backward_statistics": (
            "channels_norm_backward_statistics",
            {"gradient": array(), "input": array(), "partials": np.zeros((1, 2, m.pitch), np.float32), **vectors},
            {**base, **halos},
            rows,
            2,
            0,
            0,
        ),
        "norm_backward_statistics, result": (
            "channels_norm_backward_statistics",
            {
                "gradient": array(),
                "activations": array(),
                "input": array(),
                "partials": np.zeros((1, 2, m.pitch), np.float32),
                **picked("mean", "inv_std"),
            },
            {**base, **halos},
            rows,
            3,
            0,
            0,
        ),
        "norm_backward_apply": (
            "channels_norm_backward_apply",
            {
                "gradient": array(),
                "input": array(),
                "coefficients": np.ones((3, m.pitch), np.float32),
                "output": array(),
                **picked("scale", "shift", "mean"),
            },
            {**base, **halos, **outs},
            whole,
            2,
            1,
            0,
        ),
        "activation": (
            "channels_activation",
            {"input": array(), "output": array()},
            {**base, "out_halo": 0, "activation": 1},
            whole,
            1,
            1,
            0,
        ),
        "add": (
            "channels_add",
            {"first": array(), "second": array(), "output": array()},
            {**base, "second_halo": 0, "out_halo": 0, "activation": 1},
            whole,
            2,
            1,
            0,
        ),
        "global_pool": (
            "channels_global_pool",
            {"input": array(), "output": np.zeros((m.batch, m.channels, 1), np.float32)},
            base,
            (0, m.batch, 0, m.channels),
            1,
            0,
            0,
        ),
    }
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
            f"max_pool {kernel}x{kernel}": (
                "channels_max_pool",
                {"input": array(), "output": array(small), "index": index},
                forward,
                box,
                1,
                1.25 / stride**2,
                0,
            ),
            f"max_pool_backward {kernel}x{kernel}": (
                "channels_max_pool_backward",
                {"gradient": array(small), "index": index, "output": array()},
                backward,
                whole,
                1.25 / stride**2,
                1,
                0,
            ),
            f"average_pool {kernel}x{kernel}": (
                "channels_average_pool",
                {"input": array(), "output": array(small)},
                forward,
                box,
                1,
                1 / stride**2,
                0,
            ),
        }
    for kernel, stride, halo in ((3, 1, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1), (5, 1, 2)):
        padding = kernel // 2
        large = ChannelsMap("large", m.batch, m.channels, m.height, m.width, halo)
        small = ChannelsMap(
            "small",
            m.batch,
            m.channels,
            (m.height - 1) // stride + 1,
            (m.width - 1) // stride + 1,
            halo if stride == 1 else 0,
        )
        window = {"kernel": kernel, "stride": stride, "padding": padding}
        weight = np.ones((m.channels, 1, kernel, kernel), np.float32)
        box = (0, m.batch, 0, small.height, 0, m.channels)
        flops = 2.0 * pixels / stride**2 * m.channels * kernel**2
        forward = {**large.attributes("in"), **small.attributes("out"), **window, "activation": 0}
        name = f"{kernel}x{kernel} / {stride}{', halo' if halo else ''}"
        result |= {
            f"depthwise {name}": (
                "channels_depthwise_forward",
                {"input": array(large), "weight": weight, "output": array(small)},
                forward,
                (*box, 0),
                1,
                1 / stride**2,
                flops,
            ),
            f"depthwise, statistics {name}": (
                "channels_depthwise_forward",
                {
                    "input": array(large),
                    "weight": weight,
                    "output": array(small),
                    "statistics": np.zeros(statistics_shape(1, m.pitch), np.float32),
                },
                forward,
                (*box, 0),
                1,
                1 / stride**2,
                flops,
            ),
            f"depthwise_backward_data {name}": (
                "channels_depthwise_backward_data",
                {"gradient": array(small), "weight": weight, "output": array(large)},
                {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": 0},
                whole,
                1 / stride**2,
                1,
                flops,
            ),
            f"depthwise_backward_weights {name}": (
                "channels_depthwise_backward_weights",
                {
                    "gradient": array(small),
                    "input": array(large),
                    "output": np.zeros((1, m.channels, kernel**2), np.float32),
                },
                {**small.attributes("gradient"), **large.attributes("in"), **window, "accumulate": 0},
                (*box, 0),
                1 + 1 / stride**2,
                0,
                flops,
            ),
        }
        if halo:
            continue
        input_vectors = {f"input_{name}": vector for name, vector in vectors.items()}
        between = {**small.attributes("out"), **large.attributes("in"), **window, "input_activation": 1}
        result |= {
            f"depthwise, norm before {name}": (
                "channels_norm_depthwise",
                {
                    "input": array(large),
                    "weight": weight,
                    "output": array(small),
                    "statistics": np.zeros(statistics_shape(1, m.pitch), np.float32),
                    **{n: input_vectors[n] for n in ("input_scale", "input_shift")},
                },
                {**between, "activation": 0},
                (*box, 0),
                1,
                1 / stride**2,
                flops,
            ),
            f"depthwise_backward, both norms {name}": (
                "channels_depthwise_norm_backward",
                {
                    "gradient": array(small),
                    "result": array(small),
                    "coefficients": np.ones((3, m.pitch), np.float32),
                    "weight": weight,
                    "input": array(large),
                    "output": array(large),
                    "weight_partials": np.zeros((1, m.channels, kernel**2), np.float32),
                    "statistics": np.zeros((1, 2, m.pitch), np.float32),
                    **picked("scale", "shift", "mean"),
                    **input_vectors,
                },
                {**between, "activation": 1, "gradient_halo": 0, "output_halo": 0},
                (0, m.batch, 0, m.channels, 0),
                1 + 2 / stride**2,
                1,
                2 * flops,
            ),
        }
    size = m.batch * m.height * m.width * m.channels
    flat = {"num_partials": 1, "partial_stride": size, "row_length": size, "row_stride": size, "row_offset": 0}
    flat |= {"num_rates": 1, "weight_decay": 1e-4}
    state = {n: np.ones(size, np.float32) for n in ("partials", "gradient", "parameter", "first", "second")}
    shared = {n: state[n] for n in ("partials", "gradient", "parameter")}
    shared["learning_rates"] = np.full(1, 1e-6, np.float32)
    result["optimizer_sgd"] = (
        "optimizer_sgd",
        {**shared, "velocity": state["first"]},
        {**flat, "momentum": 0.9},
        (0, size),
        3,
        3,
        0,
    )
    result["optimizer_adam"] = (
        "optimizer_adam",
        {**shared, "first_moment": state["first"], "second_moment": state["second"]},
        {**flat, "decoupled": 0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        (0, size),
        4,
        4,
        0,
    )
    return result


def measure(m: ChannelsMap, case: tuple, seconds: float, instruction_set=None, cpu=None) -> dict:
    """Fastest time of a kernel on a map, and the bandwidth of plain loops that read and write as much.

    Returns
    -------
    dict
        "time_s", "bytes", "bytes_per_s", "bandwidth_bytes_per_s", "flops".
    """
    kernel, operands, attributes, bounds, read, written, flops = case
    builder = PlanBuilder("one kernel")
    for name, array in operands.items():
        builder.buffer(name, array.shape, array.dtype.name, role="dataset")
    accesses = tuple(Access(UPDATE, name) for name in operands)
    builder.loop("loop", kernel, {n: n for n in operands}, [Block(bounds, accesses)], attributes=attributes)
    builder.scratch(1 << 23)
    bound = bind(builder.build(), instruction_set=instruction_set)
    for name, array in operands.items():
        bound.arrays[name][...] = array
    map_bytes = 4 * m.batch * m.height * m.width * m.channels
    moved, copied = (read + written) * map_bytes, min(read, written) * map_bytes
    streams = {"copy": 2 * copied, "read": read * map_bytes - copied, "fill": written * map_bytes - copied}
    cpus = None if cpu is None else [cpu]
    rates, times = {name: [] for name, share in streams.items() if share}, []
    with SerialExecutor(1, cpus=cpus) as executor:
        executor.prepare(bound)
        executor.run(2)
        start = time.perf_counter()
        executor.run(1)
        count = max(1, round(1e-3 / (time.perf_counter() - start)))
        stop = start + seconds
        while time.perf_counter() < stop or len(times) < 5:
            if len(times) % 20 == 0 and len(times) < 100:
                for name, values in rates.items():
                    values.append(measure_bandwidth(1, 0.01, int(moved), cpus, name))
            start = time.perf_counter()
            executor.run(count)
            times.append((time.perf_counter() - start) / count)
    best = min(times)
    return {
        "time_s": best,
        "bytes": moved,
        "bytes_per_s": moved / best,
        "bandwidth_bytes_per_s": moved / sum(streams[name] / max(values) for name, values in rates.items()),
        "flops": flops,
    }


def parse_map(text: str) -> ChannelsMap:
    """From batch x height x width x channels, such as 1x32x32x64."""
    try:
        batch, height, width, channels = (int(n) for n in text.split("x"))
    except ValueError:
        raise UsageError(
            f"a map must be given as batch x height x width x channels (1x32x32x64), got {text!r}"
        ) from None
    if min(batch, height, width) < 1 or channels < 16 or channels % 16:
        raise UsageError(f"a map must have positive sizes and a multiple of 16 channels, got {text!r}")
    return ChannelsMap("map", batch, channels, height, width)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m forktask.experiments.machine.layer_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="parts of names; default: all")
    parser.add_argument("--maps", nargs="+", default=list(DEFAULT_MAPS), metavar="BxHxWxC")
    parser.add_argument("--instruction-set")
    parser.add_argument("--cpu", type=int, help="logical CPU to pin to")
    parser.add_argument("--seconds", type=float, default=0.05, help="time for each kernel and map")
    arguments = parser.parse_args(argv)
    try:
        peak = measure_peak_flops(0.1, arguments.instruction_set, arguments.cpu)["flops_per_s"]
        print(f"peak {peak / 1e9:.0f} GFLOP/s")
        for text in arguments.maps:
            m = parse_map(text)
            print(
                f"{text:36s} {'us':>9s} {'GB/s':>7s} {'loops':>7s} {'of it':>6s} {'GFLOP/s':>8s} {'of peak':>8s}"
                f" {'of limit':>8s}"
            )
            for name, case in cases(m).items():
                if arguments.kernels and not any(part in name for part in arguments.kernels):
                    continue
                row = measure(m, case, arguments.seconds, arguments.instruction_set, arguments.cpu)
                rate, bandwidth = row["bytes_per_s"], row["bandwidth_bytes_per_s"]
                line = f"{name:36s} {row['time_s'] * 1e6:9.1f} {rate / 1e9:7.1f} {bandwidth / 1e9:7.1f}"
                speed = row["flops"] / row["time_s"]
                line += f" {rate / bandwidth:6.0%}"
                line += f" {speed / 1e9:8.1f} {speed / peak:8.0%}" if speed else f"{'':18s}"
                print(f"{line} {max(rate / bandwidth, speed / peak):8.0%}", flush=True)
    except UsageError as error:
        print(f"layer_bench: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
