"""Commands with `--device gpu`: on the fake device what they measure and print, without a GPU what they say."""

import csv
import gc
import re
import sys

import pytest
from experiments.synthetic_results import (
    GPU,
    completed,
    report_rows,
    report_text,
    study_of,
    synthetic_rows,
    typed,
    write_rows,
)
from gpu.fake_gpu import measuring_command
from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu.bind import device_bytes
from forktask.experiments.analysis.gpu import gpu_table
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import main_plan
from forktask.experiments.commands import compare
from forktask.experiments.commands.main import main, make_parser
from forktask.experiments.machine.environment import collect
from forktask.experiments.machine.topology import core_counts
from forktask.experiments.metg import measure as metg_measure
from forktask.experiments.report import figures
from forktask.experiments.report.answers import answers
from forktask.experiments.report.columns import SPEED
from forktask.experiments.report.figures import overlay
from forktask.experiments.report.files import write_report
from forktask.experiments.results.rows import FailureRow, GpuProfileRow, ProfileRow, SampleRow
from forktask.experiments.sampling.generation import Contestant, Generation, measure_generation
from forktask.experiments.sampling.gpu_profile import format_profile, measure_gpu_profile
from forktask.experiments.sampling.models import DEFAULT_GPU_MODELS, MODELS, make_executor, models_on, parse_model
from forktask.experiments.sampling.subject import build as build_subject
from forktask.experiments.studies.configuration import find_study
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure, find_configuration
from forktask.experiments.sweep.sweep import Sweep
from forktask.experiments.training import trainer
from forktask.experiments.training.gpu_sampling import GpuSampler

PEERS = pytest.param("peers --device gpu", marks=pytest.mark.torch)


@pytest.fixture
def fake_gpu(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr(gpu_device, "default_gpu", lambda: device)
    monkeypatch.setattr(metg_measure, "default_gpu", lambda: device)
    monkeypatch.setattr(gpu_device, "count_gpus", lambda: 1)
    return device


@pytest.fixture
def no_gpu(monkeypatch):
    def refuse():
        raise UsageError(gpu_device.NO_GPU)

    monkeypatch.setattr(gpu_device, "count_gpus", refuse)


@pytest.mark.parametrize(
    "command",
    [
        "compare --device gpu",
        "compare --models serial,gpu_taskiter",
        "train --device gpu",
        "metg --device gpu",
        "kernels --device gpu",
        "run gpu_batch",
        "study cpu_gpu_batch --quick",
        PEERS,
    ],
)
def test_without_a_gpu_one_sentence_and_code_2(command, no_gpu, capsys, tmp_path):
    """Check that each command says that there is no GPU and leaves nothing behind."""
    out = ["--out", str(tmp_path / "out")] if command.split()[0] not in ("kernels", "peers") else []
    assert main([*command.split(), *out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forktask: error: this machine has no GPU") and error.count("\n") == 1
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("command", ["run gpu_batch", "run hetero", "study cpu_gpu_batch"])
def test_the_processors_half_of_a_file_needs_no_gpu(command, no_gpu, capsys):
    """Check that the refusal of a file with models of both devices names --device cpu, which is then enough."""
    assert main([*command.split(), "--out", "unused"]) == 2
    assert "--device cpu" in capsys.readouterr().err
    assert main([*command.split(), "--device", "cpu", "--dry-run"]) == 0
    assert "cannot run" not in capsys.readouterr().out


def test_a_file_keeps_the_models_of_a_device():
    """Check which models of a sweep and of a study are left."""
    sweep, study = find_configuration("hetero"), find_study("cpu_gpu_batch")
    assert sweep.on("cpu").grid.models == ("serial", "taskiter") and sweep.on(None) == sweep
    assert {*sweep.on("gpu").grid.models} == {*sweep.grid.models} - {"serial", "taskiter"}
    assert study.on("cpu").train["model"] == ("taskiter",) and study.on("gpu").train["model"] == ("gpu_taskiter",)


def test_a_file_without_models_of_the_device_is_refused(no_gpu, capsys):
    """Check the sentence for a sweep of which nothing runs on the processor."""
    assert main(["run", "transfers", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "none of gpu_forkjoin" in error and "is for cpu" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["compare --device gpu", "train --device gpu", "metg --device gpu", "kernels --device gpu", PEERS]
)
def test_without_cupy_one_sentence_and_code_2(command, monkeypatch, capsys, tmp_path):
    """Check what a user reads who has not installed the extra."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(gpu_device, "shows_gpu", lambda: True)
    out = ["--out", str(tmp_path / "out")] if command.split()[0] not in ("kernels", "peers") else []
    assert main([*command.split(), *out]) == 2
    error = capsys.readouterr().err
    assert "a GPU needs CuPy, which cannot be imported" in error and "pip install 'forktask[gpu]'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["compare --device gpu", "train --device gpu --model stream", PEERS])
def test_other_convolutions_than_direct_are_refused(command, fake_gpu, monkeypatch, capsys, tmp_path):
    """Check one sentence and code 2 for a form of convolutions without CUDA kernels, before anything is measured."""
    if command.startswith("peers"):
        monkeypatch.setattr("forktask.experiments.peers.peers._check_torch_gpu", lambda: None)
    out = ["--out", str(tmp_path / "out")] if not command.startswith("peers") else []
    assert main([*command.split(), "--conv", "winograd", *out]) == 2
    assert (
        "convolutions on a GPU must be direct or winograd2, got --conv winograd; leave it out"
        in capsys.readouterr().err
    )


def test_a_dry_run_needs_no_gpu(monkeypatch, capsys):
    """Check that the grid of a sweep with GPU models is printed where CuPy is missing; impossible ones are refused."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["run", "gpu_batch", "--dry-run", "--quick"]) == 0
    assert "gpu_taskiter on 1 thread" in capsys.readouterr().out
    configuration = Configuration(grid=Grid(models=("gpu_stream",), conv=("winograd4",)))
    with pytest.raises(UsageError, match="winograd4"):
        configuration.obstacles()


def test_compare_on_a_gpu_measures_the_serial_run(fake_gpu):
    """Check that `compare --device gpu` has the base of its speedups, once."""
    for given, models in (
        (["--models", "stream"], ("serial", "gpu_stream")),
        (["--models", "serial,taskiter"], ("serial", "gpu_taskiter")),
        ([], ("serial", *DEFAULT_GPU_MODELS)),
    ):
        arguments = make_parser().parse_args(["compare", "--device", "gpu", *given])
        grid = compare.configuration_of(arguments).grid
        assert grid.models == models and grid.threads == (1,)
    arguments = make_parser().parse_args(["compare", "--models", "taskiter,gpu_stream"])
    assert compare.configuration_of(arguments).grid.models == ("serial", "taskiter", "gpu_stream")
    assert "serial" in find_configuration("hetero").grid.models
    arguments = make_parser().parse_args(["compare", "--device", "gpu", "--models", "both"])
    assert compare.configuration_of(arguments).grid.threads == core_counts()


REFUSED = r"the plan needs [0-9.]+ [KM]iB of the memory of the GPU \(fake device\), free are [0-9.]+ [KM]iB; "


@pytest.mark.parametrize(
    ("model", "memory", "said"),
    [
        ("stream", 100_000, f"{REFUSED}no smaller batch fits either"),
        ("stream", 4_000_000, f"{REFUSED}.*batch (16|32) would fit"),
        ("stream", 6_000_000, f"{REFUSED}use a smaller batch"),  # it cannot evaluate
        ("taskiter", 6_000_000, "a captured graph of [0-9]+ launches .* use unroll=1"),
    ],
)
def test_training_that_a_gpu_has_no_memory_for_is_refused(model, memory, said, fake_gpu, capsys, tmp_path):
    """Check one sentence with both numbers and what would fit, and code 2, before anything is written."""
    fake_gpu.memory_bytes = memory
    command = f"train --device gpu --model {model} --network lenet5 --batch 64 --data synthetic:128 --epochs 1"
    assert main([*command.split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(f"forktask: error: {said}", error) and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.cxx
def test_a_sweep_goes_on_where_a_gpu_has_no_memory(fake_gpu, monkeypatch, tmp_path):
    """Check that what does not fit is a row that says so, and that the sweep goes on with what fits."""
    configuration = Configuration(
        "small GPU",
        Grid(network=("lenet5",), batch=(2, 256), models=("gpu_stream", "serial"), threads=(1,), conv=("direct",)),
        Measure(repeats=1, check_iterations=1, target_s=1e-6, warmup_s=1e-6, least_rounds=1, pin=False),
    )
    monkeypatch.setenv("FORKTASK_EMULATED_BYTES", str(4 << 20))
    sweep = Sweep(
        configuration,
        str(tmp_path),
        "forktask run",
        stream=sys.stdout,
        environment={"environment": collect(), "environment_id": "here"},
        sample_command=measuring_command("forktask.experiments.sampling.measure"),
        machine_row=lambda: typed([{"kind": "machine"}])[0],
    )
    results = sweep.run()
    assert sorted(row.model for row in results.of(SampleRow)) == ["gpu_stream", "serial", "serial"]
    (failure,) = results.of(FailureRow)
    assert failure.reason == "memory" and "the GPU (fake device), free are 4 MiB" in failure.message
    assert re.search("batch [0-9]+ would fit", failure.message)


def test_the_batch_that_is_said_to_fit_a_gpu_does(fake_gpu):
    """Check the advice: a plan of the batch that it names is bound with its data, and one of twice the batch is not."""
    plan = {"network": "lenet5", "batch": 256}
    job = {"plan": plan, "seed": 1, "threads": 1}
    fake_gpu.memory_bytes = 8 << 20
    with pytest.raises(MemoryError, match=REFUSED) as refused:
        build_subject(job, "gpu_stream")
    batch = int(re.search("batch ([0-9]+) would fit", str(refused.value))[1])
    assert device_bytes(build_subject({**job, "plan": {**plan, "batch": batch}}, "gpu_stream").plan) <= 8 << 20
    with pytest.raises(MemoryError, match=REFUSED):
        build_subject({**job, "plan": {**plan, "batch": 2 * batch}}, "gpu_stream")


@pytest.mark.parametrize(
    ("model", "left", "remedy"),
    [("gpu_taskgraph:unit=block", 10_000, "unit=loop, a smaller batch"), ("gpu_taskiter", 60_000, "unroll=1, a")],
)
def test_a_captured_graph_that_a_gpu_has_no_memory_for_is_refused(model, left, remedy, fake_gpu):
    """Check that a plan which fits and whose captured graph does not is refused in one sentence, as `MemoryError`, and
    that the device has all of its memory again when plan and graph are gone."""
    job = {"plan": {"network": "cifar10_cnn", "batch": 2, "layout": "flat"}, "seed": 1, "threads": 1}
    bound = build_subject(job, model)
    free = fake_gpu.free_bytes()
    assert fake_gpu.memory_bytes - free == pytest.approx(device_bytes(bound.plan), rel=0.01)
    with make_executor(model, 1) as executor:
        executor.prepare(bound)
        assert fake_gpu.free_bytes() < free
    assert fake_gpu.free_bytes() == free
    fake_gpu.memory_bytes -= free - left
    said = rf"a captured graph of [0-9]+ launches .* \(fake device\) than the [0-9.]+ KiB that are free; use {remedy}.*"
    with make_executor(model, 1) as executor, pytest.raises(MemoryError, match=said):
        executor.prepare(bound)
    del bound, executor
    gc.collect()
    assert fake_gpu.free_bytes() == fake_gpu.memory_bytes


def test_models_on_a_gpu(fake_gpu):
    """Check how model names are read with --device gpu, and that binding options belong to specs."""
    assert models_on("cpu", ["taskiter"], ()) == ["taskiter"]
    assert models_on("gpu", ["a"], ("a",)) == list(DEFAULT_GPU_MODELS)
    assert models_on("gpu", ["taskiter:unroll=2", "gpu_stream"], ()) == ["gpu_taskiter:unroll=2", "gpu_stream"]
    spec = parse_model("gpu_taskiter:memory=pinned:convolution=tiled")
    assert str(spec) == "gpu_taskiter:memory=pinned"
    with pytest.raises(UsageError, match="'managed'"):
        parse_model("gpu_hostload:memory=managed")
    assert {name for name, model in MODELS.items() if model.device == "gpu" and model.max_threads != 1} == {"gpu_both"}


def job(model, **options):
    plan = {"network": "cifar10_cnn", "batch": 1, "layout": "flat", "granularity": "auto"}
    return {
        "kind": "sample",
        "model": model,
        "threads": 1,
        "cpus": None,
        "plan": plan,
        "seed": 1,
        "check_iterations": 2,
        "target_s": 1e-6,
        "warmup_s": 1e-6,
        **options,
    }


def measured(job):
    """The row of a job, from a process of its own on the fake device."""
    command = measuring_command("forktask.experiments.sampling.measure")
    variables = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    (group,) = measure_generation(Generation([Contestant("it", job, variables, 0, 300.0, command)], "", 1e-6))
    return group["answers"]["it"]


@pytest.mark.cxx
def test_a_sample_of_a_gpu_model():
    """Check a sample: the CPU's answer within rounding, and what a GPU adds to the row."""
    row, cpu = measured(job("gpu_taskiter:unroll=2")), measured(job("serial"))
    assert row["answer"] == pytest.approx(cpu["answer"], rel=1e-4)
    assert row["weights_hash"] != cpu["weights_hash"] and row["instruction_set"] == "emulated"
    assert row["gpu"]["costs_s"] == {"context": 0.25, "compilation": 0.5}
    assert row["gpu"]["copies"]["to_device"][0] > 0 and cpu["gpu"] is None


@pytest.mark.cxx
@pytest.mark.parametrize("model", ["gpu_stream", "gpu_hostload", "gpu_both:policy=gpu"])
def test_a_profile_of_a_gpu_model(fake_gpu, model):
    """Check the tables of kernels, calls and copies, and that they are printed."""
    row = measure_gpu_profile(job(model))
    assert sum(r["share"] for r in row["kernels"]) == pytest.approx(1)
    assert all(r["calls"] == 1 for r in row["kernels"])
    calls = {r["name"]: r["calls"] for r in row["calls"]}
    assert calls["launch"] == len(row["kernels"]) - (model == "gpu_hostload")
    assert row["copies"]["to_device"][0] == (2 if model == "gpu_hostload" else 0)
    assert (row["runtime_cost_s"] is None) == (model != "gpu_stream")
    assert row["page_faults"] is None
    text = format_profile(row)
    assert ("first call 1" in text) == (model == "gpu_both:policy=gpu")
    assert "conv2.weight_gradient (conv_backward_weights)" in text and "copies host to device" in text


@pytest.mark.cxx
def test_a_profile_of_managed_memory_counts_page_faults(fake_gpu):
    """Check that faults of the host are counted, and what is said where the driver does not show those of the GPU."""
    row = measure_gpu_profile(job("gpu_stream:memory=managed"))
    assert row["page_faults"]["host"] >= 0 and row["copies"]["to_device"][0] == 0
    assert "page faults of a step: host" in format_profile(row)


@pytest.mark.cxx
def test_a_sweep_over_both_devices_is_one_report(fake_gpu, tmp_path):
    """Check that a sweep measures models of CPU and GPU in processes of their own, and that its report holds both."""
    models = ("serial", "forkjoin", "gpu_forkjoin", "gpu_stream")
    grid = Grid(batch=(1,), models=models, threads=(1, 2), granularity=("images=1",))
    how = Measure(
        repeats=1, check_iterations=2, target_s=1e-6, warmup_s=1e-6, pin=False, oversubscribe=True, profile_repeats=1
    )
    environment = {"environment": collect(), "environment_id": "here"}
    sweep = Sweep(
        Configuration("gpu", grid, how),
        str(tmp_path),
        "forktask run",
        stream=sys.stdout,
        environment=environment,
        sample_command=measuring_command("forktask.experiments.sampling.measure"),
        machine_row=lambda: typed([{"kind": "machine"}])[0],
    )
    results = sweep.run()
    assert not results.of(FailureRow)
    samples = {(row.model, row.threads): row for row in results.of(SampleRow)}
    assert {*samples} == {("serial", 1), ("forkjoin", 1), ("forkjoin", 2), ("gpu_forkjoin", 1), ("gpu_stream", 1)}
    assert samples["gpu_forkjoin", 1].weights_hash == samples["gpu_stream", 1].weights_hash
    assert {row.model for kind in (ProfileRow, GpuProfileRow) for row in results.of(kind)} == {*models}
    text = reported(tmp_path)
    assert "GPU: fake device" in text and "The run is not complete" not in text
    found = report_rows(tmp_path)
    assert [row["model"] for row in found["gpu"]] == ["gpu_forkjoin", "gpu_stream"]
    assert {"summary.csv", "report.html"} <= {p.name for p in tmp_path.iterdir()}


def reported(folder):
    """Tables of a report whose figures are drawn once."""
    write_report(folder)
    return report_text(folder)


def mixed_rows(gpu_answer=(2.3, 2.2, 2.1)):
    """Rows of a run of two batches on both devices; the GPU's models take a twentieth and a sixtieth of the serial
    time."""
    rows = synthetic_rows(models=("serial", "forkjoin", "taskiter"), batches=(16, 64), threads=(1, 2))
    models = ("serial", "forkjoin", "taskiter", "gpu_forkjoin", "gpu_stream")
    rows[0]["config"]["models"] = list(models)
    for row in [row for row in rows if row["kind"] == "sample"]:
        row["answer"] = [2.3, 2.2, 2.1]
        if row["model"] != "serial":
            continue
        for model, factor in (("gpu_forkjoin", 20), ("gpu_stream", 60)):
            own = {"model": model, "config_id": row["config_id"] + model, "instruction_set": "sm_90", "cpus": None}
            time_s = row["step_time_s"] / factor
            other = {"answer": list(gpu_answer), "weights_hash": "w", "losses_hash": "l", "step_time_s": time_s}
            gpu = {**GPU, "name": "made up", "costs_s": {"context": 0.25, "compilation": 0.5}}
            rows.append({**row, **own, **other, "gpu": gpu, "first_replay_s": 2 * time_s})
            if row["repetition"] == 0:
                profile = {key: row[key] for key in ("plan_id", "threads", "repetition", "environment_id")}
                busy = {"runtime_cost_s": 0.1 * time_s, "busy_s": 0.75 * time_s}
                rows.append({"kind": "gpu_profile", **profile, **own, **busy, "gpu": gpu})
    return [completed(row) for row in rows]


def test_the_report_of_both_devices(tmp_path):
    """Check the speedup of a GPU over the CPU's serial run, verdicts within a device, idle share, one-time costs, and
    that figures of both devices are drawn."""
    write_rows(tmp_path, mixed_rows())
    text = reported(tmp_path)
    assert "a step of gpu_" not in text  # no model of the GPU beside the floors of the processor
    found = report_rows(tmp_path)
    assert [(row["model"], row["reference"]) for row in found["in_short"]][-1] == ("gpu_stream", "taskiter")
    speed = {(row["batch"], row["model"], row["threads"]): row for row in found["speed"]}
    for batch in (16, 64):
        assert speed[batch, "gpu_forkjoin", 1]["speedup"] == pytest.approx(20)
        assert speed[batch, "gpu_stream", 1]["verdict"] == "faster"
        assert speed[batch, "gpu_stream", 1]["ratio"] == pytest.approx(1 / 3)
        assert speed[batch, "gpu_stream", 1]["efficiency"] is None
        assert speed[batch, "taskiter", 2]["reference"] == "forkjoin"
    row = next(row for row in found["gpu"] if row["model"] == "gpu_forkjoin")
    assert row["vs_stream"] == pytest.approx(1 / 3) and row["idle_share"] == pytest.approx(0.25, rel=0.2)
    assert (row["context_s"], row["compilation_s"]) == (0.25, 0.5)
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"speedup.svg", "gpu_batch.svg", "overhead.svg", "batch.svg"} <= drawn
    batch = figures.draw(load(tmp_path), "batch")
    assert {line.get_label() for line in batch.axes[0].lines} >= {*{row["model"] for row in found["speed"]}}
    assert {model for model, _ in overlay.curves(load(tmp_path), main_plan(load(tmp_path)))} == {"forkjoin", "taskiter"}


def test_host_workers_are_named():
    """Check that tables tell the numbers of host workers of gpu_both apart, each with its own costs."""
    rows = mixed_rows()
    for row in [row for row in rows if row.get("model") == "gpu_stream"]:
        for threads in (1, 2):
            own = {"model": "gpu_both", "threads": threads, "config_id": f"{row.get('config_id')}both{threads}"}
            rows.append({**row, **own} | ({"prepare_s": float(threads)} if row["kind"] == "sample" else {}))
    study = study_of(rows)
    costs = gpu_table(study).query("model == 'gpu_both'").groupby("threads")["prepare_s"].first()
    assert costs.to_dict() == {1: 1.0, 2: 2.0}


def test_a_report_of_gpu_models_alone(tmp_path):
    """Check that a folder without runs on the CPU has tables, without speedups."""
    rows = [row for row in mixed_rows() if "model" not in row or row["model"].startswith("gpu_")]
    rows[0]["config"]["models"] = ["gpu_forkjoin", "gpu_stream"]
    write_rows(tmp_path, rows)
    text = reported(tmp_path)
    assert "no serial run" in text and "gpu_stream" in text
    assert "What bounds the kernels" not in text and "Bound on" not in text  # the peaks are the processor's
    assert figures.draw(load(tmp_path), "batch").axes[1].lines
    assert (tmp_path / "figures" / "gpu_batch.svg").exists() and not (tmp_path / "figures" / "speedup.svg").exists()


def test_a_report_where_no_model_of_a_gpu_fitted(tmp_path):
    """Check that the page is made where only the serial run could be measured."""
    rows = [row for row in mixed_rows() if row.get("model", "serial") == "serial"]
    write_rows(tmp_path, rows)
    assert "T1 = " in reported(tmp_path)


def test_slow_models_of_a_gpu_keep_two_digits():
    """Check speedups far below 1 and above it."""
    text = {column.heading: column for column in SPEED}["speedup"].text
    for speedup, shown in ((0.00271, "0.0027"), (1.5, "1.50")):
        assert text({"speedup": speedup, "speedup_low": 0.9 * speedup, "speedup_high": 1.1 * speedup}) == shown


def test_the_answers_tell_gpu_both_from_a_gpu():
    """Check the questions about devices."""
    rows = mixed_rows()
    for row in [row for row in rows if row.get("model") == "gpu_stream" and row["kind"] == "sample"]:
        own = {"model": "gpu_both", "config_id": f"{row['config_id']}both", "step_time_s": row["step_time_s"] / 2}
        rows.append({**row, **own})
    study = study_of(rows)
    found = {(row["model"], row["reference"]): row for row in answers(study)}
    assert found["gpu_both", "gpu_stream"]["ratio"] == pytest.approx(0.5)


def test_devices_that_disagree_are_refused():
    """Check that no time is shown when CPU and GPU computed something else, and that rounding is allowed."""
    study_of(mixed_rows((2.3001, 2.2, 2.1)))
    with pytest.raises(UsageError, match=r"gpu_forkjoin .* 0.043"):
        study_of(mixed_rows((2.3, 2.3, 2.1)))


@pytest.mark.cxx
def test_metg_on_a_gpu(fake_gpu, monkeypatch):
    """Check what METG measures of a GPU model: the tasks that run at once, the unit of work, the ladder."""
    monkeypatch.setattr(metg_measure, "UNIT_WORK", 400)
    monkeypatch.setattr(metg_measure, "UNIT_TRIES", 3)
    graph = {"pattern": "stencil_1d", "width": 8, "steps": 3, "radix": 3, "kernel": "compute", "check": True}
    row = metg_measure.measure(
        {
            "kind": "metg",
            "model": "gpu_tasks:unit=block",
            "threads": 1,
            "cpus": None,
            "graph": graph,
            "runs": 1,
            "target_s": 1e-6,
            "budget_s": 0.01,
        }
    )
    assert row["parallel"] == 4  # the fake device's multiprocessors, fewer than the width
    assert row["unit_s"] > 0 and row["points"] and row["empty"]["num_tasks"] == 24
    for arguments, words in (
        (["--kernel", "memory"], "no GPU form"),
        (["--network", "cifar10_cnn"], "Task Bench graphs"),
    ):
        with pytest.raises(UsageError, match=words):
            arguments = make_parser().parse_args(["metg", "--device", "gpu", *arguments])
            arguments.run(arguments)


class FakeLibrary:
    """NVIDIA's management library, as far as it is used."""

    class NVMLError(Exception):
        pass

    def __init__(self, fail_at=None):
        self.calls, self.fail_at = 0, fail_at

    def nvmlInit(self):
        if self.fail_at == "init":
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByIndex(self, number):
        return number

    def nvmlDeviceGetMemoryInfo(self, handle):
        self.calls += 1
        return type("Memory", (), {"used": 1000 * self.calls})

    def nvmlDeviceGetUtilizationRates(self, handle):
        if self.calls == self.fail_at:
            raise self.NVMLError("lost")
        return type("Rates", (), {"gpu": 50})


def test_the_gpu_is_sampled():
    """Check samples over time, their summary, and what is said when the library or the GPU fails."""
    sampler = GpuSampler(period_s=0.001, library=FakeLibrary())
    with sampler:
        while len(sampler.samples) < 3:
            pass
    count = len(sampler.samples)
    assert sampler.summary() == {"gpu_memory_bytes": 1000 * count, "gpu_utilisation": 0.5}
    with sampler:
        pass
    assert len(sampler.samples) > count and sampler.summary()["gpu_memory_bytes"] > 1000 * count
    assert "not sampled: driver not loaded" in GpuSampler(library=FakeLibrary("init")).problem
    broken = GpuSampler(period_s=0.001, library=FakeLibrary(2))
    for _ in range(2):
        with broken:
            pass
    assert broken.summary() == {} and len(broken.samples) == 1 and "sampling of the GPU ended: lost" in broken.problem


@pytest.mark.cxx
def test_training_on_a_gpu(fake_gpu, monkeypatch, tmp_path, capsys):
    """Check `train --device gpu`: loss falls, samples of the GPU in the CSV, and no resuming on the other device."""
    monkeypatch.setattr(trainer, "GpuSampler", lambda: GpuSampler(period_s=0.01, library=FakeLibrary()))
    monkeypatch.setattr(trainer, "EVALUATION_BATCH", 4)
    out = str(tmp_path / "run")
    command = ["train", "--device", "gpu", "--model", "stream", "--data", "synthetic:24", "--batch", "4", "--out", out]
    assert main([*command, "--epochs", "1"]) == 0
    text = (tmp_path / "run" / "epochs.csv").read_text().splitlines()
    assert text[0].endswith("learning_rate,resident_bytes,gpu_memory_bytes,gpu_utilisation") and text[1].endswith(
        ",0.5"
    )
    assert (tmp_path / "run" / "gpu.csv").read_text().startswith("seed,time_s,memory_bytes,utilisation\n0,")
    assert (tmp_path / "run" / "gpu.pdf").exists()
    assert main(["train", "--resume", "--model", "serial", "--threads", "1", "--epochs", "2", "--out", out]) == 2
    assert "must stay on the gpu, got the cpu" in capsys.readouterr().err


@pytest.mark.cxx
def test_training_on_text_on_a_gpu(fake_gpu, monkeypatch, tmp_path):
    """Check the losses of `train --device gpu` on bytes of a text against those of the CPU."""
    monkeypatch.setattr(trainer, "GpuSampler", lambda: GpuSampler(period_s=0.01, library=FakeLibrary()))
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog. " * 3)
    command = ["train", "--network", "gpt2_tiny", "--data", f"text:{tmp_path / 'text'}", "--sequence", "7"]
    command += ["--batch", "4", "--epochs", "1", "--optimizer", "adamw", "--clip-norm", "1"]
    losses = {}
    for device, model in (("gpu", "taskiter"), ("cpu", "serial")):
        out = tmp_path / device
        assert main([*command, "--device", device, "--model", model, "--threads", "1", "--out", str(out)]) == 0
        with (out / "epochs.csv").open() as file:
            losses[device] = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=1e-4) and len(losses["gpu"]) == 1


@pytest.mark.cxx
def test_a_profile_of_a_network_of_tokens(fake_gpu):
    """Check that kernels of tokens are timed, and that products of matrices go to the library."""
    plan = {"network": "mobilebert_tiny", "batch": 1, "sequence": 4}
    row = measure_gpu_profile({**job("gpu_stream"), "plan": plan})
    names = " ".join(kernel["name"] for kernel in row["kernels"])
    assert all(f"({kernel})" in names for kernel in ("trigram_forward", "attention_backward", "no_norm_backward"))
    assert "multiply" in {call["name"] for call in row["calls"]}
