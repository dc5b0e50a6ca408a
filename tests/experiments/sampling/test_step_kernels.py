"""`forktask kernels`: rates and shares of the limit."""

import json

import pytest

from forktask.experiments.commands.main import main


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


def test_bad_arguments_are_refused(capsys):
    """Check one sentence and exit code 2."""
    assert main(["kernels", "--layout", "nchw8"]) == 2
    assert "'nchw'" in capsys.readouterr().err
