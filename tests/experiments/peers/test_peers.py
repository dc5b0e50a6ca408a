"""The comparison with PyTorch: what is refused, what is compared with what, and the network itself."""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from cython_src.reference_tokens import AdamW, forward
from cython_src.tokens_for_tests import BOTH_WAYS, CLASSIFIER, MASKED, SMALL, TWICE_TIED, batch_of, fill

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.analysis.answers import differences, disagreement
from forktask.experiments.commands.main import main
from forktask.experiments.peers import llmc_files, peers
from forktask.experiments.peers.modes import MODES
from forktask.experiments.peers.peers import as_text, summarise, wrong_modes
from forktask.experiments.sampling.subject import fill_dataset


def sample(step_time_s, answer=(2.3, 2.2)):
    """A process that had one turn."""
    turn = {"short_steps": 1, "long_steps": 3, "rounds": [0], "short_times_s": [9.0]}
    return {**turn, "answer": list(answer), "step_time_s": step_time_s, "long_times_s": [9.0 + 2 * step_time_s]}


def rows(*step_times_s, answer=(2.3, 2.2)):
    """One sample a repetition."""
    return {r: sample(t, answer) for r, t in enumerate(step_times_s)}


def test_the_fastest_mode_at_as_many_threads_is_the_peer():
    """Check which mode a model is compared with, the paired ratio, and the floor."""
    result = summarise(
        {
            ("torch eager", 1): rows(4.0, 4.2, 4.1, 4.0, 4.0),
            ("torch channels_last", 1): rows(3.0, 3.0, 3.1, 3.0, 3.0),
            ("torch eager", 2): rows(2.0, 2.0, 2.0, 2.0, 2.0),
            ("serial", 1): rows(1.5, 1.5, 1.55, 1.5, 1.5),
            ("taskiter", 2): rows(0.8, 0.8, 0.8, 0.8, 0.8),
        },
        {"FLOP": {1: 1.0, 2: 0.5}, "roofline": {1: 1.2, 2: 0.6}},
    )
    found = {(row["name"], row["threads"]): row for row in result["rows"]}
    assert found["serial", 1]["peer"] == "torch channels_last" and found["serial", 1]["speedup"] == pytest.approx(2.0)
    assert found["taskiter", 2]["peer"] == "torch eager" and found["taskiter", 2]["speedup"] == pytest.approx(2.5)
    assert found["serial", 1]["floors_s"] == {"FLOP": 1.0, "roofline": 1.2}
    assert found["taskiter", 2]["floors_s"] == {"FLOP": 0.5, "roofline": 0.6}
    assert "speedup" not in found["torch eager", 1]


def test_without_any_time_the_table_says_what_failed():
    """Check the table when no contestant could be measured."""
    result = summarise({}, {"FLOP": {1: 1.0}}) | {
        "network": "lenet5",
        "batch": 4,
        "phase": "train",
        "environment": {"cpu": {"model": "x"}},
        "convolutions": {},
        "machine": {"peak_flops_per_s_1thread": 1e9, "instruction_set": "generic"},
        "failures": {"serial @ 1": "no memory", "taskiter @ 1": "no memory"},
        "stopped": "",
    }
    assert as_text(result).endswith("not measured: serial @ 1, taskiter @ 1: no memory")


def test_no_time_is_shown_before_answers_agree():
    """Check that other losses, fewer losses and no losses are refused."""
    for answer in ((2.3, 2.25), (2.3,), (math.nan, 2.2)):
        with pytest.raises(UsageError, match="answers must agree"):
            summarise({("torch eager", 1): rows(1.0), ("serial", 1): rows(1.0, answer=answer)}, {})
    assert differences([], []) == [math.inf]
    assert differences([2.0, 1.0], [2.0, 1.001]) == pytest.approx([0, 1e-3], rel=1e-2)


def test_the_third_loss_may_differ_more():
    """Check the limits of three losses, and that probabilities have one."""
    assert disagreement((2.3, 2.0, 1.5), (2.3, 2.001, 1.51)) == ""
    assert "number 1 by 0.0099, where 0.002" in disagreement((2.3, 2.0, 1.5), (2.3, 2.02, 1.5))
    assert "number 2 by 0.02, where 0.01" in disagreement((2.3, 2.0, 1.5), (2.3, 2.0, 1.47))
    assert "number 2" in disagreement((0.3, 0.2, 0.1, 0.4), (0.3, 0.2, 0.1005, 0.4))


def test_a_wrong_mode_of_pytorch_is_no_reference():
    """Check that a mode with another second loss is named, and one that rounds differently is not."""
    eager, later = rows(1.0, answer=(2.3, 2.0, 1.5)), rows(1.0, answer=(2.3, 2.0, 1.49))
    wrong = rows(0.5, answer=(2.3, 2.1, 1.5))
    found = wrong_modes(
        {
            ("torch eager", 1): eager,
            ("torch channels_last", 1): later,
            ("torch compile", 1): wrong,
            ("serial", 1): wrong,
        }
    )
    assert (
        list(found) == [("torch compile", 1)]
        and "torch eager's, this mode's differs in number 1 by 0.048" in found["torch compile", 1]
    )
    assert wrong_modes({("serial", 1): eager}) == {}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--modes", "jit"], "a PyTorch mode must be one of"),
        (["--modes", "sdpa"], "has no meaning for networks of images"),
        (["--network", "gpt2_tiny", "--modes", "channels_last"], "has no meaning for networks of tokens"),
        (["--llmc", "sh"], "llm.c's files are of GPT-2 networks"),
        (["--network", "gpt2_tiny", "--llmc", "sh"], "optimizer must be adamw"),
        (["--network", "gpt2_tiny", "--llmc", "sh", "--batch", "2"], "batch must be 4"),
        (
            ["--network", "gpt2_tiny", "--llmc", "/no/such/program", "--optimizer", "adamw"],
            "--llmc must name a program that can be run",
        ),
        (["--models", "fastest"], "fastest"),
        (["--network", "alexnet"], "network must be one of"),
        (["--batch", "0"], "batch"),
        (["--threads", "4096"], "threads must be in"),
        (["--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_bad_input_is_refused(arguments, message, capsys, monkeypatch):
    """Check one sentence and exit code 2, before anything is measured."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: object())
    assert main(["peers", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_pytorch_the_remedy_is_named(capsys, monkeypatch):
    """Check the sentence for users who have no PyTorch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert main(["peers"]) == 2
    assert "pip install" in capsys.readouterr().err


class StandIn:
    """`measure_generation` with contestants that take given seconds of a clock that nothing else moves.

    Parameters
    ----------
    monkeypatch
    seconds : mapping
        Duration of a process by contestant.
    interrupted : int, optional
        Number of the generation in which Ctrl-C comes.
    """

    def __init__(self, monkeypatch, seconds, interrupted=None):
        self.seconds, self.now, self.generations, self.interrupted = seconds, 0.0, [], interrupted
        monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: object())
        monkeypatch.setattr(peers, "measure_generation", self.measure_generation)
        monkeypatch.setattr(peers.Schedule, "now", lambda schedule: self.now)

    def measure_generation(self, generation):
        if len(self.generations) == self.interrupted:
            raise KeyboardInterrupt
        self.generations.append(generation)
        answers = {}
        for contestant in generation.contestants:
            job = contestant.job
            assert (contestant.command == peers.TORCH_COMMAND) == (job["mode"] is not None)
            seconds = self.seconds[job["mode"] or job["model"]]
            self.now += min(seconds, contestant.limit_s)
            late = {"failure": "timeout", "message": "took longer"}
            row = sample(seconds / 10)
            answers[contestant.name] = late if seconds > contestant.limit_s else row
        return [{"answers": answers}]

    def measure(self, *arguments):
        models = ",".join(name for name in self.seconds if name not in MODES)
        modes = ",".join(name for name in self.seconds if name in MODES)
        return main(["peers", "--threads", "1", "--models", models, "--modes", modes, *arguments])


def test_an_interrupted_comparison_shows_what_it_has(monkeypatch, capsys):
    """Check the table, and the exit code of Ctrl-C, before and after the first generation."""
    seconds = {"serial": 1, "taskiter": 2, "eager": 3}
    assert StandIn(monkeypatch, seconds, interrupted=1).measure("--repeats", "2") == 130
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines()]
    assert sorted(row[1] for row in rows if row[:1] == ["1"]) == ["serial", "taskiter", "torch"]
    assert "interrupted: each contestant was to have 2 runs" in printed.out
    assert printed.err.endswith("forktask: interrupted\n")
    assert StandIn(monkeypatch, seconds, interrupted=0).measure() == 130
    assert capsys.readouterr().out == ""


def test_a_budget_is_kept_and_what_it_left_out_is_named(monkeypatch, capsys):
    """Check that no process may run past the budget, that no generation begins without room, and what is named."""
    measured = StandIn(monkeypatch, {"serial": 1, "compile": 1000})
    measured.measure("--budget", "100s", "--repeats", "200", "--rounds", "2", "--json")
    found = json.loads(capsys.readouterr().out)
    assert {generation.least_rounds for generation in measured.generations} == {2}
    assert found["failures"]["torch compile @ 1"] == found["stopped"] == "the budget of 1:40 min is spent"
    measured = StandIn(monkeypatch, {"serial": 1, "taskiter": 2, "eager": 30})
    assert measured.measure("--budget", "100s", "--repeats", "50", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row["samples"] for row in found["rows"]}
    assert set(rows.values()) == {3} and measured.now == 99 and not found["failures"]


def test_a_single_run_has_no_interval(monkeypatch, capsys):
    """Check that a ratio of one repetition is printed without brackets, and is no NaN in JSON."""
    measured = StandIn(monkeypatch, {"serial": 1, "eager": 2})
    assert measured.measure("--repeats", "1") == 0
    assert "   2.00 (torch eager)" in capsys.readouterr().out
    assert measured.measure("--repeats", "1", "--json") == 0
    text = capsys.readouterr().out
    assert "NaN" not in text and "speedup_low" not in text


def test_files_of_llmc_byte_by_byte(tmp_path):
    """Check files against some put together by hand: header, and each tensor for all layers before the next."""
    network = gpt2.network("small", num_layers=2, features=4, heads=2, vocabulary=5, positions=3)
    random = np.random.default_rng(0)
    shapes = network.parameter_shapes()
    parameters = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    llmc_files.write_model(tmp_path / "model", parameters, network)
    header = struct.pack("<8i", 20240326, 3, 3, 5, 2, 2, 4, 128) + bytes(1024 - 32)
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"]
    order += ["attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias"]
    order += ["mlp.c_proj.weight", "mlp.c_proj.bias"]
    names = ["wpe.weight", *(f"h.{layer}.{name}" for name in order for layer in (0, 1)), "ln_f.weight", "ln_f.bias"]
    padded = parameters["wte.weight"].tobytes() + bytes((128 - 5) * 4 * 4)
    assert (tmp_path / "model").read_bytes() == header + padded + b"".join(parameters[name].tobytes() for name in names)
    llmc_files.write_tokens(tmp_path / "tokens", np.array([0, 65535, 7]))
    content = struct.pack("<3i", 20240520, 1, 3) + bytes(1012) + struct.pack("<3H", 0, 65535, 7)
    assert (tmp_path / "tokens").read_bytes() == content


# A program that reads the files of llm.c's train_gpt2 and prints its lines; losses come from the file named below.
STAND_IN = """#!{python}
import struct, sys, time
with open("gpt2_124M.bin", "rb") as model, open("dev/data/tinyshakespeare/tiny_shakespeare_train.bin", "rb") as tokens:
    sizes, counts = struct.unpack("<8i", model.read(32)), struct.unpack("<3i", tokens.read(12))
assert sizes[:2] == (20240326, 3) and counts == (20240520, 1, 4 * 64 + 1)
print("[GPT-2]")
print("val loss 5.5")
for step, loss in enumerate({losses}):
    print(f"step {{step}}: train loss {{loss:f}} (took {{1.5:f}} ms)")
time.sleep({sleep})
sys.exit({code})
"""


def stand_in(folder, losses, sleep=0, code=0):
    """Write such a program."""
    path = folder / "train_gpt2"
    path.write_text(
        STAND_IN.format(python=sys.executable, losses=[float(loss) for loss in losses], sleep=sleep, code=code)
    )
    path.chmod(0o755)
    return str(path)


def measured_beside(program, capsys):
    """Measure gpt2_tiny beside a program of llm.c, without PyTorch."""
    arguments = "peers --network gpt2_tiny --modes , --optimizer adamw --threads 1 --models serial --repeats 1 --json"
    assert main([*arguments.split(), "--seconds", "0.01", "--llmc", program]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_program_of_llmc_is_measured_until_its_steps_took_long_enough(tmp_path, capsys, monkeypatch):
    """Check that losses are compared with ours of the same steps, times are read, and the program is ended then."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    wrong = measured_beside(stand_in(tmp_path, [9.0] * 9), capsys)
    assert [row["name"] for row in wrong["rows"]] == ["serial"]
    message = wrong["failures"]["llm.c @ 1"]
    assert "must be those of our steps" in message and "differs in number 0" in message
    losses = llmc_losses()
    found = measured_beside(stand_in(tmp_path, [*losses, *[losses[-1]] * 500], sleep=1000), capsys)
    assert not found["failures"]
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["llm.c"]["step_time_s"] == pytest.approx(1.5e-3)
    assert rows["serial"]["llmc_speedup"] == pytest.approx(1.5e-3 / rows["serial"]["step_time_s"])
    assert "(llm.c)" in as_text(found)


def llmc_losses():
    """The losses of gpt2_tiny's first steps as llm.c trains it, from the float64 reference."""
    bound = bind(lower("gpt2_tiny", batch=4, num_images=32, num_batches=8))
    fill_dataset(bound, 0)
    initialise(bound, 0)
    names = bound.plan.attributes["parameters"]
    optimiser = AdamW({name: bound.view(name) for name in names}, 1e-4, weight_decay=0.0)
    tokens = bound.arrays["dataset.tokens"][: 4 * 64 + 1]
    batch = tokens[:-1].reshape(4, 64), tokens[1:].reshape(4, 64)
    return [optimiser.step(get_network("gpt2_tiny"), *batch).loss for _ in range(3)]


@pytest.mark.parametrize(
    "losses, code, message",
    [([5.5, 5.4], 1, "must print a line"), ([], 0, "got 0, and last 'val loss 5.5'"), (["x"], 0, "must be a program")],
)
def test_a_program_that_is_none_of_llmc_is_named(losses, code, message, tmp_path, capsys):
    """Check the sentence for a program that ends too early, prints nothing of use or cannot be started."""
    path = stand_in(tmp_path, [] if losses == ["x"] else losses, code=code)
    if losses == ["x"]:
        Path(path).write_bytes(b"\x7fELF but nothing else")
    found = measured_beside(path, capsys)
    assert [row["name"] for row in found["rows"]] == ["serial"] and message in found["failures"]["llm.c @ 1"]


@pytest.mark.torch
@pytest.mark.parametrize(
    "network, phase, decay",
    [
        ("gpt2_tiny", "train", "matrices"),
        ("gpt2_tiny", "train", "all"),
        ("gpt2_tiny", "forward", "all"),
        ("mobilebert_tiny", "train", "all"),
        ("mobilebert_tiny", "forward", "all"),
        ("mobilebert_tiny_classifier", "train", "matrices"),
    ],
)
def test_networks_of_tokens_agree_with_pytorch(network, phase, decay, capsys):
    """Check a network of tokens from end to end: both forms of attention, AdamW, decay groups, clipping."""
    training = f" --optimizer adamw --weight-decay 0.1 --decay {decay} --clip-norm 0.5" * (phase == "train")
    arguments = (
        f"peers --network {network} --phase {phase} --modes eager,sdpa --batch 2 --sequence 24 --threads 1 "
        f"--models serial --repeats 1 --seconds 0.02 --json{training}"
    )
    assert main(arguments.split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in result["rows"]} == {"torch eager", "torch sdpa", "serial"}
    assert result["largest_difference"] < 1e-4 and not result["failures"]
    assert "convolutions" not in as_text(result)


@pytest.mark.torch
@pytest.mark.parametrize(
    "network", [SMALL, BOTH_WAYS, TWICE_TIED, MASKED, CLASSIFIER], ids=lambda network: network.name
)
def test_modules_of_tokens_compute_the_reference(network):
    """Check logits of networks with every layer of tokens, both forms of attention, against the float64 reference."""
    import torch

    from forktask.experiments.peers.torch_network import torch_network

    bound = bind(lower(network, batch=3, sequence=6, num_batches=1))
    fill(bound)
    parameters = {name: bound.view(name).astype("float64") for name in bound.plan.attributes["parameters"]}
    tokens, targets = batch_of(bound, 0)
    step = forward(network.with_sequence(6), parameters, tokens, targets)
    expected = step.activations[network.inputs()["softmax"][0]]
    for fused in (False, True):
        module = torch_network(network.with_sequence(6), fused).double()
        module.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
        found = module(torch.from_numpy(tokens.astype("int64"))).detach().numpy()
        assert abs(found - expected).max() < 1e-10 * abs(expected).max()


@pytest.mark.torch
@pytest.mark.parametrize("phase", ["train", "forward"])
def test_a_small_run_agrees_with_pytorch(phase, capsys):
    """Check the command from end to end: answers agree, every contestant is there."""
    assert (
        main(
            [
                "peers",
                "--batch",
                "4",
                "--phase",
                phase,
                "--threads",
                "1",
                "--models",
                "serial",
                "--modes",
                "eager,channels_last",
                "--repeats",
                "1",
                "--seconds",
                "0.05",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in result["rows"]} == {"torch eager", "torch channels_last", "serial"}
    assert result["largest_difference"] < 1e-4 and not result["failures"]
    assert "channels_last" in as_text(result)
