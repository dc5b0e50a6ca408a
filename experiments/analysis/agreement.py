"""Comparison of two contestants' results: their first losses or probabilities agree within rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Losses of random weights, after an update, and after one with momentum. A wrong gradient or update changes these by
# far more than the tolerance, and rounding does not yet; later, networks with many norms drift apart by themselves.
# After ten steps of MobileNetV1 PyTorch's own two memory formats differ by 5 %, after two by 0.4 %; those of the other
# networks differ by 0.005 %.
LOSS_TOLERANCES = (2e-3, 2e-3, 1e-2)
PROBABILITY_TOLERANCE = 2e-3


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return relative differences of two answers; infinite if they have different lengths or hold no number."""
    if len(first) != len(second) or not first or not all(map(math.isfinite, (*first, *second))):
        return [math.inf]
    return [abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in zip(first, second, strict=True)]


def first_disagreement(first: Sequence[float], second: Sequence[float]) -> str:
    """Say how the first losses of two trainings differ; later ones may drift apart by rounding alone."""
    count = len(LOSS_TOLERANCES)
    return disagreement(first[:count], second[:count])


def disagreement(first: Sequence[float], second: Sequence[float]) -> str:
    """Say how the second of two answers (losses or probabilities) differs from the first; empty if they agree."""
    allowed = LOSS_TOLERANCES if len(first) == len(LOSS_TOLERANCES) else (PROBABILITY_TOLERANCE,) * len(first)
    result = differences(first, second)
    if math.isinf(result[0]):
        return f"has {len(second)} numbers, some of them not finite, where {len(first)} are wanted"
    wrong = [(i, d, limit) for i, (d, limit) in enumerate(zip(result, allowed, strict=True)) if d > limit]
    return "differs in number {} by {:.2g}, where {:g} is allowed".format(*wrong[0]) if wrong else ""


def unlike(first: Sequence[float], second: Sequence[float], rtol: float) -> str:
    """Say how a function's numbers differ from the first one's by more than a share of their largest; empty if they do
    not."""
    if len(first) != len(second) or not first or first[0] != second[0]:
        return "has another number of values, or some that are not finite"
    scale, error = max(map(abs, first[1:])), max(abs(a - b) for a, b in zip(first, second, strict=True))
    return (
        "" if error <= rtol * scale else f"differs by {error / scale if scale else error:.2g}, more than rtol={rtol:g}"
    )
