"""Rows as a run would write them, made from a formula: for tests of analysis, figures and report."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from pathlib import Path

import numpy as np

from forktask.cython_src.lowering.options import PlanOptions
from forktask.experiments.analysis.load import load, sweep_from_rows
from forktask.experiments.report.rendering import render_json, render_text
from forktask.experiments.report.sections import build
from forktask.experiments.results.rows import parse_row

LAYERS = (  # layer, phase, blocks per 16 images, GFLOP an image, relative cost
    ("load", "load", 0.0, 0.2),
    ("conv1", "forward", 2.46e-3, 1.3),
    ("pool1", "forward", 3e-5, 0.3),
    ("conv2", "forward", 4.1e-3, 1.0),
    ("pool2", "forward", 1e-5, 0.1),
    ("conv3", "forward", 1.28e-3, 1.0),
    ("pool3", "forward", 5e-6, 0.05),
    ("fc", "forward", 6.4e-6, 0.05),
    ("loss", "forward", 1e-6, 0.03),
    ("fc", "backward", 1.3e-5, 0.06),
    ("pool3", "backward", 5e-6, 0.05),
    ("conv3", "backward", 2.56e-3, 1.1),
    ("pool2", "backward", 1e-5, 0.1),
    ("conv2", "backward", 8.2e-3, 1.1),
    ("pool1", "backward", 3e-5, 0.3),
    ("conv1", "backward", 2.46e-3, 1.5),
    ("sgd", "update", 1e-6, 0.05),
)
MODELS = ("serial", "forkjoin", "forkjoin:region=persistent", "joblib", "tasks", "taskgraph", "taskiter")
PEAK = 235e9
NODE = {"host": "n0", "scheduler": "", "boot_id": ""}
# Values of fields by kind of row, for those that a test says nothing of.
CONDITIONS = {
    "interference": 0,
    "check": "shipped",
    "repetition": 0,
    "position": 0,
    "environment_id": "e0",
    "node": NODE,
    "cpus": [0],
    "variables": {"OMP_DYNAMIC": "false"},
}
PROCESS = {"instruction_set": "avx512", "pid": 1, "started": 1.0}
OF_TURNS = {
    "step_time_s": 0.001,
    "fill_time_s": 0.0,
    "short_steps": 10,
    "long_steps": 30,
    "rounds": [0, 1],
    "short_times_s": [0.01] * 2,
    "long_times_s": [0.03] * 2,
}
OF_SAMPLE = {
    **PROCESS,
    **OF_TURNS,
    "group": 0,
    "num_steps": 50,
    "warmup_lengths": [1],
    "warmup_times_s": [0.001],
    "stationary": True,
    "prepare_s": 0.002,
    "record_s": None,
    "close_s": None,
    "first_replay_s": 0.001,
    "check_iterations": 20,
    "weights_hash": "w",
    "losses_hash": "l",
    "answer": [],
    "deterministic": True,
    "conduct": {"caller_executes": True},
    "disturbance": {"pressure_some_us": 0, "steal_ticks": 0, "nonvoluntary_switches": 0, "throttled_us": 0},
    "counters": {"cycles": None, "instructions": None, "llc_misses": None, "error": "hidden"},
    "temperature_c": None,
    "energy": {"joules": None, "joules_per_step": None, "source": "", "error": "no counters"},
    "timed_wall_s": 1.0,
    "timed_cpu_s": 1.0,
    "page_faults": 0,
    "max_resident_bytes": 100_000_000,
    "libraries_bytes": 40_000_000,
    "graph_bytes": 100_000,
    "frequency_hz": 3e9,
    "libraries": [],
    "gpu": None,
}
GPU = {"name": "H", "architecture": "sm_90", "peak_flops_per_s": None, "costs_s": {}, "copies": {}}
OTHERS = {
    "run": {
        "holds": "samples",
        "run_id": "synthetic",
        "created": "2026-01-01T00:00:00Z",
        "command": "forktask compare",
        "config": {},
        "how_to_read": "",
        "environment": {"node": NODE},
        "environment_id": "e0",
    },
    "capacity": {"node": NODE},
    "rounds": {
        "node": NODE,
        **dict.fromkeys(("interference", "repetition", "group"), 0),
        "contestants": ["a"],
        "order": [[0]],
        "spin_s": [[1e-3]],
        "handover_s": [7e-8],
        "wall_s": [0.1],
        "steal_ticks": [0],
        "pressure_us": [0],
    },
    "machine": {
        "node": NODE,
        "instruction_set": "avx512",
        **dict.fromkeys(("peak_flops_per_s_1thread", "median_flops_per_s_1thread"), PEAK),
        "frequency_hz": 3e9,
        "flops_per_cycle": 64.0,
        **{
            name: {} for name in ("bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "capacity", "capacity_beside")
        },
        "disturbance": {},
        "elapsed_s": 1.0,
    },
    "plan": {
        "num_joins": 2,
        "memory_bytes": {"parameter": 60000, "activation": 9000000},
        "iteration_stride": 1,
        "deterministic": True,
        "num_parameters": 8,
    },
    "sample": {**CONDITIONS, **OF_SAMPLE},
    "profile": {
        **CONDITIONS,
        **PROCESS,
        "phase_wall_s": None,
        "phase_beside_s": {},
        "runtime_cost_s": 0.0,
        "barrier": "none",
        "iterations": 20,
        "step_time_s": 0.001,
    },
    "gpu_profile": {
        **CONDITIONS,
        **PROCESS,
        "kernels": [],
        "calls": [],
        "busy_s": 0.001,
        "loop_time_s": {},
        "copies": {},
        "runtime_cost_s": None,
        "step_time_s": 0.001,
        "profiled_step_s": {},
        "iterations": 20,
        "gpu": GPU,
    },
    "failure": {**CONDITIONS, "measuring": "sample", "sample": None},
}


def completed(row: dict) -> dict:
    """A row with every field of its kind; a sample has two equal turns, unless it has its own."""
    result = {**copy.deepcopy(OTHERS.get(row["kind"], {})), **row}
    if row["kind"] == "sample" and result["rounds"] == OF_TURNS["rounds"]:
        result |= {"short_times_s": [0.1] * 2, "long_times_s": [0.1 + 20 * result["step_time_s"]] * 2}
    return result


def typed(rows):
    """Rows of the program, of dictionaries that name some fields."""
    return [parse_row(json.dumps(completed(row)).encode()) for row in rows]


def sweep_of(rows, partial: str = ""):
    """The sweep of such rows."""
    return sweep_from_rows(typed(rows), partial)


def _id(*parts) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:12]


def plan_row(batch: int = 64, images: int = 16, network: str = "cifar10_cnn", **options) -> dict:
    """A plan of the layers above, cut by images, lowered with further options."""
    blocks = -(-batch // images)
    loops = []
    for layer, phase, gflops, _ in LAYERS:
        count = 1 if phase == "update" else blocks
        flops = gflops * 1e9 * batch
        loops.append(
            {
                "name": f"{layer}.{phase}",
                "layer": layer,
                "phase": phase,
                "kernel": f"{layer}_{phase}",
                "num_blocks": count,
                "flops": flops,
                "bytes": batch * 2e5,
                "least_bytes": batch * 2e5,
            }
        )
    tasks = sum(loop["num_blocks"] for loop in loops)
    return {
        "kind": "plan",
        "plan_id": _id(network, batch, images, *sorted(options.items())),
        "options": {
            "network": network,
            **PlanOptions(batch=batch, granularity=f"images={images}").as_dict(),
            **options,
        },
        "loops": loops,
        "flops": sum(loop["flops"] for loop in loops),
        "bytes": sum(loop["bytes"] for loop in loops),
        "num_tasks": tasks,
        "num_edges": 3 * tasks,
    }


def block_times(plan: dict, inflation: float = 1.0) -> dict[str, list[float]]:
    """Seconds per block: flops at 85 % of the peak times the layer's relative cost, and 2 us a block at least."""
    times = {}
    for loop, (_, _, _, cost) in zip(plan["loops"], LAYERS, strict=True):
        n = loop["num_blocks"]
        each = (loop["flops"] / (0.85 * PEAK) * max(cost, 1) + plan["options"]["batch"] * cost * 4e-7) / n + 2e-6
        times[loop["name"]] = [inflation * each * (1 + 0.05 * (i % 3 - 1)) for i in range(n)]
    return times


def step_time(plan: dict, model: str, threads: int) -> float:
    """What the model would take, in seconds: a formula with barriers, task costs and a little inflation."""
    times = block_times(plan, 1 + 0.01 * (threads - 1) / threads)
    work = sum(map(sum, times.values()))
    joined = sum(max(sum(b) / threads, max(b)) for b in times.values())
    tasks, loops = plan["num_tasks"], len(times)
    base = model.partition(":")[0]
    longest = max(max(b) for b in times.values())
    return {
        "serial": work,
        "forkjoin": joined + loops * (0.8e-6 if "persistent" in model else 2e-6) * (1 + np.log2(threads)),
        "joblib": joined + loops * 350e-6,
        "torch": 3 * joined + loops * 20e-6,
        "tasks": max(work / threads, 4 * longest) * 1.01 + tasks * 0.4e-6,
        "taskgraph": max(work / threads, 3.5 * longest) * 1.01 + tasks * 0.1e-6,
        "taskiter": max(work / threads, 3 * longest) * 1.004 + tasks * 0.05e-6,
    }[base]


def phase_times(plan: dict, model: str, threads: int) -> dict:
    """What the log says of phases: wall times that add up to the step where each loop waits, else how they overlap."""
    inflation = 1 + 0.01 * (threads - 1) / threads
    times, walls, busy = block_times(plan, inflation), {}, {}
    waits = step_time(plan, model, threads) - sum(max(sum(b) / threads, max(b)) for b in times.values())
    for loop, blocks in zip(plan["loops"], times.values(), strict=True):
        alone = max(sum(blocks) / threads, max(blocks)) + waits / len(times)
        walls[loop["phase"]] = walls.get(loop["phase"], 0.0) + alone
        busy[loop["phase"]] = busy.get(loop["phase"], 0.0) + sum(blocks)
    overlap = {"taskgraph": 0.2, "taskiter": 0.6}.get(model.partition(":")[0], 0.0) if threads > 1 else 0.0
    beside = {"update": {"backward": overlap * busy["update"]}, "backward": {"update": overlap * busy["update"]}}
    return {
        "phase_wall_s": walls if model.startswith(("serial", "forkjoin")) else None,
        "phase_beside_s": {phase: beside.get(phase, {}) if overlap else {} for phase in walls},
    }


def _times(factor: float, found):
    """Return numbers in dictionaries times a factor."""
    return {k: _times(factor, v) for k, v in found.items()} if isinstance(found, dict) else found and factor * found


def synthetic_rows(
    models=MODELS,
    threads=(1, 2),
    batches=(64,),
    granularities=(16,),
    options=({},),
    slowdowns=(1.0,),
    repeats: int = 9,
    profiles: int = 3,
    noise: float = 0.01,
    data: str = "digits",
    seed: int = 0,
    failures: bool = False,
) -> list[dict]:
    """All rows of a run, as dictionaries. Plans lowered with options[i] take slowdowns[i] times as long."""
    rng = np.random.default_rng(seed)
    models = [*map(str, models)]
    environment = {
        "node": NODE,
        "cpu": {"model": "Example CPU 9000", "flags": ["avx512f"]},
        "topology": {"cores": max(threads)},
        "python": "3.11.2",
        "compiler": "gcc 12.2.0",
        "c_args": ["-O3"],
        "packages": {"numpy": "2.4.0"},
    }
    rows = [
        {
            "kind": "run",
            "environment": environment,
            "config": {"models": models, "threads": list(threads), "repeats": repeats, "data": data},
        },
        {
            "kind": "machine",
            "peak_flops_per_s_1thread": PEAK,
            "bandwidth_bytes_per_s": {str(p): 18e9 * min(p, 4) ** 0.8 for p in threads},
            "capacity": {str(p): p * (1 - 0.02 * (p > 1)) for p in threads},
        },
    ]
    plans, slowdown = [], {}
    for batch, images in itertools.product(batches, granularities):
        for chosen, factor in zip(options, slowdowns, strict=True):
            plans.append(plan_row(batch, images, **chosen))
            slowdown[plans[-1]["plan_id"]] = factor
    rows += plans
    points = [(plan, m, p) for plan in plans for m in models for p in threads if m != "serial" or p == 1]
    if "serial" in models and 1 not in threads:
        points += [(plan, "serial", 1) for plan in plans]

    def named(plan: dict, model: str, p: int, repetition: int) -> dict:
        config_id = _id(plan["plan_id"], model, p)
        result = {"config_id": config_id, "model": model, "threads": p, "plan_id": plan["plan_id"]}
        return result | {"repetition": repetition}

    for plan, model, p in points:
        if model in ("serial", "forkjoin", "taskgraph", "taskiter"):
            times = block_times(plan, 1 + 0.01 * (p - 1) / p)
            work = sum(map(sum, times.values()))
            longest = max(max(b) for b in times.values())
            joined = sum(max(sum(b) / p, max(b)) for b in times.values())
            floors = {"area": work / p, "forkjoin": joined, "forkjoin_static": joined}
            floors |= {"taskgraph": max(work / p, 3.5 * longest), "taskiter": max(work / p, 3 * longest)}
            for repetition in range(min(profiles, repeats)):
                slower = 1 + 0.02 * repetition  # of the whole process
                row = {
                    "kind": "profile",
                    **named(plan, model, p, repetition),
                    "block_time_s": {name: [slower * b for b in blocks] for name, blocks in times.items()},
                    "runtime_cost_s": 0.0 if model == "serial" else 1e-6 * len(plan["loops"]) * p,
                    "loop_time_s": {name: slower * sum(blocks) for name, blocks in times.items()},
                    **_times(slower, phase_times(plan, model, p)),
                    "pass_time_s": slower * step_time(plan, model, p),
                    "floors": {name: slower * floor for name, floor in floors.items()},
                    "bounds": {
                        "work_s": slower * work,
                        "span_s": slower * 3.5 * longest,
                        "cycle_mean_s": slower * 3 * longest,
                    },
                }
                rows.append(row)
    for repetition in range(repeats):
        disturbed = 1 + 0.03 * abs(rng.standard_normal())  # meets a whole block
        for position, which in enumerate(rng.permutation(len(points))):
            plan, model, p = points[which]
            step = (
                slowdown[plan["plan_id"]] * step_time(plan, model, p) * disturbed * (1 + noise * rng.standard_normal())
            )
            replayed = model.partition(":")[0] in ("taskgraph", "taskiter")
            record = 0.5e-6 * plan["num_tasks"] if replayed else None
            close = 0.2e-6 * plan["num_tasks"] if model.startswith("taskiter") else None
            rows.append(
                {
                    "kind": "sample",
                    **named(plan, model, p, repetition),
                    "position": position,
                    "step_time_s": step,
                    "fill_time_s": 0.3 * step,
                    "warmup_times_s": [1.2 * step],
                    "prepare_s": 2e-3 + (record or 0) + (close or 0),
                    "record_s": record,
                    "close_s": close,
                    "first_replay_s": 1.5 * step,
                    "weights_hash": f"w{plan['plan_id']}",
                    "losses_hash": f"l{plan['plan_id']}",
                    "disturbance": {
                        "pressure_some_us": int(rng.integers(0, 2000)),
                        "steal_ticks": 0,
                        "nonvoluntary_switches": int(rng.integers(0, 20)),
                        "throttled_us": 0,
                    },
                    "cpus": list(range(p)),
                    "pid": 1000 + position,
                }
            )
    if failures:
        rows.append(
            {
                "kind": "failure",
                "config_id": "f0",
                "model": "joblib",
                "threads": max(threads),
                "plan_id": plans[0]["plan_id"],
                "reason": "timeout",
                "message": "no answer within 60 s",
            }
        )
    return [completed(row) for row in rows]


def trace_row(plan_id: str) -> dict:
    """The row of a logged run of two threads that are busy for 0.6 of the time."""
    shares = {"useful": 0.55, "inflation": 0.05, "runtime": 0.1, "imbalance": 0.2, "barrier": 0.0, "dependence": 0.1}
    factors = {"cpu_availability": 1.0, "scheduling_efficiency": 0.9, "serialization_efficiency": 8 / 9}
    factors |= {"load_balance": 0.75, "computation_scalability": 11 / 12, "global_efficiency": 0.55}
    losses = {f"{name}_s": 1e-3 * part for name, part in {**shares, "preemption": 0.0}.items()}
    about = {"model": "taskiter", "threads": 2}
    return {
        "kind": "trace",
        **about,
        "plan_id": plan_id,
        "environment_id": "e0",
        "check": "shipped",
        "path": f"traces/{plan_id}/events/taskiter-2.npz",
        "iterations": 10,
        "overhead": 0.01,
        "overheads": [0.01],
        "lost": 0,
        "layers": [],
        "losses": {**about, "step_time_s": 1e-3, **losses, **factors, "against_serial": True},
    }


def write_rows(folder, rows, partial: str = "") -> Path:
    """Write rows as `samples.jsonl`; `partial` is put behind them without a newline."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(json.dumps(completed(row)) + "\n" for row in rows) + partial)
    return folder


def report_text(folder) -> str:
    """Return the tables of a folder, as they are printed."""
    return render_text(build(load(folder)))


def report_rows(folder) -> dict:
    """Return the rows of a folder's tables, as they are printed with `--json`."""
    return render_json(build(load(folder)))
