"""The options of a policy as a pydantic model, built from the policy's dataclass fields, so each is declared once."""

import dataclasses
import functools
import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import Field, ValidationError, create_model

from balancer.errors import OperatorError
from balancer.files.regular import UnreadableError, read_regular
from balancer.files.schema import StrictModel, did_you_mean, nested_error
from balancer.kernel.policy_answers import is_shipped
from policies import BUILTIN
from policies.base import Policy
from policies.traced import traced

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


@functools.cache
def installed_policies() -> Catalogue:
    """The policies that this process may use, looked up once: a distribution installed later needs a restart."""
    return catalogue()


def policy_class(name: str) -> type[Policy]:
    """The policy of that name, ours or a plug-in's.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    installed = installed_policies()
    for unavailable in installed.unavailable:
        if unavailable.name == name:
            raise ValueError(str(unavailable))
    if name not in installed.policies:
        raise ValueError(f"there is no such policy; {did_you_mean(name, installed.policies)}")
    return installed.policies[name]


@functools.cache
def options_model(policy: type[Policy]) -> type[StrictModel]:
    """The schema of a policy's options: types from its annotations, default, doc and bounds from `policies.option`."""
    hints = get_type_hints(policy)
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(policy):
        if each.metadata.get("from_file"):
            continue
        bounds = {name: each.metadata[name] for name in ("ge", "gt", "le") if name in each.metadata}
        required = each.default is dataclasses.MISSING or each.metadata.get("file")
        default = ... if required else each.default
        fields[each.name] = (hints[each.name], Field(default, description=each.metadata.get("doc"), **bounds))
    return create_model(f"{policy.__name__}Options", __base__=StrictModel, **fields)


def checked_options(policy: type[Policy], options: Mapping[str, Any], folder: Path = Path()) -> dict[str, Any]:
    """All options of the policy, JSON-like, the defaults filled in; files are named from `folder`, and can be used.

    Raises:
        PydanticCustomError: an option does not fit; `schema.validate` unfolds it.
        ValueError: the policy refuses the options together, or a file cannot be used.
    """
    model = options_model(policy)
    try:
        checked = model.model_validate_json(json.dumps(dict(options)))
    except ValidationError as error:
        raise nested_error(error, model) from error
    found = checked.model_dump(mode="json")
    for each in dataclasses.fields(policy):
        if each.metadata.get("file"):
            found[each.name] = str(folder / found[each.name])
    policy(**dict(checked) | found).with_files(read_policy_file)
    return found


def read_policy_file(name: str) -> bytes:
    """The content of a file that an option names; ValueError where it cannot be read."""
    try:
        return read_regular(Path(name))
    except UnreadableError as error:
        raise ValueError(f"file {name} {error}") from error


def build_policy(name: str, options: Mapping[str, Any]) -> Policy:
    """The policy of that name with those options, which `checked_options` has passed."""
    policy = policy_class(name)
    options_read = dict(options_model(policy).model_validate_json(json.dumps(dict(options))))
    made = policy(**options_read).with_files(read_policy_file)
    if not is_shipped(made):
        traced(made)  # now, and not at the first request
    return made
