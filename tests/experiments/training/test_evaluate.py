"""`forktask evaluate`: accuracy of given weights, and the time of each kind of layer."""

import csv
import json

import pytest

from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.training_rows import EvaluatedRow
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.train import train

KINDS = ["Conv2d", "ReLU", "MaxPool", "Linear", "SoftmaxCrossEntropy"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Summary and folder of a training whose weights are evaluated."""
    out = tmp_path_factory.mktemp("trained") / "run"
    config = TrainingConfig(data="digits", model="serial", threads=1, epochs=1, out=str(out))
    return train(config, report=lambda line: None, draw=False), out


def evaluate(out, *options):
    command = ["evaluate", "--weights", str(out / "parameters-seed-0.safetensors"), *options]
    return main(command)


def test_given_weights_have_the_accuracy_of_their_training(trained, tmp_path, capsys):
    """Check accuracy and loss with each form of convolutions against what the training found on the test images, and
    the times of layers, which are kept, summed up by kind, and printed."""
    summary, weights = trained
    options = ["--conv", "if,pad,auto", "--passes", "2", "--threads", "2", "--out"]
    assert evaluate(weights, *options, str(tmp_path / "json"), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["conv"] for row in rows] == ["if", "pad", "auto"]
    for row in rows:
        assert row["accuracy"] == pytest.approx(summary.seeds[0].test_accuracy)
        assert row["loss"] == pytest.approx(summary.seeds[0].test_loss, rel=1e-4)
        assert row["samples"] == 269 and len(row["time_s"]) == 2  # two batches of 100 and the rest
        assert all(len(times) == 2 and min(times) > 0 for times in row["layer_s"].values())
        busy = [sum(times[turn] for times in row["layer_s"].values()) for turn in range(2)]
        assert all(each <= 2 * wall for each, wall in zip(busy, row["time_s"], strict=True))

    assert evaluate(weights, *options, str(tmp_path / "text")) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in KINDS)
    table = list(csv.DictReader((tmp_path / "text" / "layer_kinds.csv").open()))
    (row,) = [row for row in read_results(tmp_path / "text").of(EvaluatedRow) if row.conv == "pad"]
    sums = {line["kind"]: float(line["time_s"]) for line in table if line["conv"] == "pad"}
    assert list(sums) == ["input", *KINDS]
    convolutions = [row.layer_s[name] for name in ("conv1", "conv2", "conv3")]
    assert sums["Conv2d"] == pytest.approx(sum(map(sum, convolutions)) / 2)  # the median of two


def test_what_cannot_be_evaluated_is_refused(trained, tmp_path, capsys):
    """Check that missing or foreign weights, too many images and a folder in use are refused in one sentence each."""
    _, weights = trained
    assert main(["evaluate"]) == 2
    assert "give it as weights" in capsys.readouterr().err
    assert evaluate(weights, "--images", "1200", "--out", str(tmp_path / "many")) == 2
    assert "must not exceed the 269 samples of split 'test', got 1200" in capsys.readouterr().err
    assert evaluate(weights, "--network", "lenet5", "--out", str(tmp_path / "foreign")) == 2
    assert "is it of another network?" in capsys.readouterr().err
    assert not (tmp_path / "foreign").exists()
    assert evaluate(weights, "--out", str(weights)) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err
