"""Networks of tokens on the command line: training on text."""

import json

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.sweep.configuration import parse_configuration
from forktask.experiments.sweep.tune import candidates
from forktask.experiments.training import train as training
from forktask.experiments.training.safetensors import read_safetensors
from forktask.experiments.training.text import load_text

TINY = get_network("gpt2_tiny")
# Words in a circle, none twice; samples of 31 bytes begin at each of its 72 bytes.
SENTENCE = b"the quick brown fox jumps over a lazy dog and runs away from him again. "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the network of bytes on one sentence, and what its command printed."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "sentence.txt").write_bytes(SENTENCE * 150)
    config = training.configure(
        {"network": "gpt2_tiny", "data": f"text:{folder / 'sentence.txt'}", "sequence": 31, "epochs": 10, "threads": 2}
        | {"out": str(folder / "run")},
        resume=False,
    )
    lines = []
    return training.train(config, report=lines.append), lines, folder / "run"


def test_a_sentence_is_learnt(trained):
    """Check that the loss falls far below that of guessing, the report with tokens a second, the files."""
    summary, lines, folder = trained
    assert summary.seeds[0].test_loss < 0.5 and summary.test_accuracy_min > 0.85
    assert "MiB" in lines[0] and "tokens/s" in lines[1] and "valid loss" in lines[1]
    assert len(lines) == 11
    assert (folder / "accuracy.pdf").exists()
    parameters, metadata = read_safetensors(folder / "parameters-seed-0.safetensors")
    assert {name: array.shape for name, array in parameters.items()} == TINY.parameter_shapes()
    assert metadata == {"network": "gpt2_tiny", "data": "text"}
    assert summary.config["optimizer"] == "adamw" and summary.config["batch"] == 4


def test_training_resumes_bit_by_bit(tmp_path):
    """Check that a run in two parts leaves the parameters of one in one part, under another model."""
    given = {"network": "gpt2_tiny", "data": "synthetic:24", "sequence": 16, "threads": 1, "schedule": "constant"}

    def run(name, resume=False, **changes):
        config = training.configure({**given, "out": str(tmp_path / name), **changes}, resume)
        return training.train(config, resume, report=lambda line: None).seeds[0].parameters_sha256

    run("parts", epochs=1, model="serial")
    assert run("parts", resume=True, epochs=2, model="taskiter") == run("whole", epochs=2, model="forkjoin")


def test_the_default_text_is_long_enough():
    """Check that the text without a file has two hundred thousand bytes and is split without overlap."""
    data = load_text("text", TINY, 64)
    assert data.num_samples * 64 > 200_000 and data.tokens.max() < 256
    assert len({*data.train, *data.valid, *data.test}) == data.num_samples
    assert data.valid.min() > data.train.max() and data.test.min() > data.valid.max()
    assert b"statement" in bytes(data.tokens.astype(np.uint8))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits", "must be one of text, text:FILE, synthetic:N"),
        ("text:", "must be one of text"),
        ("text:nowhere", "text:FILE"),
        ("synthetic:3", r"must be in \[10"),
        ("text:short", "at least three samples"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(spec, message, tmp_path, monkeypatch):
    """Check that the sentence says which data there are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match=message):
        load_text(spec, TINY, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--network", "gpt2_tiny", "--data", "digits"], "must be one of text"),
        (["compare", "--network", "gpt2_tiny,lenet5", "--models", "serial"], "batch must be given"),
        (["compare", "--network", "gpt2_tiny", "--sequence", "300", "--models", "serial"], "sequence must be in"),
    ],
)
def test_what_networks_of_tokens_cannot_do_is_one_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    """Check the exit code and the sentence."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    found = capsys.readouterr().err
    assert message in found and found.count("\n") == 1


def test_sweeps_and_searches_know_networks_of_tokens():
    """Check the batch of a file that names none, and that the search for block sizes cuts heads too."""
    grid = parse_configuration({"grid": {"network": ["gpt2_tiny", "gpt2_small"]}}).grid
    assert grid.batch == (4,)
    assert parse_configuration({}).grid.batch == (64,)
    found = candidates("gpt2_tiny", PlanOptions(batch=4), budget=12, seed=0)
    assert any("heads=" in text for text in found) and len(found) == 12


def test_compare_and_memory_take_the_default_batch(tmp_path, monkeypatch, capsys):
    """Check a comparison of three models in fresh processes, and the planned and measured bytes."""
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "--network", "gpt2_tiny", "--sequence", "16", "--models", "serial,forkjoin,taskiter"]
    assert main([*arguments, "--threads", "1,2", "--quick", "--oversubscribe", "--out", "out"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    plans = {(row["options"]["batch"], row["options"]["sequence"]) for row in rows if row["kind"] == "plan"}
    assert plans == {(4, 16)}
    capsys.readouterr()
    assert main(["plan", "--network", "gpt2_tiny", "--measure", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["plans"]
    assert row["options"]["batch"] == 4 and row["resident"]["later"] < 1.25 * sum(row["planned"].values())


def test_masked_places_depend_on_seed_sample_and_epoch_alone(tmp_path):
    """Check how many places are masked and what they hold, that labels are the text, that another epoch or seed masks
    others, and that those of validation and test stay."""
    network, sequence = get_network("mobilebert_tiny"), 40
    (tmp_path / "text").write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 40 * 500 + 1, dtype=np.uint8)))
    data = load_text(f"text:{tmp_path / 'text'}", network, sequence)
    found = {}
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0)):
        data.start_epoch(seed, epoch)
        tokens, labels, text = (a.reshape(-1, sequence).copy() for a in (data.tokens, data.labels, data.original))
        assert ((labels != IGNORED).sum(axis=1) == data.answers).all() and data.answers == 6
        np.testing.assert_array_equal(np.where(labels == IGNORED, text, labels), text)
        np.testing.assert_array_equal(tokens[labels == IGNORED], text[labels == IGNORED])
        shown, right = tokens[labels != IGNORED], labels[labels != IGNORED]
        assert (shown == 256).mean() == pytest.approx(0.8, abs=0.03)
        assert (shown == right).mean() == pytest.approx(0.1, abs=0.03)
        places = labels != IGNORED
        if (seed, epoch) in found:
            np.testing.assert_array_equal(found[seed, epoch], places)
        found[seed, epoch] = places
    for other in ((1, 1), (2, 0)):
        assert (found[1, 0][data.train] != found[other][data.train]).any()
        for part in (data.valid, data.test):
            np.testing.assert_array_equal(found[1, 0][part], found[other][part])


def test_masked_text_is_learnt_and_resumed(tmp_path):
    """Check that the loss of masked places falls, and that a run in two parts leaves the parameters of one in one part,
    under another model."""
    (tmp_path / "sentence.txt").write_bytes(SENTENCE * 60)
    given = {"network": "mobilebert_tiny", "data": f"text:{tmp_path / 'sentence.txt'}", "sequence": 31, "batch": 8}
    given |= {"schedule": "constant"}
    found = {}
    for name, parts in (("whole", [(4, "serial")]), ("parts", [(1, "serial"), (4, "taskiter")])):
        for number, (epochs, model) in enumerate(parts):
            config = training.configure(
                {**given, "epochs": epochs, "model": model, "threads": 2 if number else 1, "out": str(tmp_path / name)},
                resume=number > 0,
            )
            summary = training.train(config, resume=number > 0, report=lambda line: None)
        found[name] = summary.seeds[0].parameters_sha256
    assert found["whole"] == found["parts"]
    rows = (tmp_path / "whole" / "epochs.csv").read_text().splitlines()
    losses = [float(row.split(",")[rows[0].split(",").index("train_loss")]) for row in rows[1:]]
    assert losses[-1] < 0.7 * losses[0] and 0 <= summary.test_accuracy_min <= 1


@pytest.mark.parametrize(
    ("network", "spec", "message"),
    [
        ("mobilebert_classifier", "text", "data of the classifier 'mobilebert_classifier' must be synthetic:N"),
        ("mobilebert_tiny", "words", "must be one of text, text:FILE"),
        ("gpt2", "text", "bytes, which are the tokens of gpt2_small and gpt2_tiny, got 'gpt2' with 50257 tokens; add"),
        ("mobilebert", "text", "the tokens of mobilebert_tiny, got 'mobilebert' with 30522 tokens; add its --token"),
    ],
)
def test_data_of_other_networks_are_refused(network, spec, message):
    """Check that each refusal is a sentence that says what is wrong."""
    with pytest.raises(UsageError, match=message):
        load_text(spec, get_network(network), 16)


def test_a_classifier_trains_on_random_classes(tmp_path):
    """Check that it runs, and that its data are said to be too easy."""
    config = training.configure(
        {"network": "mobilebert_tiny_classifier", "data": "synthetic:40", "sequence": 8, "epochs": 2, "threads": 1}
        | {"out": str(tmp_path / "run")},
        resume=False,
    )
    assert training.train(config, report=lambda line: None).smoke_test
