"""MobileBERT in Hugging Face's naming: read, written, refused."""

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training import train as training
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors
from forktask.experiments.training.weights import check_export, read_weights, write_hugging_face

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


def test_other_files_and_networks_are_refused(parameters, tmp_path):
    """Check untied heads, further layers, and networks that have no form."""
    path = tmp_path / "bad.safetensors"
    write_safetensors(path, {**parameters, "cls.predictions.decoder.bias": parameters["cls.predictions.bias"] + 1})
    with pytest.raises(UsageError, match=r"'cls.predictions.decoder.bias' .* must be equal to 'cls.predictions.bias'"):
        read_weights(path, TINY)
    write_safetensors(path, {**parameters, "encoder.layer.2.output.dense.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(UsageError, match="got 'encoder.layer.2.output.dense.weight' too"):
        read_weights(path, TINY)
    name = "embeddings.word_embeddings.weight"
    write_safetensors(path, {name: parameters[name], f"mobilebert.{name}": parameters[name]})
    with pytest.raises(UsageError, match="with and without 'mobilebert.'"):
        read_weights(path, TINY)
    with pytest.raises(UsageError, match="got 'lenet5'"):
        check_export(get_network("lenet5"))
