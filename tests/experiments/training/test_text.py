"""Networks of tokens on the command line: training on text."""

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.networks.registry import get_network
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
    assert sum(line.startswith("seed 0") for line in lines) == 10
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


def test_masked_places_depend_on_seed_sample_and_epoch_alone(tmp_path):
    """Check how many places are masked and what they hold, that labels are the text, that another epoch or seed masks
    others, and that those of validation and test stay."""
    network, sequence = get_network("mobilebert_tiny"), 40
    (tmp_path / "text").write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 40 * 500 + 1, dtype=np.uint8)))
    data = load_text(f"text:{tmp_path / 'text'}", network, sequence)
    result = {}
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
        if (seed, epoch) in result:
            np.testing.assert_array_equal(result[seed, epoch], places)
        result[seed, epoch] = places
    for other in ((1, 1), (2, 0)):
        assert (result[1, 0][data.train] != result[other][data.train]).any()
        for part in (data.valid, data.test):
            np.testing.assert_array_equal(result[1, 0][part], result[other][part])


def test_masked_text_is_learnt_and_resumed(tmp_path):
    """Check that the loss of masked places falls, and that a run in two parts leaves the parameters of one in one part,
    under another model."""
    (tmp_path / "sentence.txt").write_bytes(SENTENCE * 60)
    given = {"network": "mobilebert_tiny", "data": f"text:{tmp_path / 'sentence.txt'}", "sequence": 31, "batch": 8}
    given |= {"schedule": "constant"}
    result = {}
    for name, parts in (("whole", [(4, "serial")]), ("parts", [(1, "serial"), (4, "taskiter")])):
        for number, (epochs, model) in enumerate(parts):
            config = training.configure(
                {**given, "epochs": epochs, "model": model, "threads": 2 if number else 1, "out": str(tmp_path / name)},
                resume=number > 0,
            )
            summary = training.train(config, resume=number > 0, report=lambda line: None)
        result[name] = summary.seeds[0].parameters_sha256
    assert result["whole"] == result["parts"]
    rows = (tmp_path / "whole" / "epochs.csv").read_text().splitlines()
    losses = [float(row.split(",")[rows[0].split(",").index("train_loss")]) for row in rows[1:]]
    assert losses[-1] < 0.7 * losses[0] and 0 <= summary.test_accuracy_min <= 1


def llm_c_file(tokens, magic=20240520):
    """The content of a file of tokens as llm.c writes it."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(tokens)
    return header.tobytes() + np.asarray(tokens, "<u2" if magic == 20240520 else "<u4").tobytes()


GPT2_TOKENS = np.random.default_rng(0).integers(0, 50257, 900)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("val", llm_c_file(GPT2_TOKENS)),
        ("val.bin", llm_c_file(GPT2_TOKENS, 20240801)),
        ("train.bin", GPT2_TOKENS.astype("<u2").tobytes()),
    ],
    ids=["llm.c", "llm.c of 32 bits", "nanoGPT"],
)
def test_files_of_tokens_are_read_as_tokens(name, content, tmp_path):
    """Check the tokens of files of llm.c and nanoGPT, and that other networks, tokenizers and cut files are refused."""
    path = tmp_path / name
    path.write_bytes(content)
    text = load_text(f"text:{path}", get_network("gpt2"), 32)
    assert text.tokens.tolist() == GPT2_TOKENS[: len(text.tokens)].tolist() and "900 tokens" in text.description
    with pytest.raises(UsageError, match="below the vocabulary of the network, 256, got 50"):
        load_text(f"text:{path}", TINY, 32)
    path.write_bytes(content[:-1])
    with pytest.raises(UsageError, match="bytes of tokens, got"):
        load_text(f"text:{path}", get_network("gpt2"), 32)


@pytest.mark.parametrize("name", ["plain.bin", "plain.txt"])
def test_a_text_stays_text_whatever_its_name_and_its_nuls_are_said(name, tmp_path, capsys):
    """Check a text called .bin, and one with NUL bytes."""
    path = tmp_path / name
    path.write_bytes(SENTENCE * 150)
    assert load_text(f"text:{path}", TINY, 31).tokens[:3].tolist() == [*b"the"] and not capsys.readouterr().err
    (tmp_path / "wide.txt").write_bytes((SENTENCE * 150).decode().encode("utf-16-le"))
    load_text(f"text:{tmp_path / 'wide.txt'}", TINY, 31)
    assert f"has {150 * len(SENTENCE)} NUL bytes in" in capsys.readouterr().err
