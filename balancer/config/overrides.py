"""Fields of the config that the command line sets over the file (`balancer serve --set`)."""

import dataclasses
import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from balancer.config.config import Config, from_mapping
from balancer.files.schema import shown
from balancer.files.yaml_document import ConfigError, Problem

logger = logging.getLogger(__name__)


class Overrides:
    """What the command line sets over the file, now and after every edit of it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values` by dotted field, such as `listen.admin`; ConfigError where there is no such field."""
        self.values = dict(values)
        if problems := [_unknown(field, value) for field, value in values.items() if not _exists(field)]:
            raise ConfigError(problems)

    def __call__(self, config: Config) -> Config:
        """The config with the overrides in place; ConfigError where they do not fit."""
        if not self.values:
            return config
        data, defaults = config.model_dump(mode="json"), Config().model_dump(mode="json")
        for field, value in self.values.items():
            if _get(data, field) not in (value, _get(defaults, field)):
                logger.warning("%s is set on the command line; what the file says of it is not used", field)
            _set(data, field, value)
        try:
            return from_mapping(data, "command line over config")
        except ConfigError as error:
            raise ConfigError(self._blamed(problem) for problem in error.problems) from error

    def _blamed(self, problem: Problem) -> Problem:
        """With the option that the problem is with, where it is with one; the option names its field already."""
        for field, value in self.values.items():
            if f"{problem.field}.".startswith(f"{field}.") or f"{field}.".startswith(f"{problem.field}."):
                within = "" if problem.field == field else problem.field
                return dataclasses.replace(problem, source=_option(field, value), field=within)
        return problem


def _option(field: str, value: Any) -> str:
    return f"--set {field}={shown(value)}"


def _unknown(field: str, value: Any) -> Problem:
    last = field.rpartition(".")[2]
    known = list(_fields(Config))
    # Whoever leaves the section out has the field's own name right.
    close = [name for name in known if name.rpartition(".")[2] == last] or difflib.get_close_matches(field, known, n=3)
    hint = f"did you mean {' or '.join(close[:3])}?" if close else f"known sections: {', '.join(Config.model_fields)};"
    message = f"there is no such field; {hint} docs/config.md lists all"
    return Problem(_option(field, value), None, "", message)


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if (section := _section(field.annotation)) is not None:
            yield from _fields(section, f"{prefix}{name}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *(() if get_origin(annotation) is Mapping else get_args(annotation))):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _exists(field: str) -> bool:
    """Whether the schema has the field, as far as it says; below names of the user's it does not."""
    annotation: Any = Config
    for part in field.split("."):
        section = _section(annotation)
        if section is None:
            return get_origin(annotation) is Mapping
        if part not in section.model_fields:
            return False
        annotation = section.model_fields[part].annotation
    return True


def _get(data: Any, field: str) -> Any:
    for part in field.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _set(data: dict[str, Any], field: str, value: Any) -> None:
    """Set a dotted field, with the sections above it where there are none."""
    *sections, name = field.split(".")
    section = data
    for part in sections:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    section[name] = value
