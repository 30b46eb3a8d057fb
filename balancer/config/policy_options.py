"""The options of a policy as a pydantic model, built from the policy's dataclass fields, so each is declared once."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import Field, ValidationError, create_model

from balancer.config.plugins import Catalogue, catalogue
from balancer.files.regular import UnreadableError, read_regular
from balancer.files.schema import StrictModel, did_you_mean, nested_error
from balancer.kernel.policy_answers import is_shipped
from policies.base import Policy
from policies.traced import traced


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
    for field in dataclasses.fields(policy):
        if field.metadata.get("from_file"):
            continue
        bounds = {name: field.metadata[name] for name in ("ge", "gt", "le") if name in field.metadata}
        required = field.default is dataclasses.MISSING or field.metadata.get("file")
        default = ... if required else field.default
        fields[field.name] = (hints[field.name], Field(default, description=field.metadata.get("doc"), **bounds))
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
    for field in dataclasses.fields(policy):
        if field.metadata.get("file"):
            found[field.name] = str(folder / found[field.name])
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
