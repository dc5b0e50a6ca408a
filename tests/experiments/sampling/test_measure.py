"""The timing loop, on a clock that is part of the test."""

import json
import math
import random

import numpy as np
import pytest

from forktask.cython_src.binding.bind import EVENT_DTYPE, bind
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update
from forktask.experiments.machine.disturbance import Disturbance
from forktask.experiments.results.turns import Turns, typical_step
from forktask.experiments.sampling import timing
from forktask.experiments.sampling.child import converse
from forktask.experiments.sampling.measure import measure_sample
from forktask.experiments.sampling.profile import block_times
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.subjects.subject import hash_arrays


class FakeExecutor:
    """Advances a clock instead of computing: `fill` seconds a run, `step(i)` seconds for iteration i."""

    def __init__(self, step, fill=0.0):
        self.now, self.step, self.fill, self.done = 0.0, step, fill, []

    def clock(self):
        return self.now

    def run(self, count, first):
        self.done.append((first, count))
        self.now += self.fill + sum(self.step(i) for i in range(first, first + count))


def turns(stepper, pass_time_s, turn_s, count=3):
    """What a process says when it is ready, its turns, and the number of their steps."""
    texts = []
    requests = iter([{"long_first": bool(n % 2)} for n in range(count)] + [None])

    def respond(answer):
        texts.append(answer)
        return next(requests)

    steps = converse(timing.take_turns(stepper, pass_time_s, turn_s), respond)
    return texts[0], texts[1:], steps


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("step", [1e-5, 1e-3, 0.016])
def test_a_turn_holds_a_short_and_a_long_run(step, stride):
    """Check lengths, times in either order, the untimed run before them, and the number of steps."""
    fake = FakeExecutor(lambda i: step, fill=0.003)
    ready, taken, steps = turns(timing.Stepper(fake, stride, fake.clock), step * stride, turn_s=0.1)
    short, long = ready["short_steps"], ready["long_steps"]
    for turn in taken:
        assert turn["short_s"] == pytest.approx(0.003 + short * step)
        assert turn["long_s"] == pytest.approx(0.003 + long * step)
    untimed = fake.done[0][1]
    runs = [untimed, short, long, untimed, long, short, untimed, short, long]
    assert [count for _, count in fake.done] == runs and sum(runs) == steps


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("step", [timing.ONE_RUN_S, timing.LONG_PASS_S])
def test_a_turn_of_long_passes_is_one_run(step, stride):
    """Check that it stands where the long run does, so that the slope is its time over its steps, that the row has no
    fill, and that only very long passes have no untimed run."""
    fake = FakeExecutor(lambda i: step, fill=0.003)
    ready, taken, steps = turns(timing.Stepper(fake, stride, fake.clock), step * stride, turn_s=0.01)
    long = timing.ONE_RUN_PASSES * stride
    assert (ready["short_steps"], ready["long_steps"]) == (0, long)
    assert [turn["short_s"] for turn in taken] == [0.0] * 3
    runs = [long] * 3 if step * stride >= timing.LONG_PASS_S else [stride, long] * 3
    assert [count for _, count in fake.done] == runs and sum(runs) == steps
    kept = {"rounds": [0, 1, 2], "short_steps": 0, "long_steps": long}
    kept |= {f"{kind}_times_s": [turn[f"{kind}_s"] for turn in taken] for kind in ("short", "long")}
    assert typical_step(Turns(**kept), set()) == (pytest.approx(step + 0.003 / long), None)


def test_turn_lengths_keep_to_the_budget():
    """Check that the lengths are always far apart, that short steps stay within the target, and the untimed run; of
    long passes those that are enough."""
    assert timing.turn_lengths(timing.LONG_PASS_S, 0.03) == (0, 0, 3) and timing.turn_lengths(
        0.3, 0.03, untimed_s=0.02
    ) == (1, 0, 3)
    assert timing.turn_lengths(timing.ONE_RUN_S, 0.03) == (1, 0, 3)
    for pass_time in 10.0 ** np.linspace(-7, math.log10(0.99 * timing.ONE_RUN_S), 33):
        untimed, short, long = timing.turn_lengths(pass_time, 0.03)
        assert 1 <= short <= untimed <= long and 3 * short <= long
        assert (short + long) * pass_time <= max(0.03 + 1e-9, 4.01 * pass_time)
        longer, *timed = timing.turn_lengths(pass_time, 0.03, untimed_s=0.02)
        assert longer * pass_time >= 0.02 - 1e-9 and longer >= untimed and timed == [short, long]


def test_the_trend_test():
    """Check that falling series are seen, and constant, rising and noisy ones are not called falling."""
    assert timing.still_falling([8, 7, 6, 5, 4, 3, 2, 1])
    assert timing.still_falling([8, 7, 5, 6, 4, 3, 1, 2])
    assert not timing.still_falling([1.0] * 8)
    assert not timing.still_falling([1, 2, 3, 4, 5, 6, 7, 8])
    generator = random.Random(7)
    false_alarms = sum(timing.still_falling([generator.random() for _ in range(8)]) for _ in range(2000))
    assert false_alarms < 0.07 * 2000


def test_warm_up_ends_when_times_stop_falling():
    """Check that it outlasts a falling phase, that one disturbance does not matter, and that its end is noted."""
    fake = FakeExecutor(lambda i: 0.02 + 0.1 * 0.7**i)
    warm = timing.warm_up(timing.Stepper(fake, clock=fake.clock), limit_s=10)
    assert warm.stationary
    assert len(warm.times_s) >= 16
    assert warm.pass_time_s == pytest.approx(0.02, rel=0.05)
    fake = FakeExecutor(lambda i: 0.02 if i % 5 else 0.03)
    assert timing.warm_up(timing.Stepper(fake, clock=fake.clock), limit_s=10).stationary


def test_warm_up_is_bounded():
    """Check that a series that never settles ends at the limit and says so, after two runs at least."""
    fake = FakeExecutor(lambda i: 1.0 / (1 + i))
    warm = timing.warm_up(timing.Stepper(fake, clock=fake.clock), limit_s=3)
    assert not warm.stationary
    assert fake.now < 4
    fake = FakeExecutor(lambda i: 100.0)
    assert timing.warm_up(timing.Stepper(fake, clock=fake.clock), limit_s=1).passes == [1, 1]


def test_hashes_see_bytes_shapes_and_names():
    """Check that the hash changes with one bit, a shape, a dtype or a name, and not with memory layout."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = a.copy()
    b[1, 1] = np.nextafter(b[1, 1], np.float32(9))
    hashes = [hash_arrays(x) for x in ({"a": a}, {"a": b}, {"b": a}, {"a": a.reshape(3, 2)}, {"a": a.view(np.int32)})]
    assert len(set(hashes)) == 5
    assert hash_arrays({"a": np.asfortranarray(a)}) == hashes[0]


def chain_plan(width=4, steps=3):
    """Hash chains; the parameter's bits depend on every block."""
    builder = PlanBuilder("chain", parameters=("even", "odd"))
    for name in ("even", "odd"):
        builder.buffer(name, (width,), "uint64", role="parameter")
    for step in range(steps):
        out, source = ("even", "odd") if step % 2 else ("odd", "even")
        blocks = [Block((i, i, i + 1), (update(out, (i, i + 1)), read(source, (i, i + 1)))) for i in range(width)]
        attributes = {"work": 0, "fail_iteration": -1, "fail_index": 0}
        builder.loop(f"step{step}", "hash_chain", {"out": out, "in": source}, blocks, attributes=attributes)
    return builder.build()


JOB = {"kind": "sample", "cpus": None, "check_iterations": 20, "turn_s": 0.01, "warmup_s": 0.01, "seed": 1}


def sample_of(job, bound):
    """A sample with two turns, taken in this process."""
    requests = iter([{}, {"long_first": True}, {"long_first": False}, None])
    return converse(measure_sample({**job, "model": parse_model(job["model"])}, bound), lambda text: next(requests))


def test_a_sample_has_all_fields_and_equal_hashes_over_models(monkeypatch):
    """Check a whole sample in this process, for two models on one plan."""
    monkeypatch.setattr(
        "forktask.experiments.sampling.measure.loaded_libraries", lambda: [{"kind": "blas", "threads": 1}]
    )
    samples = [
        sample_of({**JOB, "model": model, "threads": threads}, bound=bind(chain_plan(), target="numpy"))
        for model, threads in (("serial", 1), ("forkjoin", 2))
    ]
    for sample in samples:
        json.dumps(sample, allow_nan=False)
        assert sample["check_iterations"] == 20
        assert sample["num_steps"] > 0 and sample["timed_wall_s"] > 0
        assert set(sample["disturbance"]) == set(Disturbance.FIELDS)
        assert 0 < sample["libraries_bytes"] <= sample["max_resident_bytes"] and sample["graph_bytes"] > 0
        assert sample["energy"]["joules"] is None or sample["energy"]["error"] is None
        assert min(sample["prepare_s"], sample["first_replay_s"]) > 0
        assert (sample["record_s"], sample["close_s"]) == (None, None)
    assert samples[0]["weights_hash"] == samples[1]["weights_hash"]


def test_blas_on_several_threads_is_refused(monkeypatch):
    """Check that a process whose BLAS would run more threads than blocks expect gives no sample."""
    libraries = [{"kind": "blas", "name": "openblas", "threads": 2}]
    monkeypatch.setattr("forktask.experiments.sampling.measure.loaded_libraries", lambda: libraries)
    with pytest.raises(RuntimeError, match="one thread"):
        sample_of({**JOB, "model": "serial", "threads": 1}, bound=bind(chain_plan(), target="numpy"))


def test_times_of_loops_are_means_over_passes():
    """Check busy times of blocks and loops against events made by hand."""
    plan = chain_plan(width=2, steps=2)
    events = []
    for iteration in range(2):
        base = 1_000_000_000 * (iteration + 1)
        for task in range(4):
            start = base + 1000 * (task // 2)
            events.append((start, start + 100 * (task + 1) * (iteration + 1), iteration, task, task % 2))
    times = block_times(np.array(events, EVENT_DTYPE), plan, 2)
    assert times["block_time_s"]["step0"] == pytest.approx([150e-9, 300e-9])
    assert times["block_mean_s"]["step0"] == pytest.approx([150e-9, 300e-9])
    assert times["loop_time_s"]["step1"] == pytest.approx(450e-9 + 600e-9)


def test_a_block_missing_from_the_log_is_an_error():
    """Check that a profile of blocks run too often or not at all is refused by name."""
    plan = chain_plan(width=2, steps=1)
    with pytest.raises(RuntimeError, match=r"step0\[1\]"):
        block_times(np.array([(0, 1, 0, 0, 0)], EVENT_DTYPE), plan, 1)
