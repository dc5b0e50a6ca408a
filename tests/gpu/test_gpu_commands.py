"""Commands with `--device gpu`: on the fake device what they measure and print, without a GPU what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu.fake_gpu import measuring_command
from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.experiments.analysis.gpu import gpu_table
from forktask.experiments.commands.main import main, make_parser
from forktask.experiments.metg import measure as metg_measure
from forktask.experiments.report.gpu import gpu_report
from forktask.experiments.sampling.gpu_profile import format_profile, measure_gpu_profile
from forktask.experiments.sampling.models import DEFAULT_GPU_MODELS, MODELS, models_on, parse_model
from forktask.experiments.sampling.results import Results
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure
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
        raise UsageError("no GPU can be used here: none; use --device cpu, or install NVIDIA's driver")

    monkeypatch.setattr(gpu_device, "count_gpus", refuse)


@pytest.mark.parametrize(
    "command",
    [
        "compare --device gpu",
        "compare --models serial,gpu_taskiter",
        "train --device gpu",
        "metg --device gpu",
        "profile",
        "run gpu_batch",
        PEERS,
    ],
)
def test_without_a_gpu_one_sentence_and_code_2(command, no_gpu, capsys, tmp_path):
    """Check that each command says that there is no GPU and leaves nothing behind."""
    out = ["--out", str(tmp_path / "out")] if command.split()[0] not in ("profile", "peers") else []
    assert main([*command.split(), *out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("forktask: error: no GPU can be used here") and error.count("\n") == 1
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "command", ["compare --device gpu", "train --device gpu", "metg --device gpu", "profile", PEERS]
)
def test_without_cupy_one_sentence_and_code_2(command, monkeypatch, capsys, tmp_path):
    """Check what a user reads who has not installed the extra."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    out = ["--out", str(tmp_path / "out")] if command.split()[0] not in ("profile", "peers") else []
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


def test_models_on_a_gpu(fake_gpu):
    """Check how model names are read with --device gpu, and that binding options belong to specs."""
    assert models_on("cpu", ["taskiter"], ()) == ["taskiter"]
    assert models_on("gpu", ["a"], ("a",)) == list(DEFAULT_GPU_MODELS)
    assert models_on("gpu", ["taskiter:unroll=2", "gpu_stream"], ()) == ["gpu_taskiter:unroll=2", "gpu_stream"]
    spec = parse_model("gpu_taskiter:memory=pinned:convolution=tiled")
    assert str(spec) == "gpu_taskiter:memory=pinned"
    with pytest.raises(UsageError, match="must be one of pageable, pinned; got 'managed'"):
        parse_model("gpu_hostload:memory=managed")
    assert all(model.max_threads == 1 for model in MODELS.values() if model.device == "gpu")


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
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = measuring_command("forktask.experiments.sampling.measure")
    result = subprocess.run(command, input=json.dumps(job), text=True, capture_output=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


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
def test_a_sweep_with_gpu_models(fake_gpu, tmp_path):
    """Check that a sweep measures GPU models in processes of their own and that its report can be made."""
    grid = Grid(batch=(1,), models=("gpu_forkjoin", "gpu_stream"), threads=(1,), granularity=("images=1",))
    how = Measure(repeats=1, check_iterations=2, target_s=1e-6, warmup_s=1e-6, pin=False, profile=False)
    from forktask.experiments.machine.environment import collect

    environment = {"environment": collect(), "environment_id": "here"}
    sweep = Sweep(
        Configuration("gpu", grid, how),
        str(tmp_path),
        "forktask run",
        stream=sys.stdout,
        environment=environment,
        sample_command=measuring_command("forktask.experiments.sampling.measure"),
        machine_row=lambda: {"kind": "machine"},
    )
    results = sweep.run()
    assert not results.of_kind("failure")
    first, second = results.of_kind("sample")
    assert first["weights_hash"] == second["weights_hash"]
    assert "GPU: fake device" in gpu_report(str(tmp_path), results)
    assert {"gpu.csv", "samples.jsonl"} <= {p.name for p in tmp_path.iterdir()}


def made_up_results(answers=((1.0, 2.0), (1.0, 2.0), (1.0, 2.0))):
    """Two batches, three models, three repetitions."""
    rows = []
    for batch in (16, 32):
        rows.append({"kind": "plan", "plan_id": f"p{batch}", "network": "net", "options": {"batch": batch}})
        for model, step_s, answer in zip(
            ("serial", "gpu_forkjoin", "gpu_stream"), (4e-3, 3e-4, 1e-4), answers, strict=True
        ):
            gpu = {"name": "made up", "costs_s": {"context": 0.25, "compilation": 0.5}} if model != "serial" else None
            own = {"plan_id": f"p{batch}", "model": model, "threads": 1}
            for repetition in range(3):
                rows.append(
                    {
                        "kind": "sample",
                        **own,
                        "repetition": repetition,
                        "answer": list(answer),
                        "gpu": gpu,
                        "step_time_s": step_s * (1 + 0.01 * repetition),
                        "prepare_s": 0.01,
                        "first_replay_s": 0.02,
                    }
                )
            if gpu:
                rows.append({"kind": "profile", **own, "runtime_cost_s": 5e-5, "busy_s": 6e-5})
    return Results(Path("x"), rows)


def test_the_table_of_both_devices(tmp_path):
    """Check ratios, idle share, time of an epoch, one-time costs, the printed table and the figure."""
    text = gpu_report(str(tmp_path), made_up_results())
    assert "GPU: made up; net\n" in text and "serial @ 1" in text and "3.00" in text
    table = json.loads(gpu_report(str(tmp_path), made_up_results(), as_json=True))
    assert [(e["batch"], e["model"]) for e in table] == [
        (b, m) for b in (16, 32) for m in ("serial", "gpu_forkjoin", "gpu_stream")
    ]
    stream = table[2]
    assert stream["vs_forkjoin"] == pytest.approx(3) and stream["vs_stream"] is None
    assert stream["idle_share"] == pytest.approx(1 - 6e-5 / 1.01e-4) and stream["overhead_s"] == 5e-5
    assert stream["epoch_s"] == pytest.approx(1.01e-4 * 50_000 / 16)
    assert (stream["context_s"], stream["compilation_s"]) == (0.25, 0.5) and table[0]["context_s"] is None
    assert {"gpu.csv", "gpu_batch.pdf", "gpu_batch.png", "gpu_batch.txt"} == {p.name for p in tmp_path.iterdir()}


def test_networks_have_a_column_where_there_are_several(tmp_path):
    """Check the table and the lines of the figure of a sweep over two networks."""
    rows = made_up_results().rows
    for row in rows:
        if row["kind"] == "plan" and row["plan_id"] == "p32":
            row["network"] = "another"
    text = gpu_report(str(tmp_path), Results(Path("x"), rows))
    assert text.splitlines()[2].startswith("network  batch") and "\nanother     32  serial @ 1" in text
    table = json.loads(gpu_report(str(tmp_path), Results(Path("x"), rows), as_json=True))
    assert [e["network"] for e in table] == 3 * ["another"] + 3 * ["net"]


def test_devices_that_disagree_are_refused():
    """Check that no time is shown when CPU and GPU computed something else."""
    with pytest.raises(UsageError, match="beside serial.s that of gpu_stream differs in number 1 by 0.048"):
        gpu_table(made_up_results(((1.0, 2.0, 1.5), (1.0, 2.0, 1.5), (1.0, 2.1, 1.5))))


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
    sampler.start()
    while len(sampler.samples) < 3:
        pass
    sampler.stop()
    count = len(sampler.samples)
    assert sampler.summary() == {"gpu_memory_bytes": 1000 * count, "gpu_utilisation": 0.5}
    sampler.start()
    sampler.stop()
    assert len(sampler.samples) > count and sampler.summary(10**9) == {}
    assert "not sampled: driver not loaded" in GpuSampler(library=FakeLibrary("init")).problem
    broken = GpuSampler(period_s=0.001, library=FakeLibrary(2))
    broken.start()
    broken.stop()
    broken.start()
    broken.stop()
    assert len(broken.samples) == 1 and "sampling of the GPU ended: lost" in broken.problem


@pytest.mark.cxx
def test_training_on_a_gpu(fake_gpu, monkeypatch, tmp_path, capsys):
    """Check `train --device gpu`: loss falls, samples of the GPU in the CSV, and no resuming on the other device."""
    monkeypatch.setattr(trainer, "GpuSampler", lambda: GpuSampler(period_s=0.01, library=FakeLibrary()))
    monkeypatch.setattr(trainer, "EVALUATION_BATCH", 4)
    out = str(tmp_path / "run")
    command = ["train", "--device", "gpu", "--model", "stream", "--data", "synthetic:24", "--batch", "4", "--out", out]
    assert main([*command, "--epochs", "1"]) == 0
    text = (tmp_path / "run" / "epochs.csv").read_text().splitlines()
    assert text[0].endswith("learning_rate,gpu_memory_bytes,gpu_utilisation") and text[1].endswith(",0.5")
    assert (tmp_path / "run" / "gpu.csv").read_text().startswith("seed,time_s,memory_bytes,utilisation\n0,")
    assert (tmp_path / "run" / "gpu.pdf").exists()
    assert main(["train", "--resume", "--model", "serial", "--threads", "1", "--epochs", "2", "--out", out]) == 2
    assert "must stay on the gpu, got the cpu" in capsys.readouterr().err
