"""Commands with `--device gpu`: on the fake device what they measure and print, without a GPU what they say."""

import re

import pytest
from experiments.synthetic_results import (
    GPU,
    completed,
    report_rows,
    report_text,
    sweep_of,
    synthetic_rows,
    typed,
    write_rows,
)
from gpu.fake_gpu import measuring_command
from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu.blas import WORKSPACE_BYTES
from forktask.experiments.analysis.load import load
from forktask.experiments.commands import compare
from forktask.experiments.commands.main import main, make_parser
from forktask.experiments.machine.environment import collect
from forktask.experiments.machine.topology import core_counts
from forktask.experiments.report import figures
from forktask.experiments.report.files import write_report
from forktask.experiments.results.grids import given_or_shipped
from forktask.experiments.results.rows import FailureRow, GpuProfileRow, ProfileRow, SampleRow
from forktask.experiments.sampling import generation
from forktask.experiments.sampling.gpu_profile import format_profile, measure_gpu_profile
from forktask.experiments.subjects.models import DEFAULT_GPU_MODELS, make_executor, parse_model
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure, read_configuration
from forktask.experiments.sweep.runner import SweepRunner
from forktask.experiments.sweep.shards import Means
from forktask.experiments.training import evaluations, trainer
from forktask.experiments.training.gpu_sampling import GpuSampler

PEERS = pytest.param("compare --device gpu --models serial,torch", marks=pytest.mark.torch)


@pytest.fixture
def fake_gpu(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr(gpu_device, "default_gpu", lambda: device)
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
        "kernels",
        "run gpu_batch",
        "run cpu_gpu_batch --quick",
        "run hetero --quick",
        PEERS,
    ],
)
def test_without_a_gpu_one_sentence_and_code_2(command, no_gpu, capsys, tmp_path):
    """Check that each command says that there is no GPU and leaves nothing behind."""
    out = ["--out", str(tmp_path / "out")] if command.split()[0] != "kernels" else []
    assert main([*command.split(), *out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forktask: error: this machine has no GPU") and error.count("\n") == 1
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


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
    arguments = make_parser().parse_args(["compare", "--models", "serial,taskiter,gpu_stream", "--device", "cpu"])
    assert compare.configuration_of(arguments).grid.models == ("serial", "taskiter")  # as the refusal says
    assert "serial" in read_configuration(given_or_shipped("hetero")).grid.models
    arguments = make_parser().parse_args(["compare", "--device", "gpu", "--models", "both"])
    assert compare.configuration_of(arguments).grid.threads == core_counts()


REFUSED = r"the plan needs [0-9.]+ [KM]iB of the memory of the GPU \(fake device\), free are [0-9.]+ [KM]iB; "


@pytest.mark.parametrize(
    ("model", "memory", "said"),
    [
        ("stream", 100_000, f"{REFUSED}no smaller batch fits either"),
        ("stream:products=own", 4_000_000, f"{REFUSED}.*batch (16|32) would fit"),
        ("stream:products=own", 5_880_000, f"{REFUSED}use a smaller batch"),  # it cannot evaluate
        ("stream", 4_000_000 + WORKSPACE_BYTES, f"{REFUSED}.*batch (16|32) would fit"),
        ("taskiter:products=own", 6_530_000, "a captured graph of [0-9]+ launches .* a smaller batch"),
    ],
)
def test_training_that_a_gpu_has_no_memory_for_is_refused(model, memory, said, fake_gpu, capsys, tmp_path, monkeypatch):
    """Check one sentence with both numbers and what would fit, and code 2, before anything is written."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    fake_gpu.memory_bytes = memory
    command = f"train --device gpu --model {model} --network lenet5 --batch 64 --data synthetic:128 --epochs 1"
    assert main([*command.split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(f"forktask: error: {said}", error) and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_traces_of_a_gpu_are_refused_before_anything_runs(fake_gpu, tmp_path, capsys):
    """Check the sentence of a command, and that an executor keeps no log that would stay empty."""
    words = ["trace", "--network", "lenet5", "--batch", "4", "--models", "serial,gpu_stream", "--threads", "1", "--out"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "traces are of models of the CPU, got gpu_stream; leave traces out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="event_capacity is for models of the CPU, got 8 for 'gpu_stream'"):
        make_executor("gpu_stream", 1, event_capacity=8)


@pytest.mark.parametrize(
    ("model", "more", "cpus"),
    [
        ("taskiter", {"cpus": [3, 1]}, [3, 1]),
        ("gpu_stream", {"cpus": [3, 1]}, None),
        ("gpu_both", {"cpus": [3, 1]}, [3, 1, 0]),
        ("gpu_both", {"cpus": [0, 1, 2, 3]}, [0, 1, 2, 3]),
        ("gpu_both", {"cpus": None}, None),
        ("gpu_torch", {"cpus": [3]}, None),
    ],
)
def test_a_thread_that_only_launches_has_no_cpu_of_others(model, more, cpus, monkeypatch):
    """Check which CPUs a contestant may use: those of a GPU do not all start on the same one, and beside threads that
    compute there is one for the thread that launches."""
    monkeypatch.setattr(generation, "available_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(generation, "cpu_order", lambda count, available: available[:count])
    assert generation.contestant_of("a", parse_model(model), 2, limit_s=1.0, **more).job["cpus"] == cpus


def job(model, **options):
    plan = {"network": "cifar10_cnn", "batch": 1, "layout": "nchw", "granularity": "auto"}
    return {
        "kind": "sample",
        "model": parse_model(model),
        "threads": 1,
        "cpus": None,
        "plan": plan,
        "seed": 1,
        "check_iterations": 2,
        "target_s": 1e-6,
        "warmup_s": 1e-6,
        **options,
    }


@pytest.mark.cxx
@pytest.mark.parametrize("model", ["gpu_stream", "gpu_hostload", "gpu_both:host=0"])
def test_a_profile_of_a_gpu_model(fake_gpu, model):
    """Check the tables of kernels, calls and copies, and that they are printed."""
    row = measure_gpu_profile(job(model))
    assert sum(r["share"] for r in row["kernels"]) == pytest.approx(1)
    assert all(r["calls"] == 1 and r["min_s"] >= 0 for r in row["kernels"]) and row["empty_kernel_s"] > 0
    calls = {r["name"]: r["calls"] for r in row["calls"]}
    assert [r["name"].endswith(".update and 3 more (optimizer_sgd)") for r in row["kernels"]].count(True) == 1
    alone = 3 if "both" in model else 0
    assert calls["launch"] == len(row["kernels"]) + alone - (model == "gpu_hostload")
    assert row["copies"]["to_device"][0] == (2 if model == "gpu_hostload" else 0)
    assert (row["runtime_cost_s"] is None) == (model != "gpu_stream")
    text = format_profile(row)
    assert "conv2.weight_gradient (conv_backward_weights)" in text and "copies host to device" in text
    assert "of limit" in text and "limit: 0.001 TFLOP/s of float32 or 0.001 TB/s" in text


@pytest.mark.cxx
def test_a_sweep_over_both_devices_is_one_report(fake_gpu, tmp_path):
    """Check that a sweep measures models of CPU and GPU in processes of their own, and that its report holds both."""
    models = ("serial", "forkjoin", "gpu_forkjoin", "gpu_stream")
    grid = Grid(batch=(1,), models=models, threads=(1, 2), granularity=("images=1",))
    how = Measure(
        repeats=1, check_iterations=2, target_s=1e-6, warmup_s=1e-6, bind="none", oversubscribe=True, profile_repeats=1
    )
    environment = {"environment": collect(), "environment_id": "here"}
    sweep = SweepRunner(
        Configuration("gpu", grid, how),
        str(tmp_path),
        "forktask run",
        means=Means(
            environment=environment,
            sample_command=measuring_command("forktask.experiments.sampling.measure"),
            machine_row=lambda: typed([{"kind": "machine"}])[0],
        ),
    )
    results = sweep.run()
    assert not results.of(FailureRow)
    samples = {(row.model, row.threads): row for row in results.of(SampleRow)}
    assert {*samples} == {("serial", 1), ("forkjoin", 1), ("forkjoin", 2), ("gpu_forkjoin", 1), ("gpu_stream", 1)}
    assert samples["gpu_stream", 1].gpu.clock_hz == 1.5e9 and samples["serial", 1].gpu is None
    assert samples["gpu_forkjoin", 1].weights_hash == samples["gpu_stream", 1].weights_hash
    assert {row.model for kind in (ProfileRow, GpuProfileRow) for row in results.of(kind)} == {*models}
    text = reported(tmp_path)
    assert "GPU: fake device" in text and "The run is not complete" not in text
    result = report_rows(tmp_path)
    assert [row["model"] for row in result["gpu"]] == ["gpu_forkjoin", "gpu_stream"]
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
    result = report_rows(tmp_path)
    assert [(row["model"], row["reference"]) for row in result["in_short"]][-1] == ("gpu_stream", "taskiter")
    speed = {(row["batch"], row["model"], row["threads"]): row for row in result["speed"]}
    for batch in (16, 64):
        assert speed[batch, "gpu_forkjoin", 1]["speedup"] == pytest.approx(20)
        assert speed[batch, "gpu_stream", 1]["verdict"] == "faster"
        assert speed[batch, "gpu_stream", 1]["ratio"] == pytest.approx(1 / 3)
        assert speed[batch, "gpu_stream", 1]["efficiency"] is None
        assert speed[batch, "taskiter", 2]["reference"] == "forkjoin"
    row = next(row for row in result["gpu"] if row["model"] == "gpu_forkjoin")
    assert row["vs_stream"] == pytest.approx(1 / 3) and row["idle_share"] == pytest.approx(0.25, rel=0.2)
    assert (row["context_s"], row["compilation_s"]) == (0.25, 0.5)
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"speedup.svg", "batch.svg"} <= drawn
    batch = figures.draw(load(tmp_path), "batch")
    (legend,), models = batch.legends, {row["model"] for row in result["speed"]}
    assert {text.get_text() for text in legend.get_texts()} >= models
    marked = [line for line in batch.axes[0].lines if line.get_marker() not in ("None", "") and len(line.get_xdata())]
    assert len({line.get_color() for line in marked}) == len(models)


def test_devices_that_disagree_are_refused():
    """Check that no time is shown when CPU and GPU computed something else, and that rounding is allowed."""
    sweep_of(mixed_rows((2.3001, 2.2, 2.1)))
    with pytest.raises(UsageError, match=r"gpu_forkjoin .* 0.043"):
        sweep_of(mixed_rows((2.3, 2.3, 2.1)))


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
        while len(sampler.samples) < 4:
            pass
    count, sampler._period_s = len(sampler.samples), 60.0
    assert sampler.summary() == {"gpu_memory_bytes": 1000 * count, "gpu_utilisation": 0.5}
    with sampler:
        pass
    assert len(sampler.samples) > count and sampler.summary()["gpu_memory_bytes"] > 1000 * count
    assert "gpu_utilisation" not in sampler.summary()  # of one or two moments
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
    monkeypatch.setattr(evaluations, "EVALUATION_BATCH", 4)
    out = str(tmp_path / "run")
    command = ["train", "--device", "gpu", "--model", "stream", "--data", "synthetic:24", "--batch", "4", "--out", out]
    assert main([*command, "--epochs", "1"]) == 0
    text = (tmp_path / "run" / "epochs.csv").read_text().splitlines()
    assert (
        text[0].endswith(",resident_bytes,gpu_memory_bytes,gpu_utilisation,epoch_time_s,usable") and ",0.5," in text[1]
    )
    assert main(["train", "--resume", "--model", "serial", "--threads", "1", "--epochs", "2", "--out", out]) == 2
    assert "must stay on the gpu, got the cpu" in capsys.readouterr().err
