"""Sequential test of a ratio of times: it passes, fails, or goes on, with its errors spent over all looks.

Each round measures both sides as A B or B A; which of the two is tossed. Its log ratio is x. Suppose
that A takes m times as long as B and that nothing else tells them apart. Then swapping the names changes the
sign of x - log m and nothing else, so this sign is a fair coin *by the toss*, whatever the noise: heavy tails,
drift, rounds that resemble their neighbours. Bets on fair coins win nothing on average. A bet of the part b of
what one has, b chosen from all |x - log m| so far and this one, multiplies it by 1 + b or 1 - b; starting with
1, the chance that it ever reaches 1/a is at most a (Ville's inequality), at whichever round one looks or stops.
So:

* bet on the ratio being above the limit: at 1/error the claim "at most the limit" has failed;
* bet on it being below: at 1/error it has passed;
* all m at which neither bet has won form an interval that covers the true ratio at all looks together.

A bet grows with |x - log m|, as a rank test weighs large differences more, but only so far: a single wild
round decides nothing.

References
----------
Ville (1939); Shafer, "Testing by betting", JRSS A 184 (2021); Ramdas et al., "Game-theoretic statistics and
safe anytime-valid inference", Statistical Science 38 (2023). The toss in place of assumptions: Fisher (1935).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

PASS, FAIL, GO_ON = "pass", "fail", "go on"

# Chance of a false alarm if the true ratio is exactly the limit, and of a false pass likewise; both fall with the
# distance from the limit. False alarms cost trust, so they are rarer.
FALSE_ALARM = 0.005
FALSE_PASS = 0.025
# Growth of bets with |x|. The stake is shared among these values, so that none must be the best. See `log_stakes`.
BOLDNESS = (0.5, 3.0)
# Largest bet: far out in a heavy tail the sign of a round says little, and betting the whole stake on it would ruin the
# test. In simulations a smaller limit needs one more round without noise, and a larger one loses a tenth of the
# verdicts with Cauchy noise.
LARGEST_BET = 0.85
WIDEST = math.log(16)  # An interval is searched for up to this distance from the median.


@dataclass(frozen=True)
class Decision:
    """Verdict and interval of the rounds so far.

    Attributes
    ----------
    verdict : {"pass", "fail", "go on"}
    ratio : float
        Median of the rounds; NaN without rounds.
    low, high : float
        Interval that covers the true ratio, at all looks together, but for FALSE_ALARM (below) and FALSE_PASS
        (above).
    rounds : int
    """

    verdict: str
    ratio: float
    low: float
    high: float
    rounds: int


def log_stakes(differences: np.ndarray) -> np.ndarray:
    """Return the log of a stake of 1 bet on "positive", after each round: float, shape (n,).

    Parameters
    ----------
    differences : float, shape (n,)
        x - log m of each round, in order.

    Notes
    -----
    The bet on round i is LARGEST_BET tanh(boldness |d_i| / s_i), s_i the median of |d_1|, ..., |d_i|: for
    normal noise tanh is the best bet, at a boldness of mean x median / variance. Half of the stake is placed
    with each boldness.
    """
    size = np.abs(differences)
    scale = _running_medians(size)
    # Rounds without any difference place no bet.
    relative = np.divide(size, scale, out=np.zeros(len(size)), where=scale > 0)
    sign = np.sign(differences)
    grown = [np.cumsum(np.log1p(sign * LARGEST_BET * np.tanh(boldness * relative))) for boldness in BOLDNESS]
    return np.logaddexp.reduce(grown) - math.log(len(BOLDNESS))


def _running_medians(values: np.ndarray) -> np.ndarray:
    ordered: list[float] = []
    medians = []
    for k, value in enumerate(values.tolist()):
        insort(ordered, value)
        medians.append((ordered[k // 2] + ordered[(k + 1) // 2]) / 2)
    return np.array(medians)


@cache
def least_rounds(error: float = FALSE_ALARM) -> int:
    """Rounds that a verdict takes where all say the same, however clearly."""
    return next(n for n in range(1, 100) if log_stakes(np.ones(n))[-1] >= -math.log(error))


def rounds_to_go(log_ratios: Sequence[float], limit: float) -> float:
    """Further rounds after which a verdict is expected if they are like those so far; infinite if none is in sight."""
    differences = np.asarray(log_ratios, dtype=float) - math.log(limit)
    if not len(differences):
        return float(least_rounds())
    to_go = [math.inf]
    for sign, error in ((1, FALSE_ALARM), (-1, FALSE_PASS)):
        grown = log_stakes(sign * differences)[-1]
        if grown > 0:
            to_go.append(max(1.0, (-math.log(error) - grown) / (grown / len(differences))))
    return math.ceil(min(to_go)) if math.isfinite(min(to_go)) else math.inf


def judge(log_ratios: Sequence[float], limit: float) -> str:
    """Judge the claim that the ratio is at most `limit`: "pass", "fail" or "go on"."""
    differences = np.asarray(log_ratios, dtype=float) - math.log(limit)
    if len(differences) and log_stakes(differences)[-1] >= -math.log(FALSE_ALARM):
        return FAIL
    if len(differences) and log_stakes(-differences)[-1] >= -math.log(FALSE_PASS):
        return PASS
    return GO_ON


def decide(log_ratios: Sequence[float], limit: float) -> Decision:
    """Judge the claim that the ratio is at most `limit`, and give the interval.

    Parameters
    ----------
    log_ratios : sequence of float
        Log ratio of each round, in the order of measuring.
    limit : float
    """
    x = np.asarray(log_ratios, dtype=float)
    if not len(x):
        return Decision(GO_ON, math.nan, 0.0, math.inf, 0)
    bound, verdict = math.log(limit), judge(log_ratios, limit)
    # Edges are found by bisection and may lie a little beside the limit, which was judged exactly.
    low = _edge(x, FALSE_ALARM)
    low = max(low, bound) if verdict == FAIL else min(low, bound)
    high = -_edge(-x, FALSE_PASS)
    high = min(high, bound) if verdict == PASS else max(high, bound)
    return Decision(verdict, float(math.exp(np.median(x))), math.exp(low), math.exp(high), len(x))


def _edge(x: np.ndarray, error: float) -> float:
    """Return the largest m at which the bet that x lies above m has won; -inf if it has not won anywhere."""
    need = -math.log(error)
    top = float(np.median(x))
    won = top - WIDEST
    if log_stakes(x - won)[-1] < need:
        return -math.inf
    lost = top
    for _ in range(40):
        middle = (won + lost) / 2
        if log_stakes(x - middle)[-1] >= need:
            won = middle
        else:
            lost = middle
    return won
