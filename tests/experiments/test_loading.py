"""Ways to load image files: each loads every image, rates and shares, refusals."""

import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.training import loading
from forktask.experiments.training.config import TrainingConfig


@pytest.fixture
def config(tmp_path):
    return TrainingConfig(
        data="thumbnails:24",
        image_size="32x40",
        load="files",
        cache=str(tmp_path),
        batch=4,
        threads=2,
        network="starpu_cnn",
        learning_rate=1e-3,
    )


@pytest.mark.parametrize(
    "way",
    [
        "one thread",
        "joblib, 2 threads",
        "training alone, serial",
        "in the step, taskiter:unroll=2:slots=2",
        pytest.param("DataLoader, 0 workers", marks=pytest.mark.torch),
    ],
)
def test_each_way_loads_and_is_measured(config, way):
    """Check rate and memory of a way, and that ways alone read each training image once."""
    changed = config.with_changes(threads=1) if way.endswith("serial") else config
    row = loading.measure_way({"way": way, "config": changed.as_dict()})
    assert row["images_per_s"] > 1 and row["workers_bytes"] == 0
    assert row["peak_bytes"] >= row["python_bytes"] + row["loader_bytes"] >= row["python_bytes"] > 10e6


def test_shares_are_of_the_right_rates(config, monkeypatch):
    """Check both shares on known rates, and that a way that failed stays in the table."""
    rates = {
        "one thread": 50.0,
        "joblib, 2 threads": 100.0,
        "training alone, taskiter": 25.0,
        "in the step, taskiter": 18.0,
    }

    def run(job, *arguments):
        if job["way"] not in rates:
            return {"failure": "usage", "message": "no PyTorch"}
        sizes = {"peak_bytes": 1 << 20, "python_bytes": 1 << 18, "loader_bytes": 1 << 10, "workers_bytes": 0}
        return {"images_per_s": rates[job["way"]], **sizes}

    monkeypatch.setattr(loading, "run_sample", run)
    monkeypatch.setattr(loading, "find_spec", lambda name: name)
    result = loading.compare_loading(config, ["taskiter"])
    (row,) = [row for row in result["rows"] if row["way"] == "in the step, taskiter"]
    assert row["share_of_lower"] == 18 / 25 and row["share_of_both"] == pytest.approx(18 / 20)
    text = loading.as_text(result)
    assert "usage: no PyTorch" in text and "0.72     0.90" in text


def test_the_loader_of_a_package_that_is_missing_is_left_out(config, monkeypatch, capsys):
    """Check that all other ways are measured, that a sentence says so, and that this is no failure."""
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    measured = []

    def run(job, *arguments):
        measured.append(job["way"])
        return {"images_per_s": 1.0, "peak_bytes": 1, "python_bytes": 1, "loader_bytes": 1, "workers_bytes": 0}

    monkeypatch.setattr(loading, "run_sample", run)
    assert main(["loading", "--data", "thumbnails:24", "--threads", "1", "--models", "serial"]) == 0
    assert measured == ["one thread", "joblib, 1 threads", "training alone, serial", "in the step, serial"]
    assert "DataLoader is left out" in capsys.readouterr().out


def test_what_is_in_memory_has_no_way_to_load(config, capsys):
    """Check one sentence, in Python and from the command line."""
    with pytest.raises(UsageError, match="must be one of cache, files"):
        loading.compare_loading(config.with_changes(load="memory"), ["serial"])
    assert main(["loading", "--load", "memory"]) == 2
    assert "use --load files" in capsys.readouterr().err


def test_data_that_no_way_can_load_are_refused(config):
    """Check one sentence, not a failure of each way, for data of no image files, and for threads that are not there."""
    with pytest.raises(UsageError, match="are for image files .* got --data digits"):
        loading.compare_loading(config.with_changes(data="digits"), ["taskiter"])
    with pytest.raises(UsageError, match="available cores may run, got 4000"):
        loading.compare_loading(config.with_changes(threads=4000), ["taskiter"])
    with pytest.raises(UsageError, match="serial must run on one thread, got 2"):
        loading.compare_loading(config, ["serial"])
