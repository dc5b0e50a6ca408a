"""The granularity at which each model is fastest."""

import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure, best_granularities, read_tuned

CUTS = ({"granularity": "auto"}, {"granularity": "images=16"})


def test_each_model_has_its_own_best():
    """Check that the fastest granularity of each model and number of threads is found."""
    best = best_granularities(sweep_of(synthetic_rows(options=CUTS, slowdowns=(1.0, 0.5), noise=0.001)))
    assert {*best.values()} == {"images=16"} and len({problem for problem, _, _ in best}) == 1 and len(best) > 3


def test_what_is_found_is_used_by_compare(tmp_path):
    """Check the points of a sweep that takes the best granularities from a folder."""
    write_rows(tmp_path, synthetic_rows(("serial",), options=CUTS, slowdowns=(1.0, 0.5), noise=0.001))
    grid = Grid(batch=(64,), models=("serial", "taskiter"), threads=(1,), granularity=("images=1",))
    points = Configuration(grid=grid, measure=Measure(tuned=str(tmp_path))).points()
    cuts = sorted((point.model, point.plan["granularity"]) for point in points)
    assert cuts == sorted([("serial", "images=16"), ("serial", "images=1"), ("taskiter", "images=1")])


def test_other_folders_are_refused(tmp_path):
    """Check the sentence about a folder that holds nothing, and about a file."""
    (tmp_path / "tuned.json").write_text("{}")
    for path in (tmp_path, tmp_path / "tuned.json"):
        with pytest.raises(UsageError, match="tuned must be a folder of forktask compare or run, got"):
            read_tuned(path)
