"""`forktask kernels`: rates and shares of the limit."""

import json

import numpy as np
import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.model import Buffer
from forktask.experiments.commands.main import main
from forktask.experiments.machine.kernel_timing import Limits
from forktask.experiments.machine.plain_loops import _runs, with_plain_loops
from forktask.experiments.machine.step_kernels import format_step
from forktask.forkjoin.executor import SerialExecutor


def run(capsys, *arguments):
    assert main(["kernels", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_loop_of_a_step_has_its_rates(capsys):
    """Check a row for each loop of the plan, rates that fit times, and the step's ratio to its floor."""
    result = run(capsys, "--network", "lenet5", "--batch", "4", "--seconds", "0.05", "--conv", "direct")
    assert result["conv"] == "direct" and "conv direct" in result["title"]
    assert any("conv" in row["name"] for row in result["rows"])
    for row in result["rows"]:
        assert 0 < row["time_s"] <= row["median_time_s"] * 1.01
        assert row["flops_per_s"] == pytest.approx(row["flops"] / row["time_s"])
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
        at_peak = row["flops"] / result["peak_flops_per_s"]
        assert row["share_of_limit"] >= at_peak / row["time_s"] * 0.999
    assert result["ratio"] == pytest.approx(result["step_time_s"] / result["floor_s"])
    assert sum(row["flops"] for row in result["rows"]) == pytest.approx(result["floor_s"] * result["peak_flops_per_s"])


def test_the_table_of_a_step(capsys):
    """Check the printed form: a line for each loop, the limit, and the floor."""
    assert main(["kernels", "--network", "lenet5", "--batch", "1", "--seconds", "0", "--phase", "forward"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "of limit" in lines[1] and "times the floor" in lines[-2] and "times that floor" in lines[-1]


def test_every_kernel_of_tokens_has_a_row_beside_its_bounds(capsys):
    """Check kernels of a step of GPT-2 summed over their loops: operations, bytes once, and both limits."""
    options = ["--network", "gpt2_tiny", "--optimizer", "adamw", "--clip-norm", "1", "--fusion", "none"]
    result = run(capsys, *options, "--seconds", "0.05", "--batch", "2", "--sequence", "32")
    plan = lower(
        "gpt2_tiny", batch=2, sequence=32, optimizer="adamw", clip_norm=1.0, fusion="none", num_images=64, num_batches=4
    )
    rows = {row["name"]: row for row in result["kernels"]}
    assert {*rows} == {f"{loop.kernel}, {loop.phase}" for loop in plan.loops}
    wanted = (
        "linear_forward",
        "linear_backward_data",
        "linear_backward_weights",
        "attention_forward",
        "layernorm_forward",
    )
    wanted += ("layernorm_backward", "embedding_forward", "optimizer_adam", "vocabulary", "gelu", "attention_backward")
    for kernel in wanted:
        assert any(name.startswith(kernel) or kernel in name for name in rows), kernel
    for name, row in rows.items():
        loops = [loop for loop in plan.loops if f"{loop.kernel}, {loop.phase}" == name]
        assert row["flops"] == pytest.approx(sum(loop.flops for loop in loops))
        assert row["bytes"] == pytest.approx(sum(map(plan.least_bytes, loops)))
        assert row["plain"] == "step" or name.split(",")[0] not in ("optimizer_adam", "layernorm_forward")
        limit_s = max(row["flops"] / result["peak_flops_per_s"], row["bytes"] / row["bandwidth_bytes_per_s"])
        assert row["share_of_limit"] == pytest.approx(limit_s / row["time_s"])
    assert sum(row["time_s"] for row in rows.values()) == pytest.approx(sum(row["time_s"] for row in result["rows"]))
    assert result["roofline_floor_s"] >= result["floor_s"] * 0.999
    assert result["roofline_ratio"] == pytest.approx(result["step_time_s"] / result["roofline_floor_s"])
    text = format_step(result, "kernel").splitlines()
    above = {name for name, row in rows.items() if row["share_of_limit"] > 1.03}
    assert len(rows) + 4 <= len(text) and "linear_forward, forward" in "\n".join(text)
    assert {name for name in above if name in " ".join(text[len(rows) + 4 :])} == above


def test_plain_loops_stand_in_for_kernels_bound_by_memory():
    """Check which loops are replaced, what their blocks read and write, and that updates leave data as they were."""
    plan = lower("gpt2_tiny", batch=2, sequence=16, optimizer="adamw")
    names = {loop.name for loop in plan.loops if not loop.kernel.startswith(("linear", "attention"))}
    plain, replaced = with_plain_loops(plan, names)
    kernels = {plan.loops[k].kernel for k in replaced}
    assert {"layernorm_forward", "layernorm_backward", "optimizer_adam"} <= kernels
    assert not kernels & {"linear_forward", "embedding_forward"}
    bound = bind(plain)
    initialise(bound)
    arrays = bound.arrays
    before = {name: arrays[name].copy() for name in plan.attributes["parameters"]}
    with SerialExecutor(1) as executor:
        executor.prepare(bound)
        executor.run(1)
    assert np.ptp(arrays["h.0.attn.sum"]) > 0
    np.testing.assert_array_equal(arrays["h.0.ln_2"], arrays["h.0.attn.sum"])
    for name, values in before.items():
        np.testing.assert_array_equal(arrays[name], values, err_msg=name)


def test_regions_become_rows():
    """Check boxes of a buffer against the elements that they hold: whole, in the middle, in four dimensions."""
    for dtype in ("float32", "int64"):
        buffer = Buffer("x", (3, 4, 5, 6), dtype)
        words = np.arange(3 * 4 * 5 * 6 * np.dtype(dtype).itemsize // 4).reshape(3, 4, 5, -1)
        for box in ((), ((1, 3),), ((0, 3), (1, 2)), ((1, 2), (0, 4), (2, 4)), ((0, 2), (1, 4), (1, 3), (2, 5))):
            inside = words[tuple(slice(*r) for r in box[:3])]
            if len(box) == 4:
                per = np.dtype(dtype).itemsize // 4
                inside = inside[..., box[3][0] * per : box[3][1] * per]
            found = [
                start + row * stride + i
                for start, rows, count, stride in _runs(buffer, box)
                for row in range(rows)
                for i in range(count)
            ]
            assert found == inside.ravel().tolist()


def test_plain_loops_copy_what_is_written_and_read_the_rest(monkeypatch):
    """Check the time of plain loops against rates that are known."""
    speeds = {"copy": 100.0, "read": 50.0, "fill": 25.0}
    limits = Limits.__new__(Limits)
    limits._streams = {}
    asked = []
    monkeypatch.setattr(Limits, "stream", lambda self, name, size: asked.append((name, size)) or speeds[name])
    assert limits.plain_time(300.0, 100.0) == pytest.approx(200 / 100 + 200 / 50)
    assert limits.plain_time(100.0, 300.0) == pytest.approx(200 / 100 + 200 / 25)
    assert limits.plain_time(0.0, 0.0) == 0 and {size for _, size in asked} == {1 << 14}
    assert len(asked) == 9  # three tries each; copies are measured once


def test_bad_arguments_are_refused(capsys):
    """Check one sentence and exit code 2."""
    assert main(["kernels", "--layout", "lane"]) == 2
    assert "'lanes'" in capsys.readouterr().err
