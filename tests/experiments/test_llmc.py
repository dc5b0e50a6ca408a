"""Files of llm.c and safetensors of Hugging Face: what they hold byte by byte, and what is refused."""

import os
import struct

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.training import llmc, weights
from forktask.experiments.training import train as training
from forktask.experiments.training.checkpoints import set_arrays
from forktask.experiments.training.safetensors import read_safetensors, write_safetensors
from forktask.experiments.training.text import load_text

CONFIG = llmc.ModelConfig(positions=3, vocabulary=5, num_layers=2, heads=2, features=4)
TINY = get_network("gpt2_tiny")


def parameters_of(network, seed=0):
    """Random parameters."""
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        for name, shape in network.parameter_shapes().items()
    }


def change(path, offset, form, *values):
    """Overwrite numbers in a file."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<" + form, content, offset, *values)
    path.write_bytes(content)


@pytest.fixture
def model(tmp_path):
    """A small model in a file, and its parameters."""
    parameters = parameters_of(CONFIG.network)
    llmc.write_model(tmp_path / "model.bin", parameters, CONFIG)
    return tmp_path / "model.bin", parameters


@pytest.fixture
def state(tmp_path):
    """A debug state in a file, and itself."""
    random = np.random.default_rng(1)
    tokens, targets = random.integers(0, 5, (2, 2, 3), dtype=np.int32)
    logits = random.standard_normal((2, 3, 5), dtype=np.float32)
    made = llmc.DebugState(tokens, targets, logits, np.float32(1.5), parameters_of(CONFIG.network, 2))
    llmc.write_debug_state(tmp_path / "state.bin", made, CONFIG)
    return tmp_path / "state.bin", made


def test_a_model_file_field_by_field(model):
    """Check the file against one put together by hand: header, and each tensor for all layers before the next."""
    path, parameters = model
    header = struct.pack("<8i", 20240326, 3, 3, 5, 2, 2, 4, 128) + bytes(1024 - 32)
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"]
    order += ["attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias"]
    order += ["mlp.c_proj.weight", "mlp.c_proj.bias"]
    names = ["wpe.weight", *(f"h.{layer}.{name}" for name in order for layer in (0, 1)), "ln_f.weight", "ln_f.bias"]
    assert {"wte.weight", *names} == set(parameters)
    padded = parameters["wte.weight"].tobytes() + bytes((128 - 5) * 4 * 4)
    assert path.read_bytes() == header + padded + b"".join(parameters[name].tobytes() for name in names)


def test_files_survive_reading_and_writing(model, state, tmp_path):
    """Check that what is read is what was written, and that writing it again gives the same bytes."""
    path, parameters = model
    found, config = llmc.read_model(path)
    assert config == CONFIG and config.network.layers == CONFIG.network.layers
    assert found.keys() == parameters.keys()
    assert all(np.array_equal(found[name], parameters[name]) for name in found)
    llmc.write_model(tmp_path / "again", found, config)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()

    path, made = state
    read = llmc.read_debug_state(path, CONFIG)
    llmc.write_debug_state(tmp_path / "again", read, CONFIG)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert np.array_equal(read.targets, made.targets) and read.loss == 1.5

    tokens = np.array([0, 65535, 7], np.uint16)
    llmc.write_tokens(tmp_path / "tokens", tokens)
    llmc.write_tokens(tmp_path / "again", llmc.read_tokens(tmp_path / "tokens"))
    content = struct.pack("<3i", 20240520, 1, 3) + bytes(1012) + struct.pack("<3H", 0, 65535, 7)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "tokens").read_bytes() == content

    tokenizer = llmc.Tokenizer((b"a", b"\xff\x00", b"x" * 255, b"<end>"), 3)
    llmc.write_tokenizer(tmp_path / "tokenizer", tokenizer)
    assert llmc.read_tokenizer(tmp_path / "tokenizer") == tokenizer
    content = struct.pack("<4I", 20240328, 2, 4, 3) + bytes(1008) + b"\x01a\x02\xff\x00\xff" + b"x" * 255 + b"\x05<end>"
    assert (tmp_path / "tokenizer").read_bytes() == content
    assert tokenizer.decode([1, 0, 3]) == b"\xff\x00a<end>"


def test_a_debug_state_field_by_field(state):
    """Check the file against one put together by hand; logits have no padding, gradients have."""
    path, made = state
    head = struct.pack("<4i", 20240327, 2, 2, 3) + bytes(1008)
    head += made.tokens.tobytes() + made.targets.tobytes() + made.logits.tobytes() + struct.pack("<f", 1.5)
    content = path.read_bytes()
    assert content.startswith(head + made.gradients["wte.weight"].tobytes() + bytes((128 - 5) * 4 * 4))
    assert content.endswith(made.gradients["ln_f.bias"].tobytes())
    assert len(content) == len(head) + 4 * CONFIG.num_values


def test_the_size_of_gpt2_is_that_of_llmc():
    """Check the number of values of the 124M model with 50304 rows, and that a padding of one's own is kept."""
    config = llmc.config_of(get_network("gpt2"))
    assert (config.padded_vocabulary, config.num_values) == (50304, 124_475_904)
    assert config.network.name == "gpt2"
    own = llmc.ModelConfig(3, 5, 2, 2, 4, padded_vocabulary=5)
    assert own.num_values == sum(np.prod(shape) for shape in own.network.parameter_shapes().values())


MODEL_SENTENCES = [
    (0, "i", (20240520,), "must begin with 20240326.* got 20240520, token file; name a model file"),
    (0, "i", (7,), "got 7, no file of llm.c"),
    (4, "i", (5,), "must be a model file of version 3, got 5 at byte 4"),
    (8, "i", (4,), r"must have \d+ bytes by its header, got \d+: it is truncated"),
    (16, "i", (1,), r"it is too long"),
    (16, "i", (2**31 - 1,), r"it is truncated"),
    (8, "6i", (2**31 - 1, 2**31 - 1, 2**31 - 1, 1, 2**31 - 1, 2**31 - 1), r"it is truncated"),
    (12, "i", (-5,), r"vocabulary must be in \[1, .*got -5"),
    (16, "i", (0,), r"num_layers must be in \[1, .*got 0"),
    (20, "i", (3,), r"features must be a multiple of heads, got 4 and 3"),
    (28, "i", (4,), r"padded_vocabulary must be at least the vocabulary, 5, got 4"),
    (28, "i", (0,), r"must have a padded vocabulary at byte 28, got 0"),
]


@pytest.mark.parametrize(("offset", "form", "values", "sentence"), MODEL_SENTENCES)
def test_headers_of_models_that_are_refused(model, offset, form, values, sentence):
    """Check that a wrong number in the header is one sentence, before memory is taken for what it asks for."""
    change(model[0], offset, form, *values)
    with pytest.raises(UsageError, match=sentence) as raised:
        llmc.read_model(model[0])
    assert "\n" not in str(raised.value)


def test_files_of_the_wrong_kind_or_length_are_refused(model, tmp_path):
    """Check missing, empty and cut files, one byte too many, a folder, a pipe, and one beyond the free memory."""
    path, content = model[0], model[0].read_bytes()
    readers = {llmc.read_model, llmc.read_tokens, llmc.read_tokenizer, lambda path: llmc.read_debug_state(path, CONFIG)}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for read in (*readers, read_safetensors):
        for name, sentence in (("nowhere", "cannot be read"), ("pipe", "regular file"), (".", "regular file")):
            with pytest.raises(UsageError, match=sentence):
                read(tmp_path / name)
    for read in readers:
        with pytest.raises(UsageError, match="must have a header of 1024 bytes, got a file of 0"):
            read(tmp_path / "empty")
    for wrong, sentence in ((content[:-1], "truncated"), (content + b"\0", "too long"), (content[:1024], "truncated")):
        path.write_bytes(wrong)
        with pytest.raises(UsageError, match=sentence):
            llmc.read_model(path)
    huge = llmc.ModelConfig(1, 1, 1, 1, 2**18)
    os.truncate(path, 1024)
    change(path, 8, "6i", 1, 1, 1, 1, 2**18, 128)
    os.truncate(path, 1024 + 4 * huge.num_values)  # 3 TiB without a block on the disk
    with pytest.raises(UsageError, match="must fit in the free memory"):
        llmc.read_model(path)


def test_debug_states_that_are_refused(state):
    """Check sizes and tokens that do not belong to the model."""
    path, made = state
    for offset, values, sentence in (
        (4, (1,), "version 2, got 1"),
        (8, (-1,), "batch of at least 1"),
        (12, (4,), r"sequence in \[1, 3\]"),
        (8, (3,), "truncated"),
        (1024, (5,), r"must be integers in \[0, 5\), got 0 to 5"),
    ):
        content = path.read_bytes()
        change(path, offset, "i", *values)
        with pytest.raises(UsageError, match=sentence):
            llmc.read_debug_state(path, CONFIG)
        path.write_bytes(content)
    wrong = llmc.DebugState(made.tokens, made.targets, made.logits[..., :4], made.loss, made.gradients)
    with pytest.raises(UsageError, match=r"logits .* must be float32 of shape \(2, 3, 5\)"):
        llmc.write_debug_state(path, wrong, CONFIG)
    wrong = llmc.DebugState(made.tokens, made.targets[:1], made.logits, made.loss, made.gradients)
    with pytest.raises(UsageError, match="one shape"):
        llmc.write_debug_state(path, wrong, CONFIG)
    assert path.read_bytes() == content


def test_tokens_and_tokenizers_that_are_refused(tmp_path):
    """Check counts and lengths that contradict the file, and what does not fit in one."""
    tokens, tokenizer = tmp_path / "tokens", tmp_path / "tokenizer"
    for offset, value, sentence in (
        (4, 2, "version 1, got 2"),
        (8, 4, "truncated"),
        (8, 2, "too long"),
        (8, -1, "at least one"),
    ):
        llmc.write_tokens(tokens, [1, 2, 3])
        change(tokens, offset, "i", value)
        with pytest.raises(UsageError, match=sentence):
            llmc.read_tokens(tokens)
    for offset, form, value, sentence in (
        (4, "I", 1, "version 2, got 1"),
        (8, "I", 2**32 - 1, r"must have \d+ to \d+ bytes with 4294967295 tokens"),
        (8, "I", 2, "too long"),
        (12, "I", 3, "must be one of the 3 tokens"),
        (1024, "B", 0, "token 0 at byte 1024 .* length of at least 1"),
        (1026, "B", 9, "token 1 at byte 1026 .* got length 9 and 4 bytes to the end"),
    ):
        llmc.write_tokenizer(tokenizer, llmc.Tokenizer((b"a", b"bc", b"d"), 0))
        change(tokenizer, offset, form, value)
        with pytest.raises(UsageError, match=sentence):
            llmc.read_tokenizer(tokenizer)
    for wrong, sentence in (([70000], r"in \[0, 65536\)"), ([-1], r"in \[0, 65536\)"), ([], "1 to"), ([0.5], "integ")):
        with pytest.raises(UsageError, match=sentence):
            llmc.write_tokens(tokens, wrong)
    for wrong, end, sentence in (((b"",), 0, "1 to 255"), ((b"x" * 256,), 0, "1 to 255"), ((b"a",), 1, r"in \[0, 1\)")):
        with pytest.raises(UsageError, match=sentence):
            llmc.write_tokenizer(tokenizer, llmc.Tokenizer(wrong, end))
    with pytest.raises(UsageError, match=r"tokens must be in \[0, 1\), got 1"):
        llmc.Tokenizer((b"a",), 0).decode([0, 1])


def test_models_that_cannot_be_written_leave_the_file(model):
    """Check a parameter that is missing, of another shape or type, or not of a model; the old file stays, alone."""
    path, parameters = model
    content = path.read_bytes()
    for changes, sentence in (
        ({"wte.weight": np.zeros((6, 4), np.float32)}, r"must be float32 of shape \(5, 4\)"),
        ({"ln_f.bias": np.zeros(4)}, "got float64"),
        ({"h.2.ln_1.bias": np.zeros(4, np.float32)}, "has no 'h.2.ln_1.bias'"),
    ):
        with pytest.raises(UsageError, match=sentence):
            llmc.write_model(path, parameters | changes, CONFIG)
    with pytest.raises(UsageError, match="must have 'wpe.weight'"):
        llmc.write_model(path, {n: a for n, a in parameters.items() if n != "wpe.weight"}, CONFIG)
    with pytest.raises(UsageError, match="'lenet5' is none"):
        llmc.config_of(get_network("lenet5"))
    assert path.read_bytes() == content and list(path.parent.iterdir()) == [path]


def test_safetensors_of_hugging_face(tmp_path):
    """Check names and shapes of what is written, that the same bytes come back, and the forms that are met."""
    network, path = CONFIG.network, tmp_path / "model.safetensors"
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
        found = weights.read_weights(tmp_path / "form", network)
        assert found.keys() == parameters.keys()
        assert all(np.array_equal(found[name], parameters[name]) for name in found)

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
        ({"transformer.h.2.ln_1.bias": np.zeros(4, np.float32)}, "must have the 2 layers of .* got a layer h.2 too"),
    ):
        write_safetensors(tmp_path / "form", stored | changes)
        with pytest.raises(UsageError, match=sentence):
            weights.read_weights(tmp_path / "form", network)
    with pytest.raises(UsageError, match="is none"):
        weights.write_hugging_face(path, parameters, get_network("lenet5"))
    with pytest.raises(UsageError, match="others were given"):
        weights.write_hugging_face(path, {}, network)


@pytest.mark.parametrize("size", ["positions", "vocabulary", "num_layers", "heads", "features"])
def test_models_of_other_sizes_are_refused(size, tmp_path):
    """Check that each size is compared: heads do not show in a shape, nor do further layers."""
    sizes = CONFIG.sizes | {size: 2 * CONFIG.sizes[size]}
    network = gpt2.network("larger", **sizes)
    weights.write_llmc(tmp_path / "model.bin", parameters_of(network), network)
    with pytest.raises(UsageError, match=f"with {size} {CONFIG.sizes[size]}, got {size} {sizes[size]}"):
        weights.read_weights(tmp_path / "model.bin", CONFIG.network)


def run(folder, **given):
    """Train the network of bytes for two steps of a sequence of 8 on the file of tokens of `folder`."""
    defaults = {"network": "gpt2_tiny", "data": f"tokens:{folder / 'tokens.bin'}", "sequence": 8, "batch": 4}
    given = {**defaults, "epochs": 1, "threads": 1, "model": "serial", **given}
    return training.train(training.configure(given, resume=False), report=lambda line: None)


@pytest.fixture
def start(tmp_path):
    """Tokens for two steps, and parameters of the network in a model file and in Hugging Face's form."""
    llmc.write_tokens(tmp_path / "tokens.bin", np.arange(10 * 8 + 1) * 3 % 256)
    parameters = parameters_of(TINY)
    weights.write_llmc(tmp_path / "model.bin", parameters, TINY)
    weights.write_hugging_face(tmp_path / "model.safetensors", parameters, TINY)
    write_safetensors(tmp_path / "ours.safetensors", parameters)
    return tmp_path


def test_training_starts_from_models_and_leaves_them(start):
    """Check two steps from each form: the same bits, other than from random, and both forms at the end hold them."""
    hashes = {}
    for name in ("model.bin", "model.safetensors", "ours.safetensors", ""):
        out, export = start / f"run-{name}", {"model.bin": "llmc", "model.safetensors": "huggingface"}.get(name, "none")
        summary = run(start, out=str(out), start=str(start / name) if name else "", export=export)
        hashes[name] = summary["seeds"][0]["parameters_sha256"]
    assert hashes["model.bin"] == hashes["model.safetensors"] == hashes["ours.safetensors"] != hashes[""]
    trained, _ = read_safetensors(start / "run-model.bin" / "parameters-seed-0.safetensors")
    for path in ("run-model.bin/model-seed-0.bin", "run-model.safetensors/model-seed-0.safetensors"):
        found = weights.read_weights(start / path, TINY)
        assert all(np.array_equal(found[name], trained[name]) for name in trained)
    assert not list((start / "run-ours.safetensors").glob("model-*"))


def test_what_does_not_fit_a_network_is_one_sentence(start, monkeypatch, capsys):
    """Check the command's exit code and sentence for files that are wrong or of another network."""
    monkeypatch.chdir(start)
    llmc.write_tokens("large.bin", np.full(1000, 256))
    llmc.write_model("small.bin", parameters_of(CONFIG.network), CONFIG)
    llmc.write_tokenizer("tokenizer.bin", llmc.Tokenizer(tuple(bytes([97 + i]) for i in range(5)), 4))
    train = ["train", "--network", "gpt2_tiny", "--threads", "1", "--epochs", "1", "--sequence", "8", "--data"]
    generate = ["generate", "--tokens", "2", "--checkpoint"]
    for number, (arguments, sentence) in enumerate(
        (
            ([*train, "tokens:large.bin"], "the vocabulary of 'gpt2_tiny', got 256 as token 0 of large.bin"),
            ([*train, "tokens:model.bin"], "must begin with 20240520"),
            ([*train, "tokens:"], "must be one of text, text:FILE, tokens:FILE"),
            (
                [*train, "tokens:tokens.bin", "--start", "small.bin"],
                "must be a model of 'gpt2_tiny', with positions 256",
            ),
            ([*train, "tokens:tokens.bin", "--start", "tokens.bin"], "must begin with 20240326"),
            (["train", "--network", "lenet5", "--export", "llmc"], "llm.c's files are of GPT-2 networks"),
            ([*generate, "small.bin"], "--tokenizer must be given for 'gpt2 of other sizes'"),
            (
                [*generate, "model.bin", "--tokenizer", "tokenizer.bin"],
                "must have the 256 tokens of 'gpt2_tiny', got 5",
            ),
            ([*generate, "small.bin", "--tokenizer", "tokenizer.bin", "--prompt", "a"], "tokenizer file only decodes"),
            ([*generate, "small.bin", "--tokenizer", "tokenizer.bin", "--prompt-tokens", "1,"], "must be numbers"),
            (
                [*generate, "small.bin", "--tokenizer", "tokenizer.bin", "--prompt-tokens", "5"],
                "all in [0, 5), got [5]",
            ),
            ([*generate, "model.safetensors"], "so add --network NAME"),
        )
    ):
        out = ["--out", f"out{number}"] if arguments[0] == "train" else []
        assert main([*arguments, *out]) == 2, arguments
        found = capsys.readouterr().err
        assert sentence in found and found.count("\n") == 1


def test_generate_from_models(start, monkeypatch, capsys):
    """Check that bytes from a model file are those from the same parameters elsewhere, and decoded tokens."""
    monkeypatch.chdir(start)
    texts = []
    for further in (["model.bin"], ["model.safetensors", "--network", "gpt2_tiny"]):
        assert main(["generate", "--tokens", "5", "--sequence", "8", "--prompt", "ab", "--checkpoint", *further]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("ab")
    llmc.write_model("small.bin", parameters_of(CONFIG.network), CONFIG)
    llmc.write_tokenizer("tokenizer.bin", llmc.Tokenizer((b"0-", b"1-", b"2-", b"3-", b"<end>"), 4))
    command = ["generate", "--checkpoint", "small.bin", "--tokenizer", "tokenizer.bin", "--tokens", "2"]
    for further, beginning in (([], "<end>"), (["--prompt-tokens", "2,1"], "2-1-")):
        assert main([*command, *further]) == 0
        found = capsys.readouterr().out
        assert found.startswith(beginning) and len(found.rstrip().removeprefix(beginning)) >= 4


def test_texts_of_tokens_are_those_of_the_file(start):
    """Check tokens and split against the file."""
    data = load_text(f"tokens:{start / 'tokens.bin'}", TINY, 8)
    assert data.name == "tokens" and (data.num_samples, data.tokens.dtype) == (10, np.int32)
    assert np.array_equal(data.tokens, llmc.read_tokens(start / "tokens.bin"))
    target = parameters_of(TINY, 1)
    set_arrays(target, weights.read_weights(start / "model.bin", TINY), TINY.parameter_shapes(), "model.bin")
    assert all(np.array_equal(target[name], array) for name, array in parameters_of(TINY).items())
