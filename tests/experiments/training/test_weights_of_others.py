"""Weights of other programs: prefixes, formats, names of Hugging Face, MobileBERT."""

import argparse
import struct

import numpy as np
import pytest

import forktask as ft
from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training import train as training
from forktask.experiments.training import weights
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors
from forktask.experiments.training.weights import read_weights, write_hugging_face

NETWORK = ft.Network("small", (3, 8, 8), (
    ft.Conv2d("conv", 4, 3, 1), ft.BatchNorm("bn"), ft.ReLU("relu"), ft.GlobalAvgPool("pool"), ft.Linear("linear", 3),
    ft.SoftmaxCrossEntropy(),
))  # fmt: skip
NAMES = {**NETWORK.parameter_shapes(), **NETWORK.statistic_shapes()}
ARRAYS = {name: np.random.default_rng(1).standard_normal(shape).astype("f4") for name, shape in NAMES.items()}
SPELLED = {
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "a compiled part": lambda name: name.replace("conv.", "conv._orig_mod."),
    "DistributedDataParallel": lambda name: f"module.{name}",
    "Lightning": lambda name: f"model.{name}",
    "all of them": lambda name: f"model.module._orig_mod.{name}",
    "torchvision's names": lambda name: f"model.{name}".replace("linear.", "fc."),
    "own": lambda name: f"net.backbone.{name}",
    "none": lambda name: name,
}


def same(read):
    return all(np.array_equal(read[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize("spelled", SPELLED)
def test_prefixes_of_other_programs_are_left_out(spelled, tmp_path):
    """Check safetensors whose names all have a prefix, beside tensors of something else."""
    others = {"loss.weight": np.ones(3, "f4"), **{f"other.{n}": np.zeros(2, "f4") for n in range(12)}}
    arrays = {SPELLED[spelled](name): array for name, array in ARRAYS.items()}
    for number, further in enumerate(({}, others)):
        write_safetensors(tmp_path / f"{number}", arrays | further)
        assert same(read_weights(tmp_path / f"{number}", NETWORK))


def test_a_prefix_without_all_names_or_with_two_sets_is_named(tmp_path):
    """Check that a sentence names the prefix where no set of names or more than one fits."""
    some = dict(list({f"model.{name}": array for name, array in ARRAYS.items()}.items())[1:])
    some |= {f"model.more.{n}": np.zeros(2, "f4") for n in range(5)}
    both = {f"{prefix}.{name}": array for prefix in ("student", "teacher") for name, array in ARRAYS.items()}
    for arrays, text in ((some, "'model.', got 0 sets"), (both, r"'(student|teacher)\.', got 2 sets")):
        write_safetensors(tmp_path / "w", arrays)
        with pytest.raises(UsageError, match=text):
            read_weights(tmp_path / "w", NETWORK)


@pytest.mark.torch
@pytest.mark.parametrize("wrapper", [(), ("state_dict",), ("model",), ("state_dict", "model")])
@pytest.mark.parametrize("ending", ["ckpt", "bin", "pt", "safetensors", "weights"])
def test_formats_are_known_by_first_bytes(wrapper, ending, tmp_path):
    """Check PyTorch's files, zipped and not, under any ending and in the wrappers of checkpoints; and safetensors that
    end as PyTorch's files."""
    import torch

    content = {f"model.{name}": torch.from_numpy(array.copy()) for name, array in ARRAYS.items()}
    for key in reversed(wrapper):
        content = {key: content, "epoch": 3, "optimizer": {"state": {}}}
    for zipped in (True, False):
        torch.save(content, tmp_path / f"w.{ending}", _use_new_zipfile_serialization=zipped)
        assert same(read_weights(tmp_path / f"w.{ending}", NETWORK))
    (tmp_path / f"w.{ending}").unlink()
    write_safetensors(tmp_path / f"w.{ending}", ARRAYS)
    assert same(read_weights(tmp_path / f"w.{ending}", NETWORK))


@pytest.mark.torch
def test_sentences_have_no_terminal_codes(tmp_path):
    """Check a file that PyTorch will not load without executing it, whose own message is bold."""
    import torch

    torch.save({"state_dict": {}, "args": argparse.Namespace(model="small")}, tmp_path / "w.ckpt")
    with pytest.raises(UsageError) as refused:
        read_weights(tmp_path / "w.ckpt", NETWORK)
    assert str(refused.value).isprintable()
    (tmp_path / "w.bin").write_bytes(struct.pack("<Q", 8) + b"nothing!")
    with pytest.raises(UsageError, match=r"w\.bin"):
        read_weights(tmp_path / "w.bin", NETWORK)


SMALL = gpt2.network("small", num_layers=2, features=4, heads=2, vocabulary=5, positions=3)
GPT2_TINY = get_network("gpt2_tiny")


def parameters_of(network, seed=0):
    """Random parameters."""
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        for name, shape in network.parameter_shapes().items()
    }


def test_safetensors_of_hugging_face(tmp_path):
    """Check names and shapes of what is written, that the same bytes come back, and the forms that are met."""
    network, path = SMALL, tmp_path / "model.safetensors"
    parameters = parameters_of(network)
    weights.write_hugging_face(path, parameters, network)
    stored, metadata = read_safetensors(path)
    assert metadata == {"format": "pt"}
    shapes = {
        name: stored[f"transformer.h.1.{name}.weight"].shape for name in ("attn.c_attn", "mlp.c_fc", "mlp.c_proj")
    }
    assert shapes == {"attn.c_attn": (4, 12), "mlp.c_fc": (4, 16), "mlp.c_proj": (16, 4)}
    assert np.array_equal(stored["transformer.h.0.attn.c_proj.weight"], parameters["h.0.attn.c_proj.weight"].T)
    assert np.array_equal(stored["transformer.wte.weight"], parameters["wte.weight"])

    def check(arrays):
        write_safetensors(tmp_path / "form", arrays)
        result = weights.read_weights(tmp_path / "form", network)
        assert result.keys() == parameters.keys()
        assert all(np.array_equal(result[name], parameters[name]) for name in result)

    bare = {name.removeprefix("transformer."): array for name, array in stored.items()}
    masks = {
        "transformer.h.0.attn.bias": np.tri(3, dtype=bool)[None, None],
        "transformer.h.1.attn.masked_bias": np.zeros(1),
    }
    check(stored)
    check(bare)
    check(stored | masks | {"lm_head.weight": parameters["wte.weight"]})
    check(parameters)
    weights.write_hugging_face(tmp_path / "again", weights.read_weights(path, network), network)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()

    for changes, sentence in (
        ({"lm_head.weight": parameters["wte.weight"] + 1}, "must be equal to 'wte.weight'"),
        ({"wte.weight": parameters["wte.weight"]}, "with and without 'transformer.'"),
        ({"transformer.h.2.ln_1.bias": np.zeros(4, np.float32)}, "got 'h.2.ln_1.bias' too"),
    ):
        write_safetensors(tmp_path / "form", stored | changes)
        with pytest.raises(UsageError, match=sentence):
            weights.read_weights(tmp_path / "form", network)
    with pytest.raises(UsageError, match="got 'lenet5'"):
        weights.write_hugging_face(path, parameters, get_network("lenet5"))


def test_training_starts_from_each_form(tmp_path):
    """Check two steps from each form: the same bits, other than from random, and the form at the end holds them."""
    parameters = parameters_of(GPT2_TINY)
    weights.write_hugging_face(tmp_path / "theirs.safetensors", parameters, GPT2_TINY)
    write_safetensors(tmp_path / "ours.safetensors", parameters)
    hashes = {}
    for name, export in (("theirs", "huggingface"), ("ours", "none"), ("", "none")):
        given = {"network": "gpt2_tiny", "data": "synthetic:10", "sequence": 8, "batch": 4, "epochs": 1, "threads": 1}
        given |= {"model": "serial", "out": str(tmp_path / f"run-{name}"), "export": export}
        given |= {"start": str(tmp_path / f"{name}.safetensors") if name else ""}
        summary = training.train(training.configure(given, resume=False), report=lambda line: None)
        hashes[name] = summary.seeds[0].parameters_sha256
    assert hashes["theirs"] == hashes["ours"] != hashes[""]
    trained, _ = read_safetensors(tmp_path / "run-ours" / "parameters-seed-0.safetensors")
    result = weights.read_weights(tmp_path / "run-theirs" / "model-seed-0.safetensors", GPT2_TINY)
    assert all(np.array_equal(result[name], trained[name]) for name in trained)
    assert not list((tmp_path / "run-ours").glob("model-*"))


TINY, CLASSIFIER = get_network("mobilebert_tiny"), get_network("mobilebert_tiny_classifier")


@pytest.fixture
def parameters():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in TINY.parameter_shapes().items()}


def test_what_is_written_has_hugging_faces_names_and_is_read_again(parameters, tmp_path):
    """Check the prefix, the exchanged matrix, and that reading gives the parameters back; with the copies and the heads
    that files of Hugging Face have besides too."""
    path = tmp_path / "model.safetensors"
    write_hugging_face(path, parameters, TINY)
    arrays, metadata = read_safetensors(path)
    assert metadata == {"format": "pt"} and arrays["cls.predictions.dense.weight"].shape == (48, 257)
    np.testing.assert_array_equal(
        arrays["mobilebert.encoder.layer.0.ffn.0.output.LayerNorm.weight"],
        parameters["encoder.layer.0.ffn.0.output.LayerNorm.weight"],
    )
    arrays["cls.predictions.decoder.weight"] = arrays["mobilebert.embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
    arrays["cls.seq_relationship.weight"] = np.zeros((2, 64), np.float32)
    arrays["mobilebert.embeddings.position_ids"] = np.arange(256, dtype=np.int64)[None]
    write_safetensors(tmp_path / "more.safetensors", arrays)
    for name in (path, tmp_path / "more.safetensors"):
        result = read_weights(name, TINY)
        assert result.keys() == parameters.keys()
        for key, value in parameters.items():
            np.testing.assert_array_equal(result[key], value, err_msg=key)


def test_a_classifier_starts_from_a_language_model(parameters, tmp_path):
    """Check that the classifier takes the encoder, begins its last layer at random, and exports what it learnt."""
    write_hugging_face(tmp_path / "model.safetensors", parameters, TINY)
    config = training.configure(
        {"network": CLASSIFIER.name, "data": "synthetic:40", "sequence": 8, "epochs": 1, "threads": 1}
        | {"start": str(tmp_path / "model.safetensors"), "out": str(tmp_path / "run"), "frozen": "embeddings,encoder"}
        | {"export": "huggingface"},
        resume=False,
    )
    training.train(config, report=lambda line: None)
    arrays, _ = read_safetensors(tmp_path / "run" / "model-seed-0.safetensors")
    assert arrays["classifier.weight"].shape == (2, 64) and not any(name.startswith("cls.") for name in arrays)
    name = "encoder.layer.1.attention.self.value.weight"
    np.testing.assert_array_equal(arrays[f"mobilebert.{name}"], parameters[name])
