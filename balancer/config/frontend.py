"""Which front end `envoy.frontend: auto` is, and why; which policies Envoy can decide by."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from balancer.files.schema import shown
from balancer.files.yaml_document import ConfigError, Problem
from balancer.kernel.compiled.library import Library, LibraryError
from balancer.kernel.policy_answers import is_shipped
from balancer.native.envoy_module import Module, ModuleError
from policies.traced import traced

if TYPE_CHECKING:
    from balancer.config.config import Config
    from balancer.config.sections import PolicySection

AUTO: Literal["auto"] = "auto"
Frontend = Literal["pick", "native", "proxy"]
_RULE = "must be a policy that can be traced while Envoy decides by itself (envoy.frontend: native)"


def frontend_of(config: Config) -> tuple[Frontend, str]:
    """The front end, and why it is that one."""
    if config.envoy.frontend != AUTO:
        return config.envoy.frontend, "as envoy.frontend says"
    if why := _not_native(config):
        return "pick", why
    return "native", "one process, Envoy on its machine, kernel and module there"


def _not_native(config: Config) -> str:
    if config.holding.models:
        return "holding.models names models, whose requests only the balancer has wait"
    if config.processes != 1:
        return f"processes is {config.processes}, and Envoy decides by the state of one"
    if config.listen.gateways is not None:
        return "listen.gateways is set, for gateways that ask"
    if not config.envoy.on_this_machine:
        return "Envoy is on another machine, as envoy.balancers says"
    for field, name, reason in untraceable(config):
        return f"{field} is {shown(name)}, which Envoy cannot decide by, since {reason}"
    return _missing()


def third_party_policies(config: Config) -> Iterator[tuple[str, PolicySection]]:
    """The policies of the config that are not the balancer's own: field of the name, and section."""
    for field, section in {
        "policy": config.policy,
        "rollout": config.rollout,
        "shadow": config.shadow,
        "guard.baseline": config.guard.baseline,
    }.items():
        if section is not None and not is_shipped(section.built):
            yield f"{field}.name", section


def untraceable(config: Config) -> Iterator[tuple[str, str, str]]:
    """Policies that Envoy cannot decide by, as nothing compiles them: field, name, and why."""
    for field, section in third_party_policies(config):
        if reason := traced(section.built).reason:
            yield field, section.name, reason


def untraceable_rule(reason: str) -> str:
    """Why a policy is refused, and what to do."""
    return f"{_RULE}, and {reason}; make it traceable (docs/policies.md), or set envoy.frontend: pick and restart"


@functools.cache
def _missing() -> str:
    """Why this installation cannot; empty: it can."""
    try:
        Module(Library())
    except (LibraryError, ModuleError) as error:
        return str(error)
    return ""


def lines(config: Config) -> list[str]:
    """What `auto` stands for in a config, a line a field."""
    found = []
    if config.envoy.frontend == AUTO:
        frontend, why = frontend_of(config)
        found.append(f"envoy.frontend: auto is {frontend} here: {why}")
    if config.listen.fleet == AUTO:
        where = config.listen.fleet_at
        off = "nowhere: Envoy is on another machine, or listen.gateways is set"
        found.append(f"listen.fleet: auto is {where or off}")
    return found


def check_live(started: Config, new: Config, source: str) -> Config:
    """`new`; ConfigError where a balancer that began with `started` cannot do what it says before a restart."""
    if new.envoy.frontend != AUTO or frontend_of(started)[0] != "native":
        return new
    problems = [
        Problem(source, None, field, f"{shown(name)} {untraceable_rule(reason)}")
        for field, name, reason in untraceable(new)
    ]
    if new.holding.models:
        message = (
            "needs a restart: since the start Envoy decides by itself (envoy.frontend: auto), and lets nobody wait; "
            "set envoy.frontend: pick and restart, or name no models"
        )
        problems.append(Problem(source, None, "holding.models", message))
    if problems:
        raise ConfigError(problems)
    return new
