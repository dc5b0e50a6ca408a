"""Other programs beside our models: what is refused, what is compared with what, and that they compute the same."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows, typed
from programs import run_python

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.agreement import differences, disagreement, first_disagreement
from forktask.experiments.commands.main import main
from forktask.experiments.report.verdicts import answers
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import FailureRow, SampleRow
from forktask.experiments.subjects.models import MODELS, parse_model, runnable
from forktask.experiments.sweep.shards import Answers, check_near_answer

PEERS = ("serial", "forkjoin", "taskiter", "torch", "torch:mode=compile")


def test_the_fastest_program_on_as_many_threads_is_the_reference():
    """Check the answers: each of our models on most threads, against the faster mode of PyTorch."""
    sweep = sweep_of(synthetic_rows(models=PEERS, repeats=12))
    result = [row for row in answers(sweep) if row["reference"].is_peer]
    assert [(row["model"], row["reference"], row["threads"]) for row in result] == [
        ("forkjoin", "torch", 2),
        ("taskiter", "torch", 2),
    ]
    assert all(row["verdict"] in ("faster", "slower") and row["usable"] for row in result)
    assert not any(row["reference"].is_peer for row in answers(sweep_of(synthetic_rows(repeats=5))))


def test_an_answer_that_is_not_near_ours_is_a_failure():
    """Check a sample with another second loss, with fewer losses, and one that rounds differently."""
    samples = [row for row in typed(synthetic_rows(models=PEERS, repeats=1)) if isinstance(row, SampleRow)]
    ours, theirs = (next(row for row in samples if row.model.is_peer == peer) for peer in (False, True))
    assert differences([], []) == [math.inf]
    ours = msgspec.structs.replace(ours, answer=[2.3, 2.0, 1.5])
    for answer, wrong in (([2.3, 2.0, 1.49], ""), ([2.3, 2.1, 1.5], "in number 1 by 0.048"), ([2.3], "has 1 numbers")):
        result = check_near_answer(msgspec.structs.replace(theirs, answer=answer), ours, first_disagreement)
        assert isinstance(result, FailureRow) == bool(wrong)
        if wrong:
            assert result.reason == "answer" and wrong in result.message
    later = [*ours.answer, *[1.0] * 7], [*ours.answer, *[1.1] * 7]  # drifted apart by rounding
    long = msgspec.structs.replace(ours, answer=later[0])
    drifted = msgspec.structs.replace(theirs, answer=later[1])
    assert Answers([long]).checked(drifted) is drifted
    assert isinstance(check_near_answer(drifted, long, disagreement), FailureRow)  # of an inference all counts
    judge = Answers([ours])
    assert isinstance(judge.checked(msgspec.structs.replace(theirs, answer=[9.0, 9.0, 9.0])), FailureRow)


LAYERS_OF_IMAGES = """
import forktask as nn
def network():
    return nn.Network("all_layers", (4, 17, 17), (
        nn.Conv2d("conv", 8, 3, 1, stride=2), nn.BatchNorm("norm"), nn.ReLU("relu"), nn.MaxPool("pool", 3, 2, 1),
        nn.Conv2d("grouped", 8, 3, 2, groups=2, dilation=2, bias=False), nn.Sigmoid("sigmoid"),
        nn.Add("sum", ("sigmoid", "pool")), nn.Conv2d("depthwise", 8, 3, 1, groups=8), nn.ReLU6("relu6"),
        nn.AveragePool("average", 2), nn.Linear("hidden", 12), nn.Linear("linear", 5), nn.SoftmaxCrossEntropy()))
"""


OF_TOKENS = "--sequence 24 --optimizer adamw --weight-decay 0.1 --clip-norm 0.5"
AGREEING = {
    "torch,torch:mode=sdpa": (
        f"gpt2_tiny {OF_TOKENS} --decay matrices",
        f"gpt2_tiny {OF_TOKENS}",
        "gpt2_tiny --sequence 24 --phase forward",
        f"mobilebert_tiny {OF_TOKENS}",
        "mobilebert_tiny --sequence 24 --phase forward",
        f"mobilebert_tiny_classifier {OF_TOKENS} --decay matrices",
    ),
    "torch,torch:mode=channels_last": ("cifar10_cnn", "cifar10_cnn --phase forward"),
    "torch": ("FILE:network",),
    "jax": (
        f"gpt2_tiny {OF_TOKENS} --decay matrices",
        "mobilebert_tiny --sequence 24 --optimizer adam --weight-decay 0.1 --frozen encoder.layer.0",
        "mobilebert_tiny_classifier --phase forward",
        "preact_resnet18 --phase forward",
        "cifar10_cnn --weight-decay 0.1 --label-smoothing 0.1",
        "FILE:network --weight-decay 0.1",
    ),
}


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        pytest.param(peers, words, marks=getattr(pytest.mark, peers.partition(",")[0]))
        for peers, some in AGREEING.items()
        for words in some
    ],
)
def test_answers_are_those_of_other_programs(peers, words, tmp_path):
    """Check networks from end to end: layers of images and of tokens, all forms of a peer, optimizers, decay groups,
    clipping, frozen layers; every contestant is there."""
    (tmp_path / "net.py").write_text(LAYERS_OF_IMAGES)
    words = words.replace("FILE", str(tmp_path / "net.py"))
    command = f"compare --network {words} --batch 2 --models serial,{peers} --threads 1 --quick --out"
    assert main([*command.split(), str(tmp_path / "out")]) == 0
    first, *others = read_results(tmp_path / "out").of(SampleRow)
    contestants = {first.model, *(row.model for row in others)}
    assert len(others) == len(peers.split(",")) and {*map(parse_model, peers.split(","))} <= contestants
    assert all(max(differences(first.answer[:3], row.answer[:3])) < 1e-4 for row in others)


@pytest.mark.torch
def test_a_mode_of_tokens_is_refused_for_images(tmp_path, capsys):
    """Check the sentence and the exit code."""
    words = "compare --quick --batch 4 --threads 1 --models serial,torch:mode=sdpa --out"
    assert main([*words.split(), str(tmp_path / "wrong")]) == 1
    assert "mode=sdpa of PyTorch is for networks of tokens" in capsys.readouterr().err


IN_ONE_PROCESS = """
import os
from pathlib import Path
import forktask as ft
from forktask.experiments.subjects.models import make_executor

bound = ft.bind(ft.lower("lenet5", batch=2, optimizer="sgd"))
ft.initialise(bound, seed=1)
cpus = os.sched_getaffinity(0)
with make_executor("jax", 1) as executor:
    executor.prepare(bound)
    executor.run(3)
    executor.run(2, 3)
    before = bound.arrays["conv1.weight"].copy()
    assert executor.collect() and (bound.arrays["conv1.weight"] != before).any()
    assert (bound.arrays["losses"][:5] > 0).all()
tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "tf_XLAEigen\\n"]
assert [len(os.sched_getaffinity(int(task.name))) for task in tasks] == [1] and os.sched_getaffinity(0) == cpus
try:
    make_executor("jax", 2).prepare(bound)
except ft.UsageError as error:
    print(error)
"""


@pytest.mark.jax
def test_jax_computes_with_the_threads_asked_for(tmp_path):
    """Check XLA's pool and its CPUs in a process that asks for one thread and then for two."""
    result = run_python(IN_ONE_PROCESS, variables={"NPROC": "5"})
    assert "XLA must compute with 2 threads" in result.stdout and "has 1 on" in result.stdout, result.stderr


@pytest.mark.jax
@pytest.mark.parametrize(
    "variable, value, is_refused",
    [
        ("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false", True),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=4", True),
        ("XLA_FLAGS", "--xla_dump_to=somewhere", False),
        ("JAX_PLATFORMS", "cuda", True),
        ("JAX_PLATFORMS", "cpu", False),
        ("JAX_NUM_CPU_DEVICES", "2", True),
    ],
)
def test_variables_that_change_threads_are_refused_before_anything_is_measured(
    variable, value, is_refused, monkeypatch, capsys, tmp_path
):
    """Check the command under variables that change threads or device, and the model under others."""
    monkeypatch.setenv(variable, value)
    if is_refused:
        assert main(["compare", "--models", "serial,jax", "--out", str(tmp_path / "out")]) == 2
        assert f"{variable}={value} changes that; unset it" in capsys.readouterr().err
    else:
        assert runnable("jax") == "jax"


@pytest.mark.parametrize(
    "package, wrong",
    [
        ("no_such_package>=1", "needs no_such_package>=1, which is not installed; pip install 'no_such_package>=1'"),
        ("numpy>=99", f"needs numpy>=99, and {np.__version__} is installed; pip install 'numpy>=99'"),
        ("numpy>=1.2", ""),
    ],
)
def test_a_package_that_is_absent_or_old_is_refused(package, wrong, monkeypatch):
    """Check the sentence about a peer's package, and that only one that is there counts as built."""
    model = replace(MODELS["jax"], package=package)
    monkeypatch.setitem(MODELS, "jax", model)
    parse_model.cache_clear()
    assert model.is_built == (not wrong)
    try:
        runnable("jax")
    except UsageError as error:
        assert wrong in str(error)
    else:
        assert not wrong
    finally:
        parse_model.cache_clear()
