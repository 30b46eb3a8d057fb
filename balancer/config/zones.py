"""Section `zones`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from balancer.core.settings import ZoneSettings
from balancer.discovery.workers import ZONE
from balancer.files.schema import StrictModel

_ZONES = ZoneSettings()
_MOST = 16


def _each_once(zones: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({zone for zone in zones if zones.count(zone) > 1}):
        raise ValueError(f"has {', '.join(twice)} twice; name each zone once")
    return zones


Zone = Annotated[str, StringConstraints(pattern=ZONE, min_length=1)]
Order = Annotated[tuple[Zone, ...], Field(max_length=_MOST), AfterValidator(_each_once)]


class ZonesSection(StrictModel):
    """Workers of the balancer's own zone first. A request goes to a farther one where that is done sooner by more than
    a bound, or where no nearer worker may serve it. Keys and sequences belong to one worker, wherever that stands."""

    own: Annotated[Zone | None, BeforeValidator(lambda value: None if value == "" else value)] = None
    """The balancer's zone, in the words of `discovery.workers[].zone`; null or empty: zones do not matter."""
    bound_s: float = Field(default=_ZONES.bound_s, ge=0, le=3600)
    """Seconds: nearer workers are preferred while one of them is expected to be done so much later than the best of the
    farther ones at most."""
    order: Order = _ZONES.order
    """Zones, nearest first, such as `[edge, region, core]`: requests spill over from one to the next. The own zone
    comes first wherever it stands here, so all balancers may have one list. Zones that are not named come last, equally
    far."""

    def settings(self) -> ZoneSettings:
        """As the core has them."""
        return ZoneSettings(self.own or "", self.bound_s, self.order)
