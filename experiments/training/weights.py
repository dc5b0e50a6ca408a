"""Parameters of a network in the forms of others: PyTorch's files, safetensors in Hugging Face's naming.

Hugging Face names the parameters of GPT-2 as `networks.gpt2` does; its weights of linear layers have the shape (in,
out), ours (out, in). Its MobileBERT has the names of `networks.mobilebert` and one matrix whose axes are exchanged, the
head's further weights.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...cython_src.errors import UsageError, optional
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Linear, Network, Trigram
from ...cython_src.reading import decoding, open_regular
from .safetensors import read_safetensors, write_safetensors

TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")
TORCH_BEGINS = (b"PK\3\4", b"\x80\x02")  # a zip file, a pickle
WRAPPERS = ("state_dict", "model")  # where a checkpoint keeps its tensors: Lightning and timm, nanoGPT and fastai
# Parts of names of torchvision's residual networks -> ours.
TORCHVISION = ((".downsample.", ".shortcut."), ("fc.", "linear."))


class _Form(NamedTuple):
    """How Hugging Face writes a network: what names begin with, what a file has besides, copies of tied parameters, and
    names of which a network must know all."""

    prefix: str
    besides: re.Pattern
    tied: tuple[tuple[str, str], ...]
    layers: re.Pattern


GPT2 = _Form(
    "transformer.",
    re.compile(r"h\.\d+\.attn\.(masked_)?bias$"),  # masks
    (("lm_head.weight", "wte.weight"),),
    re.compile(r"h\.\d+\."),
)
_HEAD = "cls.predictions"
MOBILEBERT = _Form(
    "mobilebert.",  # of the encoder
    # The pooler and the head of another task, positions that are counted anyway.
    re.compile(r"pooler\.|cls\.seq_relationship\.|embeddings\.position_ids$"),
    ((f"{_HEAD}.decoder.weight", "embeddings.word_embeddings.weight"), (f"{_HEAD}.decoder.bias", f"{_HEAD}.bias")),
    re.compile(r"encoder\."),
)


def read_weights(path: Path | str, network: Network) -> dict[str, np.ndarray]:
    """Read parameters under the names and in the shapes of a network.

    PyTorch's dictionary of tensors, known by its first bytes, or safetensors, of `forktask train` or, of a GPT-2 or a
    MobileBERT, of Hugging Face. Torchvision's names of residual networks become ours. A prefix that other programs put
    before all names is left out where one does and all parameters are there without it. Raises `UsageError`: a file
    that cannot be read or, as far as it tells, is of another network.
    """
    path = Path(path)
    with open_regular(path, "file of weights") as (file, _):
        begin = file.read(9)
    is_torch = path.suffix in TORCH_ENDINGS or begin.startswith(TORCH_BEGINS)
    # The header of safetensors follows its length.
    arrays = read_torch(path) if is_torch and begin[8:] != b"{" else read_safetensors(path)[0]
    arrays = {name.replace("_orig_mod.", ""): array for name, array in arrays.items()}  # of torch.compile, anywhere
    known = {*network.parameter_shapes(), *network.statistic_shapes()}
    counts = Counter(name[: dot.end()] for name in arrays for dot in re.finditer(r"\.", name))
    common = [prefix for prefix, count in counts.items() if count >= len(known)]
    plain = _renamed(arrays, network, path)
    if known & plain.keys() or not common:
        return plain
    fitting = []
    for prefix in common:
        inside = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        with contextlib.suppress(UsageError):
            fitting += [result for result in [_renamed(inside, network, path)] if known <= result.keys()]
    if len(fitting) != 1:
        raise UsageError(
            f"{str(path)!r} must have the parameters of {network.name!r}, alone or after a prefix such as "
            f"{common[0]!r}, got {len(fitting)} sets of them; save state_dict() of that network"
        )
    return fitting[0]


def _renamed(arrays: Mapping[str, np.ndarray], network: Network, path: Path) -> dict[str, np.ndarray]:
    if not network.tokens:
        return _from_torchvision(arrays, network)
    return _from_hugging_face(arrays, network, MOBILEBERT if _is_mobilebert(network) else GPT2, path)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Read a dictionary of tensors from a file of PyTorch; nothing in it is executed. Raises `UsageError`: PyTorch is
    missing, or the file is of another kind."""
    torch = optional("torch", str(path), "peers", ", or save it as safetensors")
    title = "dictionary of tensors saved by PyTorch"
    with open_regular(path, title) as (file, _), decoding(path, title, "save model.state_dict() again"):
        content = torch.load(file, map_location="cpu", weights_only=True)
    for wrapper in WRAPPERS:
        inner = content.get(wrapper) if isinstance(content, dict) else None
        content = inner if isinstance(inner, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise UsageError(
            f"{path} must be a dictionary of tensors saved by PyTorch, got another; save model.state_dict()"
        )
    return {str(name): _numpy(torch, str(name), value, path) for name, value in content.items()}


def _numpy(torch: Any, name: str, value: Any, path: Path) -> np.ndarray:
    """Return a tensor as an array; types of floating point that NumPy does not have become float32."""
    try:
        known = not value.is_floating_point() or value.dtype in (torch.float16, torch.float32, torch.float64)
        array: np.ndarray = (value if known else value.float()).detach().resolve_conj().numpy()
    except Exception as error:  # of each kind of tensor another one
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"{name!r} in {path} must be a dense tensor of numbers, got {value.dtype}, {value.layout} on "
            f"{value.device} ({reason}); save it dequantised, dense and as float32"
        ) from None
    return array


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
    Hugging Face reads them. Raises `UsageError`: a network that is neither a GPT-2 nor a MobileBERT."""
    check_export(network)
    form = MOBILEBERT if _is_mobilebert(network) else GPT2
    exchanged = _exchanged(network)
    arrays = {
        name if name.startswith(("cls.", "classifier.")) else f"{form.prefix}{name}": a.T if name in exchanged else a
        for name, a in parameters.items()
    }
    write_safetensors(path, arrays, {"format": "pt"})


def check_export(network: Network) -> None:
    """Raise `UsageError` for a network that is none of Hugging Face's."""
    if not _is_mobilebert(network) and gpt2.sizes_of(network) is None:
        raise UsageError(f"--export huggingface takes a GPT-2 or a MobileBERT, such as gpt2, got {network.name!r}")


def _is_mobilebert(network: Network) -> bool:
    return any(isinstance(layer, Trigram) for layer in network.layers)


def _exchanged(network: Network) -> set[str]:
    """Names of the matrices whose axes are exchanged: of linear layers, or further weights of MobileBERT's head."""
    if _is_mobilebert(network):
        return {f"{_HEAD}.dense.weight"}
    return {f"{layer.name}.weight" for layer in network.layers if isinstance(layer, Linear)}


def _from_hugging_face(
    arrays: Mapping[str, np.ndarray], network: Network, form: _Form, path: Path
) -> dict[str, np.ndarray]:
    """Rename and exchange what a file of Hugging Face has; one of `forktask train` has other shapes and stays."""
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        short = name.removeprefix(form.prefix)
        if short in result:
            raise UsageError(f"{path} must have {short!r} once, got it with and without {form.prefix!r}; leave one out")
        if not form.besides.match(short):
            result[short] = array
    for copy, tied in form.tied:
        array = result.pop(copy, None)
        if array is not None and (tied not in result or not np.array_equal(array, result[tied])):
            raise UsageError(
                f"{copy!r} in {path} must be equal to {tied!r}, with which {network.name!r} ties its head, and is not; "
                f"use a model with a tied head"
            )
    shapes = network.parameter_shapes()
    further = sorted(name for name in result if form.layers.match(name) and name not in shapes)
    if further:
        raise UsageError(
            f"{path} must have the parameters of {network.name!r}, got {further[0]!r} too; use another network or file"
        )
    exchanged = _exchanged(network) & result.keys() & shapes.keys()
    if any(result[name].shape == shapes[name][::-1] != shapes[name] for name in exchanged):
        result |= {name: result[name].T for name in exchanged}
    return result
