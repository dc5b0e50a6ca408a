"""Inference: the per-layer table, its sums, its checks."""

import json

import numpy as np
import pytest

from cython_src import reference
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.training import infer as inference
from forktask.experiments.training.data import load_data
from forktask.experiments.training.infer_worker import measure_inference
from forktask.experiments.training.safetensors import write_safetensors

LAYERS = ["input", "conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "conv3", "relu3", "pool3", "fc", "softmax"]
JOB = {
    "network": "cifar10_cnn",
    "options": {"batch": 2},
    "images": 5,
    "model": "serial",
    "threads": 1,
    "cpus": None,
    "data": "synthetic:16",
    "checkpoint": None,
    "repeats": 1,
}


def small_checkpoint(path):
    bound = bind(lower("cifar10_cnn", batch=1, phase="forward"))
    initialise(bound, 5)
    parameters = {name: bound.arrays[name] for name in bound.plan.attributes["parameters"]}
    write_safetensors(path, parameters)
    return parameters


def test_every_layer_is_timed_and_sums_add_up():
    """Check names and order of the layers, sums by kind, totals, and that busy time fits into the run."""
    column = measure_inference(JOB)
    assert list(column["layers_s"]) == LAYERS
    assert min(column["layers_s"].values()) > 0
    assert column["kinds_s"]["conv"] == pytest.approx(sum(column["layers_s"][f"conv{i}"] for i in (1, 2, 3)))
    assert sum(column["kinds_s"].values()) == pytest.approx(sum(column["layers_s"].values()))
    assert sum(column["layers_s"].values()) <= column["run_unfused_s"]
    assert column["total_fused_s"] == pytest.approx(column["load_s"] + column["create_s"] + column["run_fused_s"])
    assert column["error_rate"] is None
    assert column["free_s"] > 0
    # Two batches of two images and one image left over: 7.84 MFLOP an image.
    assert column["flops"] == 5 * 7_840_000
    assert column["floor_s"] == pytest.approx(column["flops"] / column["peak_flops_per_s"])


def test_error_rate_equals_reference(tmp_path):
    """Check the answers of a checkpoint over whole batches, the rest and images used twice."""
    parameters = small_checkpoint(tmp_path / "p.safetensors")
    data = load_data("synthetic:16")
    job = {
        **JOB,
        "images": 37,
        "options": {"batch": 16},
        "data": "synthetic:16",
        "checkpoint": str(tmp_path / "p.safetensors"),
    }
    column = measure_inference(job)
    order = np.arange(37) % len(data.labels)
    expected = reference.forward(get_network("cifar10_cnn"), parameters, data.images[order], data.labels[order])
    assert column["error_rate"] == pytest.approx(1 - expected.correct / 37)


def test_models_give_the_same_answers():
    """Check equal hashes over models and thread counts."""
    columns = [
        measure_inference({**JOB, "model": model, "threads": threads})
        for model, threads in (("serial", 1), ("taskiter", 1), ("taskiter", 2), ("tasks", 2))
    ]
    assert len({column["answers_hash"] for column in columns}) == 1


def test_the_command_prints_a_table_and_json(capsys):
    """Check both forms of the output."""
    common = [
        "infer",
        "--images",
        "3",
        "--batch",
        "1,2",
        "--models",
        "serial",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--data",
        "synthetic:16",
    ]
    assert main(common) == 0
    text = capsys.readouterr().out
    assert "forward of 3 images in batches of 2" in text and "serial x1" in text
    for row in [*LAYERS, "all conv", "load", "create", "free", "total, fused"]:
        assert f"\n{row} " in text
    assert "\nrun, fused / floor " in text
    assert main([*common, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert [table["batch"] for table in tables] == [1, 2]
    assert list(tables[0]["columns"][0]["layers_s"]) == LAYERS


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        ({"answers_hash": "b"}, True),
        ({"answers_hash": "b", "reproducible": False}, False),
        ({"answers_hash": "b", "instruction_set": "sm_90"}, False),
        ({"answers_hash": "b", "instruction_set": "sm_90", "answer": [2.0, 2.4]}, True),
    ],
)
def test_different_answers_give_no_table(second, refused, monkeypatch):
    """Check that times are not shown when two models of one device disagree, or devices by more than rounding."""
    first = {"instruction_set": "avx2", "reproducible": True, "answer": [2.0, 2.5], "answers_hash": "a"}
    rows = iter([first, {**first, "answer": [2.0, 2.5001], **second}])
    monkeypatch.setattr(
        "forktask.experiments.training.infer.run_sample",
        lambda job, *rest: {"model": job["model"], "threads": 1, **next(rows)},
    )

    def table():
        return inference.infer("cifar10_cnn", PlanOptions(batch=1), 1, ["serial", "taskiter"], [1])

    if refused:
        with pytest.raises(RuntimeError, match="give different losses"):
            table()
    else:
        assert len(table()["columns"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--network", "vgg"], "vgg"),
        (["--images", "0"], "--images takes whole numbers"),
        (["--images", "many"], "--images takes whole numbers"),
        (["--images", "4", "--batch", "8"], "--batch must not exceed --images"),
        (["--batch", "1,x"], "--batch must be"),
        (["--models", "magic"], "magic"),
        (["--threads", "4000"], "--oversubscribe"),
        (["--data", "idx:/none"], "/none"),
        (["--checkpoint", "/none.safetensors"], "--checkpoint must be a safetensors file"),
        (["--granularity", "fine"], "fine"),
        (["--repeats", "0"], "--repeats"),
    ],
)
def test_bad_input_is_one_sentence(capsys, options, message):
    """Check exit code 2 and one line that names the value."""
    assert main(["infer", "--threads", "1", *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]


def test_a_checkpoint_of_another_network_is_refused(tmp_path, capsys):
    """Check the message, which comes from the measuring process."""
    write_safetensors(tmp_path / "p", {"conv1.weight": np.zeros(3)})
    with pytest.raises(UsageError, match="is it of another network"):
        measure_inference({**JOB, "checkpoint": str(tmp_path / "p")})
    assert (
        main(
            [
                "infer",
                "--images",
                "2",
                "--batch",
                "1",
                "--models",
                "serial",
                "--threads",
                "1",
                "--checkpoint",
                str(tmp_path / "p"),
            ]
        )
        == 2
    )
    assert "is it of another network" in capsys.readouterr().err
