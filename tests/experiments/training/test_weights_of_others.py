"""Files of weights as other programs write them: prefixes, wrappers, endings."""

import argparse
import struct

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.layers import (
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    Network,
    ReLU,
    SoftmaxCrossEntropy,
)
from forktask.experiments.training.safetensors import write_safetensors
from forktask.experiments.training.weights import read_weights

NETWORK = Network("small", (3, 8, 8), (
    Conv2d("conv", 4, 3, 1), BatchNorm("bn"), ReLU("relu"), GlobalAvgPool("pool"), Linear("linear", 3),
    SoftmaxCrossEntropy(),
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
