"""What bounds a step: bytes that must move, floors by phase, and the sentences and figures about them."""

import math

import numpy as np
import pytest
from experiments.synthetic_results import PEAK, sweep_of, synthetic_rows
from programs import run_python

from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.experiments.analysis.roofline import roofline_table, unexplained
from forktask.experiments.analysis.speeds import main_plan
from forktask.experiments.bounds.bounds import machine_rates, roofline_floor


def test_least_bytes_count_each_region_once():
    """Check a linear layer cut by tokens: weights count once in the loop, and once in each block's own bytes."""
    plan = lower("gpt2_tiny", batch=2, sequence=32, granularity="images=1,rows=8", num_batches=1)
    loops = {loop.name: loop for loop in plan.loops}
    linear = loops["h.0.mlp.c_proj"]
    assert linear.num_blocks == 8
    rows, wide, narrow = 64, 256, 64
    # Input, weights and bias; the sum takes the residual, which has the size of the output.
    assert plan.least_bytes(linear) == 4 * (rows * wide + wide * narrow + narrow + 2 * rows * narrow)
    assert linear.bytes > plan.least_bytes(linear) + 6 * 4 * wide * narrow
    # The rows of the table that tokens name are few; the table is declared whole.
    assert plan.least_bytes(loops["wte"]) == loops["wte"].bytes


def test_an_update_reads_and_writes():
    """Check that what a block updates moves twice."""
    plan = lower("gpt2_tiny", batch=2, sequence=32, optimizer="adamw", num_batches=1)
    update = next(loop for loop in plan.loops if loop.name == "h.0.mlp.c_fc.weight.update")
    values = math.prod(plan.buffers["h.0.mlp.c_fc.weight"].shape)
    # Parameter and two moments are read and written, the gradient is read.
    assert plan.least_bytes(update) == pytest.approx(7 * 4 * values, rel=0.01)


@pytest.mark.parametrize("network", ["gpt2_tiny", "cifar10_cnn", "mobilenet_v2"])
def test_every_loop_has_operations_or_bytes(network):
    """Check that no loop is free, so that no kernel is without a roof; and that products have operations."""
    assert network in network_names()
    options = {"optimizer": "adamw", "clip_norm": 1.0} if get_network(network).tokens else {}
    plan = lower(network, batch=4, num_batches=1, **options)
    for loop in plan.loops:
        assert 0 < plan.least_bytes(loop) <= loop.bytes, loop
        if any(word in loop.kernel for word in ("linear", "attention", "conv_forward")):
            assert loop.flops > 0, loop


def test_least_bytes_are_the_same_in_every_process():
    """Check that no order of a set is in a sum: nodes of a cluster compare what they have measured by these."""
    program = (
        "from forktask.experiments.sweep.expected import plan_row; plan = dict(network='starpu_cnn', batch=2)\n"
        "from forktask.cython_src.lowering.options import PlanOptions\n"
        "print([loop.least_bytes for loop in plan_row('p', {**PlanOptions().as_dict(), **plan}).loops])"
    )
    result = {run_python(program, variables={"PYTHONHASHSEED": seed}, check=True).stdout for seed in "123"}
    assert len(result) == 1


def test_threads_that_share_memory_share_the_floor():
    """Check that a loop bound by memory gains nothing from a second thread which brings no bandwidth."""
    machine = (1e11, {"1": 6e10, "2": 6e10})
    update, product = (1e6, 6e8), (1e10, 6e7)
    one, two = (roofline_floor([update, product], *machine_rates(*machine, n)) for n in (1, 2))
    assert one == pytest.approx(0.01 + 0.1) and two == pytest.approx(0.01 + 0.05)
    assert machine_rates(None, {"1": 6e10, "2": 5e10}, 2)[1] == 6e10
    assert np.isnan(machine_rates(*machine, 4)[1]) and np.isnan(machine_rates(None, {}, 1)).all()


def test_of_a_step_far_above_its_floor_the_kernels_are_named():
    """Check the kernel that is named first, and its share."""
    rows = synthetic_rows(repeats=4)
    for row in rows:
        if row["kind"] == "machine":
            row["peak_flops_per_s_1thread"] = 10 * PEAK
            row["bandwidth_bytes_per_s"] = {k: 10 * v for k, v in row["bandwidth_bytes_per_s"].items()}
    sweep = sweep_of(rows)
    plan_id = main_plan(sweep)
    table = roofline_table(sweep, plan_id)
    over = (table["time_s"] - table["floor_s"]).clip(lower=0)
    (text,) = unexplained(sweep, plan_id)
    worst = table.loc[over.idxmax()]
    assert f"{worst['kernel']}, {worst['phase']} ({over.max() / over.sum():.0%}, " in text
