"""A made-up machine on which whole commands measure: the real scheduler, runner and report, with processes whose step
times follow a known truth, on a clock of its own.

A step of a model takes its true time, times what the session, the process, drift and the single run bring. Now and then
something disturbs a round, which the calibration kernel shows, or the host moves the CPUs for a generation, in which
all models but fork-join are slower, which hand-overs show.
"""

import math
import random
from types import SimpleNamespace

from experiments.synthetic_results import CONDITIONS, OF_SAMPLE, OF_TURNS, OTHERS, typed

from forktask.experiments.results.turns import SESSION_PAUSE_S
from forktask.experiments.sampling.timing import Stepper, take_turns
from forktask.experiments.scaling.bench import Bench
from forktask.experiments.sweep.shards import Means

ANSWERED = {name: value for name, value in OF_SAMPLE.items() if name not in {*OF_TURNS, "group"}}
OF_PROFILE = {name: value for name, value in OTHERS["profile"].items() if name not in CONDITIONS} | {
    "block_time_s": {"loop": [1e-4] * 10},
    "loop_time_s": {"loop": 1e-3},
    "bounds": {"work_s": 1e-3, "span_s": 1e-4, "cycle_mean_s": 1e-4},
    "floors": dict.fromkeys(("area", "forkjoin", "forkjoin_static", "taskgraph", "taskiter"), 1e-3),
    "pass_time_s": 1e-3,
    "phase_beside_s": {"forward": {}},
}
ENVIRONMENT = {"environment": {"cpu": {"model": "A"}, "node": OTHERS["capacity"]["node"]}, "environment_id": "a"}
START_S = 0.7  # of a process


def plan_row(plan_id, options):
    """The row of a plan of which nothing is lowered."""
    loop = {"name": "loop", "layer": None, "phase": "forward", "kernel": "none", "num_blocks": 10}
    loop |= dict.fromkeys(("flops", "bytes", "least_bytes"), 1e6)
    sizes = {"flops": 1e6, "bytes": 1e6, "num_tasks": 10, "num_edges": 20}
    (row,) = typed([{"kind": "plan", "plan_id": plan_id, "options": dict(options), "loops": [loop], **sizes}])
    return row


class MadeUpMachine:
    """Clock, processes and disturbances.

    Parameters
    ----------
    truth_s : callable (job) -> seconds of a step
    session, process, noise, drift : float
        Standard deviations in logarithms: of a model in a session, of a process, of a run, from run to run.
    disturbed, moved : float
        Parts of the rounds, and of the generations.
    moved_in : collection of int
        Generations, from 1 on, for which the host has moved the CPUs.
    slow_log_in : collection of int
        Generations whose logged runs take half as long again.
    """

    def __init__(
        self,
        truth_s,
        seed,
        *,
        session=0.01,
        process=0.01,
        noise=0.01,
        drift=0.002,
        disturbed=0.05,
        moved=0.05,
        moved_in=(),
        slow_log_in=(),
    ):
        self.truth_s, self.random = truth_s, random.Random(seed)
        self.session, self.process, self.noise, self.drift = session, process, noise, drift
        self.disturbed, self.moved = disturbed, moved
        self.time_s, self.level, self.stretch = 1e9, 0.0, 1.0
        self.far, self.running, self.generations, self.moved_in = False, 0, 0, moved_in
        self.slow_log_in = slow_log_in
        self.sessions = [{}]  # what each brings to a model, by model and threads

    def now(self):
        return self.time_s

    def sleep(self, seconds):
        assert seconds >= SESSION_PAUSE_S
        self.time_s += seconds
        self.sessions.append({})

    def in_session(self, job):
        """What this session brings to a model."""
        key = job["model"], job["threads"]
        return self.sessions[-1].setdefault(key, self.random.gauss(0, self.session))

    def start(self, contestant, turn_s):
        return MadeUpProcess(self, contestant.job, turn_s)

    def free_bytes(self):
        return None

    def spin(self, cpus):
        return 1e-3 * self.stretch

    def handover(self, cpus):
        self.stretch = 1.5 if self.random.random() < self.disturbed else 1.0
        return 3e-7 if self.far else 1e-7

    def additions(self, cpus):
        return {}

    def disturbance(self):
        return 0, 0

    def run_s(self, step_s, count):
        """Let a run pass."""
        self.level += self.random.gauss(0, self.drift)
        noise = self.random.gauss(0, self.noise)
        seconds = count * step_s * math.exp(self.level + noise) * self.stretch
        self.time_s += seconds
        return seconds


class MadeUpProcess:
    """A measuring process of a contestant."""

    def __init__(self, machine, job, turn_s):
        self.machine, self.job, self.turn_s = machine, job, turn_s

    def __enter__(self):
        machine = self.machine
        if not machine.running:  # a new generation
            machine.generations += 1
            machine.far = machine.generations in machine.moved_in or machine.random.random() < machine.moved
        machine.running += 1
        placed = machine.in_session(self.job) + machine.random.gauss(0, machine.process)
        placed += 0.2 * (machine.far and self.job["model"].name != "forkjoin")
        self.step_s = machine.truth_s(self.job) * math.exp(placed)
        machine.time_s += START_S
        self.started = machine.time_s
        return self

    def __exit__(self, *_):
        self.machine.running -= 1

    def answer(self):
        self.measuring = self._measure()
        return next(self.measuring)

    def ask(self, request):
        return self.measuring.send(request)

    def end(self):
        try:
            self.measuring.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it goes on")

    def stop(self):
        pass

    def resume(self):
        pass

    def close(self):
        pass

    def _measure(self):
        yield {}
        executor = SimpleNamespace(run=lambda count, first: self.machine.run_s(self.step_s, count))
        yield from take_turns(Stepper(executor, clock=self.machine.now), self.step_s, self.turn_s)
        row = {**ANSWERED, "started": self.started}
        if self.job.get("profile"):
            yield row
            logged_s = self.step_s * math.exp(self.machine.level)
            logged_s *= 1.5 if self.machine.generations in self.machine.slow_log_in else 1.0
            row = {**OF_PROFILE, "started": self.started, "pass_time_s": logged_s}
        return row


def means_of(machine):
    """What a sweep on this machine measures with."""
    return Means(
        plan_row=plan_row, environment=ENVIRONMENT, machine_row=lambda: typed([{"kind": "machine"}])[0], machine=machine
    )


class MadeUpBench(Bench):
    """Bench of the clock tier on a made-up machine."""

    def __init__(self, machine):
        self.machine, self.now = machine, machine.now

    def toss(self):
        return self.machine.random.random() < 0.5

    def capacity(self, threads):
        return 1.0
