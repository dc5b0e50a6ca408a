"""A machine that takes no time: samples, capacities and tosses come from a seed, and samples advance its clock."""

import math
import random

from forktask.experiments.results.turns import MeasuredGroup, Rounds
from forktask.experiments.scaling.bench import Bench

QUIET = {"spin_s": 1.0, "handover_s": 1e-7, "steal_ticks": 0, "pressure_us": 0}  # of a round of a second


class FakeMachine(Bench):
    """Step times by model, with noise; a sample takes on its own clock what it would take, and ends at its limit.

    Parameters
    ----------
    times_ms : mapping of model to step time
    noise : float
        Relative standard deviation of a process; that of a turn is a tenth of it.
    start_s : float
        Of a process, before its first step.
    """

    def __init__(self, times_ms, noise=0.0, seed=1, start_s=0.3):
        self.times_ms = times_ms
        self.noise = noise
        self.start_s = start_s
        self.random = random.Random(seed)
        self.coin = random.Random(seed)
        self.time_s = 0.0
        self.samples = []
        self.efforts = []
        self.generation = -3  # two trials come first
        self.disturbance = lambda generation, number: QUIET
        self.change = lambda side, row: row
        self.capacity_of = lambda number: 2.0
        self.num_capacities = 0

    def now(self):
        return self.time_s

    def toss(self):
        return self.coin.random() < 0.5

    def sample(self, side, effort):
        self.samples.append(side)
        self.efforts.append(effort)
        step = 1e-3 * self.times_ms[side.model] * math.exp(self.random.gauss(0, self.noise))
        seconds = effort.seconds(self.start_s, step)
        self.time_s += min(seconds, effort.limit_s)
        if seconds > effort.limit_s:
            return {"failure": "timeout", "message": "took too long"}
        longer = [math.exp(self.random.gauss(0, self.noise / 10)) for _ in range(effort.rounds)]
        row = {
            "short_steps": 1,
            "long_steps": 2,
            "rounds": [*range(effort.rounds)],
            "short_times_s": [step * each for each in longer],
            "long_times_s": [2 * step * each for each in longer],
            "weights_hash": "w",
            "losses_hash": "l",
        }
        return self.change(side, row)

    def measure(self, sides):
        self.generation += 1
        answers = {name: self.sample(side, effort) for name, (side, effort) in sides.items()}
        seen = [self.disturbance(self.generation, n) for n in range(max(effort.rounds for _, effort in sides.values()))]
        rounds = {name: [one[name] for one in seen] for name in ("handover_s", "steal_ticks", "pressure_us")}
        rounds |= {"spin_s": [[1.0, one["spin_s"]] for one in seen], "wall_s": [1.0] * len(seen)}
        return [MeasuredGroup(Rounds([*sides], [[0, 1]] * len(seen), **rounds), answers)]

    def capacity(self, threads):
        self.num_capacities += 1
        return self.capacity_of(self.num_capacities - 1)

    def install(self, monkeypatch):
        """Put this machine in place of the real one."""
        for name in ("measure", "capacity", "now", "toss"):
            monkeypatch.setattr(Bench, name, lambda bench, *rest, name=name: getattr(self, name)(*rest))
        return self
