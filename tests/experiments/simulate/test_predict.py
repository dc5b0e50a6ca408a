"""Predictions of a results folder: table, errors, figure, command, and machine files."""

import json

import numpy as np
import pytest
from experiments.simulate.folders import MACHINE, results_folder

from forktask import simulate
from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.limits import bound_table
from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import main
from forktask.experiments.simulate import predict
from forktask.experiments.simulate.machine_model import continued, extrapolated, machine_of, read_machine, saturated


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return results_folder(tmp_path_factory.mktemp("results"))[0]


def test_predictions_stand_beside_what_was_measured(folder):
    """Check one thread against the serial time, errors, speedups below their bounds, and rows far beyond."""
    sweep = load(folder)
    table = predict.prediction_table(sweep, "p0", [1, 2, 8, 16])
    serial = sweep.times.time(("p0", "serial", 1)).value
    assert predict.subject_of(sweep, "p0", predict.machine_of_sweep(sweep)).seconds.sum() == pytest.approx(serial)
    one = table[(table["model"] == "taskiter") & (table["threads"] == 1)].iloc[0]
    assert one["step_s"] == pytest.approx(serial, rel=0.01)
    two = table[table["threads"] == 2]
    assert np.allclose(two["error"], two["step_s"] / two["measured_s"] - 1)
    assert table.loc[table["threads"] > 2, "measured_s"].isna().all()
    assert table["far"].tolist() == (table["threads"] > 8).tolist()
    bounds = predict.simulated_bounds(sweep, "p0", [1, 2, 8, 16])
    for model, bound in (("forkjoin", "forkjoin"), ("taskiter", "taskiter")):
        assert (table.loc[table["model"] == model, "speedup"].to_numpy() <= bounds[f"{bound}_speedup"] * 1.001).all()
    measured = bound_table(sweep).set_index("threads").loc[[1, 2]]
    here = bounds.set_index("threads").loc[[1, 2]]
    assert np.allclose(here["forkjoin_s"], measured["forkjoin_s"])  # one estimator for both
    assert "(2): median" in predict.error_text(table) and table["usable"].all()
    assert predict.error_text(table.assign(usable=False)).startswith("Nothing usable was measured")
    assert predict.thread_counts(sweep, "p0") == [1, 2, 4, 8]


def test_the_command_prints_a_table_and_draws_a_figure(folder, tmp_path, capsys):
    """Check text, JSON and figure of `forktask simulate`, on this machine and on another."""
    out = tmp_path / "figure.svg"
    assert main(["simulate", str(folder), "--threads", "1,2,64", "--file", str(out)]) == 0
    text = capsys.readouterr().out
    assert "far beyond what was measured" in text and "64*" in text and "(2): median" in text
    assert out.read_text().startswith("<?xml") and "thin line" in out.with_suffix(".txt").read_text()
    other = tmp_path / "epyc64.toml"
    other.write_text(
        'name = "64 cores"\ncores = 64\npeak_flops_per_s = 1e11\nline_s = 1e-7\n'
        "bandwidth_bytes_per_s = { 1 = 2e10, 64 = 3e11 }\n"
    )
    arguments = ["--machine", str(other), "--models", "taskiter", "--threads", "64", "--json", "--file", str(out)]
    assert main(["simulate", str(folder), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["machine"] == "64 cores"
    assert [(r["model"], r["threads"], r["measured_s"], r["far"]) for r in result["rows"]] == [
        ("taskiter", 64, None, False)
    ]


def test_a_slower_transfer_between_cores_lengthens_the_step(folder, tmp_path, capsys):
    """Check `forktask simulate --machine FILE` with files that differ in the transfer rate: on two threads the step
    grows, on one thread, where nothing moves, it stays."""
    steps = {}
    for rate in (0.0, 1e10, 1e8):
        file = tmp_path / "m.toml"
        file.write_text(
            "cores = 2\npeak_flops_per_s = 235e9\nline_s = 1e-8\nbandwidth_bytes_per_s = { 1 = 2e10, 2 = 4e10 }\n"
            f"last_level_cache_bytes = 3.2e7\ntransfer_bytes_per_s = {rate}\n"
        )
        arguments = ["--machine", str(file), "--models", "taskiter", "--threads", "1,2", "--json"]
        assert main(["simulate", str(folder), *arguments, "--file", str(tmp_path / "f.svg")]) == 0
        for row in json.loads(capsys.readouterr().out)["rows"]:
            steps.setdefault(row["threads"], []).append(row["step_s"])
    assert len(set(steps[1])) == 1
    assert steps[2][0] < steps[2][1] < steps[2][2]


def test_a_folder_without_the_machine_gets_it_where_it_was_measured(tmp_path):
    """Check that another machine's latencies are not measured in place of the folder's."""
    folder, _ = results_folder(tmp_path / "r", machine=None)
    with pytest.raises(UsageError, match=r"another machine \(.{4,200} in place of .{1,80}\), so"):
        simulate(folder)


def test_machine_files(tmp_path):
    """Check that a file reads as it was written, and that wrong ones are refused with the key at fault."""
    path = tmp_path / "m.toml"
    path.write_text(MACHINE.to_toml())
    assert read_machine(str(path)).to_toml() == MACHINE.to_toml()
    least = {"cores": 4, "peak_flops_per_s": 1e9, "bandwidth_bytes_per_s": {"1": 1e9}, "line_s": 1e-7}
    for wrong, words in (
        ({"cores": 0}, "cores"),
        ({"line_s": "fast"}, "line_s"),
        ({"colour": 1}, "colour"),
        ({"overheads": {"block": 1}}, "block"),
        ({"bandwidth_bytes_per_s": {"0": 1e9}}, "bandwidth_bytes_per_s"),
        ({"between_nodes": {"0": {"0": 1e9}, "1": {"0": 1e9}}}, "between_nodes"),
        ({"memory_policy": "near"}, "memory_policy"),
    ):
        with pytest.raises(UsageError, match=words):
            machine_of({**least, **wrong}, "file")
    with pytest.raises(UsageError, match="must say line_s"):
        machine_of({k: v for k, v in least.items() if k != "line_s"}, "file")
    for content in ("cores = ", None):
        bad = tmp_path / ("bad.toml" if content else "none.toml")
        if content:
            bad.write_text(content)
        with pytest.raises(UsageError, match="machine file"):
            read_machine(str(bad))


def test_curves_go_on_beyond_their_last_point():
    """Check proportional continuation of what threads bring, and one transfer a thread of what they cost."""
    assert continued({1: 10.0, 4: 20.0}, np.array([1, 2, 4, 8])).tolist() == [10.0, pytest.approx(40 / 3), 20.0, 40.0]
    assert extrapolated({1: 1.0, 2: 3.0}, 2, 0.5) == 3.0
    assert extrapolated({1: 1.0, 2: 3.0}, 6, 0.5) == 5.0
    assert extrapolated({}, 6, 0.5) == 0.0
    assert extrapolated({1: 1.0, 2: 3.0}, 16, 0.5, "tree") == 3.0 + 2 * 3 * 0.5


def test_bandwidth_saturates_as_its_last_point_says():
    """Check the formula between points and beyond, its limit, and sixteen threads of a machine whose
    bandwidth on one and two threads is known (docs/guide/simulate.md)."""
    curve = {1: 26.3, 2: 46.8}
    assert saturated(curve, np.array([1, 2])).tolist() == [26.3, 46.8]
    sixteen, many = saturated(curve, np.array([16, 10_000]))
    assert sixteen == pytest.approx(147, abs=1) and many < 26.3 / (2 * 26.3 / 46.8 - 1)
    assert saturated({1: 10.0, 2: 20.0}, np.array([8])).tolist() == [80.0]
    assert saturated({1: 10.0, 2: 25.0}, np.array([8])).tolist() == [100.0]
    assert saturated({4: 20.0}, np.array([8])).tolist() == [40.0]
    assert saturated({1: 10.0}, np.array([8])).tolist() == [80.0]
