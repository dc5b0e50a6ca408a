"""GPT-2 in Hugging Face's naming: read, written, refused; training from it."""

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training import train as training
from forktask.experiments.training import weights
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors

SMALL = gpt2.network("small", num_layers=2, features=4, heads=2, vocabulary=5, positions=3)
TINY = get_network("gpt2_tiny")


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
    parameters = parameters_of(TINY)
    weights.write_hugging_face(tmp_path / "theirs.safetensors", parameters, TINY)
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
    result = weights.read_weights(tmp_path / "run-theirs" / "model-seed-0.safetensors", TINY)
    assert all(np.array_equal(result[name], trained[name]) for name in trained)
    assert not list((tmp_path / "run-ours").glob("model-*"))
