"""Generations: processes that take turns, on a machine that takes no time, and a few real ones."""

import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import run_python

from forktask.experiments.results.turns import judge_rounds, step_times, typical_step
from forktask.experiments.sampling.child import MeasuringProcess, ProcessFailure, measure_in_process
from forktask.experiments.sampling.generation import TURN_S, Contestant, Generation, make_groups, measure_generation
from forktask.experiments.sampling.timing import Stepper, take_turns


class FakeProcess:
    """A process whose steps take no time but on the machine's own clock; it notes what it is told."""

    def __init__(self, machine, contestant, turn_s):
        self.machine, self.name, self.turn_s = machine, contestant.name, turn_s
        self.said = None
        self.state = "runs"

    def measure(self):
        yield {}
        self.run(1)
        executor = SimpleNamespace(run=lambda count, first: self.run(count))
        yield from take_turns(Stepper(executor, clock=lambda: self.machine.time_s), self.step_s, self.turn_s)
        return {"finished": True}

    @property
    def step_s(self):
        return self.machine.steps_s[self.name]

    def run(self, count):
        assert self.state == "runs" and self.machine.running() == [self.name]
        self.machine.time_s += count * self.step_s

    def _send(self, request):
        if self.machine.faults.get(self.name) == self.machine.events.count((self.name, "asked")):
            raise ProcessFailure("crash", "its fault")
        self.machine.events.append((self.name, "asked"))
        return self.measuring.send(request)

    def answer(self):
        self.measuring = self.measure()
        self.state = "waits"
        return self._send(None)

    def ask(self, request):
        self.state = "runs"
        return self._send(request)

    def end(self):
        with pytest.raises(StopIteration) as end:
            self._send(None)
        self.state = "over"
        return end.value.value

    def stop(self):
        self.machine.events.append((self.name, "stopped"))
        self.state = "stopped"

    def resume(self):
        assert self.state == "stopped"
        self.state = "runs"

    def close(self):
        self.state = "over"

    def __enter__(self):
        self.machine.processes.append(self)
        return self

    def __exit__(self, *_):
        self.close()


class FakeMachine:
    """A machine without processes, on a clock of its own."""

    def __init__(self, steps_s, faults=None, free_bytes=None):
        self.steps_s, self.faults, self.free = steps_s, faults or {}, free_bytes
        self.time_s, self.processes, self.events = 0.0, [], []
        self.spins = []

    def running(self):
        return [process.name for process in self.processes if process.state == "runs"]

    def start(self, contestant, turn_s):
        return FakeProcess(self, contestant, turn_s)

    def now(self):
        return self.time_s

    def free_bytes(self):
        return self.free

    def spin(self, cpus):
        assert not self.running(), "the machine is quiet while the calibration kernel spins"
        self.spins.append(cpus)
        return 1e-3

    def handover(self, cpus):
        assert not self.running()
        return 7e-8

    def additions(self, cpus):
        assert not self.running() and cpus == [0]
        return {"0": 4.8}

    def disturbance(self):
        return 0, 0

    def measure(self, target_s=0.2, reference="a", size=0, **options):
        contestants = [
            Contestant(name, {"cpus": [0]}, {}, size, 1.0, far_behind=name == "far behind") for name in self.steps_s
        ]
        return measure_generation(Generation(contestants, reference, target_s, **options), self)


def test_one_runs_and_the_others_are_stopped():
    """Check that nobody runs beside another, that orders vary, and that all rounds hold all."""
    machine = FakeMachine({"a": 1e-3, "b": 2e-3, "c": 1e-4})
    (group,) = machine.measure()
    rounds, answers = group
    assert rounds.contestants == ["a", "b", "c"]
    assert all(sorted(order) == [0, 1, 2] for order in rounds.order)
    assert len({tuple(order) for order in rounds.order}) > 1
    assert rounds.handover_s == [7e-8] * len(rounds.order)
    assert rounds.additions_per_cycle == {"0": [4.8] * len(rounds.order)}
    assert [len(spins) for spins in rounds.spin_s] == [3] * len(rounds.order)
    assert len(rounds.order) == round(0.2 / TURN_S)
    for name, step_s in machine.steps_s.items():
        answer = answers[name]
        assert answer["rounds"] == [*range(len(rounds.order))] and answer["finished"]
        assert answer["step_time_s"] == pytest.approx(step_s) and answer["fill_time_s"] == pytest.approx(0, abs=1e-9)
        assert answer["short_times_s"][0] == pytest.approx(answer["short_steps"] * step_s)


def test_a_contestant_of_long_steps_takes_part_in_fewer_rounds():
    """Check that each has its time, and at least so many turns as were asked for, unless it is far behind."""
    machine = FakeMachine({"a": 1e-2, "slow": 1.0, "far behind": 1.0})
    (group,) = machine.measure(target_s=0.3, least_rounds=4)
    rounds = {name: len(answer["rounds"]) for name, answer in group.answers.items()}
    assert rounds == {"a": 8, "slow": 4, "far behind": 1}


def test_no_round_begins_when_time_is_up():
    """Check that a generation ends early, with a round of each contestant at least."""
    taken = []
    for ends in (0.0, 20.0, math.inf):
        (group,) = FakeMachine({"a": 1.0, "slow": 2.0}).measure(least_rounds=4, ends=ends)
        (rounds,) = {len(answer["rounds"]) for answer in group.answers.values()}
        taken.append(rounds)
    assert taken[0] == 1 < taken[1] < taken[2] == 4


@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_a_failure_stops_nobody_else(when):
    """Check that one that fails at its start, its warm-up or in a turn is a failure, and the others go on."""
    machine = FakeMachine({"a": 1e-3, "b": 2e-3}, faults={"b": when})
    (group,) = machine.measure()
    assert group.answers["b"] == {"failure": "crash", "message": "its fault"}
    assert len(group.answers["a"]["rounds"]) == len(group.rounds.order) == round(0.2 / TURN_S)
    assert {process.state for process in machine.processes} == {"over"}


def test_what_does_not_fit_into_memory_is_measured_in_groups():
    """Check that groups share the reference, and that no contestant is left out or measured twice."""
    machine = FakeMachine(dict.fromkeys("abcde", 1e-3), free_bytes=4 << 30)
    groups = machine.measure(size=700 << 20, reference="c")
    assert [group.rounds.contestants for group in groups] == [["c", "a", "b"], ["c", "d", "e"]]
    assert make_groups([1, 1, 1], 10, 0) == [[0, 1, 2]]
    assert make_groups([4, 4, 2, 20], 10, 0) == [[0, 1, 2], [3]]
    assert make_groups([9, 9], 10, 0) == [[1], [0]]
    assert make_groups([5, 5, 5], 10, None) == [[0, 1], [2]]
    for seed in range(50):
        generator = random.Random(seed)
        sizes = [generator.randrange(1, 8) for _ in range(7)]
        groups = make_groups(sizes, 12, 3)
        assert sorted(k for group in groups for k in group if k != 3) == [0, 1, 2, 4, 5, 6]
        assert all(sum(sizes[k] for k in group) <= 12 for group in groups if len(group) > 1)


def rounds_of(spins, wall_s=0.1, steal=None, pressure=None):
    number = len(spins)
    return SimpleNamespace(
        contestants=["a", "b"],
        order=[[1, 0]] * number,
        spin_s=spins,
        wall_s=[wall_s] * number,
        steal_ticks=steal or [0] * number,
        pressure_us=pressure or [0] * number,
    )


def test_disturbed_rounds_are_known_by_what_is_the_same_for_all():
    """Check a slow spin, stolen time and waiting threads, each in one round."""
    quiet = [[1.0, 1.01]] * 9
    assert judge_rounds(rounds_of(quiet)).disturbed == set()
    assert judge_rounds(rounds_of([*quiet, [1.0, 1.5]])).disturbed == {9}
    assert judge_rounds(rounds_of(quiet, steal=[0, 5, *[0] * 7])).disturbed == {1}
    assert judge_rounds(rounds_of(quiet, pressure=[0, 0, 50_000, *[0] * 6])).disturbed == {2}
    assert judge_rounds(rounds_of(quiet, pressure=[90_000] * 9)).disturbed == set(), "that is usual here"


def test_a_slow_cpu_before_a_turn_counts_against_that_contestant_alone():
    """Check that load which never ends is held against the turns that it met, by the order of each round."""
    usual = [[1.0, 1.3], [1.3, 1.0]] * 8  # so that no round stands out; "b" has the first turn
    judged = judge_rounds(rounds_of([*usual, [1.3, 1.3]]))
    assert judged.disturbed == set()
    assert judged.loud == {"b": {*range(1, 16, 2), 16}, "a": {*range(0, 16, 2), 16}}
    judged = judge_rounds(rounds_of([*[[1.0, 1.0]] * 9, [1.5, 1.0]]))
    assert judged.disturbed == {9} and judged.loud == {"a": {9}, "b": {9}}


def test_disturbed_rounds_are_left_out_where_enough_others_are_left():
    """Check the slope of each turn, and the median with and without disturbed rounds."""
    sample = SimpleNamespace(
        short_steps=1, long_steps=3, rounds=[0, 1, 2], short_times_s=[1.5, 1.5, 9.0], long_times_s=[3.5, 3.5, 19.0]
    )
    assert step_times(sample) == {0: 1.0, 1: 1.0, 2: 5.0}
    assert typical_step(sample, {2}) == (1.0, 0.5)
    assert typical_step(sample, {0, 1}) == (1.0, 0.5), "one round of three is not enough"
    hidden = SimpleNamespace(
        short_steps=1, long_steps=3, rounds=[0, 1, 2], short_times_s=[9.0, 1.5, 1.5], long_times_s=[3.5, 3.5, 3.5]
    )
    assert typical_step(hidden, {1, 2})[0] == 1.0 and typical_step(hidden, {2})[0] == 1.0


# --- real processes

SPINNING = """
import json, sys, threading, time
say = lambda **what: print(json.dumps(what), flush=True)
ticks = 0
def spin():
    global ticks
    while True:
        ticks += 1
threading.Thread(target=spin, daemon=True).start()
sys.stdin.readline()
say(said={})
while json.loads(sys.stdin.readline()) is not None:
    say(said={"ticks": ticks})
say(row={"ticks": ticks})
"""


def python(program):
    answers = "import os, sys; sys.stdout = os.fdopen(int(os.environ['FORKTASK_ANSWERS']), 'w')\n"
    return (sys.executable, "-S", "-c", answers + program)


def test_a_stopped_process_stands_still():
    """Check that threads which spin do not run between `stop` and `resume`, which counts for no limit, and do before
    and after."""
    with MeasuringProcess({}, dict(os.environ), 60.0, python(SPINNING)) as process:
        process.answer()
        left_s = process._left_s
        process.stop()
        first = Path(f"/proc/{process._process.pid}/stat").read_text().split()[13]
        time.sleep(0.2)
        assert Path(f"/proc/{process._process.pid}/stat").read_text().split()[13] == first
        process.resume()
        assert process._left_s == left_s
        before = process.ask({})["ticks"]
        while process.ask({})["ticks"] == before:
            pass
        assert process.end()["ticks"] > before


def test_a_stopped_process_ends_with_its_caller():
    """Check that nothing is left of a stopped process after its caller was killed."""
    program = f"""if True:
        import os, sys
        from forktask.experiments.sampling.child import MeasuringProcess
        command = (sys.executable, "-P", "-m", "forktask.experiments.sampling.measure")
        job = {{"kind": "sample", "cpus": None, "model": "serial", "threads": 1, "seed": 1, "check_iterations": 1,
               "warmup_s": 0.01, "turn_s": 0.01, "plan": {{"network": "lenet5", "batch": 1}}}}
        process = MeasuringProcess(job, dict(os.environ), 60.0, command)
        process.answer()
        process.stop()
        print(process._process.pid, flush=True)
        os.kill(os.getpid(), {signal.SIGKILL:d})
    """
    done = run_python(program)
    path = Path("/proc", done.stdout.strip(), "stat")
    deadline = time.monotonic() + 60
    while path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    "program, reason, said",
    [
        ("raise SystemExit(3)", "crash", "exit code 3"),
        ("print('no JSON')", "crash", "no JSON"),
        ("print('{}')", "crash", "row"),
        ("import os; os.abort()", "crash", "SIGABRT"),
        ("""print('{"row": {}}', flush=True); raise SystemExit(4)""", "crash", "exit code 4"),
        ("""print('{"failure": "usage", "message": "no"}')""", "usage", "no"),
        ("import time; time.sleep(60)", "timeout", "0.5 s"),
    ],
)
def test_how_processes_fail(program, reason, said):
    """Check the reason of each kind of end."""
    row = measure_in_process({}, {}, 0.5 if reason == "timeout" else 60.0, python(program))
    assert row["failure"] == reason and said in row["message"]


def test_what_the_site_prints_is_no_answer(tmp_path):
    """Check modules of the site that print before the measuring process's own code runs."""
    for name in ("sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("import os\nprint('Welcome to X', flush=True)\nos.write(1, b'!')\n")
    job = {"kind": "sample", "cpus": None, "model": "serial", "threads": 1, "seed": 1, "check_iterations": 1}
    job |= {"warmup_s": 0.01, "turn_s": 0.01, "plan": {"network": "lenet5", "batch": 1}}
    with MeasuringProcess(job, {**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        assert process.answer() == {}
        process._errors.seek(0)
        assert b"Welcome to X" in process._errors.read()


def test_what_a_library_prints_is_no_answer():
    """Check that lines on standard output, of Python and of C, are not taken for answers."""
    program = (
        "import os, sys; from forktask.experiments.sampling.child import answer_job\n"
        "def measure(job):\n    print('hello'); os.write(1, b'from C\\n'); return {'model': job['model']}\n"
        "sys.exit(answer_job(measure))"
    )
    row = measure_in_process({"model": "serial", "cpus": None}, {}, 60.0, (sys.executable, "-P", "-c", program))
    assert row == {"model": "serial"}


# --- schedules
