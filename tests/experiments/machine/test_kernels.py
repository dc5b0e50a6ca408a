"""`forktask kernels`: rates and shares of the limit."""

import json

import pytest

from forktask.cython_src.lowering.lower import lower
from forktask.experiments.commands.main import main
from forktask.experiments.machine.step_kernels import format_step


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
        limit_s = max(row["flops"] / result["peak_flops_per_s"], row["bytes"] / row["bandwidth_bytes_per_s"])
        assert row["share_of_limit"] == pytest.approx(limit_s / row["time_s"])
    assert sum(row["time_s"] for row in rows.values()) == pytest.approx(sum(row["time_s"] for row in result["rows"]))
    assert result["roofline_floor_s"] >= result["floor_s"] * 0.999
    assert result["roofline_ratio"] == pytest.approx(result["step_time_s"] / result["roofline_floor_s"])
    text = format_step(result, "kernel").splitlines()
    assert len(rows) + 4 <= len(text) and "linear_forward, forward" in "\n".join(text)


def test_bad_arguments_are_refused(capsys):
    """Check one sentence and exit code 2."""
    assert main(["kernels", "--layout", "lane"]) == 2
    assert "'lanes'" in capsys.readouterr().err
