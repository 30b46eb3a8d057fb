"""When requests arrive: so many of them, ascending seconds from zero.

All random processes are made by time change: a unit Poisson process read through the inverse of the cumulated
intensity. Source: Cinlar, "Introduction to Stochastic Processes", 1975, chapter 4, section 7. As
`balancer.load.arrivals`, but for a number of requests rather than for a duration, and a longer run begins as a shorter
one.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from balancer.files.schema import CHECKED, Fraction, Positive
from balancer.load.arrivals import Bursts, FloatArray

_KNOTS_PER_PERIOD = 256
_CYCLES_AT_FIRST = 64


@dataclass(config=CHECKED, frozen=True, slots=True)
class Poisson:
    """Independent requests at a constant rate."""


@dataclass(config=CHECKED, frozen=True, slots=True)
class Uniform:
    """Evenly spaced requests, the first at 0."""


@dataclass(config=CHECKED, frozen=True, slots=True)
class Diurnal:
    """The rate is a sine, the mean at the start and rising."""

    period_s: Positive = 60.0
    """A day."""
    amplitude: Fraction = 0.5
    """The peak is 1 + amplitude times the mean, the trough 1 - amplitude."""

    def intensity(self, time_s: FloatArray) -> FloatArray:
        angle = 2 * np.pi / self.period_s
        return time_s + self.amplitude / angle * (1 - np.cos(angle * time_s))


@dataclass(config=CHECKED, frozen=True, slots=True)
class FlashCrowd:
    """Again and again the rate jumps and decays; the mean rate is that of a whole period."""

    factor: Annotated[float, Field(ge=1)] = 5.0
    """The rate just after the jump over the rate before."""
    decay_s: Positive = 2.0
    """Time constant with which what is above the usual rate decays."""
    period_s: Positive = 20.0
    """From one crowd to the next."""
    first_s: float = 5.0
    """When the first crowd comes; below the period."""

    def __post_init__(self) -> None:
        if not 0 <= self.first_s < self.period_s:
            raise ValueError(f"first_s is {self.first_s}: give seconds from 0 to below period_s, {self.period_s}")

    def intensity(self, time_s: FloatArray) -> FloatArray:

        def relative(since_s: FloatArray) -> FloatArray:
            return (self.factor - 1) * self.decay_s * -np.expm1(-np.maximum(since_s, 0) / self.decay_s)

        whole = self.period_s + relative(np.array(self.period_s - self.first_s))
        return (time_s + relative(time_s - self.first_s)) * (self.period_s / whole)


Process = Poisson | Uniform | Bursts | Diurnal | FlashCrowd


def draw_times(process: Process, rate_per_s: float, count: int, generator: np.random.Generator) -> FloatArray:
    """Arrivals of a process with a long-run mean rate; shape `(count,)`.

    Raises:
        ValueError: the rate is not a number above 0.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError(f"rate_per_s is {rate_per_s}: give requests per second above 0")
    if isinstance(process, Uniform):
        return np.arange(count) / rate_per_s
    gaps, states = generator.spawn(2)
    # What the clock would show if the rate were always the mean.
    level_s = np.cumsum(gaps.standard_exponential(count)) / rate_per_s
    match process:
        case Poisson():
            return level_s
        case Bursts():
            knots_s, expected_s = _alternating(process, level_s[-1] if count else 0.0, states)
        case Diurnal() | FlashCrowd():
            knots_s = np.linspace(0, process.period_s, _KNOTS_PER_PERIOD + 1)
            expected_s = process.intensity(knots_s)
    return _warped(level_s, knots_s, expected_s)


def _warped(level_s: FloatArray, knots_s: FloatArray, expected_s: FloatArray) -> FloatArray:
    """The time change: arrivals of mean rate, read through the inverse of the cumulated intensity at mean rate 1.

    That is given at knots, straight lines between them; it repeats itself after the last.
    """
    periods = np.floor(level_s / expected_s[-1])
    within_s: FloatArray = np.interp(level_s - periods * expected_s[-1], expected_s, knots_s)
    changed_s: FloatArray = periods * knots_s[-1] + within_s
    return changed_s


def _alternating(bursts: Bursts, until_s: float, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Knots of a stationary Markov-modulated process and its cumulated intensity, beyond `until_s` of the latter."""
    calm = 1 / (1 + bursts.burst_share * (bursts.factor - 1))
    in_burst = generator.random() < bursts.burst_share
    means_s = np.array([bursts.mean_burst_s, bursts.mean_calm_s])
    rates = np.array([bursts.factor * calm, calm])
    if not in_burst:
        means_s, rates = means_s[::-1], rates[::-1]
    lengths_s = np.empty((0, 2))
    while (lengths_s * rates).sum() <= until_s:
        further_s = generator.standard_exponential((max(_CYCLES_AT_FIRST, len(lengths_s)), 2)) * means_s
        lengths_s = np.concatenate((lengths_s, further_s))
    knots_s = np.concatenate(([0.0], np.cumsum(lengths_s)))
    return knots_s, np.concatenate(([0.0], np.cumsum(lengths_s * rates)))
