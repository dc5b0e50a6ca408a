"""Typical times of points and their ratios: the one estimator behind every time and ratio of a page."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from .statistics import Estimate, block_factors, including, median_interval, ratio_interval

NOTHING = Estimate(math.nan, math.nan, math.nan, 0)
Key = TypeVar("Key", bound=Hashable)


class TypicalTimes(Generic[Key]):
    """Times of points that were measured in repetition blocks.

    The *typical time* of a point is the median of its samples after the slowness of whole repetition blocks was divided
    out; the ratio of two points is the quotient of their typical times. Its interval is that of the ratios paired by
    repetition block.

    Parameters
    ----------
    points : mapping of point to {repetition: seconds}
    """

    def __init__(self, points: Mapping[Key, Mapping[int, float]]):
        self.points = points

    @cached_property
    def block_factors(self) -> dict[int, float]:
        """The factor by which each repetition block was slower than the middle one, over all points."""
        return block_factors(list(self.points.values()))

    def steady(self, point: Key) -> dict[int, float]:
        """Return the times of a point by repetition, divided by the factors of the blocks."""
        return {r: time / self.block_factors[r] for r, time in self.points[point].items()}

    @cached_property
    def _typical(self) -> dict[Key, float]:
        return {p: math.exp(np.median(np.log(list(self.steady(p).values())))) for p in self.points}

    def time(self, point: Key) -> Estimate:
        """Return the typical time of a point, with the interval of the median of the raw samples."""
        if point not in self.points:
            return NOTHING
        return including(median_interval(list(self.points[point].values())), self._typical[point])

    def ratio(self, numerator: Key, denominator: Key) -> Estimate:
        """Return the quotient of two points' typical times, with the interval of ratios paired by repetition block."""
        paired = ratio_interval(self.points[numerator], self.points[denominator])
        return including(paired, self._typical[numerator] / self._typical[denominator]) if paired.count else NOTHING

    def fastest(self, candidates: Sequence[Key]) -> Key:
        """Return the candidate with the shortest typical time."""
        return min(candidates, key=self._typical.__getitem__)

    def ratio_to_fastest(self, numerator: Key, candidates: Sequence[Key]) -> Estimate:
        """Return the quotient of a point's typical time and that of the fastest candidate, with the interval of paired
        ratios.

        The candidate with which a block's sample is paired is the fastest in all *other* blocks: chosen by the samples
        that it is compared on, it would look faster than it is.
        """
        fastest = self.fastest(candidates)
        if len(candidates) == 1:
            return self.ratio(numerator, fastest)
        steady = {candidate: self.steady(candidate) for candidate in candidates}
        paired = {}
        for block in self.points[numerator]:
            present = {c: [t for r, t in times.items() if r != block] for c, times in steady.items() if block in times}
            elsewhere = {c: float(np.median(times)) for c, times in present.items() if times}
            if elsewhere:
                paired[block] = self.points[min(elsewhere, key=elsewhere.__getitem__)][block]
        if not paired:  # a single repetition has no interval, whatever it is compared with
            return self.ratio(numerator, fastest)
        interval = ratio_interval(self.points[numerator], paired)
        return including(interval, self._typical[numerator] / self._typical[fastest])
