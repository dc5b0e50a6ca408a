"""Results folders of a plan that this version lowers, with samples and durations from formulas."""

from dataclasses import asdict

import msgspec
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.experiments.bounds.bounds import plan_bounds
from forktask.experiments.simulate.machine_model import MachineModel, Overheads
from forktask.experiments.sweep.expected import plan_row

MACHINE = MachineModel(
    name="Example CPU 9000",
    cores=2,
    peak_flops_per_s=235e9,
    bandwidth_bytes_per_s={1: 18e9, 2: 30e9},
    capacity={1: 1.0, 2: 1.96},
    last_level_cache_bytes=32e6,
    line_s=5e-8,
    wake_s=5e-6,
    spin_s=5e-5,
    overheads=Overheads(
        region_s={1: 1e-6, 2: 2e-6}, barrier_s={1: 5e-7, 2: 1e-6}, create_task_s=1e-7, replay_task_s=2e-8
    ),
)


def results_folder(
    path, *, batch=16, block_s=None, models=("serial", "forkjoin", "taskiter"), machine=MACHINE, **options
):
    """Write a folder of `cifar10_cnn`, whose blocks take `block_s(loop, block)` seconds, 20 us by default."""
    requested = {"network": "cifar10_cnn", "batch": batch, "phase": "train", "granularity": "images=4", **options}
    row = plan_row("p0", {**PlanOptions().as_dict(), **requested})
    plan = lower(**row.options)
    times = {}
    for loop in plan.loops:
        each = [block_s(loop, b) if block_s else 20e-6 for b in range(loop.num_blocks)]
        times.setdefault(loop.name, []).extend(each)
    work = sum(map(sum, times.values()))
    rows = [r for r in synthetic_rows(models=models, repeats=6) if r["kind"] in ("run", "machine", "sample", "profile")]
    for r in rows:
        if r["kind"] in ("sample", "profile"):
            r["plan_id"] = "p0"
            r["config_id"] = f"p0 {r['model']} {r['threads']}"
        if r["kind"] == "sample":
            r |= {"weights_hash": "w", "losses_hash": "l"}
            r["step_time_s"] = work / (1 if r["threads"] == 1 else 1.8) * (1 + 0.001 * r["repetition"])
        if r["kind"] == "profile":
            r |= {"block_time_s": times, "loop_time_s": {name: sum(t) for name, t in times.items()}}
            r |= {"phase_wall_s": None, "bounds": asdict(plan_bounds(plan, times))}
            r["phase_beside_s"] = {loop.phase: {} for loop in plan.loops}
    rows.insert(1, msgspec.to_builtins(row))
    folder = write_rows(path, rows)
    if machine is not None:
        (folder / "machine.toml").write_text(machine.to_toml())
    return folder, plan
