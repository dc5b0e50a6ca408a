"""`forktask peers`: PyTorch on the same network, batch, data and threads, interleaved with our models in one run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from ...cython_src.errors import UsageError
from ..sampling.progress import ProgressBar
from ..sweep.run import add_device

TORCH_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.peers.torch_worker")
DEFAULT_MODELS = "serial,forkjoin,forkjoin:region=persistent,taskgraph,taskiter"
COMPILE_TIME_LIMIT_S = 300.0

# Losses of random weights, after an update, and after one with momentum: a wrong gradient or update shows in these far above
# the tolerance, and rounding does not yet: later, networks with many norms drift apart by themselves. After ten steps of
# MobileNetV1 PyTorch's own two memory formats differ by 5 %, after two by 0.4 %, the other networks' by 0.005 %.
LOSS_TOLERANCES = (2e-3, 2e-3, 1e-2)
PROBABILITY_TOLERANCE = 2e-3


def add_parser(subparsers) -> None:
    """Add `peers`."""
    from .torch_worker import MODES

    parser = subparsers.add_parser(
        "peers",
        help="PyTorch's best CPU mode beside our models, interleaved in one run",
        description="Time PyTorch (each mode in processes of its own) and our execution models on the same network, "
        "data and threads, in turn, and print ratios of paired medians. Needs the extra `peers` (PyTorch).",
    )
    parser.add_argument("--network", default="cifar10_cnn", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, metavar="B", help="default: %(default)s")
    parser.add_argument("--phase", choices=("train", "forward"), default="train", help="default: %(default)s")
    add_device(parser)
    parser.add_argument(
        "--conv",
        default="auto",
        help="form of the convolutions: auto, direct, winograd, im2col, if, if_blocked, pad, pad_blocked (ours); default: %(default)s",
    )
    parser.add_argument("--models", default=DEFAULT_MODELS, metavar="M[,M...]", help="default: %(default)s")
    parser.add_argument("--modes", default=",".join(MODES), metavar="M[,M...]", help="of PyTorch; default: %(default)s")
    parser.add_argument(
        "--threads", default="cores", metavar="N[,N...]", help="default: 1,2,4,... up to the cores of this process"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="R", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=0.6, metavar="S", help="timed in each process; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON, raw samples included")
    parser.set_defaults(run=run_peers)


def run_peers(arguments: Namespace) -> int:
    """`forktask peers`."""
    from ...cython_src.lowering.lower import lower
    from ..analysis.bounds import roofline_floor
    from ..sampling.environment import available_cpus, collect, cpu_order, measure_machine
    from ..sampling.models import convolution_for, models_on, parse_model
    from ..sweep.configuration import core_counts
    from ..sweep.run import parse_numbers
    from .torch_worker import MODES

    if importlib.util.find_spec("torch") is None:
        raise UsageError("peers needs PyTorch, which is not installed; run: pip install torch")
    modes = tuple(part for part in arguments.modes.split(",") if part)
    for mode in modes:
        if mode not in MODES:
            raise UsageError(f"a PyTorch mode must be one of {', '.join(MODES)}; got {mode!r}")
    if arguments.repeats < 1 or arguments.seconds <= 0:
        raise UsageError(
            f"repeats must be at least 1 and seconds positive, got {arguments.repeats} and {arguments.seconds}"
        )
    gpu = arguments.device == "gpu"
    given = [part for part in arguments.models.split(",") if part]
    specs = [parse_model(part) for part in models_on(arguments.device, given, tuple(DEFAULT_MODELS.split(",")))]
    if gpu:
        _check_torch_gpu()
    cpus = available_cpus()
    threads = core_counts() if arguments.threads == "cores" else parse_numbers(arguments.threads, "--threads")
    if gpu and arguments.threads == "cores":
        threads = (1,)
    for count in threads:
        if not 1 <= count <= len(cpus):
            raise UsageError(f"threads must be in [1, {len(cpus)}] (the CPUs of this process), got {count}")
    options = {"network": arguments.network, "batch": arguments.batch, "phase": arguments.phase, "conv": arguments.conv}
    # What our models of this device compute; for the table, each is lowered anew where it is measured.
    plan = lower(**{**options, "conv": convolution_for(specs[0], arguments.conv)})
    environment = collect()
    machine = measure_machine(threads, environment=environment)
    contestants = [(f"torch {mode}", count) for count in threads for mode in modes]
    contestants += [
        (str(spec), count) for count in threads for spec in specs if count <= (spec.model.max_threads or count)
    ]
    samples, failures = _measure(
        contestants,
        options,
        arguments.repeats,
        arguments.seconds,
        arguments.seed,
        {count: cpu_order(count, cpus) for count in threads},
        len(cpus),
        arguments.device,
    )
    peak = machine["peak_flops_per_s_1thread"]
    if gpu:
        peak = next(
            (row["gpu"]["peak_flops_per_s"] for rows in samples.values() for row in rows.values() if row.get("gpu")),
            math.nan,
        )
    for (name, count), message in wrong_modes(samples).items():
        failures[f"{name} @ {count}"] = message
        del samples[name, count]
    floors = {"FLOP": {n: plan.flops / peak / n for n in threads}}
    if not gpu:
        loops = [{"flops": loop.flops, "bytes": loop.bytes} for loop in plan.loops]
        bandwidth = machine["bandwidth_bytes_per_s"]
        floors["roofline"] = {n: roofline_floor(loops, peak * n, bandwidth[str(n)]) for n in threads}
    result = summarise(samples, floors)
    result["convolutions"] = convolution_forms(plan, arguments.device)
    result.update(
        options,
        flops=plan.flops,
        machine=machine,
        environment=environment,
        failures=failures,
        samples={f"{name} @ {count}": values for (name, count), values in samples.items()},
    )
    print(json.dumps(result, indent=1) if arguments.json else as_text(result))
    return 0 if result["rows"] else 1


def _check_torch_gpu() -> None:
    """Raise `UsageError` unless PyTorch sees a GPU too."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            f"PyTorch must see the GPU too, and torch {torch.__version__} does not; install a CUDA build of PyTorch"
        )


def _measure(
    contestants: Sequence[tuple[str, int]],
    plan: Mapping[str, Any],
    repeats: int,
    seconds: float,
    seed: int,
    cpus: Mapping[int, list[int]],
    cores: int,
    device: str = "cpu",
) -> tuple[dict[tuple[str, int], dict[int, dict]], dict[str, str]]:
    """Each contestant once in each repetition, in random order, each time in a fresh process."""
    from ..sweep.configuration import Measure
    from ..sweep.run import SAMPLE_COMMAND, clean_environment, run_sample, sample_environment

    measure = Measure()
    generator = random.Random(seed)
    order = [(r, c) for r in range(repeats) for c in generator.sample(list(contestants), len(contestants))]
    samples: dict[tuple[str, int], dict[int, dict]] = {c: {} for c in contestants}
    failures: dict[str, str] = {}
    with ProgressBar(len(order), "measuring", sys.stderr) as bar:
        for number, (repetition, (name, count)) in enumerate(order):
            key = f"{name} @ {count}"
            bar.show(number, f"repetition {repetition + 1} of {repeats}, {key}")
            if key in failures:
                continue
            mode = name.removeprefix("torch ") if name.startswith("torch ") else None
            job = {
                "kind": "sample",
                "model": name,
                "mode": mode,
                "threads": count,
                "cpus": cpus[count],
                "plan": dict(plan),
                "seed": seed,
                "check_iterations": len(LOSS_TOLERANCES),
                "target_s": seconds,
                "warmup_s": measure.warmup_s,
                "device": device,
            }
            variables = clean_environment(os.environ, sample_environment(measure, count, 0, cores))
            row = run_sample(
                job,
                variables,
                COMPILE_TIME_LIMIT_S if mode else measure.time_limit_s,
                TORCH_COMMAND if mode else SAMPLE_COMMAND,
            )
            if "failure" in row:
                failures[key] = f"{row['failure']}: {row['message'].splitlines()[0]}"
            else:
                samples[name, count][repetition] = row
    return {c: rows for c, rows in samples.items() if rows}, failures


def convolution_forms(plan, device: str = "cpu") -> dict[str, int]:
    """How many passes of convolutions (forward, data gradient, weight gradient) are computed by which algorithm."""
    from ...cython_src.kernels.convolution.algorithms import ALGORITHMS

    forms: dict[str, int] = {}
    for loop in plan.loops:
        if loop.kernel.startswith("channels_conv_") and loop.kernel != "channels_conv_pack":
            form = ALGORITHMS[loop.attributes["algorithm"]]
            if device == "gpu" and loop.kernel == "channels_conv_backward_weights":
                form = "direct"
        elif loop.kernel.startswith("channels_depthwise"):
            form = "depthwise"
        elif loop.name in plan.attributes.get("convolutions", ()):
            form = plan.attributes["convolutions"][loop.name]
        else:
            continue
        forms[form] = forms.get(form, 0) + 1
    return forms


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Relative differences of two answers; infinite if they have different lengths or hold no number."""
    if len(first) != len(second) or not first or not all(map(math.isfinite, (*first, *second))):
        return [math.inf]
    return [abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(first, second, strict=True)]


def disagreement(first: Sequence[float], second: Sequence[float]) -> str:
    """What is wrong with the second of two answers, losses or probabilities, if the first is right; else empty."""
    allowed = LOSS_TOLERANCES if len(first) == len(LOSS_TOLERANCES) else (PROBABILITY_TOLERANCE,) * len(first)
    found = differences(first, second)
    if math.isinf(found[0]):
        return f"has {len(second)} numbers, some of them not finite, where {len(first)} are wanted"
    wrong = [(i, d, limit) for i, (d, limit) in enumerate(zip(found, allowed, strict=True)) if d > limit]
    return "differs in number {} by {:.2g}, where {:g} is allowed".format(*wrong[0]) if wrong else ""


def wrong_modes(samples: Mapping[tuple[str, int], Mapping[int, Mapping]]) -> dict[tuple[str, int], str]:
    """What is wrong with PyTorch's modes whose answers differ from those of its first mode.

    torch.compile 2.13, for one, sends no gradient through LeNet-5's pooling on a CPU: such a mode is no peer.
    """
    of_torch = {
        key: next(iter(rows.values()))["answer"] for key, rows in samples.items() if key[0].startswith("torch ")
    }
    if not of_torch:
        return {}
    (first, _), answer = next(iter(of_torch.items()))
    wrong = {key: disagreement(answer, other) for key, other in of_torch.items()}
    return {key: f"wrong answers: beside {first}'s, this mode's {text}" for key, text in wrong.items() if text}


def summarise(
    samples: Mapping[tuple[str, int], Mapping[int, Mapping]], floors_s: Mapping[str, Mapping[int, float]]
) -> dict[str, Any]:
    """Medians, multiples of the floors and, for our models, the ratio to PyTorch's fastest mode at as many threads.

    Parameters
    ----------
    samples : mapping
        Rows by contestant and threads, then repetition.
    floors_s : mapping
        Seconds a step takes at least, by name of the floor ("FLOP", "roofline") and threads.

    Raises
    ------
    UsageError
        Losses or probabilities of two contestants differ by more than rounding: then no time is reported.
    """
    from ..analysis.statistics import ratio_interval, spread

    reference_name, reference = next(
        ((key, next(iter(rows.values()))["answer"]) for key, rows in samples.items()), (None, [])
    )
    difference = 0.0
    for (name, count), rows in samples.items():
        for row in rows.values():
            if wrong := disagreement(reference, row["answer"]):
                raise UsageError(
                    f"answers must agree before times are compared, but beside {reference_name[0]}'s that of {name} on "
                    f"{count} threads {wrong}; this is a fault of the program"
                )
            difference = max(difference, *differences(reference, row["answer"]))
    times = {key: {r: row["step_time_s"] for r, row in rows.items()} for key, rows in samples.items()}
    best_torch: dict[int, tuple[str, int]] = {}
    for (name, count), values in times.items():
        if name.startswith("torch "):
            best = best_torch.get(count)
            if best is None or spread(list(values.values())).median < spread(list(times[best].values())).median:
                best_torch[count] = (name, count)
    rows = []
    for (name, count), values in times.items():
        middle = spread(list(values.values()))
        row = {
            "name": name,
            "threads": count,
            "step_time_s": middle.median,
            "iqr_s": middle.iqr,
            "samples": middle.count,
            "floors_s": {floor: of_threads[count] for floor, of_threads in floors_s.items()},
        }
        if not name.startswith("torch ") and count in best_torch:
            ratio = ratio_interval(times[best_torch[count]], values)
            row.update(peer=best_torch[count][0], speedup=ratio.value, speedup_low=ratio.low, speedup_high=ratio.high)
        rows.append(row)
    rows.sort(key=lambda row: (row["threads"], not row["name"].startswith("torch "), row["step_time_s"]))
    return {"rows": rows, "largest_difference": difference}


def as_text(result: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    environment, machine = result["environment"], result["machine"]
    floors = [*result["rows"][0]["floors_s"]] if result["rows"] else []
    lines = [
        f"{result['network']}, batch {result['batch']}, {result['phase']}, on {environment['cpu']['model']}; "
        f"peak of one core {machine['peak_flops_per_s_1thread'] / 1e9:.0f} GFLOP/s ({machine['instruction_set']})",
        "our convolutions: " + ", ".join(f"{form} in {n} passes" for form, n in result["convolutions"].items()),
        f"answers of the first steps agree within {result['largest_difference']:.1e} (relative)",
        "",
        f"{'threads':>7}  {'contestant':32} {'ms a step':>10} {'spread':>8}"
        + "".join(f" {'x ' + floor:>10}" for floor in floors)
        + "   faster than PyTorch's best mode",
    ]
    for row in result["rows"]:
        line = (
            f"{row['threads']:>7}  {row['name']:32} {row['step_time_s'] * 1e3:10.3f} {row['iqr_s'] * 1e3:8.3f}"
            + "".join(f" {row['step_time_s'] / floor_s:10.2f}" for floor_s in row["floors_s"].values())
        )
        if "speedup" in row:
            line += f"   {row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}] ({row['peer']})"
        lines.append(line)
    lines.append("")
    lines.append(
        "FLOP: floor of direct convolutions' operations / (measured peak of one core x threads); Winograd's form needs fewer "
        "and may pass it"
    )
    if "roofline" in floors:
        lines.append(
            "roofline: sum over loops of the longer of that and of their bytes / measured memory bandwidth; what stays in "
            "caches from loop to loop may pass it"
        )
    lines.append("brackets: 95 % interval of the paired ratio")
    lines.extend(f"not measured: {name}: {message}" for name, message in result["failures"].items())
    return "\n".join(lines)
