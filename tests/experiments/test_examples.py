"""The examples run, are right, and give the same bits under every kind of model."""

import importlib
from pathlib import Path

import pytest

import forktask.experiments.examples

EXAMPLES = sorted(
    path.stem
    for path in Path(forktask.experiments.examples.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "common")
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
        assert example.main(["--model", model, "--threads", "1" if model == "serial" else "2"]) == 0
        results.add(capsys.readouterr().out.partition(" (")[0])
    assert len(results) == 1


def test_there_are_examples():
    """Check that the examples are installed, and short."""
    assert len(EXAMPLES) == 7
    for name in EXAMPLES:
        path = Path(forktask.experiments.examples.__file__).parent / f"{name}.py"
        assert len(path.read_text().splitlines()) < 80
