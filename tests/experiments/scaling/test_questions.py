"""Which questions of a comparison are decided, and how often wrongly."""

import dataclasses

import numpy as np
import pytest

from forktask.experiments.scaling.questions import judge_question, undecided


@dataclasses.dataclass(frozen=True)
class Row:
    """What of a sample the questions look at."""

    plan_id: str
    threads: int
    model: str
    repetition: int
    step_time_s: float
    config_id: str
    interference: int = 0


def rows(ratios, threads=2, plan="p"):
    """Samples of fork-join at 1 s and of models whose times are these, repetition by repetition."""
    times = {"forkjoin": np.ones(len(next(iter(ratios.values())))), **ratios}
    return [
        Row(plan_id=plan, threads=threads, model=m, repetition=r, step_time_s=t, config_id=f"{plan} {m}")
        for m, values in times.items()
        for r, t in enumerate(values)
    ]


def test_clear_answers_are_decided_and_close_ones_go_on():
    """Check faster, slower, same, and too few or too close rounds."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.005, 40)
    assert judge_question(list(noise[:20] - 0.1)) == "faster"
    assert judge_question(list(noise[:20] + 0.1)) == "slower"
    assert judge_question(list(noise)) == "same"
    assert judge_question([-0.1] * 4) == "go on"
    assert judge_question(list(rng.normal(-0.001, 0.2, 20))) == "go on"


def test_equals_are_rarely_called_different():
    """Check false verdicts between equals, over all looks of 40 rounds with heavy tails."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        x = 0.1 * rng.standard_t(2, 40)
        wrong += any(judge_question(list(x[:n])) in ("faster", "slower") for n in range(5, 41))
    assert wrong <= 10


@pytest.mark.parametrize("decided", [True, False])
def test_only_what_is_open_is_measured_again(decided):
    """Check the configurations of open questions: the model and every fork-join form."""
    noise = np.random.default_rng(2).normal(0, 0.01, 20)
    samples = rows({"taskiter": 0.8 * np.exp(noise), "tasks": np.exp(30 * noise)})
    if decided:
        samples = [row for row in samples if row.model != "tasks"]
    samples += [dataclasses.replace(row, model="serial", threads=1, config_id="p serial") for row in samples[:20]]
    assert undecided(samples) == (set() if decided else {"p tasks", "p forkjoin", "p serial"})
    assert undecided([row for row in samples if row.model == "forkjoin"]) is None
