"""A machine that takes no time: samples, capacities and tosses come from a seed, and samples advance its clock."""

import random

QUIET = {"pressure_some_us": 0, "steal_ticks": 0, "nonvoluntary_switches": 0, "throttled_us": 0}


class FakeMachine:
    """Step times by model, with noise; each sample costs half a second on its own clock.

    Parameters
    ----------
    times_s : mapping of model to step time
    noise : float
        Relative standard deviation of a sample.
    """

    def __init__(self, times_s, noise=0.0, seed=1):
        self.times_s = times_s
        self.noise = noise
        self.random = random.Random(seed)
        self.coin = random.Random(seed)
        self.now = 0.0
        self.samples = []
        self.disturbance = lambda number: QUIET
        self.capacity_of = lambda number: 2.0
        self.num_capacities = 0

    def clock(self):
        return self.now

    def toss(self):
        return self.coin.random() < 0.5

    def sample(self, side):
        self.now += 0.5
        self.samples.append(side)
        step = self.times_s[side.model] * (1 + side.slowdown) * 2.718281828 ** self.random.gauss(0, self.noise)
        return {
            "run_lengths": [1, 2],
            "run_times_s": [1.1 * step, 2 * step],
            "timed_wall_s": 0.1,
            "disturbance": self.disturbance(len(self.samples) - 1),
            "weights_hash": "w",
            "losses_hash": "l",
        }

    def capacity(self, threads):
        self.num_capacities += 1
        return self.capacity_of(self.num_capacities - 1)

    def install(self, monkeypatch):
        """Put this machine in place of the real one."""
        from forktask.experiments.scaling import clock

        monkeypatch.setattr(clock, "sample", self.sample)
        monkeypatch.setattr(clock, "capacity", self.capacity)
        monkeypatch.setattr(clock, "now", self.clock)
        monkeypatch.setattr(clock, "toss_coin", self.toss)
        return self
