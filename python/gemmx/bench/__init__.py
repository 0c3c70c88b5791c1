"""Benchmarks: the timer, the shape manifests and the measurement of a row. docs/benchmarks.md has the method."""

from __future__ import annotations

from gemmx.bench.stats import Ratio, paired_ratio, quantile, weighted_geomean
from gemmx.bench.timer import Timing, sets_for, time_arms

__all__ = ["Ratio", "Timing", "paired_ratio", "quantile", "sets_for", "time_arms", "weighted_geomean"]
