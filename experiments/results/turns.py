"""Turns of a generation: step times by round, and the rounds that something outside of the contestants disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Set
from statistics import median

from .rows import RoundsRow, SampleRow

SLOW_SPIN = 1.1  # times the usual duration: the CPU was slower, or taken away, right before a turn
STOLEN_SHARE = 0.05  # of a round's time that the hypervisor gave to others
WAITED_SHARE = 0.05  # of a round's time in which a runnable thread waited for a CPU
USUAL_TIMES = 2.0  # of the usual share
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
    threads that waited, each more than is usual in this generation; never a contestant's own time. On a machine that is
    always disturbed nothing would be left otherwise.
    """

    def standing_out(values: Iterable[float], least: float, times: float) -> set[int]:
        values = list(values)
        usual = median(values) if values else 0.0
        return {number for number, value in enumerate(values) if value > max(least, times * usual)}

    stolen = (ticks * TICK_S / wall_s for ticks, wall_s in zip(rounds.steal_ticks, rounds.wall_s, strict=True))
    waited = (waited_us * 1e-6 / wall_s for waited_us, wall_s in zip(rounds.pressure_us, rounds.wall_s, strict=True))
    found = standing_out(map(max, rounds.spin_s), 0.0, SLOW_SPIN)
    return found | standing_out(stolen, STOLEN_SHARE, USUAL_TIMES) | standing_out(waited, WAITED_SHARE, USUAL_TIMES)


def quiet_turns(sample: SampleRow, disturbed: Set[int]) -> dict[int, float]:
    """Return the step times of turns outside of disturbed rounds; all of them where too few others are left, or noise
    hides the step in those."""
    times = step_times(sample)
    quiet = {number: time for number, time in times.items() if number not in disturbed}
    return quiet if len(quiet) >= LEAST_SHARE * len(times) and median(quiet.values()) > 0 else times


def turns_of(
    samples: Iterable[SampleRow], rounds: Iterable[RoundsRow]
) -> dict[tuple[str, int, str, int], dict[tuple[int, tuple[str, int, int], int], float]]:
    """Return the positive, undisturbed step times of each (plan_id, interference, model, threads) by generation,
    session (plan_id, interference, group) and round."""
    disturbed = {(r.plan_id, r.interference, r.repetition, r.group): disturbed_rounds(r) for r in rounds}
    found: dict[tuple[str, int, str, int], dict] = {}
    for row in samples:
        session = (row.plan_id, row.interference, row.group)
        quiet = quiet_turns(row, disturbed.get((row.plan_id, row.interference, row.repetition, row.group), set()))
        turns = {(row.repetition, session, number): time for number, time in quiet.items() if time > 0}
        if turns:
            found.setdefault((row.plan_id, row.interference, row.model, row.threads), {}).update(turns)
    return found


def typical_step(sample: SampleRow, disturbed: Set[int]) -> tuple[float, float]:
    """Return the median over a sample's turns of the step time and of what a run costs besides its steps, in seconds.

    Disturbed rounds are left out where enough others are left, from which noise does not hide the step.
    """
    times = quiet_turns(sample, disturbed)
    step_s = median(times.values())
    shorts = dict(zip(sample.rounds, sample.short_times_s, strict=True))
    return step_s, median(shorts[number] for number in times) - sample.short_steps * step_s
