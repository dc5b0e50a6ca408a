"""Tokenizers in the user's files: training with them, files and vocabularies that are refused."""

import string

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.loss.loss import IGNORED
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.training import train as training
from forktask.experiments.training.text import MASK, load_text, tokenizer_of

SENTENCE = "The quick brown fox jumps over a lazy dog, and runs away from him again.\n"
WORDS = ["the", "quick", "fox", "jump", "##s", "lazy", "dog", ",", "."]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
PIECES += [f"{start}{letter}" for start in ("", "##") for letter in string.ascii_lowercase]
PIECES = list(dict.fromkeys(PIECES))
BYTE_NETWORK, MASKED_NETWORK = get_network("gpt2_tiny"), get_network("mobilebert_tiny")


def word_pieces(folder, size=257):
    """A file of word pieces, so many with unused ones."""
    import tokenizers

    pieces = PIECES + [f"[unused{number}]" for number in range(size - len(PIECES))]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    tokenizers.BertWordPieceTokenizer(numbered).save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


@pytest.mark.tokenizers
def test_text_is_encoded(tmp_path):
    """Check tokens and mask of a file, and that training on its tokens learns the sentence."""
    files = word_pieces(tmp_path, 256)
    tokenizer = tokenizer_of(files, BYTE_NETWORK)
    result = [PIECES[token] for token in tokenizer.encode("The FOX jumps, §", add_special_tokens=False).ids]
    assert result == ["the", "fox", "jump", "##s", ",", "[UNK]"] and tokenizer.token_to_id(MASK) == 4
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
    """Check missing and damaged files, another size, and data that need no tokenizer."""
    with pytest.raises(UsageError, match=r"there is no file .*none\.json"):
        tokenizer_of(str(tmp_path / "none.json"), BYTE_NETWORK)
    (tmp_path / "damaged.json").write_text("{}")
    with pytest.raises(UsageError, match=r"damaged\.json cannot be read"):
        tokenizer_of(str(tmp_path / "damaged.json"), BYTE_NETWORK)
    with pytest.raises(UsageError, match="the 256 tokens of 'gpt2_tiny', got 257"):
        tokenizer_of(word_pieces(tmp_path), BYTE_NETWORK)
    with pytest.raises(UsageError, match="--data synthetic:40"):
        load_text("synthetic:40", BYTE_NETWORK, 8, word_pieces(tmp_path))
