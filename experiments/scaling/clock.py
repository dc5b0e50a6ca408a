"""Clock tier: ratios of times taken side by side in one job, judged by the estimator of all comparisons.

Each generation starts fresh processes of both sides in a tossed order, which take turns of some ten milliseconds;
for an efficiency the capacity of the machine is measured before and after. Generations go on until the interval of the
ratio lies within the limit or beyond, or the budget is spent. Nothing absolute is stored or compared.

A verdict needs some generations, whatever the ratio. So one trial of each side says first how long they may be, for the
budget to hold that many; and how long a slow side may take before it is stopped: what it had not finished by then
bounds its time from below, which is all that a verdict needs. A budget too small even so is an error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ...cython_src.errors import UsageError
from ..analysis.agreement import unlike
from ..analysis.estimates import MIN_GENERATIONS, NOTHING, Estimate, Estimates, exceeds, generations_to_go
from ..results.turns import (
    GroupTurns,
    MeasuredGroup,
    QuietTimes,
    Rounds,
    Turns,
    cores_text,
    far,
    is_loaded,
    quiet_times,
    step_times,
)
from ..sampling.timing import ONE_RUN_PASSES
from ..tables.numbers import interval, plural
from ..tables.progress import say
from .bench import EFFORTS, TRIAL, Bench, Effort, Side

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
OVERTIME = 1.5  # times the budget that a test may take while it has less than any verdict needs
SPARE = 1.6  # generations for which there must be room, for each that a verdict needs: some turn out longer
# A sample may take this many times as long as the slower trial said, claim and model taken into account, and a side
# that is stopped must have had this many times as long as the other one.
PATIENCE = 4.0
EVIDENCE = 2.0
SHORTEST_LIMIT_S = 2.0  # of a sample's process: a loaded machine takes its time to start one
# Times the limit: a ratio that lies above in every generation is no work of load, which models on as many threads bear
# differently, but not by so much (docs/notes/scaling_error_rates.md).
FAR_OFF = 3.0
MISSED = 0.05  # of the intervals of rates


@dataclass
class Take:
    """A generation: what was measured of both sides."""

    order: str  # "AB" or "BA", in which processes were started
    rounds: Rounds
    # {"A": Turns, "B": Turns}; of a side that was stopped, the shortest that they can be; empty where both were
    turns: dict[str, Turns]
    capacity: list[float]  # the machine's capacity, before and after; empty where no efficiency is claimed
    unfinished: str = ""  # sides that were stopped at the limit of a sample: "", "A", "B" or "AB"


@dataclass
class ClockResult:
    """Outcome of the claim that the ratio of times, A / B, is at most a limit."""

    claim: str
    limit: float
    verdict: str = INCONCLUSIVE  # {"pass", "fail", "inconclusive"}
    ratio: Estimate = NOTHING  # NaN where no side ever finished
    takes: list[Take] = field(default_factory=list)
    quiet: QuietTimes = field(default_factory=lambda: quiet_times(()))  # what it was taken of
    elapsed_s: float = 0.0
    reason: str = ""  # reason of an inconclusive end

    @property
    def disturbed(self) -> int:
        """Number of rounds on which no verdict may rest."""
        return len(set().union(*self.quiet.loud.values()))

    @property
    def moved(self) -> int:
        """Number of generations that are left out, since their CPUs lay elsewhere."""
        return len(self.quiet.moved)

    def moved_text(self, before: str) -> str:
        """Say how many generations are left out, after `before`; nothing where none is."""
        return f"{before}{plural(self.moved, 'generation')} left out, in which CPUs lay elsewhere" * bool(self.moved)

    def as_row(self, efficiency: bool = False) -> dict[str, Any]:
        """Return a row of kind "clock" for reports; the value of an efficiency is the inverse ratio."""
        ratio, limit = (self.ratio.inverse(), 1 / self.limit) if efficiency else (self.ratio, self.limit)
        values = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        return {
            "kind": "clock",
            "claim": self.claim,
            "limit": limit,
            "verdict": self.verdict,
            **{name: value if math.isfinite(value) else None for name, value in values.items()},
            "value_text": describe(ratio, [limit]),
            "num_generations": ratio.count,
            "num_rounds": ratio.rounds or 0,
            "num_disturbed": self.disturbed,
            "num_moved": self.moved,
            "cores": cores_text((take.rounds for take in self.takes), ", cores"),
            "elapsed_s": self.elapsed_s,
            "reason": self.reason,
            "generations": [msgspec.to_builtins(take) for take in self.takes],
        }


class LoadedError(UsageError):
    """A budget has no room for a verdict while other programs keep the CPUs busy."""


class SampleError(RuntimeError):
    """A measuring process failed, or two samples that must agree do not."""


def run_clock_test(
    claim: str,
    sides: tuple[Side, Side],
    limit: float,
    *,
    budget_s: float,
    per_capacity: bool = False,
    bench: Bench | None = None,
    on_generation: Callable[[Estimate], None] | None = None,
) -> ClockResult:
    """Measure generations until the claim "time of A / time of B is at most `limit`" is decided or the budget is spent.

    Parameters
    ----------
    claim : str
        The claim in words, for reports.
    sides : (A, B)
    budget_s : float
        The trial samples are paid from it too.
    per_capacity : bool
        A's time counts times the capacity: for efficiencies.
    bench : Bench, optional
        What takes samples; default: fresh processes here.
    on_generation : callable, optional
        Of the ratio so far; called after each.

    Raises
    ------
    UsageError
        The budget has no room for the generations that a verdict needs, or turns out to have none; says what would be
        enough. Beside load the test ends inconclusive: an idle machine may need less.
    SampleError
        A process failed, or two samples of one plan and length left different results.
    """
    bench = bench or Bench()
    threads = max(side.threads for side in sides)
    result = ClockResult(claim, limit)
    start = bench.now()
    longest, above = 0.0, None
    before = [bench.capacity(threads)] if per_capacity else []
    scale = limit / before[0] if per_capacity else limit  # of step times at which the claim just holds
    alike = sides[0].threads == sides[1].threads
    leave_out = None if (alike and sides[0].model == sides[1].model) else far
    try:
        allowed = plan_generations(claim, sides, scale, budget_s, bench)
    except LoadedError as error:
        result.elapsed_s, result.reason = bench.now() - start, f"{error}, or measure without other load"
        return result
    while above is None:
        begun = bench.now()
        short = bool(result.takes) and not result.ratio.enough
        if begun - start + longest > budget_s * (OVERTIME if short else 1):
            break
        order = "AB" if bench.toss() else "BA"
        groups = bench.measure({name: (sides[name == "B"], allowed.efforts[name == "B"]) for name in order})
        after = [bench.capacity(threads)] if per_capacity else []
        result.takes.append(_take(order, groups, sides, allowed, [*before, *after]))
        before = after
        longest = max(longest, bench.now() - begun)
        groups_of_takes = [
            GroupTurns(n, 0, take.rounds, take.turns)
            for n, take in enumerate(result.takes)
            if alike or not is_loaded(take.rounds)
        ]
        result.quiet = quiet_times(groups_of_takes, leave_out)
        result.ratio = ratio_of(result.quiet, result.takes if per_capacity else ())
        above = (alike and is_far_off(result.takes, limit)) or exceeds(result.ratio, limit)
        if on_generation:
            on_generation(result.ratio)
    result.elapsed_s = bench.now() - start
    if (
        above is None
        and len(result.takes) < MIN_GENERATIONS
        and not any(is_loaded(take.rounds) for take in result.takes)
    ):
        enough_s = math.ceil(result.elapsed_s + MIN_GENERATIONS * longest)
        raise UsageError(
            f"{claim}: a budget of {budget_s:g} s must hold the {MIN_GENERATIONS} generations of processes that a "
            f"verdict needs, it held {len(result.takes)} in {result.elapsed_s:.0f} s; give {enough_s} s, or a smaller "
            f"plan"
        )
    if above is None:
        result.reason = _reason(result)
    else:
        result.verdict = FAIL if above else PASS
        if above and not exceeds(result.ratio, limit):
            result.reason = f"more than {FAR_OFF:g} times the limit in every generation, which load does not explain"
    return result


def is_far_off(takes: Sequence[Take], limit: float) -> bool:
    """Return whether the ratio of two sides on as many threads lies far above the limit in every generation, whatever
    disturbed it: neither load nor the place of CPUs explains that."""
    if len(takes) < MIN_GENERATIONS:
        return False
    times = [{name: statistics.median(step_times(own).values()) for name, own in take.turns.items()} for take in takes]
    return all(len(own) == 2 and own["A"] > FAR_OFF * limit * own["B"] > 0 for own in times)


def ratio_of(quiet: QuietTimes, takes: Sequence[Take] = ()) -> Estimate:
    """Return the ratio of times, A / B, by the estimator; times of A count by the capacity of their takes, if given."""
    points = dict(quiet.times)
    if takes and "A" in points:
        factors = [statistics.mean(take.capacity) for take in takes]
        points["A"] = {turn: seconds * factors[turn[0]] for turn, seconds in points["A"].items()}
    return Estimates(points, quiet.loud).ratio("A", "B")


def _reason(result: ClockResult) -> str:
    """Why a test is inconclusive, and what would help."""
    ratio = result.ratio
    if not ratio.count and result.takes:
        return (
            f"after {plural(len(result.takes), 'generation')} in {result.elapsed_s:.0f} s, in all of which threads "
            f"waited for a CPU most of the time: an efficiency is not judged beside such load; measure without it"
        )
    if ratio.known and not ratio.enough:
        more = f"{plural(ratio.rounds or 0, 'undisturbed round')}, a verdict needs {ratio.needed}"
    elif (further := generations_to_go(ratio, result.limit)) is None:
        more = "more generations are not likely to decide: the ratio is about the limit"
    else:
        more = f"about {further} more generations would decide"
    return (
        f"after {plural(ratio.count, 'generation')} in {result.elapsed_s:.0f} s ({result.disturbed} rounds disturbed"
        f"{result.moved_text(', ')}) "
        f"the ratio is {describe(ratio, [result.limit])}, the limit {result.limit:.4g}; {more}"
    )


# --- how long samples may be


@dataclass(frozen=True)
class Allowed:
    """How long samples may be, from trial samples."""

    efforts: tuple[Effort, Effort]  # of A and B; they differ in their limits only
    # step times that the limits stand for, of A and B: a process that was stopped has slower ones. A's is `scale`
    # times B's, so that whoever is stopped, the claim that they just take their allowed times stays open.
    longest_step_s: tuple[float, float]


def plan_generations(claim: str, sides: tuple[Side, Side], scale: float, budget_s: float, bench: Bench) -> Allowed:
    """Measure a trial sample of each side and say how long samples may be.

    Parameters
    ----------
    scale : float
        The ratio of step times, A / B, at which the claim just holds.

    Raises
    ------
    UsageError
        Not even the shortest samples that say something fit into the budget as often as a verdict needs.
    SampleError
        As for `run_clock_test`.
    """
    wanted = math.ceil(SPARE * MIN_GENERATIONS)
    start = bench.now()
    # A side that takes longer is stopped: its share of all generations would be as much as the budget.
    limit_s = max(SHORTEST_LIMIT_S, budget_s / wanted)
    rows, took_s, rounds = [], [], []
    for name, side in zip("AB", sides, strict=True):
        begun = bench.now()
        (group,) = bench.measure({name: (side, replace(TRIAL, limit_s=limit_s))})
        rows.append(group.answers[name])
        rounds.append(group.rounds)
        took_s.append(bench.now() - begun)
    spent_s, refusal = bench.now() - start, LoadedError if any(map(is_loaded, rounds)) else UsageError
    _check(dict(zip("AB", rows, strict=True)), sides)
    passes_s = [math.inf if _stopped(row) else step_time_s(row) * _stride(row) for row in rows]
    if all(map(math.isinf, passes_s)):
        raise refusal(
            f"{claim}: samples must end within {limit_s:.3g} s, so that a budget of {budget_s:g} s holds the {wanted} "
            f"generations that a verdict needs, those of neither side did; give more seconds, or a smaller plan"
        )
    fixed_s = max(
        max(elapsed_s - TRIAL.passes() * pass_s, 0.0)
        for elapsed_s, pass_s in zip(took_s, passes_s, strict=True)
        if math.isfinite(pass_s)
    )
    # The time of a pass of A is compared with that of B on the scale of B.
    scales = (scale, 1.0)
    relative = [pass_s / by for pass_s, by in zip(passes_s, scales, strict=True)]
    room_s = (budget_s - spent_s) / wanted  # of a generation
    for effort in EFFORTS:
        if sum(effort.seconds(fixed_s, pass_s) for pass_s in passes_s) <= room_s:
            return _allowed(effort, PATIENCE * fixed_s, PATIENCE * max(relative), scales, rows)
    # The slower side is stopped when its share of a generation is over.
    slower = relative.index(max(relative))
    effort = EFFORTS[-1]
    least_s = effort.seconds(fixed_s, passes_s[1 - slower])
    stop = (room_s - least_s - fixed_s) / effort.passes() / scales[slower]
    if stop >= EVIDENCE * min(relative):
        return _allowed(effort, fixed_s, stop, scales, rows)
    enough_s = least_s + fixed_s + effort.passes() * EVIDENCE * min(relative) * scales[slower]
    raise refusal(
        f"{claim}: a budget of {budget_s:g} s must hold the {wanted} generations that a verdict needs, one takes "
        f"{enough_s:.3g} s here; give {math.ceil(1.2 * (wanted * enough_s + spent_s))} s, or a smaller plan"
    )


def _allowed(
    effort: Effort,
    fixed_s: float,
    longest_pass_s: float,
    scales: tuple[float, float],
    rows: Sequence[Mapping[str, Any]],
) -> Allowed:
    """Limits for both sides from the longest pass on the scale of B."""
    stride = min(_stride(row) for row in rows if not _stopped(row))
    passes_s = [longest_pass_s * by for by in scales]
    a, b = (replace(effort, limit_s=max(effort.seconds(fixed_s, each_s), SHORTEST_LIMIT_S)) for each_s in passes_s)
    return Allowed((a, b), (passes_s[0] / stride, passes_s[1] / stride))


def _stopped(row: Mapping[str, Any]) -> bool:
    return row.get("failure") == "timeout"


def describe(ratio: Estimate, limits: Collection[float] = ()) -> str:
    """Format a ratio with its interval: `1.02 [0.98, 1.07]`, with digits that show on which side of limits its ends
    lie; without ends if few generations give none yet."""
    if not math.isfinite(ratio.value):
        return "unknown"
    return f"{ratio.value:.3f} {interval(ratio.low, ratio.high, 3, limits) or '[..., ...]'}"


def _check(rows: Mapping[str, Mapping[str, Any]], sides: tuple[Side, Side]) -> None:
    """Raise where a process failed, or where two that must leave the same results do not: a ratio of their times would
    mean nothing."""
    for name, row in rows.items():
        if "failure" in row and not _stopped(row):
            raise SampleError(f"{sides[name == 'B']} did not run ({row['failure']}): {row['message'].splitlines()[0]}")
    if (sides[0].plan, sides[0].installation) != (sides[1].plan, sides[1].installation):
        return  # two commits may compute something else by right
    finished = [row for row in rows.values() if not _stopped(row)]
    hashes = {(row["weights_hash"], row["losses_hash"]) for row in finished if row.get("deterministic", True)}
    if len(hashes) > 1:
        raise SampleError(f"{sides[0]} and {sides[1]} must leave the same results, they differ")
    if sides[0].rtol and len(finished) == 2:
        wrong = unlike(*(row["answer"] for row in finished), sides[0].rtol)
        if wrong:
            raise SampleError(f"compared with that of {sides[0]} the result of {sides[1]} {wrong}")


def step_time_s(row: Mapping[str, Any]) -> float:
    """Return the time of a step in a trial: the median over its turns of the long run's, which noise cannot hide."""
    return statistics.median(row["long_times_s"]) / row["long_steps"]


def _stride(row: Mapping[str, Any]) -> int:
    """Return the steps of a pass: both runs of a turn are whole numbers of them."""
    return (
        math.gcd(row["short_steps"], row["long_steps"]) if row["short_steps"] else row["long_steps"] // ONE_RUN_PASSES
    )


def _take(
    order: str, groups: Sequence[MeasuredGroup], sides: tuple[Side, Side], allowed: Allowed, capacity: list[float]
) -> Take:
    """Return the generation of two samples."""
    rows = {name: row for group in groups for name, row in group.answers.items()}
    _check(rows, sides)
    unfinished = "".join(name for name in "AB" if _stopped(rows[name]))
    turns = groups[0].turns()
    if len(turns) == 1:  # at least as far from the claim's limit as if the other side had just been finished
        ((finished, own),) = turns.items()
        longest = dict(zip("AB", allowed.longest_step_s, strict=True))
        times = step_times(own)
        turns[finished] = _turns_of({n: min(s, longest[finished] * (1 - 1e-9)) for n, s in times.items()})
        turns[unfinished] = _turns_of(dict.fromkeys(times, longest[unfinished]))
    return Take(order, groups[0].rounds, turns, capacity, unfinished)


def _turns_of(times: Mapping[int, float]) -> Turns:
    """Return turns with these step times, by round."""
    return Turns([*times], [0.0] * len(times), [*times.values()], 0, 1)


# --- how often a machine would fail identical code: claims whose sides are the same ---


def run_null(claim: str, side: Side, limit: float, number: int, *, budget_s: float, bench: Bench) -> dict[str, Any]:
    """Test `number` times that a side takes at most `limit` times as long as itself; return a row of kind "null".

    A limit below 1, which identical code breaks by right, counts as 1. Raises `UsageError`, `SampleError`: as for
    `run_clock_test`."""
    limit, start, verdicts = max(limit, 1.0), bench.now(), []
    for done in range(1, number + 1):
        verdicts.append(run_clock_test(claim, (side, side), limit, budget_s=budget_s, bench=bench).verdict)
        say(f"{claim}: {done} of {number} claims of identical code")
    counts = {verdict: verdicts.count(verdict) for verdict in (FAIL, INCONCLUSIVE)}
    about = {"kind": "null", "claim": claim, "limit": limit, "claims": number}
    return {**about, "elapsed_s": bench.now() - start, **counts}


def describe_null(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how often identical code failed in all claims of some rows, with the exact binomial interval of the rate."""
    failed, undecided, claims = (sum(row[key] for row in rows) for key in (FAIL, INCONCLUSIVE, "claims"))
    low, high = binomial_interval(failed, claims)
    return (
        f"identical code failed in {failed} of {plural(claims, 'claim')}, so a rate of {100 * low:.2g} to "
        f"{100 * high:.2g} % (95 % interval); {undecided} ended inconclusive"
    )


def binomial_interval(count: int, number: int) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a probability from `count` hits in `number` tries."""

    def at_most(hits: int, p: float) -> float:
        return sum(math.comb(number, k) * p**k * (1 - p) ** (number - k) for k in range(hits + 1))

    def where(hits: int, value: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(hits, middle) > value else (low, middle)
        return low

    low = where(count - 1, 1 - MISSED / 2) if count else 0.0
    return low, where(count, MISSED / 2) if count < number else 1.0
