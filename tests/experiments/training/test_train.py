"""Training: learns, resumes bit by bit, leaves its files, refuses bad input."""

import csv
import json
import re
import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from kinds import forms_of_models, threads_of
from programs import run_forktask

from cython_src import reference
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import SAMPLES
from forktask.experiments.results.training_rows import Summary
from forktask.experiments.subjects.memory import planned_bytes
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.training import train as training
from forktask.experiments.training import trainer
from forktask.experiments.training.checkpoints import read_checkpoint
from forktask.experiments.training.config import TrainingConfig, learning_rate_table
from forktask.experiments.training.curves import HISTORY_COLUMNS
from forktask.experiments.training.data import load_data
from forktask.experiments.training.phase_times import COLUMNS, MOST_EVENTS, PhaseLog
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors
from forktask.experiments.training.trainer import Trainer

SMALL = TrainingConfig(data="synthetic:64", model="serial", threads=1, epochs=2, batch=16)


def run(config, tmp_path, name="run", resume=False):
    return training.train(config.with_changes(out=str(tmp_path / name)), resume, report=lambda line: None)


def hashes(summary):
    return [seed.parameters_sha256 for seed in summary.seeds]


def test_digits_are_learnt_and_files_are_left(tmp_path, capsys):
    """Check test accuracy above 95 %, curves, figure, caption and parameters of the command."""
    out = tmp_path / "out"
    command = "train --model serial --threads 1 --epochs 3 --seeds 2 --json --out"
    assert main([*command.split(), str(out)]) == 0
    text = capsys.readouterr()
    summary = json.loads(text.out)
    assert summary["test_accuracy_min"] > 0.95
    assert summary == json.loads((out / "summary.json").read_text())
    rows = list(csv.DictReader((out / "epochs.csv").open()))
    phases = ("load_s", "forward_s", "backward_s", "update_s")
    assert tuple(rows[0]) == (*HISTORY_COLUMNS[:9], *phases, "epoch_time_s", "usable") and len(rows) == 6
    assert [row["seed"] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert float(rows[2]["train_loss"]) < float(rows[0]["train_loss"])
    assert float(rows[2]["time_s"]) > float(rows[1]["time_s"]) > 0
    own = float(rows[5]["time_s"]) - float(rows[4]["time_s"])
    assert sum(float(rows[5][name]) for name in phases) == pytest.approx(own, rel=0.3)
    assert float(rows[5]["epoch_time_s"]) == pytest.approx(own) and rows[3]["epoch_time_s"] == rows[3]["time_s"]
    assert f"  {own:.2f} s, in all {float(rows[5]['time_s']):.2f} s" in text.err
    assert summary["seeds"][0]["phases_timed"] == "wall" and summary["seeds"][0]["loader_bytes"] >= 0
    assert (out / "accuracy.pdf").read_bytes()[:4] == b"%PDF" and (out / "accuracy.png").stat().st_size > 5000
    assert (
        "smoke test" in (out / "accuracy.txt").read_text() and "Median of 2 seeds" in (out / "accuracy.txt").read_text()
    )
    parameters, metadata = read_safetensors(out / "parameters-seed-1.safetensors")
    assert {name: a.shape for name, a in parameters.items()} == get_network("cifar10_cnn").parameter_shapes()
    assert metadata["network"] == "cifar10_cnn"


def test_models_give_the_same_weights():
    """Check bit-identical weights and history after an epoch, over all models and thread counts."""
    data = load_data(SMALL.data)
    seen = {}
    for model in forms_of_models():
        for threads in {1, threads_of(model, 3)}:
            with Trainer(SMALL.with_changes(model=model, threads=threads), data, 0) as trainer:
                row = trainer.train_epoch()
                weights = b"".join(trainer.bound.arrays[name].tobytes() for name in trainer._state_names())
            seen[model, threads] = (weights, row.train_loss, row.valid_loss, row.error_rate)
    assert len(set(seen.values())) == 1, {key: value[1:] for key, value in seen.items()}


@pytest.mark.parametrize("model", ["forkjoin", "taskiter:unroll=2:slots=2"])
def test_phases_of_an_epoch_are_logged(model):
    """Check that reading images is in the phase load, that walls add up to the epoch, and that a step with more blocks
    than a log holds is logged alone."""
    config = SMALL.with_changes(network="lenet5", augment="crop", model=model, threads=2, data="synthetic:256")
    data = load_data(config.data, get_network("lenet5"))

    def slow(number):
        time.sleep(0.001)
        return False, 0, 0

    with Trainer(config, data, 0) as trainer:
        trainer.augmentation.of = slow
        row = trainer.train_epoch()
        result = {name: value for name in COLUMNS if (value := getattr(row, name)) is not None}
        assert (trainer.phases.num_logged, trainer.phases.num_steps) == (8, 16)
        assert result["load_s"] > 0.5 * 256 * 0.001 / 2 and min(result.values()) > 0
        if model == "forkjoin":
            assert sum(result.values()) == pytest.approx(row.time_s, rel=0.2)
    plan = SimpleNamespace(num_tasks=MOST_EVENTS + 1)
    assert PhaseLog(parse_model(model), plan, 5, 2).num_logged == 1


def test_evaluation_equals_reference():
    """Check loss and error rate over whole batches and the rest against the float64 reference."""
    data = load_data("digits")
    with Trainer(SMALL.with_changes(data="digits"), data, 1) as trainer:
        trainer.train_epoch()
        indices = data.test[:70]
        loss, error_rate = trainer.evaluations.evaluate(indices)
        parameters = {name: trainer.bound.arrays[name] for name in trainer.plan.attributes["parameters"]}
    expected = reference.forward(get_network("cifar10_cnn"), parameters, data.images[indices], data.labels[indices])
    assert loss == pytest.approx(expected.loss, rel=1e-5)
    assert error_rate == pytest.approx(1 - expected.correct / 70)


def test_resumed_training_is_bit_identical(tmp_path):
    """Check weights, momenta and curves of a run in two parts, the second under another model."""
    whole = run(SMALL, tmp_path, "whole")
    run(SMALL.with_changes(epochs=1), tmp_path, "parts")
    parts = run(SMALL.with_changes(model="forkjoin", threads=2), tmp_path, "parts", resume=True)
    assert hashes(whole) == hashes(parts)
    checkpoints = [
        read_checkpoint(tmp_path / name / "checkpoint-seed-0.safetensors", SMALL.network, 0)
        for name in ("whole", "parts")
    ]
    bits, states = zip(
        *(({n: a.tobytes() for n, a in arrays.items()}, state) for arrays, state in checkpoints), strict=True
    )
    assert bits[0] == bits[1] and states[0] == states[1] and states[0].iteration == 8
    learnt = ("seed", "epoch", "train_loss", "train_error_rate", "valid_loss", "error_rate", "learning_rate")
    histories = [training.histories_of(tmp_path / name)[0] for name in ("whole", "parts")]
    seen = [[[getattr(row, name) for name in learnt] for row in history] for history in histories]
    assert seen[0] == seen[1] and len(seen[0]) == 2


def test_interrupted_training_keeps_the_last_epoch(tmp_path, monkeypatch, capsys):
    """Check that Ctrl-C keeps whole epochs and says how to go on, and that going on completes the run."""
    whole = run(SMALL.with_changes(seeds=2), tmp_path, "whole")
    train_epoch = Trainer.train_epoch

    def interrupted(self):
        if self.seed == 1 and self.epoch == 1:
            raise KeyboardInterrupt
        return train_epoch(self)

    monkeypatch.setattr(Trainer, "train_epoch", interrupted)
    out = tmp_path / "parts"
    command = "train --data synthetic:64 --model serial --threads 1 --epochs 2 --batch 16 --seeds 2 --out"
    assert main([*command.split(), str(out)]) == 130
    assert f"forktask train --resume --out {out}" in capsys.readouterr().err
    assert len((out / "epochs.csv").read_text().splitlines()) == 1 + 3
    monkeypatch.undo()
    assert main(["train", "--resume", "--out", str(out)]) == 0
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert hashes(whole) == hashes(summary)
    assert len((out / "epochs.csv").read_text().splitlines()) == 1 + 4


def test_learning_rate_schedules():
    """Check the three schedules at their first, middle and last iterations."""
    config = SMALL.with_changes(epochs=10, learning_rate=0.1)
    assert learning_rate_table(config, 9, 4).tolist() == [0.1] * 4
    cosine = np.concatenate([learning_rate_table(config.with_changes(schedule="cosine"), e, 4) for e in range(10)])
    assert cosine[0] == 0.1 and cosine[20] == pytest.approx(0.05) and 0 < cosine[-1] < 0.001
    assert (np.diff(cosine) < 0).all()
    step = [learning_rate_table(config.with_changes(schedule="step"), e, 1)[0] for e in range(10)]
    assert step == pytest.approx([0.1] * 6 + [0.01] * 3 + [0.001])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "cifar10:/does/not/exist"], "/does/not/exist"),
        (["--threads", "4000"], "4000"),
        (["--batch", "5000"], "1258"),
        (["--learning-rate", "1e9"], "--learning-rate 1000000000.0"),
        (["--resume"], "--resume"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, options, message):
    """Check exit code 2 and one line that names the value."""
    defaults = ["--model", "serial", "--threads", "1", "--out", str(tmp_path / "out")]
    assert main(["train", *defaults, *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("forktask: error: ") and message in lines[0]


def test_a_training_that_does_not_fit_is_refused_before_it_begins(tmp_path, monkeypatch):
    """Check that what the machine has free bounds a training too, with evaluating, and what would fit is said."""
    plan, needed = trainer._fitting_plan(SMALL, load_data(SMALL.data, get_network(SMALL.network)), None)
    of_step = sum(planned_bytes(plan, SMALL.threads).values())
    for free, text in (
        (of_step - 1, "the plan needs .*, free are .*; .* would fit"),
        (needed - 1, "training and evaluating need .*, free are .*; lower the batch, or give a --memory-limit"),
    ):
        monkeypatch.setattr(trainer, "own_and_free_bytes", lambda free=free: free)
        with pytest.raises(UsageError, match=text):
            run(SMALL, tmp_path)
    assert not (tmp_path / "run").exists()


OWN = """
import forktask as n

def network():
    layers = n.Linear("a", 8), {layer}, n.Linear("b", 2), n.SoftmaxCrossEntropy()
    return n.Network("own", (1, 4, 4), layers)
"""


def test_other_layers_are_not_resumed(tmp_path):
    """Check that a program of the user's that makes other layers of the same shapes is refused, and the same is not."""
    program, out = tmp_path / "own.py", tmp_path / "out"
    program.write_text(OWN.format(layer='n.ReLU("r")'))
    options = ["--model", "serial", "--threads", "1", "--data", "synthetic:32", "--batch", "8", "--no-check"]
    started = ["train", "--out", out, "--network", f"{program}:network"]
    run_forktask(*started, *options, "--epochs", "1", check=True)
    resumed = [*started, "--resume", "--epochs", "2"]
    program.write_text(OWN.format(layer='n.ReLU6("r")'))
    refused = run_forktask(*resumed)
    assert refused.returncode == 2 and "another configuration: layers differ" in refused.stderr
    program.write_text(OWN.format(layer='n.ReLU("r")'))
    run_forktask(*resumed, check=True)


def test_other_data_of_the_same_length_are_not_resumed(tmp_path, monkeypatch):
    """Check that one pixel that differs is refused, and in a text one token."""
    config = SMALL.with_changes(epochs=1)
    run(config, tmp_path)
    load = training.load_data

    def other(*arguments, **options):
        data = load(*arguments, **options)
        data.images[5, 0, 1, 1] += 1
        return data

    monkeypatch.setattr(training, "load_data", other)
    with pytest.raises(UsageError, match="another configuration: samples differ"):
        run(config.with_changes(epochs=2), tmp_path, resume=True)
    text = tmp_path / "text"
    text.write_text("abcdefgh" * 40)
    config = training.configure(
        {"network": "gpt2_tiny", "data": f"text:{text}", "sequence": 8, "model": "serial", "epochs": 1}, resume=False
    ).with_changes(batch=4, schedule="constant")
    run(config, tmp_path, "of-text")
    text.write_text("abcdefgx" * 40)
    with pytest.raises(UsageError, match="another configuration: samples differ"):
        run(config.with_changes(epochs=2), tmp_path, "of-text", resume=True)


def test_resuming_refuses_what_does_not_fit(tmp_path):
    """Check that other settings, fewer epochs and damaged checkpoints are refused when a run is resumed."""
    run(SMALL.with_changes(epochs=1, schedule="cosine"), tmp_path, "cosine")
    with pytest.raises(UsageError, match="depends on --epochs"):
        run(SMALL.with_changes(schedule="cosine"), tmp_path, "cosine", resume=True)
    run(SMALL, tmp_path)
    with pytest.raises(UsageError, match="batch was 16, is now 8"):
        run(SMALL.with_changes(batch=8), tmp_path, resume=True)
    with pytest.raises(UsageError, match="2 epochs behind it already"):
        run(SMALL.with_changes(epochs=1), tmp_path, resume=True)
    checkpoint = tmp_path / "run" / "checkpoint-seed-0.safetensors"
    with pytest.raises(UsageError, match="seed 0, not of"):
        read_checkpoint(checkpoint, SMALL.network, 1)
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:1000])
    with pytest.raises(UsageError, match="checkpoint-seed-0.safetensors"):
        run(SMALL, tmp_path, resume=True)
    checkpoint.write_bytes((tmp_path / "run" / "parameters-seed-0.safetensors").read_bytes())
    with pytest.raises(UsageError, match="must be a checkpoint of forktask train"):
        run(SMALL, tmp_path, resume=True)
    (tmp_path / "run" / SAMPLES).write_text("x\n")
    with pytest.raises(UsageError, match=SAMPLES):
        run(SMALL, tmp_path, resume=True)


@pytest.mark.parametrize("name", network_names("images"))
def test_every_network_takes_classes_and_image_size_from_the_data(name):
    """Check that each network has a plan for 100 classes and images of another, uneven size, on its own layers."""
    network = get_network(name)
    large = 224 if network.input_shape[1] > 200 else 71
    adapted = network.for_images((3, large, large + 10), 100)
    assert adapted.num_classes == 100 and adapted.input_shape == (3, large, large + 10)
    assert [layer.name for layer in adapted.layers] == [layer.name for layer in network.layers]
    plan = lower(adapted, batch=2)
    assert plan.buffers[plan.attributes["parameters"][-1]].shape == (100,)
    assert network.for_images(network.input_shape, network.num_classes) is network


def test_flipped_bits_of_a_checkpoint_are_refused(tmp_path):
    """Check that a checkpoint with one bit changed, in its header, its state or its arrays, is never resumed."""
    run(SMALL.with_changes(epochs=1), tmp_path)
    path = tmp_path / "run" / "checkpoint-seed-0.safetensors"
    whole = path.read_bytes()
    read_checkpoint(path, SMALL.network, 0)
    header = 8 + int.from_bytes(whole[:8], "little")
    generator = np.random.default_rng(1)
    places = [*generator.integers(0, header, 300), *generator.integers(header, len(whole), 100), len(whole) - 1]
    for place in map(int, places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(UsageError):
            read_checkpoint(path, SMALL.network, 0)
    path.write_bytes(whole)
    read_checkpoint(path, SMALL.network, 0)


@pytest.mark.torch
def test_weights_of_pytorch_are_loaded_and_named(tmp_path):
    """Check a file of PyTorch with torchvision's names: what was loaded, what begins at random, what was not used."""
    import torch

    network = get_network("resnet18").for_images((3, 32, 32), 7)
    rng = np.random.default_rng(0)
    shapes = {**network.parameter_shapes(), **network.statistic_shapes()}
    values = {name: rng.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    theirs = {
        name.replace(".shortcut.", ".downsample.").replace("linear.", "fc."): torch.from_numpy(value)
        for name, value in values.items()
    }
    torch.save({**theirs, "bn1.num_batches_tracked": torch.tensor(3)}, tmp_path / "weights.pth")
    config = SMALL.with_changes(network="resnet18", data="synthetic:16", start=str(tmp_path / "weights.pth"))
    with Trainer(config, load_data("synthetic:16"), 0) as trainer:
        for name, value in values.items():
            assert np.array_equal(trainer.bound.arrays[name], value) is (name.partition(".")[0] != "linear")
    assert trainer.started == (
        f"loaded 100 of 102 arrays from {tmp_path / 'weights.pth'}; begin at random: linear.weight, linear.bias; not "
        "used: bn1.num_batches_tracked, linear.bias, linear.weight"
    )
    (tmp_path / "bad.pth").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="dictionary of tensors saved by PyTorch"):
        Trainer(config.with_changes(start=str(tmp_path / "bad.pth")), load_data("synthetic:16"), 0)


def test_weights_that_are_no_numbers_are_refused(tmp_path, capsys):
    """Check that NaN and infinity in a file of parameters are found before they are trained on or timed."""
    run(SMALL.with_changes(epochs=1), tmp_path)
    path = tmp_path / "run" / "parameters-seed-0.safetensors"
    arrays, metadata = read_safetensors(path)
    for wrong in (np.nan, np.inf):
        arrays["conv1.weight"][0] = wrong
        write_safetensors(path, arrays, metadata)
        with pytest.raises(UsageError, match="'conv1.weight' in .* must be finite numbers"):
            run(SMALL.with_changes(start=str(path)), tmp_path, f"from-{wrong}")
        assert not (tmp_path / f"from-{wrong}").exists()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind_are_converted_or_refused(tmp_path):
    """Check that types of floating point which NumPy lacks become float32, and that a tensor that is quantised, sparse,
    nested or without memory is one sentence of the command."""
    import torch

    from forktask.experiments.training.weights import read_torch

    path, values = tmp_path / "w.pt", torch.tensor([[1.0, -0.5], [2.0, 0.25]])
    for same in (values.bfloat16(), values.half(), values.to(torch.float8_e4m3fn), torch.nn.Parameter(values)):
        torch.save({"a": same}, path)
        result = read_torch(path)["a"]
        assert result.dtype.kind == "f" and np.array_equal(result, values.numpy())
    others = {
        "quint8": torch.quantize_per_tensor(values, 0.1, 0, torch.quint8),
        "sparse_coo": values.to_sparse(),
        "sparse_csr": values.to_sparse_csr(),
        "meta": values.to("meta"),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    for kind, other in others.items():
        torch.save({"a": other}, path)
        with pytest.raises(UsageError, match=r"\A'a' in .* must be a dense tensor of numbers, got .*\Z") as caught:
            read_torch(path)
        assert kind == "nested" or kind in str(caught.value)


@pytest.mark.parametrize(("rate", "loss"), [("1e6", r"\d\.?\d*e\+\d\d"), ("1e9", "not finite")])
def test_a_loss_that_no_row_can_hold_is_refused(rate, loss, tmp_path, capsys):
    """Check losses that are infinite, and finite ones past what rows hold."""
    words = f"train --network lenet5 --data digits --epochs 1 --learning-rate {rate} --out {tmp_path / 'run'}"
    assert main(words.split()) == 2
    assert re.search(rf"the loss of epoch 1, iteration \d+ is {loss} with --learning-rate", capsys.readouterr().err)
