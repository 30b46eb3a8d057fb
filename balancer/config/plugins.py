"""Policies that are installed: the built-in ones, and those that other distributions add by entry point.

A distribution adds a policy with, in its pyproject.toml:

    [project.entry-points."balancer.policies"]
    my_policy = "my_package.my_module:MyPolicy"

where the entry point's name is the policy's `name`.
"""

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

from balancer.errors import OperatorError
from policies import BUILTIN
from policies.base import Policy

GROUP = "balancer.policies"
_OURS = "balancer"

_log = logging.getLogger(__name__)


class PolicyNameClash(OperatorError):
    """Two distributions give a policy the same name, so a config file could mean either."""


@dataclass(frozen=True, slots=True)
class UnavailablePolicy:
    """An entry point that gives no usable policy."""

    name: str
    distribution: str
    entry_point: str
    """What it points at, `module:attribute`."""
    reason: str

    def __str__(self) -> str:
        return (
            f'policy "{self.name}" is unavailable: entry point {self.entry_point} ({GROUP}) of distribution '
            f"{self.distribution}: {self.reason}; repair or uninstall {self.distribution}"
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What there is to choose from."""

    policies: Mapping[str, type[Policy]]
    """By name; the built-in ones first."""
    distributions: Mapping[str, str]
    """The distribution that each comes from."""
    unavailable: tuple[UnavailablePolicy, ...] = field(default=())


def catalogue() -> Catalogue:
    """All policies, and why the unusable ones are so, which is logged as well.

    Reads the metadata of every installed distribution and imports plugins: for start and config changes, not requests.

    Raises:
        PolicyNameClash: two distributions claim one name.
    """
    policies = dict(BUILTIN)
    claims = dict.fromkeys(BUILTIN, _OURS)
    unavailable = []
    for entry_point in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, _distribution(entry))):
        name, distribution = entry_point.name, _distribution(entry_point)
        if name in claims:
            raise PolicyNameClash(
                f'policy "{name}" is claimed by distributions {claims[name]} and {distribution} ({entry_point.value}); '
                f"uninstall {distribution if claims[name] == _OURS else 'one of them'}"
            )
        claims[name] = distribution
        loaded = _load(entry_point)
        if isinstance(loaded, UnavailablePolicy):
            _log.error("%s", loaded)
            unavailable.append(loaded)
        else:
            policies[name] = loaded
    return Catalogue(policies, {name: claims[name] for name in policies}, tuple(unavailable))


def _load(entry_point: EntryPoint) -> type[Policy] | UnavailablePolicy:
    try:
        loaded = entry_point.load()
        reason = _fault(entry_point.name, loaded)
    except Exception as error:  # whatever a stranger's module raises must not take the balancer down
        _log.debug("loading entry point %s", entry_point.value, exc_info=True)
        reason = f"{type(error).__name__}: {error}"
    if reason:
        return UnavailablePolicy(entry_point.name, _distribution(entry_point), entry_point.value, reason)
    policy: type[Policy] = loaded
    return policy


def _fault(name: str, loaded: object) -> str:
    """What keeps this object from being the policy of that name; empty: nothing."""
    if not (isinstance(loaded, type) and issubclass(loaded, Policy)):
        return f"{loaded!r} is not a subclass of policies.base.Policy"
    if inspect.isabstract(loaded):
        return f"{loaded.__name__} does not implement {', '.join(sorted(loaded.__abstractmethods__))}"
    missing = [attribute for attribute in ("name", "summary", "source") if not getattr(loaded, attribute, "")]
    if missing:
        return f"{loaded.__name__} does not set {', '.join(missing)}"
    if loaded.name != name:
        return f'its name is "{loaded.name}"; call the entry point so too'
    undocumented = [option.name for option in dataclasses.fields(loaded) if "doc" not in option.metadata]
    if undocumented:
        return f"options {', '.join(undocumented)} are not declared with policies.base.option"
    loaded()  # defaults that the policy itself refuses are its fault, not the config's
    return ""


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "(unknown distribution)"
