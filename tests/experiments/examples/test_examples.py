"""The examples run, are right, and give the same bits under every kind of model."""

import importlib
from pathlib import Path

import pytest

import forktask.experiments.examples
from forktask.experiments.examples import parallel_call
from forktask.experiments.examples.common import run_example

EXAMPLES = sorted(
    path.stem
    for path in Path(forktask.experiments.examples.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "common", "parallel_call")  # the last is what `forktask run calls` measures
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.cc) if name == "own_kernel" else name for name in EXAMPLES]
)
@pytest.mark.timeout(120)
def test_examples_are_right_and_alike(name, capsys):
    """Check an example under serial, fork-join and taskiter: it exits with 0 and prints one and the same result."""
    example = importlib.import_module(f"forktask.experiments.examples.{name}")
    results = set()
    for model in ("serial", "forkjoin", "taskiter"):
        assert run_example(name, example.compute, ["--model", model]) == 0
        results.add(capsys.readouterr().out.partition(" (")[0])
    assert len(results) == 1


@pytest.mark.parametrize("tool", [parallel_call.user_graph, parallel_call.prange, parallel_call.thread_pool])
def test_parallel_calls_return_nothing(tool):
    """Check that a call of the study of calls can be repeated, and returns None, as results are compared."""
    call = tool(blocks=2, units=1, threads=2)
    assert call() is call() is None
