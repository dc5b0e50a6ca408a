"""Algorithms of single convolutions: named by shape, measured, kept."""

from dataclasses import replace

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.convolution.specs import ALGORITHMS
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.layers import Conv2d, GlobalAvgPool, Linear, Network, SoftmaxCrossEntropy
from forktask.experiments.sampling import algorithms
from forktask.experiments.subjects.models import options_for
from forktask.experiments.sweep.configuration import Configuration, Grid
from forktask.experiments.training.train import configure

END = (GlobalAvgPool("pool"), Linear("linear", 2), SoftmaxCrossEntropy())
NETWORK = Network("two", (16, 8, 8), (Conv2d("first", 32, 3, 1), Conv2d("second", 32, 3, 1), *END))
SHAPES = [
    "forward:4x16x32x8x8",
    *(f"{direction}:4x32x32x8x8" for direction in ("forward", "data", "weights")),
    "weights:4x16x32x8x8",
]
OPTIONS = PlanOptions(batch=4, layout="nhwc")


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Return what is timed, with times that say that `algorithms` in it are fast."""
    asked, fast = [], {}

    def time_of(bound, workers, direction, more):
        found = algorithms.loops_with_choice(bound.plan)
        algorithm = next(name for shape, name in found.items() if shape.startswith(direction))
        asked.append((direction, algorithm, more))
        return fast.get((direction, algorithm), 1.0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(algorithms, "_time_of", time_of)
    monkeypatch.setattr(algorithms, "BUDGET_S", 1e3)
    ticks = iter(range(10**6))
    monkeypatch.setattr(algorithms.time, "monotonic", lambda: float(next(ticks)))
    return asked, fast


def test_a_shape_has_the_algorithm_that_is_named():
    """Check that each named algorithm is that of the loops of its shape, and of no others."""
    usual = algorithms.loops_with_choice(lower(NETWORK, OPTIONS))
    assert sorted(usual) == sorted(SHAPES)
    for shape in SHAPES:
        for name in ALGORITHMS:
            plan = lower(NETWORK, OPTIONS, algorithms=f"{shape}={name}")
            assert algorithms.loops_with_choice(plan) == {**usual, shape: name}


@pytest.mark.parametrize("text", ["measured", "weights:4x16x32x8=direct", "weights:4x16x32x8x8=fft", "4x16x32x8x8"])
def test_what_names_no_algorithm_is_refused(text):
    """Check the sentence that refuses it."""
    with pytest.raises(UsageError, match="algorithms must name a direction"):
        PlanOptions(algorithms=text)


def test_the_clearly_fastest_is_named_and_kept(timed):
    """Check that what is faster by more than noise is named, and that nothing is measured twice, unless the file was
    spoiled."""
    asked, fast = timed
    usual = algorithms.loops_with_choice(lower(NETWORK, OPTIONS))
    other = {shape: next(a for a in ALGORITHMS if a != usual[shape]) for shape in SHAPES}
    fast |= {("weights", other[SHAPES[3]]): 0.9, ("data", other[SHAPES[2]]): 0.96}
    first = algorithms.measured_algorithms([(NETWORK, OPTIONS)])
    expected = {shape: other[SHAPES[3]] for shape in SHAPES if shape.startswith("weights")}
    assert dict(part.split("=") for part in first.split(",")) == {
        shape: name for shape, name in expected.items() if name != usual[shape]
    }
    assert algorithms.loops_with_choice(lower(NETWORK, OPTIONS, algorithms=first)) == {**usual, **expected}
    count = len(asked)
    assert count > 0
    assert algorithms.measured_algorithms([(NETWORK, OPTIONS)]) == first
    assert len(asked) == count
    (path,) = algorithms.cache_folder("algorithms").iterdir()
    path.write_text('{"weights:4x32x32x8x8": "fft"}')
    assert algorithms.measured_algorithms([(NETWORK, OPTIONS)]) == first
    assert len(asked) == 2 * count


def test_more_images_are_extrapolated(timed):
    """Check that sixteen images stand for a larger batch, and that other options of `conv` are left as they are."""
    asked, _ = timed
    algorithms.measured_algorithms([(NETWORK, OPTIONS.with_changes(batch=64))])
    assert {more for _, _, more in asked} == {4.0}
    count = len(asked)
    assert algorithms.measured_algorithms([(NETWORK, OPTIONS.with_changes(conv="direct"))]) == ""
    assert len(asked) == count


def test_without_time_the_cost_decides(timed, monkeypatch, capsys):
    """Check that a budget that is spent leaves the choice by cost, says so, and keeps nothing."""
    _, fast = timed
    fast |= {(direction, name): 0.5 for direction in ("forward", "data", "weights") for name in ALGORITHMS[1:]}
    monkeypatch.setattr(algorithms, "BUDGET_S", 1.0)
    assert algorithms.measured_algorithms([(NETWORK, OPTIONS)]) == ""
    assert "5 not, for want of time" in capsys.readouterr().err
    assert not algorithms.cache_folder("algorithms").exists()


def test_real_times_name_algorithms_that_lower(monkeypatch, tmp_path):
    """Check that what a measurement finds, whatever it is, is an option of the plan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = algorithms.measured_algorithms([(NETWORK, OPTIONS)])
    plan = lower(NETWORK, OPTIONS, algorithms=found)
    named = dict(part.split("=") for part in found.split(",") if part)
    assert algorithms.loops_with_choice(plan).items() >= named.items()


def test_who_measures(monkeypatch):
    """Check that a comparison and a training get what was measured, and a GPU nothing."""
    named = "weights:4x256x256x8x8=winograd4"
    monkeypatch.setattr(algorithms, "measured_algorithms", lambda plans: named)
    grid = Grid(network=("resnet18",), batch=(4,), algorithms=("", "measured"), models=("serial",))
    assert Configuration(grid=grid).with_algorithms().grid.algorithms == ("", named)
    plain = Configuration(grid=replace(grid, algorithms=("",)))
    assert plain.with_algorithms() is plain
    assert configure({"network": "resnet18", "algorithms": "measured"}, resume=False).algorithms == named
    assert options_for("gpu_stream", "auto", "auto")["algorithms"] == ""
    assert "algorithms" not in options_for("serial", "auto", "auto")


def test_a_shape_that_no_plan_has_is_refused():
    """Check a slip in a number, in a comparison and in a training; of several networks one is enough."""
    slip, right = "weights:4x256x256x8x9=direct", "weights:4x256x256x8x8=direct"
    grid = Grid(network=("cifar10_cnn", "resnet18"), batch=(4,), algorithms=(slip,), models=("serial",))
    with pytest.raises(UsageError, match=r"must name convolutions of these plans.*got weights:4x256x256x8x9; did you"):
        Configuration(grid=grid).with_algorithms()
    assert Configuration(grid=replace(grid, algorithms=(right,))).with_algorithms().grid.algorithms == (right,)
    with pytest.raises(UsageError, match="must name convolutions of these plans"):
        configure({"network": "resnet18", "batch": 8, "algorithms": right}, resume=False)
    assert configure({"network": "resnet18", "batch": 4, "algorithms": right}, resume=False).algorithms == right
