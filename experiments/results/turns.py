"""From turns to the times that ratios are taken of: the one road of sweeps, peers, scaling tests and the gate.

A group of contestants takes turns in the rounds of a generation. `quiet_times` leaves out the rounds that something
outside of the contestants disturbed, and the generations for which the host had moved the CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from statistics import median, median_low
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from ..machine.disturbance import core_state
from ..tables.numbers import plural
from .disturbance import TICK_S
from .rows import GpuProfileRow, Measured, Process, ProfileRow, RoundsRow, Row, RunRow, SampleRow, SessionRow

Turn = tuple[int, Hashable, int]  # generation, group, round
Moved = dict[tuple[int, Hashable], tuple[float, float]]  # see `QuietTimes`
T = TypeVar("T")
Unit = TypeVar("Unit", bound=Hashable)

SLOW_SPIN = 1.1  # times the usual duration: the CPU was slower, or taken away, right before a turn
LOUD_SPIN = 1.15  # times the fast spins of a generation: load on end slows more, a clock that rises and sinks less
FAST_SPINS = 0.05  # share of a generation's spins; the very fastest one may have met a higher clock
STOLEN_SHARE = 0.05  # of a round's time that the hypervisor gave to others
WAITED_SHARE = 0.05  # of a round's time in which a runnable thread waited for a CPU
USUAL_TIMES = 2.0  # of the usual share
STEADY_LOAD = 0.5  # part of the median round in which threads waited for a CPU; quiet machines have 0.01
MOVED_TIMES = 1.8  # hand-overs take 2 to 2.5 times as long where the host has taken two CPUs apart
MOST_MOVED = 1 / 3  # of the takes; where more differ there is no usual state, or load makes hand-overs slow
# Starts of a command that follow each other sooner count as one session: ratios of runs of 3 minutes correlate by 0.47
# to 0.57 with the next one, by 0.02 to 0.08 across a pause of 6 minutes (docs/notes/intervals_of_ratios.md).
SESSION_PAUSE_S = 360.0
LEAST_SHARE = 0.5  # of a contestant's rounds that must be undisturbed for the others to be left out


class Turns(msgspec.Struct, frozen=True):
    """Turns of a contestant: fields of its sample."""

    rounds: list[int]
    short_times_s: list[float]
    long_times_s: list[float]
    short_steps: int
    long_steps: int


class Rounds(msgspec.Struct, frozen=True):
    """Rounds of a group in a generation: fields of its row of kind `rounds`."""

    contestants: list[str]
    order: list[list[int]]
    spin_s: list[list[float]]
    handover_s: list[float | None]
    wall_s: list[float]
    steal_ticks: list[int]
    pressure_us: list[int]
    additions_per_cycle: dict[str, list[float]] = {}


class MeasuredGroup(NamedTuple):
    """A group as it was measured in one generation."""

    rounds: Rounds
    answers: dict[str, dict[str, Any]]  # by contestant: fields of a sample, or {"failure", "message"}

    def turns(self) -> dict[str, Turns]:
        """Return the turns of each contestant that finished."""
        return {name: msgspec.convert(row, Turns) for name, row in self.answers.items() if "failure" not in row}


class GroupTurns(NamedTuple):
    """Turns of a group in one generation, by the points that times are wanted of."""

    generation: int
    group: Hashable  # equal in all generations of the same contestants
    rounds: Rounds | RoundsRow | None
    turns: Mapping[Any, Turns | SampleRow]
    node: str = ""
    # whether others kept the CPUs busy on purpose: a hand-over then takes as long as the load allows
    loaded: bool = False


class QuietTimes(NamedTuple):
    """Times of points, as `quiet_times` makes them."""

    times: dict[Any, dict[Turn, float]]  # positive step times
    disturbed: set[Turn]  # rounds as in `Judged`; some are among the times, where too few others were left
    loud: dict[Any, set[Turn]]  # those on which no verdict about a point may rest, as in `Judged`
    # by (generation, group) that is left out: a hand-over's seconds there, and the usual ones
    moved: dict[tuple[int, Hashable], tuple[float, float]]
    elsewhere: dict[Any, dict[Turn, float]]  # times as `times`, of what `moved` leaves out


def quiet_times(groups: Iterable[GroupTurns], leave_out: Callable[[Any], Moved] | None = None) -> QuietTimes:
    """Return the step times that ratios are taken of: without disturbed rounds, as `quiet_turns` chooses, and without
    the generations whose hand-overs `leave_out` names, by default `moved`."""
    groups = [*groups]
    result = QuietTimes({}, set(), {}, moved_groups(groups, leave_out or moved), {})
    for each in groups:
        key = each.generation, each.group
        judged = judge_rounds(each.rounds) if each.rounds else NOT_JUDGED
        result.disturbed.update((*key, number) for number in judged.disturbed)
        for point, turns in () if each.loaded else each.turns.items():
            own = judged.loud.get(getattr(turns, "config_id", point), judged.disturbed)
            result.loud.setdefault(point, set()).update((*key, number) for number in own)
        times_of = result.elsewhere if key in result.moved else result.times
        for point, turns in each.turns.items():
            times = {(*key, number): time for number, time in quiet_turns(turns, judged.disturbed).items() if time > 0}
            if times:
                times_of.setdefault(point, {}).update(times)
    return result


def groups_of(samples: Iterable[SampleRow], rounds: Iterable[RoundsRow]) -> list[GroupTurns]:
    """Return the groups of rows; points are (plan_id, interference, model, threads)."""
    last = {(row.repetition, _group(row)): row for row in rounds}
    nodes = {key: row.node.name for key, row in last.items()}
    turns: dict[tuple[int, Hashable], dict[Hashable, SampleRow]] = {key: {} for key in last}
    for row in samples:
        key = row.repetition, _group(row)
        turns.setdefault(key, {})[row.plan_id, row.interference, row.model, row.threads] = row
    return [GroupTurns(*key, last.get(key), own, nodes.get(key, ""), bool(key[1][1])) for key, own in turns.items()]


def step_times(turns: Turns | SampleRow) -> dict[int, float]:
    """Return the step time of each turn, by round: the slope between its short run, or nothing where it has none, and
    its long one, in seconds."""
    steps = turns.long_steps - turns.short_steps
    each = zip(turns.rounds, turns.short_times_s, turns.long_times_s, strict=True)
    return {number: (long_s - short_s) / steps for number, short_s, long_s in each}


class Judged(NamedTuple):
    """Numbers of a group's rounds, judged by what is the same for all contestants, never by a contestant's own time."""

    # whose times are left out: a calibration kernel that took longer than usual before some turn, time stolen by the
    # hypervisor, or runnable threads that waited, each more than is usual in this generation. On a machine that is
    # always disturbed nothing would be left otherwise.
    disturbed: Set[int]
    # on which no verdict about it may rest: those, and the rounds in which the calibration kernel before its turn
    # took longer than its fastest runs in this generation allow. Under constant load no round is an outlier, and
    # times of a generation are no worse than those of others; but contestants bear load differently, so that their
    # ratio is another one.
    loud: Mapping[str, Set[int]]


NOT_JUDGED = Judged(frozenset(), {})


def judge_rounds(rounds: Rounds | RoundsRow) -> Judged:
    """Judge the rounds of a group in a generation."""

    def standing_out(values: Iterable[float], least: float, times: float) -> set[int]:
        values = list(values)
        usual = median(values) if values else 0.0
        return {number for number, value in enumerate(values) if value > max(least, times * usual)}

    stolen = (ticks * TICK_S / wall_s for ticks, wall_s in zip(rounds.steal_ticks, rounds.wall_s, strict=True))
    waited = waited_shares(rounds)
    result = standing_out(map(max, rounds.spin_s), 0.0, SLOW_SPIN)
    result |= standing_out(stolen, STOLEN_SHARE, USUAL_TIMES) | standing_out(waited, WAITED_SHARE, USUAL_TIMES)
    taken_s = sorted(spin for spins in rounds.spin_s for spin in spins)
    fast_s = taken_s[int(FAST_SPINS * len(taken_s))] if taken_s else 0.0
    loud = {name: set(result) for name in rounds.contestants}
    for number, (order, spins) in enumerate(zip(rounds.order, rounds.spin_s, strict=True)):
        for index, spin_s in zip(order, spins, strict=True):
            if spin_s > LOUD_SPIN * fast_s:
                loud[rounds.contestants[index]].add(number)
    return Judged(result, loud)


def cores_text(rounds: Iterable[Rounds | RoundsRow], before: str) -> str:
    """Say, after `before`, in how many rounds all cores were whole; nothing where that is known of none."""
    states = [core_state(rates) for row in rounds for rates in zip(*row.additions_per_cycle.values(), strict=True)]
    known = len(states) - states.count("unknown")
    return f"{before} whole in {states.count('whole')} of {plural(known, 'round')}" * bool(known)


def waited_shares(rounds: Rounds | RoundsRow) -> list[float]:
    """Return the part of each round in which some runnable thread waited for a CPU."""
    return [waited_us * 1e-6 / wall_s for waited_us, wall_s in zip(rounds.pressure_us, rounds.wall_s, strict=True)]


def is_loaded(rounds: Rounds | RoundsRow) -> bool:
    """Return whether threads waited for a CPU most of the time, as beside a program that keeps one of two busy."""
    shares = waited_shares(rounds)
    return bool(shares) and median(shares) > STEADY_LOAD


def moved_groups(groups: Iterable[GroupTurns], leave_out: Callable[[Any], Moved] | None = None) -> Moved:
    """Return the generations and groups in which CPUs lay further apart, or closer, than in most of their node, as
    `moved` does, or another function of hand-overs."""
    own = handovers_of(groups).values()
    return {key: seconds for handovers in own for key, seconds in (leave_out or moved)(handovers).items()}


def handovers_of(groups: Iterable[GroupTurns]) -> dict[str, dict[tuple[int, Hashable], float]]:
    """Return the median seconds of a hand-over in each generation and group, by node; none of those beside load, where
    it is contention that takes long."""
    handovers: dict[str, dict[tuple[int, Hashable], float]] = {}
    for each in groups:
        known = [seconds for seconds in each.rounds.handover_s if seconds] if each.rounds else []
        if known and not each.loaded and not is_loaded(each.rounds):
            handovers.setdefault(each.node, {})[each.generation, each.group] = median(known)
    return handovers


def moved(handovers: Mapping[tuple[Unit, Hashable], float]) -> dict[tuple[Unit, Hashable], tuple[float, float]]:
    """Return the takes of groups whose hand-over took longer, or less, than in the middle take: both seconds.

    The host of a virtual machine moves its CPUs. Models suffer from that by very different factors, so that numbers of
    two such states must not be mixed. Where all takes of a group were moved, they stay: there is no other state. All
    stay where more than `MOST_MOVED` of them differ, as under load, where hand-overs measure contention.
    """
    usual = median_low(handovers.values()) if handovers else 0.0
    stayed = {group for (_, group), seconds in handovers.items() if not _differ(seconds, usual)}
    result = {
        (take, group): (seconds, usual)
        for (take, group), seconds in handovers.items()
        if group in stayed and _differ(seconds, usual)
    }
    return result if len(result) <= MOST_MOVED * len(handovers) else {}


def far(handovers: Mapping[tuple[Unit, Hashable], float]) -> dict[tuple[Unit, Hashable], tuple[float, float]]:
    """Return the takes whose CPUs lay far apart, like `moved`, however many there are: how often the host has moved the
    CPUs says nothing about the state in which models are to be judged."""
    nearest = min(handovers.values(), default=0.0)
    return {key: (seconds, nearest) for key, seconds in handovers.items() if seconds > MOVED_TIMES * nearest}


def _differ(first_s: float, second_s: float) -> bool:
    return max(first_s, second_s) > MOVED_TIMES * min(first_s, second_s)


def quiet_turns(turns: Turns | SampleRow, disturbed: Set[int]) -> dict[int, float]:
    """Return the step times of turns outside of disturbed rounds; all of them where too few others are left, or noise
    hides the step in those."""
    times = step_times(turns)
    quiet = {number: time for number, time in times.items() if number not in disturbed}
    return quiet if len(quiet) >= LEAST_SHARE * len(times) and median(quiet.values()) > 0 else times


def separate_sessions(rows: Sequence[Row]) -> tuple[Sequence[Row], dict[int, int]]:
    """Renumber generations, so that equal numbers are of one session of one node, and only times of one session are
    compared; of pooled nodes a node's k-th generation of a plan with its k-th one of another plan.

    A session is what a node measured from one start of a command to its end. A start that follows the last process
    before it within `SESSION_PAUSE_S` goes on with the session before.

    Returns
    -------
    rows : sequence of Row
    sessions : dict of generation to int
        To which each belongs, from 0 on; empty where there is one.
    """
    result = _places(rows)
    places = sorted(set(result.values()))
    if len(places) < 2:
        return rows, {}

    def series(row: Measured | RoundsRow) -> tuple:
        return _is_profile(row), row.node.name, row.plan_id, row.interference

    generations: dict[tuple, set[int]] = {}
    for row in (row for row in rows if isinstance(row, Measured | RoundsRow)):
        generations.setdefault(series(row), set()).add(row.repetition)
    ranks = {key: {number: rank for rank, number in enumerate(sorted(own))} for key, own in generations.items()}
    several = len({node for node, _ in places}) > 1
    sessions: dict[int, int] = {}

    def renumbered(row: Row) -> Row:
        if not isinstance(row, Measured | RoundsRow):
            return row
        rank = ranks[series(row)][row.repetition] if several else row.repetition
        session = places.index(result[_shard(row)])
        generation = rank * len(places) + session
        sessions[generation] = session
        return structs.replace(row, repetition=generation)

    return list(map(renumbered, rows)), sessions


def _is_profile(row: Row) -> bool:
    return isinstance(row, ProfileRow | GpuProfileRow)


def _shard(row: Measured | RoundsRow) -> tuple:
    return _is_profile(row), row.node.name, row.plan_id, row.interference, row.repetition


def _places(rows: Sequence[Row]) -> dict[tuple, tuple[str, int]]:
    """Return the node, if nodes are pooled, and the number of its session of each shard's samples, and of its
    profiles."""
    pooled = next((row.config.get("nodes") for row in reversed(rows) if isinstance(row, RunRow)), "") == "pooled"
    session: dict[str, int] = {}
    last_s: dict[str, float] = {}  # when the last process of a node was started
    begun: set[str] = set()  # nodes on which a command was started since
    result: dict[tuple, tuple[str, int]] = {}
    for row in rows:
        if not isinstance(row, RunRow | SessionRow | Measured | RoundsRow):
            continue
        node = row.node.name if pooled else ""
        if isinstance(row, RunRow | SessionRow):
            begun.add(node)
        elif isinstance(row, Process):
            pause_s = row.started - last_s.get(node, math.inf)
            if node in begun and pause_s > SESSION_PAUSE_S:
                session[node] = session.get(node, 0) + 1
            begun.discard(node)
            last_s[node] = max(last_s.get(node, 0.0), row.started)
        if not isinstance(row, RunRow | SessionRow | RoundsRow):  # rounds come before their samples
            result[_shard(row)] = node, session.get(node, 0)
    for row in (row for row in rows if isinstance(row, RoundsRow)):
        result.setdefault(_shard(row), (row.node.name if pooled else "", 0))
    return result


def mostly_in(times: Mapping[T, Iterable[Turn]], disturbed: Set[Turn]) -> set[T]:
    """Return the points that kept a disturbed round in most of their generations, since too few others were left."""
    result: set[T] = set()
    for point, turns in times.items():
        kept: dict[tuple, bool] = {}
        for turn in turns:
            kept[turn[:2]] = kept.get(turn[:2], False) or turn in disturbed
        if sum(kept.values()) > len(kept) / 2:
            result.add(point)
    return result


def _group(row: SampleRow | RoundsRow) -> tuple[str, int, int]:
    return row.plan_id, row.interference, row.group


def typical_step(turns: Turns, disturbed: Set[int]) -> tuple[float, float | None]:
    """Return the median over turns of the step time and of what a run costs besides its steps, in seconds; None where
    there are no short runs.

    Disturbed rounds are left out where enough others are left, from which noise does not hide the step.
    """
    times = quiet_turns(turns, disturbed)
    step_s = median(times.values())
    if not turns.short_steps:
        return step_s, None
    shorts = dict(zip(turns.rounds, turns.short_times_s, strict=True))
    return step_s, median(shorts[number] for number in times) - turns.short_steps * step_s
