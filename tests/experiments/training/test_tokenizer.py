"""Tokenizers in the user's files: training with them, files and vocabularies that are refused."""

import json
import sys

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training import train as training
from forktask.experiments.training.text import load_text
from forktask.experiments.training.tokenizer import mask_of, tokenizer_of

SENTENCE = "The quick brown fox jumps over a lazy dog, and runs away from him again.\n"
# Bytes as GPT-2's files write them: those that are no printable characters stand past U+0100.
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
BYTES = [chr(byte) if byte in PRINTABLE else chr(256 + number) for number, byte in
         [*((0, byte) for byte in PRINTABLE),
          *enumerate(byte for byte in range(256) if byte not in PRINTABLE)]]  # fmt: skip


BYTE_NETWORK, MASKED_NETWORK = get_network("gpt2_tiny"), get_network("mobilebert_tiny")


def tokens_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def byte_pairs(folder, merges=("Ġ t", "h e", "Ġ d", "Ġd o", "Ġdo g"), size=256):
    """Files of a byte-pair encoding written by hand: bytes that the sentence does not have make room for the merges."""
    unused = [symbol for symbol in BYTES if symbol not in {*SENTENCE, "Ġ", "Ċ"}]
    symbols = [symbol for symbol in BYTES if symbol not in unused[: len(merges) + 256 - size]]
    symbols += [merge.replace(" ", "") for merge in merges]
    (folder / "vocab.json").write_text(json.dumps({symbol: token for token, symbol in enumerate(symbols)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    return f"{folder / 'vocab.json'},{folder / 'merges.txt'}"


def word_pieces(folder, size=257, words=("the", "quick", "fox", "jump", "##s", "lazy", "dog", ",", ".")):
    """A vocabulary of BERT's form written by hand."""
    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters, *(f"##{letter}" for letter in letters)]
    pieces = [*dict.fromkeys(pieces)]
    pieces += [f"[unused{number}]" for number in range(size - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return str(folder / "vocab.txt")


@pytest.mark.tokenizers
def test_byte_pairs_are_merged_and_give_the_text_back(tmp_path):
    """Check tokens by hand, that any text of the known bytes comes back, and the same tokens from tokenizer.json."""
    tokenizer = tokenizer_of(byte_pairs(tmp_path), BYTE_NETWORK)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert tokens_of(tokenizer, "a dog") == [vocabulary["a"], vocabulary["Ġdog"]]
    assert tokens_of(tokenizer, "dog") == [vocabulary["d"], vocabulary["o"], vocabulary["g"]]
    assert tokenizer.decode(tokens_of(tokenizer, SENTENCE)) == SENTENCE and mask_of(tokenizer, 7) == 7
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    other = tokenizer_of(str(tmp_path / "tokenizer.json"), BYTE_NETWORK)
    assert tokens_of(other, SENTENCE) == tokens_of(tokenizer, SENTENCE)


@pytest.mark.tokenizers
def test_word_pieces_are_the_longest_ones(tmp_path):
    """Check tokens by hand, lower case, unknown characters, and the mask."""
    tokenizer = tokenizer_of(word_pieces(tmp_path), MASKED_NETWORK)
    pieces = (tmp_path / "vocab.txt").read_text().split()
    found = [pieces[token] for token in tokens_of(tokenizer, "The FOX jumps, §")]
    assert found == ["the", "fox", "jump", "##s", ",", "[UNK]"]
    assert mask_of(tokenizer, 7) == 4
    tokenizer = tokenizer_of(word_pieces(tmp_path, words=("The", "fox")), MASKED_NETWORK)
    pieces = (tmp_path / "vocab.txt").read_text().split()
    assert [pieces[token] for token in tokens_of(tokenizer, "The fox FOX")] == ["The", "fox", "[UNK]"]


@pytest.mark.tokenizers
def test_text_is_encoded(tmp_path):
    """Check that training on byte pairs learns the sentence."""
    files = byte_pairs(tmp_path)
    (tmp_path / "sentence.txt").write_text(SENTENCE * 150)
    config = training.configure(
        {"network": "gpt2_tiny", "data": f"text:{tmp_path / 'sentence.txt'}", "tokenizer": files, "sequence": 31}
        | {"epochs": 8, "threads": 1, "out": str(tmp_path / "run")},
        resume=False,
    )
    summary = training.train(config, report=lambda line: None)
    assert summary.seeds[0].test_loss < 1 and f"tokens of {files}" in summary.data


@pytest.mark.tokenizers
def test_masked_word_pieces_show_the_tokenizers_mask(tmp_path):
    """Check that a vocabulary's own mask stands in masked places."""
    (tmp_path / "sentence.txt").write_text(SENTENCE * 60)
    files, network = word_pieces(tmp_path), MASKED_NETWORK
    data = load_text(f"text:{tmp_path / 'sentence.txt'}", network, 20, files)
    shown = data.tokens[data.labels != IGNORED]
    assert (shown == 4).mean() > 0.7 and not (data.tokens == network.token_input.mask).any()
    np.testing.assert_array_equal(data.original[data.labels != IGNORED], data.labels[data.labels != IGNORED])


@pytest.mark.tokenizers
def test_files_and_vocabularies_that_are_refused(tmp_path):
    """Check missing and damaged files, unknown forms, other sizes, and data that need no tokenizer."""
    with pytest.raises(UsageError, match=r"there is no file .*none\.json"):
        tokenizer_of(str(tmp_path / "none.json"), BYTE_NETWORK)
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(UsageError, match="name files with these endings"):
        tokenizer_of(str(tmp_path / "notes.md"), BYTE_NETWORK)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    for name in ("tokenizer.json", "vocab.txt"):
        with pytest.raises(UsageError, match=f"{name} cannot be read"):
            tokenizer_of(str(tmp_path / name), BYTE_NETWORK)
    with pytest.raises(UsageError, match="must have the 256 tokens of 'gpt2_tiny', got 257"):
        tokenizer_of(word_pieces(tmp_path), BYTE_NETWORK)
    files = byte_pairs(tmp_path)
    with pytest.raises(UsageError, match="--tokenizer encodes --data text or text:FILE, got --data synthetic:40"):
        load_text("synthetic:40", BYTE_NETWORK, 8, files)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    """Check the sentence that says what to install."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"needs the package tokenizers, which is not installed; .*forktask\[text\]"):
        tokenizer_of(byte_pairs(tmp_path), BYTE_NETWORK)
