"""Clock tier: ratios of times taken side by side in one job, judged by a sequential test.

A round is a generation: fresh processes of both sides, started in an order that is tossed, which take turns of some
tens of milliseconds; its value is the median of the turns' log ratios, and the capacity of the machine is measured
before and after. Rounds go on until the test decides or the budget is spent. Nothing absolute is stored or compared.

A verdict needs some ten rounds, whatever the ratio. So one trial of each side says first how long rounds may
be, for the budget to hold that many; and how long a slow side may take before it is stopped: what it had not finished
by then bounds its time from below, which is all that a verdict needs. A budget too small even so is an error.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...cython_src.errors import UsageError
from .bench import EFFORTS, TRIAL, Bench, Effort, Side
from .sequential import FAIL, GO_ON, PASS, Decision, decide, judge, least_rounds, rounds_to_go

INCONCLUSIVE = "inconclusive"
# A round is disturbed if it has more than this and more than twice the machine's usual value: shares of the timed wall
# time, and the relative change of the capacity.
DISTURBED = {"pressure": 0.1, "steal": 0.05, "throttled": 0.001, "capacity_change": 0.1}
USUAL_TIMES = 2.0
FIRST_ROUNDS = 3  # measured before any is judged: by then it shows what is usual here
OVERTIME = 1.5  # times the budget that a test may take while it has fewer rounds than any verdict needs
SPARE_ROUNDS = 1.6  # rounds for which there must be room, for each that a verdict needs: some are disturbed, or longer
# No disturbance explains a ratio that is further from the limit than this factor, to either side: such a round counts.
GROSS = 2.0
# A sample may take this many times as long as the slower trial said, claim and model taken into account, and a side
# that is stopped must have had this many times as long as the other one.
PATIENCE = 4.0
EVIDENCE = 2.0
SHORTEST_LIMIT_S = 2.0  # of a sample's process: a loaded machine takes its time to start one


@dataclass
class Round:
    """A sample of each side, and what else happened meanwhile.

    Attributes
    ----------
    order : str
        "AB" or "BA".
    times_s : list of float
        Step times, in that order; of a side that was stopped, the least that it can be.
    capacity : list of float
        The machine's capacity, before and after.
    disturbance : dict
        Values by the names of DISTURBED; None where the machine hides one.
    log_ratio : float or None
        None where neither side finished.
    discarded : str
        Why this round does not count; empty if it does.
    unfinished : str
        Sides that were stopped at the limit of a sample: "", "A", "B" or "AB".
    """

    order: str
    times_s: list[float]
    capacity: list[float]
    disturbance: dict[str, float | None]
    log_ratio: float | None
    discarded: str = ""
    unfinished: str = ""


@dataclass
class ClockResult:
    """Outcome of the claim that the ratio of times, A / B, is at most a limit.

    Attributes
    ----------
    claim : str
    limit : float
    verdict : {"pass", "fail", "inconclusive"}
    decision : Decision
    rounds : list of Round, the discarded ones among them
    elapsed_s : float
    reason : str
        Reason of an inconclusive end.
    """

    claim: str
    limit: float
    verdict: str
    decision: Decision
    rounds: list[Round]
    elapsed_s: float
    reason: str = ""

    @property
    def discarded(self) -> list[Round]:
        return [r for r in self.rounds if r.discarded]

    def as_row(self, efficiency: bool = False) -> dict[str, Any]:
        """Return a row of kind "clock" for reports; the value of an efficiency is the inverse ratio."""
        decision, limit = self.decision, self.limit
        value, low, high = decision.ratio, decision.low, decision.high
        if efficiency:
            value, limit = 1 / value, 1 / limit
            low, high = 0.0 if math.isinf(high) else 1 / high, math.inf if low == 0 else 1 / low
        known = decision.rounds > 0
        return {
            "kind": "clock",
            "claim": self.claim,
            "limit": limit,
            "verdict": self.verdict,
            "value": value if known else None,
            "low": low,
            "high": None if math.isinf(high) else high,
            "value_text": describe(value, low, high) if known else "unknown",
            "num_rounds": decision.rounds,
            "num_discarded": len(self.discarded),
            "elapsed_s": self.elapsed_s,
            "reason": self.reason,
            "rounds": [asdict(r) for r in self.rounds],
        }


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
    on_round: Callable[[Decision], None] | None = None,
) -> ClockResult:
    """Measure rounds until the claim "time of A / time of B is at most `limit`" is decided or the budget is spent.

    Parameters
    ----------
    claim : str
        The claim in words, for reports.
    sides : (A, B)
    limit : float
    budget_s : float
        The trial samples are paid from it too.
    per_capacity : bool
        A's time counts times the capacity: for efficiencies.
    bench : Bench, optional
        What takes samples; default: fresh processes here.
    on_round : callable, optional
        Of what the rounds so far say; called after each.

    Raises
    ------
    UsageError
        The budget has no room for the rounds that a verdict needs, or turns out to have none; says what would be
        enough.
    SampleError
        A process failed, or two samples of one plan and length left different results.
    """
    bench = bench or Bench()
    threads = max(side.threads for side in sides)
    rounds: list[Round] = []
    start = bench.now()
    longest = 0.0
    before = bench.capacity(threads)
    scale = limit / before if per_capacity else limit  # of step times at which the claim just holds
    schedule = plan_rounds(claim, sides, scale, budget_s, bench)
    verdict, counted, needed = GO_ON, [], least_rounds()
    while True:
        begun = bench.now()
        short = 0 < len(counted) < needed
        if begun - start + longest > budget_s * (OVERTIME if short else 1):
            break
        order = "AB" if bench.toss() else "BA"
        rows = bench.measure({name: (sides[name == "B"], schedule.efforts[name == "B"]) for name in order})
        after = bench.capacity(threads)
        rounds.append(_round(order, rows, sides, schedule, (before, after), per_capacity))
        before = after
        longest = max(longest, bench.now() - begun)
        mark_disturbed(rounds, limit)
        counted = [r.log_ratio for r in rounds if not r.discarded]
        if len(rounds) >= FIRST_ROUNDS:
            verdict = judge(counted, limit)
        if on_round:
            on_round(decide(counted, limit))
        if verdict in (PASS, FAIL):
            break
    elapsed_s = bench.now() - start
    if verdict == GO_ON and len(rounds) < needed:
        enough_s = math.ceil(elapsed_s + needed * longest)
        raise UsageError(
            f"{claim}: a budget of {budget_s:g} s must hold the {needed} rounds that a verdict needs, it held "
            f"{len(rounds)} in {elapsed_s:.0f} s; give {enough_s} s, or a smaller plan"
        )
    result = ClockResult(claim, limit, verdict, decide(counted, limit), rounds, elapsed_s)
    if verdict == GO_ON:
        result.verdict = INCONCLUSIVE
        result.reason = _reason(result, rounds_to_go(counted, limit))
    return result


def _reason(result: ClockResult, to_go: float) -> str:
    """Why a test found no end, and what would help."""
    decision = result.decision
    more = "more rounds are not likely to decide: the ratio is about the limit"
    if math.isfinite(to_go):
        more = f"about {to_go:.0f} more rounds would decide"
    return (
        f"after {decision.rounds} rounds in {result.elapsed_s:.0f} s ({len(result.discarded)} discarded) the ratio is "
        f"{describe(decision.ratio, decision.low, decision.high)}, the limit {result.limit:.4g}; {more}"
    )


# --- how long samples may be


@dataclass(frozen=True)
class Schedule:
    """Expectations of the rounds to come, from trial samples.

    Attributes
    ----------
    efforts : (Effort, Effort)
        Of A and B; they differ in their limits only.
    longest_step_s : (float, float)
        Step times that the limits stand for, of A and B: a process that was stopped has slower ones. A's is `scale`
        times B's, so that whoever is stopped, the claim that they just take their allowed times is a fair coin.
    """

    efforts: tuple[Effort, Effort]
    longest_step_s: tuple[float, float]


def plan_rounds(claim: str, sides: tuple[Side, Side], scale: float, budget_s: float, bench: Bench) -> Schedule:
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
    wanted = math.ceil(SPARE_ROUNDS * least_rounds())
    start = bench.now()
    # A side that takes longer is stopped: its share of all rounds would be as much as the budget.
    limit_s = max(SHORTEST_LIMIT_S, budget_s / wanted)
    trials = []
    for name, side in zip("AB", sides, strict=True):
        begun = bench.now()
        trials.append((bench.measure({name: (side, replace(TRIAL, limit_s=limit_s))})[name], bench.now() - begun))
    spent_s = bench.now() - start
    rows = [row for row, _ in trials]
    _check(dict(zip("AB", rows, strict=True)), sides)
    passes_s = [math.inf if _stopped(row) else step_time_s(row) * _stride(row) for row in rows]
    if all(map(math.isinf, passes_s)):
        raise UsageError(
            f"{claim}: samples must end within {limit_s:.3g} s, so that a budget of {budget_s:g} s holds the {wanted} "
            f"rounds that a verdict needs, those of neither side did; give more seconds, or a smaller plan"
        )
    fixed_s = max(
        max(elapsed_s - TRIAL.passes() * pass_s, 0.0)
        for (_, elapsed_s), pass_s in zip(trials, passes_s, strict=True)
        if math.isfinite(pass_s)
    )
    # The time of a pass of A is compared with that of B on the scale of B.
    scales = (scale, 1.0)
    relative = [pass_s / by for pass_s, by in zip(passes_s, scales, strict=True)]
    room_s = (budget_s - spent_s) / wanted  # of a round
    for effort in EFFORTS:
        if sum(effort.seconds(fixed_s, pass_s) for pass_s in passes_s) <= room_s:
            return _schedule(effort, PATIENCE * fixed_s, PATIENCE * max(relative), scales, rows)
    # The slower side is stopped when its share of a round is over.
    slower = relative.index(max(relative))
    effort = EFFORTS[-1]
    least_s = effort.seconds(fixed_s, passes_s[1 - slower])
    stop = (room_s - least_s - fixed_s) / effort.passes() / scales[slower]
    if stop >= EVIDENCE * min(relative):
        return _schedule(effort, fixed_s, stop, scales, rows)
    enough_s = least_s + fixed_s + effort.passes() * EVIDENCE * min(relative) * scales[slower]
    raise UsageError(
        f"{claim}: a budget of {budget_s:g} s must hold the {wanted} rounds that a verdict needs, a round takes "
        f"{enough_s:.3g} s here; give {math.ceil(1.2 * (wanted * enough_s + spent_s))} s, or a smaller plan"
    )


def _schedule(
    effort: Effort,
    fixed_s: float,
    longest_pass_s: float,
    scales: tuple[float, float],
    rows: Sequence[Mapping[str, Any]],
) -> Schedule:
    """Limits for both sides from the longest pass on the scale of B."""
    stride = min(_stride(row) for row in rows if not _stopped(row))
    efforts = []
    for by in scales:
        limit_s = max(effort.seconds(fixed_s, longest_pass_s * by), SHORTEST_LIMIT_S)
        efforts.append(replace(effort, limit_s=limit_s))
    longest = tuple(longest_pass_s * by / stride for by in scales)
    return Schedule((efforts[0], efforts[1]), (longest[0], longest[1]))


def _stopped(row: Mapping[str, Any]) -> bool:
    return row.get("failure") == "timeout"


def describe(value: float, low: float, high: float) -> str:
    """Format a ratio with its interval: `1.02 [0.98, 1.07]`, with dots if few rounds give no end yet."""
    return f"{value:.3f} [{'...' if low == 0 else f'{low:.3f}'}, {'...' if math.isinf(high) else f'{high:.3f}'}]"


def _check(rows: Mapping[str, Mapping[str, Any]], sides: tuple[Side, Side]) -> None:
    """Raise where a process failed, or where two that must leave the same results do not: a ratio of their times would
    mean nothing."""
    for name, row in rows.items():
        if "failure" in row and not _stopped(row):
            side = sides[name == "B"]
            words = f"{side.model} on {side.threads} thread{'s' * (side.threads > 1)}"
            raise SampleError(f"{words} did not run ({row['failure']}): {row['message'].splitlines()[0]}")
    if (sides[0].plan, sides[0].installation) != (sides[1].plan, sides[1].installation):
        return  # two commits may compute something else by right
    finished = [row for row in rows.values() if not _stopped(row)]
    hashes = {(row["weights_hash"], row["losses_hash"]) for row in finished if row.get("deterministic", True)}
    if len(hashes) > 1:
        raise SampleError(f"{sides[0].model} and {sides[1].model} must leave the same results, they differ")


def step_time_s(row: Mapping[str, Any]) -> float:
    """Return the time of a step in a process: the median over its turns of the long run's."""
    return statistics.median(row["long_times_s"]) / row["long_steps"]


def _stride(row: Mapping[str, Any]) -> int:
    """Return the steps of a pass: both runs of a turn are whole numbers of them."""
    return math.gcd(row["short_steps"], row["long_steps"])


def _log_ratio(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the median over the turns of log(step time of A / that of B), each in one round."""
    steps = rows["B"]["long_steps"] / rows["A"]["long_steps"]
    turns = zip(rows["A"]["long_times_s"], rows["B"]["long_times_s"], strict=False)
    return statistics.median(math.log(a / b * steps) for a, b in turns)


def _round(
    order: str,
    rows: Mapping[str, Mapping[str, Any]],
    sides: tuple[Side, Side],
    schedule: Schedule,
    capacity: tuple[float, float],
    per_capacity: bool,
) -> Round:
    """Return the round of two samples: their times, the log ratio, and why it does not count, where it does not."""
    _check(rows, sides)
    unfinished = "".join(name for name in "AB" if _stopped(rows[name]))
    times_s = {
        name: schedule.longest_step_s[name == "B"] if name in unfinished else step_time_s(rows[name]) for name in "AB"
    }
    if len(unfinished) == 1:  # at least as far from the claim's limit as if it had just been finished
        finished = "B" if unfinished == "A" else "A"
        times_s[finished] = min(times_s[finished], schedule.longest_step_s[finished == "B"] * (1 - 1e-9))
    log_ratio = math.log(times_s["A"]) - math.log(times_s["B"]) if unfinished else _log_ratio(rows)
    if per_capacity:
        log_ratio += math.log((capacity[0] + capacity[1]) / 2)
    finished_rows = [row for row in rows.values() if not _stopped(row)]
    result = Round(
        order,
        [times_s[name] for name in order],
        list(capacity),
        _disturbance(finished_rows, capacity),
        log_ratio,
        unfinished=unfinished,
    )
    if not finished_rows:
        result.log_ratio, result.discarded = None, "neither sample was finished in time"
    return result


def _disturbance(rows: Sequence[Mapping[str, Any]], capacity: tuple[float, float]) -> dict[str, float | None]:
    """Return the disturbance of a round on either side: shares of the timed time, and capacity change."""
    wall = sum(row["timed_wall_s"] for row in rows)

    def share(name: str, unit_s: float) -> float | None:
        values = [row["disturbance"].get(name) for row in rows]
        return sum(values) * unit_s / wall if values and None not in values else None

    return {
        "pressure": share("pressure_some_us", 1e-6),
        "steal": share("steal_ticks", 1 / os.sysconf("SC_CLK_TCK")),
        "throttled": share("throttled_us", 1e-6),
        "capacity_change": abs(math.log(capacity[1] / capacity[0])),
    }


def mark_disturbed(rounds: list[Round], limit: float) -> None:
    """Say of the latest round whether it counts; of the first few all at once, when they are there.

    The rule looks at whole rounds and not at whose sample was hit, and at how far the ratio lies from the limit but not
    on which side, so it favours nobody and the test stays exact. What is usual on a machine is no reason: on one that
    is always disturbed, nothing would be left.
    """
    if len(rounds) < FIRST_ROUNDS:
        return
    for r in rounds if len(rounds) == FIRST_ROUNDS else rounds[-1:]:
        if r.discarded or r.unfinished or abs(r.log_ratio - math.log(limit)) > math.log(GROSS):
            continue
        reasons = []
        for name, allowed in DISTURBED.items():
            seen = [other.disturbance[name] for other in rounds if other.disturbance[name] is not None]
            value = r.disturbance[name]
            if value is not None and value > allowed and value > USUAL_TIMES * statistics.median(seen):
                reasons.append(f"{name.replace('_', ' ')} {value:.0%}")
        r.discarded = ", ".join(reasons)
