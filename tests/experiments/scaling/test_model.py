"""The model tier: deterministic predictions, and differences that name a loop."""

import pytest

from experiments.scaling import graphs
from forktask.cython_src.errors import UsageError
from forktask.experiments.scaling import model
from forktask.experiments.subjects import subject


def entry(grain=16, stored=None, update=False):
    """An entry, made in this process."""
    job = {"plan": subject.describe(graphs.means, {"grain": grain}), "seed": 1, "threads": 1}
    predict = {"thread_counts": [1, 2], "stored": stored, "update": update}
    return model.make_entry(subject.build(job), {**job, "predict": predict})


@pytest.fixture(scope="module")
def stored():
    """The entry of three slices with durations that are easy to add."""
    measured = entry(update=True)
    assert all(t > 0 for times in measured["block_ns"].values() for t in times)
    return entry(stored={**measured, "block_ns": {"smooth.0": [2000, 3000, 4000], "add.0": [1000, 1000, 1000]}})


def test_predictions_follow_from_stored_durations(stored):
    """Check work, span, cycle mean, fork-join bound and speedups by hand: no clock has a part in them."""
    assert stored["predicted"] == {
        "work_us": 12.0,
        "span_us": 5.0,
        "cycle_mean_us": 5.0,
        "threads": {
            "1": {"forkjoin_us": 12.0, "speedup": {"forkjoin": 1.0, "taskgraph": 1.0, "taskiter": 1.0}},
            "2": {"forkjoin_us": 6.0, "speedup": {"forkjoin": 2.0, "taskgraph": 2.0, "taskiter": 2.0}},
        },
    }
    assert model.differences(stored, entry(stored=stored)) == []


def test_a_change_names_the_loop(stored):
    """Check that coarser slices change the predictions, and that the difference names the loops and assumptions."""
    lines = model.differences(stored, entry(grain=48, stored=stored))
    assert "span (µs): 5 -> 12 (+140.00%)" in lines
    assert any("loop smooth.0: blocks 3 -> 1" in line for line in lines)
    assert lines[-1] == "durations assumed, not measured: smooth.0, add.0"


def test_update_measures_only_what_changed(stored):
    """Check that durations of loops that are as before stay, so that git shows what changed."""
    renamed = {**stored, "block_ns": {"smooth.0": stored["block_ns"]["smooth.0"], "add.0": [1]}}
    now = entry(stored=renamed, update=True)
    assert now["block_ns"]["smooth.0"] == [2000, 3000, 4000]
    assert len(now["block_ns"]["add.0"]) == 3 and now["assumed"] == []


def test_new_loops_cost_what_stored_ones_do(stored):
    """Check that a loop without stored durations gets some in proportion to its cost."""
    now = entry(stored={**stored, "block_ns": {"smooth.0": [2000, 3000, 4000]}})
    assert now["assumed"] == ["add.0"] and all(0 < t < 9000 for t in now["block_ns"]["add.0"])


def test_baseline_file(tmp_path, stored):
    """Check that entries come back, that nothing is written unless something changed, and that lists stay on a line."""
    baselines = model.Baselines(True)
    assert baselines.entry(tmp_path, "t", "s") is None
    baselines.put(tmp_path, "t", "s", stored)
    assert baselines.write() == [tmp_path / model.BASELINE]
    text = (tmp_path / model.BASELINE).read_text()
    assert '"smooth.0": [2000, 3000, 4000]' in text and "assumed" not in text
    again = model.Baselines(True)
    assert model.differences(again.entry(tmp_path, "t", "s"), stored) == []
    again.put(tmp_path, "t", "s", stored)
    assert again.write() == []


@pytest.mark.parametrize(
    "what, arguments, said",
    [
        (graphs.means(), {}, "pass the function that returns it"),
        (lambda: None, {}, "top level"),
        ("cifar10_cnn", {}, "needs a batch"),
        (graphs.means, {"grain": {1, 2}}, "JSON"),
        (graphs.means, {"gran": 16}, "function means needs must be given, .*, got gran: "),
    ],
)
def test_subjects_that_no_process_can_make(what, arguments, said):
    """Check that each is refused with a remedy."""
    with pytest.raises(UsageError, match=said):
        subject.describe(what, arguments)


def test_a_subject_from_a_file_that_cannot_be_imported(tmp_path):
    """Check that a function in a test file is found by the file, as pytest's importlib mode leaves it."""
    file = tmp_path / "test_own.py"
    file.write_text("from experiments.scaling.graphs import means\n\ndef mine(grain):\n    return means(grain)\n")
    plan = {
        **subject.describe(graphs.means, {"grain": 16}),
        "function": "mine",
        "module": "a.test_own",
        "file": str(file),
    }
    assert subject.make_bound(plan).num_tasks == 6
    assert subject.name_of(plan) == "mine(grain=16)"
