"""How fast the kernels are: GFLOP/s of each loop of a step on one core, and the step against its floor.

    python -m forktask.experiments.machine.kernel_bench --batch 1 16 64

The floor is the step's direct-convolution FLOPs at the multiply-add rate measured in the same run, before and
after. The time of a loop is the sum over its blocks of each block's fastest iteration (other programs' load
adds, never subtracts); "median" is the loop's median. The step time is measured without the event log,
fastest and median window.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np

from ...cython_src.binding.bind import bind
from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import initialise, lower
from ...forkjoin.executor import SerialExecutor
from .machine_peaks import measure_peak_flops

WINDOW_S = 2e-3  # short, so that some window lies between two interruptions on a machine that is not quiet


def measure_kernels(
    batch: int,
    seconds: float,
    instruction_set: str | None = None,
    cpu: int | None = None,
    network: str = "cifar10_cnn",
    **options,
) -> dict:
    """Times of all loops of one plan, and of the step.

    Parameters
    ----------
    batch : int
    seconds : float
        Time to spend, apart from set-up.
    instruction_set, cpu
        As in `bind` and `SerialExecutor`.
    options
        Of `lower`.

    Returns
    -------
    dict
        "loops": list of {"name", "kernel", "flops", "time_s", "median_time_s"}; "peak_flops_per_s";
        "step_time_s", "median_step_time_s"; "floor_s"; "ratio" (fastest step to floor) and "loop_ratio" (sum
        of loops to floor).
    """
    plan = lower(network, batch=batch, num_images=max(batch, 64), num_batches=4, **options)
    bound = bind(plan, instruction_set=instruction_set)
    initialise(bound, seed=1)
    rng = np.random.default_rng(1)
    arrays = bound.arrays
    arrays["dataset.images"][...] = rng.standard_normal(arrays["dataset.images"].shape)
    arrays["dataset.labels"][...] = rng.integers(0, plan.attributes["num_classes"], arrays["dataset.labels"].shape)
    arrays["batch_order"][...] = rng.integers(0, len(arrays["dataset.labels"]), arrays["batch_order"].shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = 1e-4
    cpus = None if cpu is None else [cpu]
    peaks = [_peak(instruction_set, cpu)]
    with SerialExecutor(1, cpus=cpus) as executor:
        executor.prepare(bound)
        executor.run(2)
        start = time.perf_counter()
        executor.run(1)
        once = time.perf_counter() - start
        count = max(1, round(WINDOW_S / once))
        windows = []
        stop = start + 0.5 * seconds
        while start < stop or len(windows) < 5:
            start = time.perf_counter()
            executor.run(count)
            windows.append((time.perf_counter() - start) / count)
    peaks.append(_peak(instruction_set, cpu))
    iterations = max(3, round(0.4 * seconds / once))
    with SerialExecutor(1, cpus=cpus, event_capacity=iterations * plan.num_tasks) as executor:
        executor.prepare(bound)
        executor.run(iterations)
        events = executor.workers.events()
    peaks.append(_peak(instruction_set, cpu))
    durations = np.zeros((iterations, plan.num_tasks))
    durations[events["iteration"], events["task"]] = (events["stop_ns"] - events["start_ns"]) * 1e-9
    loops = []
    for loop in plan.loops:
        of_loop = durations[:, loop.first_task : loop.first_task + loop.num_blocks]
        loops.append(
            {
                "name": loop.name,
                "kernel": loop.kernel,
                "flops": loop.flops,
                "time_s": float(of_loop.min(axis=0).sum()),
                "median_time_s": float(np.median(of_loop.sum(axis=1))),
            }
        )
    peak = max(peaks)
    floor = plan.flops / peak
    return {
        "batch": batch,
        "layout": plan.attributes["layout"],
        "num_tasks": plan.num_tasks,
        "instruction_set": bound.instruction_set,
        "peak_flops_per_s": peak,
        "loops": loops,
        "floor_s": floor,
        "step_time_s": min(windows),
        "median_step_time_s": statistics.median(windows),
        "ratio": min(windows) / floor,
        "loop_ratio": sum(loop["time_s"] for loop in loops) / floor,
    }


def _peak(instruction_set: str | None, cpu: int | None) -> float:
    return measure_peak_flops(0.06, instruction_set, cpu)["flops_per_s"]


def format_table(result: dict) -> str:
    """The result of `measure_kernels` for people."""
    peak = result["peak_flops_per_s"]
    total = sum(loop["time_s"] for loop in result["loops"])
    lines = [
        f"batch {result['batch']}, layout {result['layout']}, {result['instruction_set']}, "
        f"{result['num_tasks']} blocks, one core, peak {peak / 1e9:.1f} GFLOP/s",
        f"{'loop':26s} {'us':>9s} {'median':>9s} {'share':>6s} {'GFLOP/s':>8s} {'of peak':>8s}",
    ]
    for loop in result["loops"]:
        rate = loop["flops"] / loop["time_s"] if loop["time_s"] else 0.0
        speed = f"{rate / 1e9:8.1f} {rate / peak:8.1%}" if loop["flops"] else f"{'':8s} {'':8s}"
        lines.append(
            f"{loop['name']:26s} {loop['time_s'] * 1e6:9.1f} {loop['median_time_s'] * 1e6:9.1f} "
            f"{loop['time_s'] / total:6.1%} {speed}"
        )
    lines.append(
        f"step {result['step_time_s'] * 1e3:.3f} ms (median {result['median_step_time_s'] * 1e3:.3f}), floor "
        f"{result['floor_s'] * 1e3:.3f} ms: {result['ratio']:.2f} times the floor; "
        f"loops alone {result['loop_ratio']:.2f}"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m forktask.experiments.machine.kernel_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--network", default="cifar10_cnn")
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--phase", default="train")
    parser.add_argument("--granularity", default="auto")
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--conv", default="auto")
    parser.add_argument("--weight-gradients", default="partial")
    parser.add_argument("--no-fusion", action="store_true", help="convolution, ReLU and pooling in a loop each")
    parser.add_argument("--instruction-set")
    parser.add_argument("--cpu", type=int, help="logical CPU to pin to")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each batch")
    parser.add_argument("--brief", action="store_true", help="only the last line of each batch")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    try:
        for batch in arguments.batch:
            result = measure_kernels(
                batch,
                arguments.seconds,
                arguments.instruction_set,
                arguments.cpu,
                arguments.network,
                phase=arguments.phase,
                granularity=arguments.granularity,
                layout=arguments.layout,
                conv=arguments.conv,
                fusion=not arguments.no_fusion,
                weight_gradients=arguments.weight_gradients,
            )
            if arguments.json:
                print(json.dumps(result))
                continue
            lines = format_table(result).splitlines()
            print("\n".join([lines[0], lines[-1]] if arguments.brief else lines), end="\n\n")
    except UsageError as error:
        print(f"kernel_bench: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
