"""The config file: how it is read, and what the core and Envoy are told of it (sections: `sections`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from balancer.bootstrap.sections import EnvoySection
from balancer.config.canary import GuardSection, LearningSection, RolloutSection, ShadowSection
from balancer.config.changes import RESTART_FIELDS, leaves, waits_for_restart
from balancer.config.frontend import AUTO, Frontend, frontend_of, of_the_balancer, untraceable, untraceable_rule
from balancer.config.listen import ListenSection, PeersSection, TlsSection
from balancer.config.log import LogSection
from balancer.config.placing import HoldingSection, ZonesSection
from balancer.config.policy_options import policy_class
from balancer.config.sections import (
    AdminSection,
    DecisionLogSection,
    DiscoverySection,
    EstimatorsSection,
    FleetSection,
    LimitsSection,
    ModelSection,
    PolicySection,
    RequestsSection,
    TelemetrySection,
    check_reached,
)
from balancer.files.schema import StrictModel, field_error, validate
from balancer.files.yaml_document import ConfigError, Document, dump, read_document, read_file
from balancer.kernel.settings import GuardSettings, Limits, ModelSettings, Settings, SplitSettings
from balancer.native.state import default_folder
from balancer.proxy.settings import ProxySection, ProxySettings
from balancer.scheduler.canary.selector import CanaryPlan
from policies.base import Policy


def _same(one: PolicySection, other: PolicySection) -> bool:
    return (one.name, one.options) == (other.name, other.options)


class Config(StrictModel):
    """One config file, complete with defaults."""

    policy: PolicySection = Field(default_factory=PolicySection)
    """The rule that picks a worker."""
    guard: GuardSection = Field(default_factory=GuardSection)
    """When a baseline decides in the policy's stead."""
    shadow: ShadowSection | None = None
    """A policy that is asked beside the one that decides."""
    rollout: RolloutSection | None = None
    """A policy that traffic is moved to, step by step."""
    learning: LearningSection = LearningSection()
    """Policies that are trained and put in force by themselves."""
    models: Mapping[str, ModelSection] = {}
    """By model name. Models that are not listed have no restrictions."""
    limits: LimitsSection = LimitsSection()
    """When requests are turned away."""
    holding: HoldingSection = HoldingSection()
    """Requests that wait until a worker has room."""
    zones: ZonesSection = ZonesSection()
    """Which workers are near, and how far they are preferred."""
    estimators: EstimatorsSection = EstimatorsSection()
    """Time constants and priors."""
    requests: RequestsSection = RequestsSection()
    """What is read of a request."""
    telemetry: TelemetrySection = TelemetrySection()
    """What is expected of the agents' reports."""
    discovery: DiscoverySection = DiscoverySection()
    """Which workers exist."""
    fleet: FleetSection = FleetSection()
    """Calls about the fleet."""
    listen: ListenSection = Field(default_factory=ListenSection)  # of this config alone: it resolves `auto`
    """Where the balancer listens."""
    admin: AdminSection = AdminSection()
    """Limits and token of the admin pages."""
    tls: TlsSection = TlsSection()
    """Who may connect where it listens."""
    peers: PeersSection = PeersSection()
    """Balancers that tell each other of their picks."""
    processes: int = Field(default=1, ge=1, le=64)
    """Balancer processes, a core each. Each decides alone, by the same policy, and tells the others of its picks."""
    first_process: int = Field(default=0, ge=0)
    """Number of this machine's first process in `envoy.balancers`, where several machines serve one Envoy."""
    envoy: EnvoySection = EnvoySection()
    """Envoy's bootstrap."""
    proxy: ProxySection = ProxySection()
    """What the front end `proxy` does beside forwarding."""
    log: LogSection = LogSection()
    """Logs."""
    decision_log: DecisionLogSection = DecisionLogSection()
    """Decisions recorded for replay."""
    state_file: str | None = "auto"
    """File in which process i (`FILE.i`) keeps what guard, rollout and splits decided, for its next start. It may be
    lost: delete it to have all decided anew. `auto`: one in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/balancer` or
    `~/.local/state/balancer`. null: none."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the sampling of decisions. Equal seeds and inputs give equal decisions."""

    @model_validator(mode="after")
    def _fleet_is_beside_envoy(self) -> Self:
        self.listen.resolve(on_this_machine=self.envoy.on_this_machine)
        return self

    @model_validator(mode="after")
    def _ports_apart(self) -> Self:
        envoys = {"envoy.listen": self.envoy.listen, "envoy.admin": self.envoy.admin}
        self.listen.check(self.processes, envoys, one_machine=self.envoy.on_this_machine)
        return self

    @model_validator(mode="after")
    def _native_is_possible(self) -> Self:
        folder = self.envoy.shared_folder
        if self.envoy.frontend in (AUTO, "native") and folder is not None and not Path(folder).is_absolute():
            rule = "must be an absolute path: balancer and Envoy may have different working directories"
            raise field_error(("envoy", "shared_folder"), folder, rule)
        endpoints = self.envoy.endpoints_folder
        if endpoints is not None and endpoints != "auto" and not Path(endpoints).is_absolute():
            raise field_error(("envoy", "endpoints_folder"), endpoints, "must be an absolute path, auto or null")
        if self.envoy.frontend != "native":
            return self
        for field, name, why in of_the_balancer(self):
            rule = f"must be pick or proxy while {field} is {name}: {why}"
            raise field_error(("envoy", "frontend"), self.envoy.frontend, rule)
        if self.processes != 1:
            rule = "must be 1 where envoy.frontend is native: Envoys decide over the state of one balancer"
            raise field_error(("processes",), self.processes, rule)
        if not self.envoy.on_this_machine:
            rule = "needs a balancer on the same machine; set pick, or name an address in envoy.balancers that is local"
            raise field_error(("envoy", "frontend"), self.envoy.frontend, rule)
        for field, name, reason in untraceable(self):
            raise field_error(tuple(field.split(".")), name, untraceable_rule(reason))
        return self

    @model_validator(mode="after")
    def _some_are_forwarded(self) -> Self:
        if self.envoy.forwarded and self.envoy.frontend == "proxy":
            rule = "names models beside envoy.frontend: proxy, which forwards all; set pick or native, or name none"
            raise field_error(("envoy", "forwarded"), ", ".join(self.envoy.forwarded), rule)
        return self

    @model_validator(mode="after")
    def _streams_pass_here(self) -> Self:
        if self.envoy.frontend == "proxy" and self.listen.fleet_at is not None:
            return self
        rule = (
            "needs envoy.frontend: proxy, and listen.fleet: else no request of OpenAI's API passes through the balancer"
        )
        if self.proxy.resume:
            raise field_error(("proxy", "resume"), self.proxy.resume, rule)
        for name in self.translated:
            raise field_error(("models", name, "proxy", "openai"), "", rule)
        return self

    @model_validator(mode="after")
    def _ids_are_known_to_one(self) -> Self:
        balancers = max(self.processes, len(self.envoy.balancers))
        for name, row in self.models.items():
            if row.proxy.once_s and balancers > 1:
                rule = "needs one balancer process: several do not know of each other's ids; set 0, or processes: 1"
                raise field_error(("models", name, "proxy", "once_s"), row.proxy.once_s, rule)
        return self

    @model_validator(mode="after")
    def _splits_may_be_served(self) -> Self:
        for name, row in self.models.items():
            if row.split is not None:
                row.split.check(name, row.versions)
        return self

    @model_validator(mode="after")
    def _policies_differ(self) -> Self:
        baseline = self.guard.baseline
        if policy_class(baseline.name).trained:
            rule = "is trained, and may fail where the policy does; name one that is not, such as expected_latency"
            raise field_error(("guard", "baseline", "name"), baseline.name, rule)
        if self.guard.enabled is True and _same(baseline, self.policy):
            rule = "is the policy in force; name another, or set guard.enabled to auto"
            raise field_error(("guard", "baseline", "name"), baseline.name, rule)
        if self.rollout is not None and _same(self.rollout, self.policy):
            rule = "is the policy in force already; remove the section rollout, or name another policy"
            raise field_error(("rollout", "name"), self.rollout.name, rule)
        return self

    @model_validator(mode="after")
    def _tls_on_both_sides(self) -> Self:
        if (self.tls.envoy is None) != (self.envoy.balancer_tls is None):
            rule = "must be set exactly where tls.envoy is: they are the two ends of one connection"
            value = self.envoy.balancer_tls and self.envoy.balancer_tls.model_dump()
            raise field_error(("envoy", "balancer_tls"), value, rule)
        return self

    @model_validator(mode="after")
    def _peers_show_who_they_are(self) -> Self:
        if self.peers.addresses and self.tls.reports is not None and self.peers.tls is None:
            rule = "must be set where tls.reports is: peers take nothing from who shows no certificate"
            raise field_error(("peers", "tls"), None, rule)
        return self

    @model_validator(mode="after")
    def _fleet_is_reached(self) -> Self:
        check_reached(self.fleet.control, self.listen.fleet_at, self.envoy, self.tls, self.processes)
        return self

    @model_validator(mode="after")
    def _admin_has_a_lock(self) -> Self:
        tls = self.tls.admin
        if tls is not None and tls.client_ca_file is None and self.admin.token_file is None:
            rule = "may be left out only where admin.token_file is set; name the authority of the clients' certificates"
            raise field_error(("tls", "admin", "client_ca_file"), None, rule)
        return self

    @property
    def hash(self) -> str:
        """12 hexadecimal digits that are equal exactly for equal effective configs."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def plan(self, policy: Policy) -> CanaryPlan:
        """What guard, shadow and rollout are to do beside `policy`, which is `self.policy.built`."""
        baseline = self.guard.baseline.built
        new = None if self.rollout is None else self.rollout.built
        guarded = self.guard.settings(self.telemetry.stale_after_s)

        def guard(of: Policy | None) -> GuardSettings | None:
            wanted = of is not None and (of.trained if self.guard.enabled == "auto" else self.guard.enabled)
            return guarded if wanted and of != baseline else None

        return CanaryPlan(
            guard=guard(policy),
            baseline=baseline,
            shadow=None if self.shadow is None else self.shadow.built,
            shadow_share=0.0 if self.shadow is None else self.shadow.share,
            rollout=None if self.rollout is None else self.rollout.settings(guarded),
            new=new,
            guard_new=guard(new),
        )

    def settings(self) -> Settings:
        limits = self.limits.model_dump()
        for name in ("max_pending_per_worker", "sheddable_max_pending_per_worker"):
            limits[name] = math.inf if limits[name] is None else limits[name]
        return Settings(
            models={
                name: ModelSettings(int(row.memory_bytes), row.devices, row.versions)
                for name, row in self.models.items()
            },
            limits=Limits(**limits),
            zones=self.zones.settings(),
            holding=self.holding.settings(),
            estimators=self.estimators.settings(),
            reports_required=self.telemetry.required,
            stale_after_s=self.telemetry.stale_after_s,
            sticky_keys=self.requests.sticky_keys,
            slow_start_s=self.discovery.slow_start_s,
            sampled_workers=0 if self._looks_at_all else self.requests.sampled_workers,
            outcome_timeout_s=self.requests.outcome_timeout_s,
        )

    @property
    def _looks_at_all(self) -> bool:
        """Whether a policy that may decide goes by the workers' order, or by keys: a sample would be another policy."""
        policies = (self.policy.built, *(() if self.rollout is None else (self.rollout.built,)))
        return any(policy.needs_key or not policy.equivariant for policy in policies)

    def splits(self) -> dict[str, SplitSettings]:
        return {name: row.split.settings() for name, row in self.models.items() if row.split is not None}

    def proxy_settings(self) -> ProxySettings:
        models = {name: row.proxy for name, row in self.models.items()}
        return ProxySettings(self.proxy, models, self.requests.header_names(), self.requests.tenant_of_user)

    @property
    def translated(self) -> frozenset[str]:
        """Models of Tritons for which the proxy translates OpenAI's requests."""
        return frozenset(name for name, row in self.models.items() if row.proxy.openai is not None)

    @property
    def forwards(self) -> bool:
        return self.envoy.frontend == "proxy" or bool(self.envoy.forwarded)

    @property
    def frontend(self) -> Frontend:
        """Who decides; `auto` resolved, for this machine."""
        return frontend_of(self)[0]

    @property
    def shared_folder(self) -> Path | None:
        """What the front end `native` shares; None: another front end."""
        if self.frontend != "native":
            return None
        named = self.envoy.shared_folder
        return default_folder(self.listen.envoy) if named is None else Path(named)

    @property
    def endpoints_folder(self) -> Path | None:
        """Where Envoys with `native` find the endpoints while no balancer is there; None: nowhere."""
        named, shared = self.envoy.endpoints_folder, self.shared_folder
        if shared is None or named is None:
            return None
        if named != "auto":
            return Path(named)
        # Of no environment but the user's: `balancer envoy` and `balancer serve` have to name the same one.
        state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))
        return state / "balancer" / shared.name if self.envoy.shared_folder is None and state.is_absolute() else None

    def discovery_file(self, config_path: Path) -> Path | None:
        """The file that lists the workers, for a config file at `config_path`; None: `discovery.workers` does."""
        return config_path.parent / self.discovery.file if self.discovery.file is not None else None

    def decision_log_folder(self, config_path: Path) -> Path | None:
        """Where decisions are recorded, for a config file at `config_path`; None: nowhere."""
        return config_path.parent / self.decision_log.folder if self.decision_log.folder is not None else None


def parse(content: bytes | str, source: str) -> Config:
    """The config that a file's content says.

    Raises:
        ConfigError: with every problem found: `source` and line, field, value, what is allowed.
    """
    return validate(Config, read_document(content, source))


def load(path: Path) -> Config:
    """The config in the file at `path`.

    Raises:
        ConfigError: it cannot be read, or a problem is in it.
    """
    return parse(read_file(path), str(path))


def from_mapping(data: Mapping[str, Any], source: str = "config") -> Config:
    """A config from plain data in the shape of the file.

    Raises:
        ConfigError: with every problem found.
    """
    return validate(Config, Document(source, data))


def effective_yaml(config: Config) -> str:
    """A config file with every field, which parses to `config`."""
    return dump(config.model_dump(mode="json"))


def needs_restart(old: Config, new: Config) -> list[str]:
    """The dotted fields that differ and are taken over by a restart only, sorted; empty where all can be swapped."""
    before, after = leaves(old.model_dump(mode="json")), leaves(new.model_dump(mode="json"))
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return sorted(filter(waits_for_restart, differing))


__all__ = [
    "RESTART_FIELDS",
    "Config",
    "ConfigError",
    "effective_yaml",
    "from_mapping",
    "load",
    "needs_restart",
    "parse",
]
