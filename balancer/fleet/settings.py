"""What the calls about the fleet are configured with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from balancer.config.config import Config
from balancer.config.fleet import ANYBODY
from balancer.config.listen import is_local


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Who may change the workers through the listener."""

    callers: frozenset[str]
    """Principals as Envoy verified them; empty: nobody."""
    timeout_s: float
    """Of one worker."""
    file: Path | None
    """Where changes are kept that workers which join later have to make too; None: in memory only."""
    one_host: bool
    """Whether clients share the workers' machine, as far as the config tells."""

    def allows(self, principal: str) -> bool:
        """Whether this caller may."""
        return principal in self.callers or ANYBODY in self.callers


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How one Triton is made of many."""

    name: str
    """That the server's metadata says."""
    ready_workers: int
    """So many must be ready for the server to be."""
    timeout_s: float
    """Of one worker, for a question."""
    control: ControlSettings


def settings_of(config: Config) -> FleetSettings:
    """Those of a config."""
    fleet, control = config.fleet, config.fleet.control
    return FleetSettings(
        fleet.name,
        fleet.ready_workers,
        fleet.timeout_s,
        ControlSettings(
            frozenset(control.callers),
            control.timeout_s,
            None if control.file is None else Path(control.file),
            is_local(config.envoy.listen),
        ),
    )
