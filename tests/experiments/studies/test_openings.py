"""The first paragraphs of the reports of studies."""

import math
from types import SimpleNamespace

from forktask.experiments.studies.report import _opening as open_study


def opened(accuracies, axes, failed=(), **columns):
    """The paragraphs of a study whose runs have these columns."""
    given = zip(*(columns[name] for name in columns), strict=True)
    fixed = {"seeds": 1, "epochs": 2, "test_accuracy": 0.9, "epoch_time_s": 0.1}
    rows = [
        {**fixed, "label": f"model {i}", **dict(zip(columns, values, strict=True))} for i, values in enumerate(given)
    ]
    study = SimpleNamespace(options=SimpleNamespace(accuracy=accuracies), axes=axes)
    results = SimpleNamespace(study=study, failed=lambda: [(SimpleNamespace(label=label), {}) for label in failed])
    return open_study(results, rows)


def test_a_study_opens_with_times_to_accuracy_memory_and_what_is_missing():
    """Check the highest accuracy that was reached, the run that never was, memory, failures, and axes of one value."""
    axes = {"network": ("lenet5",), "model": ("a", "b", "c")}
    columns = {
        "peak_bytes": [3 * 2**20, 2**20, 2 * 2**20],
        "time_to_0.9": [2.0, 1.0, 3.0],
        "time_to_0.97": [5.0, math.nan, 4.0],
        "time_to_0.99": [math.nan] * 3,
    }
    question, answer = opened((0.9, 0.97, 0.99), axes, ["d", "d", "e"], **columns)
    assert "which differ in model, were run" in question
    assert (
        "To be right for 97 % of the validation examples took 4.00 s (model 2) to 5.00 s (model 0) of training; "
        "1 of 3 ways never did."
    ) in answer
    assert "Their processes held at most 1 MiB (model 1) to 3 MiB (model 0)." in answer
    assert "2 more ways did not run, or did not fit" in answer
    answer = opened((0.9,), axes, peak_bytes=[2**20], **{"time_to_0.9": [math.nan]})[1]
    assert "None was right for 90 % of the validation examples." in answer
    assert "held" not in answer and "more way" not in answer
    assert "validation" not in opened((), axes, peak_bytes=[2**20, 2**21])[1]
