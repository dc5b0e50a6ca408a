"""`forktask kernels`: rates and shares of the limit, algorithms of convolutions and their errors."""

import json

import numpy as np
import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.model import Buffer
from forktask.experiments.commands.main import main
from forktask.experiments.machine.kernel_timing import Limits
from forktask.experiments.machine.map_kernels import cases, parse_map
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


def test_kernels_on_maps(capsys):
    """Check which kernels a name picks, the bytes counted, and both outputs."""
    (table,) = run(capsys, "--maps", "1x8x8x16", "--kernels", "norm_apply,max_pool 2x2", "--seconds", "0")
    rows = {row["name"]: row for row in table["rows"]}
    assert set(rows) == {"norm_apply", "norm_apply, halo", "norm_apply, residual", "max_pool 2x2"}
    assert rows["norm_apply"]["bytes"] == 2 * 4 * 8 * 8 * 16 and rows["norm_apply, residual"]["bytes"] == 3 * 4 * 1024
    assert main(["kernels", "--maps", "1x8x8x16", "--kernels", "add", "--seconds", "0"]) == 0
    assert "map 1x8x8x16" in capsys.readouterr().out


@pytest.mark.parametrize("name", cases(parse_map("1x9x7x32")))
def test_every_kernel_of_a_map_runs(name, capsys):
    """Check that each case describes its kernel as the kernel wants it, on a map with odd sides."""
    rows = run(capsys, "--maps", "1x9x7x32", "--kernels", name, "--seconds", "0")[0]["rows"]
    assert all(row["time_s"] > 0 for row in rows)


def test_convolutions_name_every_algorithm_and_the_default(capsys):
    """Check that each pass of each shape has its rows, one of them picked, with errors near float32's."""
    command = ["--network", "resnet18", "--batch", "1", "--phase", "forward", "--seconds", "0"]
    rows = run(capsys, *command, "--convolutions", "direct,winograd4")["rows"]
    shapes = {(row["pass"], row["shape"]) for row in rows}
    assert len(shapes) > 8
    for shape in shapes:
        of_shape = [row for row in rows if (row["pass"], row["shape"]) == shape]
        assert sum(row["picked"] for row in of_shape) >= 1
        assert all(row["error"] < 1e-4 for row in of_shape)
    assert {"direct", "winograd4"} <= {row["algorithm"] for row in rows}


def test_convolutions_of_images_in_the_lanes(capsys):
    """Check that each pass of the small network has a row for each form, and that no form is far from float64."""
    from forktask.cython_src.kernels.convolution.lanes_algorithms import COMPARED

    command = ["--network", "cifar10_cnn", "--batch", "16", "--seconds", "0"]
    rows = run(capsys, *command, "--convolutions", "all")["rows"]
    assert {row["pass"] for row in rows} == {"forward", "data", "weights"}
    for name in {row["layers"][0] for row in rows}:
        of_loop = {row["algorithm"]: row for row in rows if row["layers"] == [name]}
        assert set(of_loop) == {"direct", "winograd", *COMPARED}
        assert sum(row["picked"] for row in of_loop.values()) == 1
        assert all(row["error"] < (1e-4 if form == "winograd" else 1e-5) for form, row in of_loop.items())
    assert main(["kernels", *command, "--convolutions", "direct"]) == 0
    assert "conv2.data_gradient" not in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--convolutions", "fft", "--network", "resnet18"], "winograd4"),
        (["--maps", "1x8x8"], "batch x height x width x channels"),
        (["--maps", "1x8x8x16", "--kernels", "magic"], "norm_apply"),
        (["--maps", "1x8x8x16", "--convolutions"], "not allowed with"),
        (["--layout", "lane"], "did you mean 'lanes'"),
    ],
)
def test_bad_arguments_are_refused(arguments, word, capsys):
    """Check one sentence and exit code 2."""
    assert main(["kernels", *arguments]) == 2
    assert word in capsys.readouterr().err
