"""Token buckets: for what may be done as a share of what is asked, and for what a tenant may send."""

from __future__ import annotations

from dataclasses import dataclass

from balancer.proxy.settings import ProxyConstants, TenantLimitsSection

_MOST_TENANTS = 10_000


class Share:
    """So many extra attempts for each request, saved up to a burst."""

    def __init__(self, share: float, burst: float) -> None:
        self.share, self.burst = share, burst
        self.tokens = burst

    def earn(self) -> None:
        self.tokens = min(self.burst, self.tokens + self.share)

    def take(self) -> bool:
        """Whether there is one for an extra attempt, which is then taken."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def wait_s(constants: ProxyConstants, attempt: int, chance: float) -> float:
    """Before attempt number `attempt` (from 1 for the second); `chance`, from 0 to 1, spreads those that failed
    together."""
    most = min(constants.retry_max_s, constants.retry_base_s * 2.0 ** min(attempt, 30))
    return most * chance


@dataclass(slots=True)
class _Bucket:
    requests: float
    rows: float
    at_s: float


class Tenants:
    """What each tenant has left of its share. Those seen longest ago are forgotten, and so have a full bucket."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def refused_for_s(self, tenant: str, rows: float, limits: TenantLimitsSection, now_s: float) -> float:
        """0, and the request is counted; else the time until there is enough again for one like it.

        A request of more rows than a burst goes when the bucket is full, and is paid for afterwards.
        """
        if not limits.is_limited:
            return 0.0
        most_requests = max(1.0, limits.requests_per_s * limits.burst_s)
        most_rows = max(1.0, limits.rows_per_s * limits.burst_s)
        bucket = self._buckets.pop(tenant, None) or _Bucket(most_requests, most_rows, now_s)
        self._buckets[tenant] = bucket
        if len(self._buckets) > _MOST_TENANTS:
            del self._buckets[next(iter(self._buckets))]
        elapsed_s = max(0.0, now_s - bucket.at_s)
        bucket.at_s = now_s
        bucket.requests = min(most_requests, bucket.requests + elapsed_s * limits.requests_per_s)
        bucket.rows = min(most_rows, bucket.rows + elapsed_s * limits.rows_per_s)
        lacking_s = 0.0
        if limits.requests_per_s:
            lacking_s = max(lacking_s, (1 - bucket.requests) / limits.requests_per_s)
        if limits.rows_per_s:
            lacking_s = max(lacking_s, (min(rows, most_rows) - bucket.rows) / limits.rows_per_s)
        if lacking_s > 0:
            return lacking_s
        bucket.requests -= 1
        bucket.rows -= rows
        return 0.0
