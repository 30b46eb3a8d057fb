"""How bursty arrivals are."""

import numpy as np

from balancer.load.arrivals import FloatArray


def dispersion(time_s: FloatArray, duration_s: float, window_s: float) -> float:
    """Variance over mean of the counts in consecutive windows: 1 for Poisson, 0 for uniform, more where bursty."""
    edges = np.arange(int(duration_s / window_s) + 1) * window_s
    counts, _ = np.histogram(time_s, bins=edges)
    return float(counts.var() / counts.mean())
