"""When requests arrive: pure functions of rate, duration and a generator; times are ascending seconds from zero.

All random processes are made by time change: a unit Poisson process read through the inverse of the cumulated
intensity. Source: Cinlar, "Introduction to Stochastic Processes", 1975, chapter 4, section 7.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Bursts:
    """A two-state Markov-modulated Poisson process: calm and burst, each of exponential length.

    Source: Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", 1993.
    """

    factor: float = 4.0
    """Rate in a burst over the rate in the calm between; at least 1."""
    mean_burst_s: float = 1.0
    """Mean length of a burst; above 0."""
    mean_calm_s: float = 3.0
    """Mean length of the calm between two bursts; above 0."""

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ValueError(f"burst factor is {self.factor}: give a number of at least 1")
        for name in ("mean_burst_s", "mean_calm_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds above 0")

    @property
    def burst_share(self) -> float:
        return self.mean_burst_s / (self.mean_burst_s + self.mean_calm_s)


def uniform(rate_per_s: float, duration_s: float) -> FloatArray:
    """Equally spaced arrivals in [0, duration_s), the first at 0; shape `(n,)`."""
    _check(rate_per_s, duration_s)
    # The rounding keeps 0.1 * 30 from becoming four arrivals.
    count = int(np.ceil(np.round(rate_per_s * duration_s, 9)))
    return np.arange(count, dtype=np.float64) / rate_per_s


def poisson(rate_per_s: float, duration_s: float, generator: np.random.Generator) -> FloatArray:
    """A Poisson process on [0, duration_s); shape `(n,)`, n random."""
    _check(rate_per_s, duration_s)
    return _inhomogeneous(np.array([0.0, duration_s]), np.array([0.0, rate_per_s * duration_s]), generator)


def bursty(
    rate_per_s: float, duration_s: float, bursts: Bursts, generator: np.random.Generator, *, level: bool = False
) -> FloatArray:
    """A Markov-modulated Poisson process on [0, duration_s) that starts in its stationary state; shape `(n,)`.

    `rate_per_s` is the long-run mean. A short window may by chance hold many bursts or none; `level` scales both
    rates so that the expected number over this window, its bursts given, is `rate_per_s * duration_s`.
    """
    _check(rate_per_s, duration_s)
    calm_rate_per_s = rate_per_s / (1 + bursts.burst_share * (bursts.factor - 1))
    in_burst = bool(generator.random() < bursts.burst_share)
    knots_s, cumulated = [0.0], [0.0]
    while knots_s[-1] < duration_s:
        length_s = generator.exponential(bursts.mean_burst_s if in_burst else bursts.mean_calm_s)
        end_s = min(knots_s[-1] + length_s, duration_s)
        intensity = calm_rate_per_s * (bursts.factor if in_burst else 1.0)
        cumulated.append(cumulated[-1] + intensity * (end_s - knots_s[-1]))
        knots_s.append(end_s)
        in_burst = not in_burst
    expected = np.array(cumulated)
    if level:
        expected *= rate_per_s * duration_s / expected[-1]
    return _inhomogeneous(np.array(knots_s), expected, generator)


def rescaled(time_s: FloatArray, rate_per_s: float) -> FloatArray:
    """The arrivals of a trace with the clock sped up or slowed down to a mean rate: the shape stays; `(n,)`.

    Raises `ValueError` where the trace has no extent in time, so no rate.
    """
    _check(rate_per_s, 1.0)
    from_start = time_s - time_s[0] if len(time_s) else time_s
    if len(time_s) < 2 or from_start[-1] <= 0:
        raise ValueError(f"a trace of {len(time_s)} arrivals over no time has no rate: give one with distinct times")
    own_rate_per_s = (len(time_s) - 1) / from_start[-1]
    scaled: FloatArray = from_start * (own_rate_per_s / rate_per_s)
    return scaled


def _inhomogeneous(knots_s: FloatArray, cumulated: FloatArray, generator: np.random.Generator) -> FloatArray:
    count = generator.poisson(cumulated[-1])
    units = np.sort(generator.random(count)) * cumulated[-1]
    times_s: FloatArray = np.interp(units, cumulated, knots_s)
    return times_s


def _check(rate_per_s: float, duration_s: float) -> None:
    if not (np.isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError(f"rate is {rate_per_s}: give requests per second above 0")
    if not (np.isfinite(duration_s) and duration_s > 0):
        raise ValueError(f"duration is {duration_s}: give seconds above 0")
