"""Modules of torchvision, transformers and PyTorch itself: which are networks, and how others are refused.

`python -P tests/experiments/peers/torch_modules.py` writes the table of docs/guide/own_network.md.
"""

import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "own_network.md"
TABLE = re.compile(r"(?<=<!-- modules -->\n).*?(?=\n<!-- end of modules -->)", re.DOTALL)
MASK = 3
SMALL_GPT2 = {
    "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SMALL_TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = (
    "resnet18", "resnet50", "resnext50_32x4d", "regnet_x_400mf", "vgg11", "vgg11_bn", "alexnet", "mobilenet_v2",
    "mnasnet0_5", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "squeezenet1_1", "shufflenet_v2_x0_5",
    "convnext_tiny", "vit_b_32",
)  # fmt: skip


class Case(NamedTuple):
    """A module that the table has.

    Parameters
    ----------
    make : callable
        Makes the module.
    shape : tuple of int
        Of an image; of a network of tokens the length of a sample.
    mask : int, optional
        As for `from_torch`.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...] = (3, 224, 224)
    mask: int | None = None

    def example(self):
        if len(self.shape) == 1:
            return torch.zeros(1, *self.shape, dtype=torch.int64)
        return torch.zeros(1, *self.shape)


@cache
def import_torchvision():
    """Import torchvision. One that was built for CUDA has no operations of its own beside PyTorch for CPUs; none of
    these modules has one, so the file that declares them may be left out."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        import torchvision
    return torchvision


def vision(name: str):
    """A module of torchvision, without weights."""
    arguments = {"init_weights": False} if name.startswith("vgg") else {}  # which take a while

    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(import_torchvision().models, name)(**arguments)

    return make


def text(name: str, config: str, **arguments):
    """A module of transformers with random weights."""

    def make():
        import_torchvision()
        import transformers

        torch.manual_seed(1)
        return getattr(transformers, name)(getattr(transformers, config)(**arguments))

    return make


class MnistNet(nn.Module):
    """The network of PyTorch's example for MNIST."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(functional.max_pool2d(x, 2)), 1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


class LanguageModel(nn.Module):
    """PyTorch's own encoder layers under a causal mask, with learned positions."""

    def __init__(self, batch_first: bool = True, dropout: float = 0.0):
        super().__init__()
        self.token, self.position = nn.Embedding(64, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(32, 64), batch_first

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        if not self.batch_first:
            x = x.transpose(0, 1)
        x = self.encoder(x, mask, is_causal=True)
        return self.head(x if self.batch_first else x.transpose(0, 1))


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self):
        super().__init__()
        self.token, self.lstm, self.head = nn.Embedding(64, 32), nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 64)

    def forward(self, tokens):
        return self.head(self.lstm(self.token(tokens))[0])


CASES = {
    **{f"torchvision {name}": Case(vision(name)) for name in VISION},
    "transformers GPT2LMHeadModel, attn_pdrop=0": Case(
        text("GPT2LMHeadModel", "GPT2Config", **SMALL_GPT2, attn_pdrop=0), (16,)
    ),
    "transformers GPT2LMHeadModel": Case(
        text("GPT2LMHeadModel", "GPT2Config", **SMALL_GPT2), (16,)
    ),
    "transformers BertForMaskedLM, as below": Case(
        text(
            "BertForMaskedLM", "BertConfig", **SMALL_TEXT, intermediate_size=64, hidden_act="gelu_pytorch_tanh",
            attention_probs_dropout_prob=0, pad_token_id=None, max_position_embeddings=16,
        ),
        (16,), MASK,
    ),
    "transformers BertForMaskedLM": Case(text("BertForMaskedLM", "BertConfig", **SMALL_TEXT), (16,), MASK),
    "transformers DistilBertForSequenceClassification, activation='relu'": Case(
        text(
            "DistilBertForSequenceClassification", "DistilBertConfig", vocab_size=64, dim=32, hidden_dim=64, n_layers=2,
            n_heads=2, activation="relu", attention_dropout=0, pad_token_id=None, max_position_embeddings=16,
        ),
        (16,),
    ),
    "transformers LlamaForCausalLM": Case(
        text("LlamaForCausalLM", "LlamaConfig", **SMALL_TEXT, intermediate_size=64), (16,)
    ),
    "nn.TransformerEncoder with positions and a head": Case(LanguageModel, (16,)),
    "PyTorch's example for MNIST": Case(MnistNet, (1, 28, 28)),
    "nn.LSTM with a head": Case(Recurrent, (16,)),
}  # fmt: skip


def answer(case: Case) -> str:
    """What `from_torch` answers, as a cell of the table."""
    import forktask as ft

    try:
        network = ft.from_torch(case.make(), case.example(), mask=case.mask)
    except ft.UsageError as error:
        return str(error).partition("got ")[2]
    return f"**accepted**: {len(network.layers)} layers, {network.num_parameters:,} parameters"


def table() -> str:
    """The table of the page."""
    rows = [f"| {name} | {answer(case)} |" for name, case in CASES.items()]
    return "\n".join(["| module | |", "|---|---|", *rows])


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
