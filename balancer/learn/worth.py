"""Whether a trained policy is worth trying, by the record of its training; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Worth(NamedTuple):
    tries: bool
    words: str


def worth(record: Mapping[str, Any], beside: bool, least_gain: float) -> Worth:
    """Of the policy of `balancer train --from-log`.

    Args:
        record: That of the file.
        beside: Whether it began with a policy that is in force.
        least_gain: Of the mean, as a share, or twice that of p99 where the mean is lower at all; at the upper ends of
            the intervals.
    """
    against = record["scoreboard"]["log"]["expected_latency"]
    (mean, low, high), (p99, p99_low, p99_high) = against["mean"], against["p99"]
    gains = f"mean x{mean:.3f} ({low:.3f} to {high:.3f}), p99 x{p99:.3f} of expected_latency's"
    # No number at all is nothing to go by either.
    if not high < 1 or (high > 1 - least_gain and p99_high > 1 - 2 * least_gain):
        return Worth(False, f"nothing to gain: {gains}")
    if p99_low > 1:
        return Worth(False, f"slow requests would be slower: {gains}")
    if record["weighs_keys"]:
        return Worth(
            False, f"it weighs keys itself, so it is for you to try, with requests.sticky_keys: false: {gains}"
        )
    if beside and not record["iteration"]:
        return Worth(False, f"the one in force is still the best: {gains}")
    return Worth(True, gains)
