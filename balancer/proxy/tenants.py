"""What each tenant may still send, by whichever way its requests come."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from balancer.bounds import MAX_ROWS, OutOfBoundsError, RefusedInputError, shown
from balancer.extproc.inference_bytes import read
from balancer.extproc.kserve import Call, guessed_rows
from balancer.extproc.pick_service import TurnedAway
from balancer.proxy.settings import ProxySettings, TenantLimitsSection

_LOOK_S = 1.0
"""After which limits are looked at again, as they may change."""
_MOST_TENANTS = 10_000


class _Costs(NamedTuple):
    """Of a request, of all that a second allows, or of what is left of that."""

    requests: float
    rows: float
    tokens: float = 0.0


@dataclass(slots=True)
class _Bucket:
    left: _Costs
    at_s: float


class TenantLimits:
    """Counts the requests that are forwarded, and those that go to a worker by Envoy because they cannot be. Tenants
    seen longest ago are forgotten, and so have a full bucket."""

    def __init__(self, now: Callable[[], float], over_limit: Callable[[], None]) -> None:
        self._now, self._over_limit = now, over_limit
        self._buckets: dict[str, _Bucket] = {}
        self.configure(ProxySettings())

    def configure(self, settings: ProxySettings) -> None:
        self._limits: TenantLimitsSection = settings.proxy.tenants
        # As headers are read.
        self._named = {name.encode().decode("latin-1"): limits for name, limits in settings.proxy.tenants.named.items()}

    def turned_away(self, call: Call, counted: bool = True) -> TurnedAway | None:
        """None: it may go, and is counted; `counted`: all of its rows are known.

        Raises:
            RefusedInputError: they are not, and are limited.
        """
        request = call.request
        if not counted and self._of(request.tenant).rows_per_s:
            words = f"cannot be counted, and tenant {shown(request.tenant)} may send so many each second"
            remedy = "send it to infer, with shapes, and large tensors as binary data"
            raise RefusedInputError("rows", f"rows: those of this request {words}; {remedy}")
        # No header makes the rows fewer.
        costs = _Costs(1.0, float(max(request.rows, call.message_rows)), float(request.prompt_tokens))
        wait_s = self._wait_s(request.tenant, costs)
        if not wait_s:
            return None
        self._over_limit()
        words = f"tenant {shown(request.tenant)} sends more than it may each second; retry later"
        return TurnedAway(words, wait_s)

    def settle(self, call: Call, prompt_tokens: float, output_tokens: float, *, answered: bool, left: bool) -> None:
        """Charge a request, whose prompt was charged by estimate as it came, for what a worker computed of it.

        Args:
            call: The request, which was not turned away.
            prompt_tokens: As a worker tells; 0: the estimate holds.
            output_tokens: That came of its answer.
            answered: A worker answered it to its end.
            left: Its client left a worker that may have computed the prompt, and pays for that.
        """
        bucket = self._buckets.get(call.request.tenant)
        if bucket is None:
            return
        estimated = float(call.request.prompt_tokens)
        computed = answered or left or output_tokens > 0
        tokens = (prompt_tokens or estimated) + output_tokens if computed else 0.0
        left_tokens = bucket.left.tokens + estimated - tokens
        bucket.left = bucket.left._replace(tokens=min(left_tokens, _most(self._of(call.request.tenant)).tokens))

    async def wait(self, tenant: str, message: bytes) -> None:
        """Return once a further message of a stream may go, and is counted."""
        if not self._of(tenant).is_limited:
            return
        try:
            rows = guessed_rows(read(message).fields)
        except OutOfBoundsError:
            rows = MAX_ROWS  # a Triton may read what is not read here
        while wait_s := self._wait_s(tenant, _Costs(1.0, rows)):
            await asyncio.sleep(min(wait_s, _LOOK_S))

    def _of(self, tenant: str) -> TenantLimitsSection:
        return self._named.get(tenant, self._limits)

    def _wait_s(self, tenant: str, costs: _Costs) -> float:
        """0, and the request is counted; else the time until there is enough again for one like it.

        A request of more than a burst goes when the bucket is full, and is paid for afterwards.
        """
        limits, now_s = self._of(tenant), self._now()
        if not limits.is_limited:
            return 0.0
        rates, most = _rates(limits), _most(limits)
        bucket = self._buckets.pop(tenant, None) or _Bucket(most, now_s)
        self._buckets[tenant] = bucket
        if len(self._buckets) > _MOST_TENANTS:
            del self._buckets[next(iter(self._buckets))]
        elapsed_s = max(0.0, now_s - bucket.at_s)
        bucket.at_s = now_s
        grown = zip(bucket.left, rates, most, strict=True)
        bucket.left = _Costs(*(min(full, left + elapsed_s * rate) if rate else full for left, rate, full in grown))
        lacking_s = max(
            (min(cost, full) - left) / rate
            for cost, full, left, rate in zip(costs, most, bucket.left, rates, strict=True)
            if rate
        )
        if lacking_s > 0:
            return lacking_s
        bucket.left = _Costs(*(left - cost for left, cost in zip(bucket.left, costs, strict=True)))
        return 0.0


def _rates(limits: TenantLimitsSection) -> _Costs:
    return _Costs(limits.requests_per_s, limits.rows_per_s, limits.tokens_per_s)


def _most(limits: TenantLimitsSection) -> _Costs:
    return _Costs(*(max(1.0, rate * limits.burst_s) for rate in _rates(limits)))
