"""Turns of a generation: step times by round, and the rounds that something outside of the contestants disturbed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from statistics import median, median_low
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from .disturbance import TICK_S
from .rows import GpuProfileRow, Measured, ProfileRow, RoundsRow, Row, RunRow, SampleRow

RoundOf = tuple[int, tuple[str, int, int], int]  # generation, session, round
T = TypeVar("T")
Take = TypeVar("Take", bound=Hashable)
Session = TypeVar("Session", bound=Hashable)

SLOW_SPIN = 1.1  # times the usual duration: the CPU was slower, or taken away, right before a turn
LOUD_SPIN = 1.15  # times the fast spins of a generation: load on end slows more, a clock that rises and sinks less
FAST_SPINS = 0.05  # share of a generation's spins; the very fastest one may have met a higher clock
STOLEN_SHARE = 0.05  # of a round's time that the hypervisor gave to others
WAITED_SHARE = 0.05  # of a round's time in which a runnable thread waited for a CPU
USUAL_TIMES = 2.0  # of the usual share
MOVED_TIMES = 1.8  # hand-overs take 2 to 2.5 times as long where the host has taken two CPUs apart
LEAST_SHARE = 0.5  # of a contestant's rounds that must be undisturbed for the others to be left out


def step_times(sample: SampleRow) -> dict[int, float]:
    """Return the step time of each turn, by round: the slope between its short and its long run, in seconds."""
    steps = sample.long_steps - sample.short_steps
    turns = zip(sample.rounds, sample.short_times_s, sample.long_times_s, strict=True)
    return {number: (long_s - short_s) / steps for number, short_s, long_s in turns}


class Judged(NamedTuple):
    """Numbers of a session's rounds, judged by what is the same for all contestants, never by a contestant's own time.

    Attributes
    ----------
    disturbed : set of int
        Whose times are left out: a calibration kernel that took longer than usual before some turn, time stolen by the
        hypervisor, or runnable threads that waited, each more than is usual in this generation. On a machine that is
        always disturbed nothing would be left otherwise.
    loud : set of int
        On which no verdict may rest: those, and the rounds in which the calibration kernel took longer than its fastest
        runs in this generation allow. Beside load that never ends no round stands out, and times of a generation are
        no worse than those of others; but contestants bear load differently, so that their ratio is another one.
    """

    disturbed: Set[int]
    loud: Set[int]


NOT_JUDGED = Judged(frozenset(), frozenset())


def judge_rounds(rounds: RoundsRow) -> Judged:
    """Judge the rounds of a session."""

    def standing_out(values: Iterable[float], least: float, times: float) -> set[int]:
        values = list(values)
        usual = median(values) if values else 0.0
        return {number for number, value in enumerate(values) if value > max(least, times * usual)}

    stolen = (ticks * TICK_S / wall_s for ticks, wall_s in zip(rounds.steal_ticks, rounds.wall_s, strict=True))
    waited = waited_shares(rounds)
    found = standing_out(map(max, rounds.spin_s), 0.0, SLOW_SPIN)
    found |= standing_out(stolen, STOLEN_SHARE, USUAL_TIMES) | standing_out(waited, WAITED_SHARE, USUAL_TIMES)
    taken_s = sorted(spin for spins in rounds.spin_s for spin in spins)
    fast_s = taken_s[int(FAST_SPINS * len(taken_s))] if taken_s else 0.0
    slow = {number for number, spins in enumerate(rounds.spin_s) if max(spins) > LOUD_SPIN * fast_s}
    return Judged(found, found | slow)


def waited_shares(rounds: RoundsRow) -> list[float]:
    """Return the part of each round in which some runnable thread waited for a CPU."""
    return [waited_us * 1e-6 / wall_s for waited_us, wall_s in zip(rounds.pressure_us, rounds.wall_s, strict=True)]


def moved_sessions(rounds: Iterable[RoundsRow]) -> dict[tuple[int, tuple[str, int, int]], tuple[float, float]]:
    """Return the generations and sessions in which CPUs lay further apart, or closer, than in most sessions of their
    node: a hand-over's seconds there, and in the middle session. Beside load on purpose a hand-over takes as long as
    the load allows."""
    handovers: dict[str, dict[tuple[int, tuple[str, int, int]], float]] = {}
    for row in rounds:
        known = [seconds for seconds in row.handover_s if seconds]
        if known and not row.interference:
            handovers.setdefault(row.node.name, {})[row.repetition, _session(row)] = median(known)
    return {key: seconds for sessions in handovers.values() for key, seconds in moved(sessions).items()}


def moved(handovers: Mapping[tuple[Take, Session], float]) -> dict[tuple[Take, Session], tuple[float, float]]:
    """Return the takes of sessions whose hand-over took longer, or less, than in the middle take: both seconds.

    The host of a virtual machine moves its CPUs. Models suffer from that by very different factors, so that numbers of
    two such states must not be mixed. Where all takes of a session were moved, they stay: there is no other state.
    """
    usual = median_low(handovers.values()) if handovers else 0.0
    stayed = {session for (_, session), seconds in handovers.items() if not _differ(seconds, usual)}
    return {
        (take, session): (seconds, usual)
        for (take, session), seconds in handovers.items()
        if session in stayed and _differ(seconds, usual)
    }


def _differ(first_s: float, second_s: float) -> bool:
    return max(first_s, second_s) > MOVED_TIMES * min(first_s, second_s)


def quiet_turns(sample: SampleRow, disturbed: Set[int]) -> dict[int, float]:
    """Return the step times of turns outside of disturbed rounds; all of them where too few others are left, or noise
    hides the step in those."""
    times = step_times(sample)
    quiet = {number: time for number, time in times.items() if number not in disturbed}
    return quiet if len(quiet) >= LEAST_SHARE * len(times) and median(quiet.values()) > 0 else times


def separate_nodes(rows: Sequence[Row]) -> Sequence[Row]:
    """Number the generations of pooled nodes anew, so that equal numbers are of one node, and only what one node
    measured is compared: its k-th generation of a plan with its k-th one of another plan."""
    placed = [row for row in rows if isinstance(row, Measured | RoundsRow)]
    nodes = sorted({row.node.name for row in placed})
    pooled = next((row.config.get("nodes") for row in reversed(rows) if isinstance(row, RunRow)), "") == "pooled"
    if not pooled or len(nodes) < 2:
        return rows

    def session(row: Measured | RoundsRow) -> tuple:
        return isinstance(row, ProfileRow | GpuProfileRow), row.node.name, row.plan_id, row.interference

    found: dict[tuple, set[int]] = {}
    for row in placed:
        found.setdefault(session(row), set()).add(row.repetition)
    ranks = {key: {repetition: rank for rank, repetition in enumerate(sorted(own))} for key, own in found.items()}

    def renumbered(row: Row) -> Row:
        if not isinstance(row, Measured | RoundsRow):
            return row
        rank = ranks[session(row)][row.repetition]
        return structs.replace(row, repetition=rank * len(nodes) + nodes.index(row.node.name))

    return list(map(renumbered, rows))


def turns_of(
    samples: Iterable[SampleRow], rounds: Iterable[RoundsRow]
) -> tuple[dict[tuple[str, int, str, int], dict[RoundOf, float]], set[RoundOf]]:
    """Return the positive step times of each (plan_id, interference, model, threads) by generation, session (plan_id,
    interference, group) and round, as `quiet_turns` chooses, without `moved_sessions`; and the loud rounds, but of
    interference on purpose."""
    last = {(r.repetition, _session(r)): r for r in rounds}
    judged = {key: judge_rounds(row) for key, row in last.items()}
    loud = {(*key, number) for key, row in last.items() if not row.interference for number in judged[key].loud}
    moved = moved_sessions(last.values())
    found: dict[tuple[str, int, str, int], dict[RoundOf, float]] = {}
    for row in samples:
        session = row.repetition, _session(row)
        quiet = quiet_turns(row, judged.get(session, NOT_JUDGED).disturbed)
        turns = {(*session, number): time for number, time in quiet.items() if time > 0}
        if turns and session not in moved:
            found.setdefault((row.plan_id, row.interference, row.model, row.threads), {}).update(turns)
    return found, loud


def disturbed_points(turns: Mapping[T, Iterable[RoundOf]], rounds: Iterable[RoundsRow]) -> set[T]:
    """Return the points whose turns, as `turns_of` keeps them, hold disturbed rounds in most of their sessions, since
    too few others were left."""
    last = {(r.repetition, _session(r)): r for r in rounds}
    disturbed = {(*key, number) for key, row in last.items() for number in judge_rounds(row).disturbed}
    return {point for point, own in turns.items() if mostly_in(own, disturbed)}


def mostly_in(turns: Iterable[tuple[Any, Any, int]], disturbed: Set[tuple[Any, Any, int]]) -> bool:
    """Return whether most of the sessions of these turns, as (generation, session, round), hold a disturbed one."""
    found: dict[tuple, bool] = {}
    for turn in turns:
        found[turn[:2]] = found.get(turn[:2], False) or turn in disturbed
    return sum(found.values()) > len(found) / 2


def _session(row: SampleRow | RoundsRow) -> tuple[str, int, int]:
    return row.plan_id, row.interference, row.group


def turns_in(
    group: Mapping[str, Any], generation: int, session: int = 0
) -> tuple[dict[str, dict[tuple[int, int, int], float]], Judged]:
    """Return the positive step times of each contestant that finished, by (generation, session, round), as
    `quiet_turns` chooses, and what is judged of the rounds.

    Parameters
    ----------
    group : mapping
        That was measured in turns: {"rounds": fields of a `RoundsRow`, "answers": fields of samples}.
    """
    judged = judge_rounds(SimpleNamespace(**group["rounds"]))
    found = {}
    for name, answer in group["answers"].items():
        if "failure" not in answer:
            quiet = quiet_turns(SimpleNamespace(**answer), judged.disturbed)
            found[name] = {(generation, session, number): time for number, time in quiet.items() if time > 0}
    return found, judged


def typical_step(sample: SampleRow, disturbed: Set[int]) -> tuple[float, float]:
    """Return the median over a sample's turns of the step time and of what a run costs besides its steps, in seconds.

    Disturbed rounds are left out where enough others are left, from which noise does not hide the step.
    """
    times = quiet_turns(sample, disturbed)
    step_s = median(times.values())
    shorts = dict(zip(sample.rounds, sample.short_times_s, strict=True))
    return step_s, median(shorts[number] for number in times) - sample.short_steps * step_s
