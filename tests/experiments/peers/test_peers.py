"""The comparison with PyTorch: what is refused, what is compared with what, and the network itself."""

import csv
import itertools
import json
import math
import struct
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cython_src.reference_tokens import AdamW
from experiments.synthetic_results import peers_result

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.analysis.agreement import differences
from forktask.experiments.commands.main import main
from forktask.experiments.peers import llmc_worker
from forktask.experiments.peers.figure import draw
from forktask.experiments.peers.peers import as_text, summarise, wrong_modes
from forktask.experiments.report.figures.style import CROSSED
from forktask.experiments.results.turns import GroupTurns, Rounds, Turns
from forktask.experiments.subjects.subject import fill_dataset


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own for what is written without --out."""
    monkeypatch.chdir(tmp_path)


def sample(step_time_s, answer=(2.3, 2.2)):
    """A process that had one turn."""
    turn = {"short_steps": 1, "long_steps": 3, "rounds": [0], "short_times_s": [9.0]}
    return {**turn, "answer": list(answer), "step_time_s": step_time_s, "long_times_s": [9.0 + 2 * step_time_s]}


def groups_in(samples, handovers_s=(), disturbed=()):
    """The samples' turns: all of a repetition in one group; the only round of some repetitions was disturbed."""
    for repetition in sorted({r for own in samples.values() for r in own}):
        turns = {key: msgspec.convert(own[repetition], Turns) for key, own in samples.items() if repetition in own}
        handover_s = dict(enumerate(handovers_s)).get(repetition)
        steal = 100 if repetition in disturbed else 0
        # Three quiet rounds in which nobody took part say what is usual.
        rounds = Rounds([], [[0]] * 4, [[1.0]] * 4, [handover_s] * 4, [1.0] * 4, [steal, 0, 0, 0], [0] * 4)
        yield GroupTurns(repetition, str(sorted(turns)), rounds, turns)


def rows(*step_times_s, answer=(2.3, 2.2)):
    """One sample a repetition."""
    return {r: sample(t, answer) for r, t in enumerate(step_times_s)}


def summarised(samples):
    """The result of samples on a quiet machine."""
    return summarise(samples, groups_in(samples))


def test_the_fastest_mode_at_as_many_threads_is_the_peer():
    """Check which mode a model is compared with, the paired ratio."""
    result = summarised(
        {
            ("torch eager", 1): rows(4.0, 4.2, 4.1, 4.0, 4.0),
            ("torch channels_last", 1): rows(3.0, 3.0, 3.1, 3.0, 3.0),
            ("torch eager", 2): rows(2.0, 2.0, 2.0, 2.0, 2.0),
            ("serial", 1): rows(1.5, 1.5, 1.55, 1.5, 1.5),
            ("taskiter", 2): rows(0.8, 0.8, 0.8, 0.8, 0.8),
        }
    )
    found = {(row["name"], row["threads"]): row for row in result["rows"]}
    assert found["serial", 1]["peer"] == "torch channels_last" and found["serial", 1]["speedup"] == pytest.approx(2.0)
    assert found["taskiter", 2]["peer"] == "torch eager" and found["taskiter", 2]["speedup"] == pytest.approx(2.5)
    assert "speedup" not in found["torch eager", 1]


def test_a_contestant_with_mostly_disturbed_rounds_is_not_usable():
    """Check the column: disturbed in two of three processes, and in one of three."""
    serial, tasks = {("serial", 1): rows(4.0, 4.0, 4.0)}, {("taskiter", 1): rows(3.0, 3.0, 3.0)}
    groups = [*groups_in(serial, disturbed=(0, 1)), *groups_in(tasks, disturbed=(2,))]  # memory holds one of them
    result = summarise(serial | tasks, groups)
    assert {row["name"]: row["usable"] for row in result["rows"]} == {"serial": False, "taskiter": True}


def test_repetitions_with_moved_cpus_are_left_out():
    """Check that a ratio is one of the usual state of the host, and that the text counts what is left out."""
    times = {("torch eager", 1): rows(*[2.0] * 9), ("serial", 1): rows(*[1.0] * 6, *[1.65] * 3)}
    result = summarise(times, groups_in(times, handovers_s=[1e-7] * 6 + [3e-7] * 3))
    (ratio,) = (row["speedup"] for row in result["rows"] if row["name"] == "serial")
    assert ratio == pytest.approx(2.0) and len(result["moved"]) == 3


def test_a_figure_has_each_ratio_to_a_peer():
    """Check places, ratios, intervals, hollow and crossed-out marks, titles, and 1 on a logarithmic axis."""
    result = peers_result((1, 2))
    (axis,) = draw(result)[0].axes
    crosses = [line for line in axis.lines if line.get_gid() == CROSSED]
    marks = [line for line in axis.lines if line.get_marker() not in ("None", "") and line not in crosses]
    by_name = {(row["name"], row["threads"]): row for row in result["rows"]}
    expected, intervals, places = set(), set(), itertools.count()
    for threads, models in ((2, ("forkjoin", "taskiter")), (1, ("serial", "forkjoin", "taskiter"))):
        for ratio in ("llmc_speedup", "speedup"):  # which has intervals
            next(places)  # a title
            for model in models:
                row = by_name[model, threads]
                expected.add((row[ratio], next(places), ratio == "speedup"))
                if ratio == "speedup":
                    intervals.add((row["speedup_low"], row["speedup_high"]))
    drawn = [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() != "white") for line in marks]
    assert set(drawn) == expected and len(drawn) == len(expected)
    assert {tuple(line.get_xdata()) for line in axis.lines if line.get_linewidth() == 1.4} == intervals
    # taskiter on two threads is not usable, and llm.c on one.
    assert sorted(line.get_ydata()[0] for line in crosses) == [2, 5, 7, 8, 9]
    assert axis.get_xscale() == "log" and [1, 1] in [list(line.get_xdata()) for line in axis.lines]
    assert [text.get_text() for text in axis.texts] == [
        f"{peer}, {threads}" for threads in ("2 threads", "1 thread") for peer in ("llm.c", "torch eager")
    ]
    with pytest.raises(UsageError, match="needs PyTorch or llm.c"):
        draw({**result, "rows": result["rows"][:2]})


def test_no_time_is_shown_before_answers_agree():
    """Check that other losses, fewer losses and no losses are refused."""
    for answer in ((2.3, 2.25), (2.3,), (math.nan, 2.2)):
        with pytest.raises(UsageError, match="answers must agree"):
            summarised({("torch eager", 1): rows(1.0), ("serial", 1): rows(1.0, answer=answer)})
    assert differences([], []) == [math.inf]
    assert differences([2.0, 1.0], [2.0, 1.001]) == pytest.approx([0, 1e-3], rel=1e-2)


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


def test_files_of_llmc_byte_by_byte(tmp_path):
    """Check files against some put together by hand: header, and each tensor for all layers before the next."""
    network = gpt2.network("small", num_layers=2, features=4, heads=2, vocabulary=5, positions=3)
    random = np.random.default_rng(0)
    shapes = network.parameter_shapes()
    parameters = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    llmc_worker.write_model(tmp_path / "model", parameters, network)
    header = struct.pack("<8i", 20240326, 3, 3, 5, 2, 2, 4, 128) + bytes(1024 - 32)
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"]
    order += ["attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias"]
    order += ["mlp.c_proj.weight", "mlp.c_proj.bias"]
    names = ["wpe.weight", *(f"h.{layer}.{name}" for name in order for layer in (0, 1)), "ln_f.weight", "ln_f.bias"]
    padded = parameters["wte.weight"].tobytes() + bytes((128 - 5) * 4 * 4)
    assert (tmp_path / "model").read_bytes() == header + padded + b"".join(parameters[name].tobytes() for name in names)
    llmc_worker.write_tokens(tmp_path / "tokens", np.array([0, 65535, 7]))
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


def measured_beside(program, folder, capsys):
    """Measure gpt2_tiny beside a program of llm.c, without PyTorch."""
    arguments = "peers --network gpt2_tiny --modes , --optimizer adamw --threads 1 --models serial --repeats 1 --json"
    assert main([*arguments.split(), "--seconds", "0.01", "--llmc", program, "--out", folder]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_program_of_llmc_is_measured_until_its_steps_took_long_enough(tmp_path, capsys, monkeypatch):
    """Check that losses are compared with ours of the same steps, times are read, and the program is ended then."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    wrong = measured_beside(stand_in(tmp_path, [9.0] * 9), "wrong", capsys)
    assert [row["name"] for row in wrong["rows"]] == ["serial"]
    message = wrong["failures"]["llm.c @ 1"]
    assert "must be those of our steps" in message and "differs in number 0" in message
    losses = llmc_losses()
    found = measured_beside(stand_in(tmp_path, [*losses, *[losses[-1]] * 500], sleep=1000), "right", capsys)
    assert not found["failures"]
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["llm.c"]["step_time_s"] == pytest.approx(1.5e-3)
    assert rows["serial"]["llmc_speedup"] == pytest.approx(1.5e-3 / rows["serial"]["step_time_s"])
    assert "(llm.c)" in as_text(found)
    folder, files = Path("right"), {"peers.json", "peers.csv", "peers.txt"}
    assert {path.name for path in Path("wrong").iterdir()} == files  # without a ratio to draw
    assert {path.name for path in folder.iterdir()} == {*files, "figures"}
    assert main(["report", str(folder), "--figure", "peers", "--format", "svg", "--models", "serial"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "figures" / "peers.svg")
    assert main(["report", str(folder), "--figure", "speedup"]) == 2
    assert "must be one of peers" in capsys.readouterr().err
    (folder / "peers.json").write_text("{}")
    assert main(["report", str(folder), "--figure", "peers"]) == 2
    assert "whole result of `forktask peers`" in capsys.readouterr().err


def test_out_keeps_what_was_printed_and_writes_over_nothing(tmp_path, capsys):
    """Check that the files hold the printed result, a row a contestant, and that a second run is refused at once."""
    folder = tmp_path / "new" / "beside"
    arguments = "peers --network gpt2_tiny --modes , --threads 1 --models serial,taskgraph --repeats 1 --seconds 0.01"
    arguments = [*arguments.split(), "--json", "--out", str(folder)]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((folder / "peers.json").read_text()) == printed
    assert (folder / "peers.txt").read_text() == as_text(printed) + "\n"
    table = list(csv.DictReader((folder / "peers.csv").open()))
    assert [row["name"] for row in table] == [row["name"] for row in printed["rows"]]
    assert {(row["network"], row["phase"]) for row in table} == {("gpt2_tiny", "train")}
    assert [float(row["step_time_s"]) for row in table] == [row["step_time_s"] for row in printed["rows"]]
    assert {row["usable"] for row in table} <= {"True", "False"}
    kept = (folder / "peers.json").read_bytes()
    assert main(arguments) == 2 and "name another folder" in capsys.readouterr().err
    assert (folder / "peers.json").read_bytes() == kept
    (tmp_path / "file").write_text("")
    assert main([*arguments[:-1], str(tmp_path / "file")]) == 2 and "must be a folder" in capsys.readouterr().err


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
@pytest.mark.parametrize("phase", ["train", "forward"])
def test_a_small_run_agrees_with_pytorch(phase, capsys):
    """Check the command from end to end: answers agree, every contestant is there."""
    arguments = f"peers --batch 4 --phase {phase} --threads 1 --models serial --modes eager,channels_last --repeats 1"
    assert main([*arguments.split(), "--seconds", "0.05", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in result["rows"]} == {"torch eager", "torch channels_last", "serial"}
    assert result["largest_difference"] < 1e-4 and not result["failures"]
    assert "channels_last" in as_text(result)
