"""Parameters of a network in the forms of others: PyTorch's files, safetensors in Hugging Face's naming.

Hugging Face names the parameters of GPT-2 as `networks.gpt2` does; its weights of linear layers have the shape (in,
out), ours (out, in). Its MobileBERT has the names of `networks.mobilebert` and one matrix whose axes are exchanged, the
head's further weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Linear, Network, Trigram
from ...cython_src.reading import decoding, open_regular
from .safetensors import read_safetensors, write_safetensors

TORCH_ENDINGS = (".pt", ".pth")
# Parts of names of torchvision's residual networks -> ours.
TORCHVISION = ((".downsample.", ".shortcut."), ("fc.", "linear."))
PREFIX = "transformer."
BERT_PREFIX = "mobilebert."  # of the encoder
BERT_HEAD = "cls.predictions"
# What files of MobileBERT have besides: the pooler and the head of another task, positions that are counted anyway.
_OF_NO_LAYER = re.compile(r"pooler\.|cls\.seq_relationship\.|embeddings\.position_ids$")
HEAD = "lm_head.weight"
_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias$")
_LAYER = re.compile(r"h\.(\d+)\.")


def read_weights(path: Path | str, network: Network) -> dict[str, np.ndarray]:
    """Read parameters under the names and in the shapes of a network.

    A file that ends in .pt or .pth is PyTorch's dictionary of tensors; others are safetensors, of `forktask train` or,
    of a GPT-2 or a MobileBERT, of Hugging Face. Torchvision's names of residual networks become ours.

    Raises
    ------
    UsageError
        A file that cannot be read or, as far as it tells, is of another network.
    """
    path = Path(path)
    arrays = read_torch(path) if path.suffix in TORCH_ENDINGS else read_safetensors(path)[0]
    if not network.tokens:
        return _from_torchvision(arrays, network)
    if _is_mobilebert(network):
        return _mobilebert_from_hugging_face(arrays, network, path)
    return _from_hugging_face(arrays, network, path)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read a dictionary of tensors from a file of PyTorch; nothing in it is executed.

    Raises
    ------
    UsageError
        PyTorch is missing, or the file is of another kind.
    """
    try:
        import torch
    except ImportError:
        raise UsageError(
            f"{path} is a file of PyTorch, which is not installed; pip install 'forktask[peers]', or save it as "
            f"safetensors"
        ) from None
    title = "dictionary of tensors saved by PyTorch"
    with open_regular(path, title) as (file, _), decoding(path, title, "save model.state_dict() again"):
        content = torch.load(file, map_location="cpu", weights_only=True)
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise UsageError(
            f"{path} must be a dictionary of tensors saved by PyTorch, got another; save model.state_dict()"
        )
    return {str(name).removeprefix("module."): value.detach().numpy() for name, value in content.items()}


def _from_torchvision(arrays: Mapping[str, np.ndarray], network: Network) -> dict[str, np.ndarray]:
    """Rename what only torchvision calls so."""
    known = {*network.parameter_shapes(), *network.statistic_shapes()}
    renamed = {}
    for name, array in arrays.items():
        other = name
        for theirs, ours in TORCHVISION:
            other = ours + other.removeprefix(theirs) if other.startswith(theirs) else other.replace(theirs, ours)
        renamed[other if name not in known and other in known else name] = array
    return renamed


def write_hugging_face(path: Path | str, parameters: Mapping[str, np.ndarray], network: Network) -> None:
    """Write safetensors as `GPT2LMHeadModel`, or `MobileBertForMaskedLM` or `MobileBertForSequenceClassification`, of
    Hugging Face reads them.

    Raises
    ------
    UsageError
        A network that is neither a GPT-2 nor a MobileBERT, or parameters of another.
    """
    check_export(network)
    shapes = network.parameter_shapes()
    if {name: array.shape for name, array in parameters.items()} != shapes:
        raise UsageError(
            f"parameters must be those of {network.name!r}, and others were given; is it of another network?"
        )
    if _is_mobilebert(network):
        arrays = {
            name if name.startswith(("cls.", "classifier.")) else f"{BERT_PREFIX}{name}": array
            for name, array in _with_head_exchanged(parameters).items()
        }
    else:
        arrays = {f"{PREFIX}{name}": array for name, array in _transposed(parameters, network).items()}
    write_safetensors(path, arrays, {"format": "pt"})


def check_export(network: Network) -> None:
    """Raise `UsageError` for a network that is none of Hugging Face's."""
    if not _is_mobilebert(network) and gpt2.sizes_of(network) is None:
        raise UsageError(f"--export huggingface takes a GPT-2 or a MobileBERT, such as gpt2, got {network.name!r}")


def _is_mobilebert(network: Network) -> bool:
    return any(isinstance(layer, Trigram) for layer in network.layers)


def _with_head_exchanged(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Exchange the axes of the further weights of MobileBERT's head."""
    return {name: array.T if name == f"{BERT_HEAD}.dense.weight" else array for name, array in arrays.items()}


def _transposed(parameters: Mapping[str, np.ndarray], network: Network) -> dict[str, np.ndarray]:
    """Exchange the axes of the weights of linear layers."""
    linear = {f"{layer.name}.weight" for layer in network.layers if isinstance(layer, Linear)}
    return {name: array.T if name in linear else array for name, array in parameters.items()}


def _mobilebert_from_hugging_face(
    arrays: Mapping[str, np.ndarray], network: Network, path: Path
) -> dict[str, np.ndarray]:
    """Rename and exchange what a file of Hugging Face has; one of `forktask train` stays as it is. What belongs to
    heads that the network has not is left out."""
    found = _without_prefix(arrays, BERT_PREFIX, _OF_NO_LAYER, path)
    _drop_tied(found, f"{BERT_HEAD}.decoder.weight", "embeddings.word_embeddings.weight", path, network)
    _drop_tied(found, f"{BERT_HEAD}.decoder.bias", f"{BERT_HEAD}.bias", path, network)
    shapes = network.parameter_shapes()
    further = sorted(name for name in found if name.startswith("encoder.") and name not in shapes)
    if further:
        raise UsageError(
            f"{path} must have the parameters of {network.name!r}, got {further[0]!r} too; use another network or file"
        )
    name = f"{BERT_HEAD}.dense.weight"
    if name in found and name in shapes and found[name].shape == shapes[name][::-1] != shapes[name]:
        found = _with_head_exchanged(found)
    return {name: array for name, array in found.items() if name in shapes}


def _from_hugging_face(arrays: Mapping[str, np.ndarray], network: Network, path: Path) -> dict[str, np.ndarray]:
    """Rename and transpose what a file of Hugging Face has; one of `forktask train` stays as it is.

    The shape of the first weight of attention, (in, 3 in) or (3 in, in), tells the two apart.
    """
    found = _without_prefix(arrays, PREFIX, _MASK, path)
    _drop_tied(found, HEAD, "wte.weight", path, network)
    layers = {int(match[1]) for name in network.parameter_shapes() if (match := _LAYER.match(name))}
    further = sorted({int(match[1]) for name in found if (match := _LAYER.match(name))} - layers)
    if further:
        raise UsageError(
            f"{path} must have the {len(layers)} layers of {network.name!r}, got a layer h.{further[0]} too; use "
            f"another network or file"
        )
    first = found.get("h.0.attn.c_attn.weight")
    if first is None or first.ndim != 2 or first.shape[1] != 3 * first.shape[0]:
        return found
    return _transposed(found, network)


def _without_prefix(
    arrays: Mapping[str, np.ndarray], prefix: str, dropped: re.Pattern, path: Path
) -> dict[str, np.ndarray]:
    """Take a prefix from names that have it, and drop some of them."""
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        short = name.removeprefix(prefix)
        if short in found:
            raise UsageError(f"{path} must have {short!r} once, got it with and without {prefix!r}; leave one out")
        if not dropped.match(short):
            found[short] = array
    return found


def _drop_tied(found: dict[str, np.ndarray], copy: str, tied: str, path: Path, network: Network) -> None:
    """Drop the copy of a parameter with which the head is tied."""
    array = found.pop(copy, None)
    if array is not None and (tied not in found or not np.array_equal(array, found[tied])):
        raise UsageError(
            f"{copy!r} in {path} must be equal to {tied!r}, with which {network.name!r} ties its head, and is not; use "
            f"a model with a tied head"
        )
