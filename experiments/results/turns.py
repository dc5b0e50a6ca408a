"""Turns of a generation: step times by round, and the rounds that something outside of the contestants disturbed."""

from __future__ import annotations

from collections.abc import Set
from statistics import median

from .rows import RoundsRow, SampleRow

SLOW_SPIN = 1.1  # times the usual duration: the CPU was slower, or taken away, right before a turn
STOLEN_SHARE = 0.02  # of a round's time that the hypervisor gave to others
WAITED_SHARE = 0.05  # of a round's time in which a runnable thread waited for a CPU
TICK_S = 0.01
LEAST_SHARE = 0.5  # of a contestant's rounds that must be undisturbed for the others to be left out


def step_times(sample: SampleRow) -> dict[int, float]:
    """Return the step time of each turn, by round: the slope between its short and its long run, in seconds."""
    steps = sample.long_steps - sample.short_steps
    turns = zip(sample.rounds, sample.short_times_s, sample.long_times_s, strict=True)
    return {number: (long_s - short_s) / steps for number, short_s, long_s in turns}


def disturbed_rounds(rounds: RoundsRow) -> set[int]:
    """Return the numbers of the rounds that were disturbed, judged by what is the same for all contestants.

    A calibration kernel that took longer than usual before some turn, time stolen by the hypervisor, or runnable
    threads that waited; never a contestant's own time.
    """
    usual = median(spin for spins in rounds.spin_s for spin in spins) if rounds.spin_s else 0.0
    found = set()
    for number, (spins, wall_s) in enumerate(zip(rounds.spin_s, rounds.wall_s, strict=True)):
        stolen = rounds.steal_ticks[number] * TICK_S > STOLEN_SHARE * wall_s + TICK_S
        waited = rounds.pressure_us[number] * 1e-6 > WAITED_SHARE * wall_s
        if max(spins) > SLOW_SPIN * usual or stolen or waited:
            found.add(number)
    return found


def typical_step(sample: SampleRow, disturbed: Set[int]) -> tuple[float, float]:
    """Return the median over a sample's turns of the step time and of what a run costs besides its steps, in seconds.

    Disturbed rounds are left out where enough others are left.
    """
    times = step_times(sample)
    quiet = [number for number in times if number not in disturbed]
    chosen = quiet if len(quiet) >= LEAST_SHARE * len(times) else list(times)
    step_s = median(times[number] for number in chosen)
    shorts = dict(zip(sample.rounds, sample.short_times_s, strict=True))
    return step_s, median(shorts[number] for number in chosen) - sample.short_steps * step_s
