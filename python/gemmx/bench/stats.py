"""Order statistics of repeated timings. Plain Python: the lists have at most a few hundred entries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 <= q <= 1) of values, linear between neighbours; NaN when there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True)
class Ratio:
    """How many times longer one arm took than another, from pairs measured in the same round."""

    median: float
    p10: float
    p90: float


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Statistics of numerator[r] / denominator[r] over the rounds r.

    The ratio is taken inside a round and only then the median over rounds: a card that slows down by 10 %
    while it warms up moves both arms of a round alike, but not the medians of two separate runs.
    """
    if len(numerator) != len(denominator):
        raise ValueError(
            f"paired_ratio: numerator has {len(numerator)} rounds and denominator {len(denominator)}; "
            "both arms must come from one call of time_arms"
        )
    ratios = [n / d for n, d in zip(numerator, denominator, strict=True)]
    return Ratio(quantile(ratios, 0.5), quantile(ratios, 0.1), quantile(ratios, 0.9))


def weighted_geomean(pairs: Iterable[tuple[float, float]]) -> float:
    """exp(sum(w * ln x) / sum(w)) over pairs (x, w), x > 0; NaN when the weights sum to 0."""
    total = weight = 0.0
    for x, w in pairs:
        total += w * math.log(x)
        weight += w
    return math.exp(total / weight) if weight > 0 else math.nan
