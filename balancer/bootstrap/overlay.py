"""`envoy.overlay`: a file of Envoy's own configuration that is merged over the bootstrap.

Mappings are merged key by key, lists whose items have a `name` item by item; all else takes the place of what the
bootstrap has. An overlay adds and changes, and takes nothing away that the balancer depends on. What it says is checked
against Envoy's API as the package xds-protos has it, field by field: the bootstrap itself may use newer fields.
"""

import functools
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration

from balancer.bootstrap.nodes import Node
from balancer.extproc import names
from balancer.files.schema import did_you_mean, shown
from balancer.files.yaml_document import ConfigError, Document, Path, Problem

_BOOTSTRAP = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"
_TYPE = re.compile(r"type\.googleapis\.com/((?:envoy|xds)(?:\.[a-z0-9_]+)+)\.[A-Z][A-Za-z0-9_]*")
_ACCESS = (
    *(names.JWT_FILTER, names.API_KEYS_FILTER, names.PRINCIPAL_FILTER, names.NAMES_FILTER),
    *(names.LOCAL_RATE_LIMIT_FILTER, names.RATE_LIMIT_FILTER),
)
"""Filters that say who may pass. A new filter stands behind them and before the decision."""
_REPLACEABLE = frozenset(
    (names.JWT_FILTER, names.API_KEYS_FILTER, names.LOCAL_RATE_LIMIT_FILTER, names.RATE_LIMIT_FILTER)
)
"""Named parts whose lists without names an overlay may replace: switches of the config, on which no decision rests."""
_FIXED = frozenset(("cluster", "cluster_name", "disabled", "type"))
"""Fields that say where the balancer's own parts lead, or whether they are there."""
_PLAIN = "google.protobuf."
"""Begins the types that protobuf writes as one JSON value: durations, numbers that may be absent."""
_STRUCT, _ANY, _DURATION = "google.protobuf.Struct", "google.protobuf.Any", "google.protobuf.Duration"
_KINDS = {
    **dict.fromkeys(("INT32", "INT64", "UINT32", "UINT64", "google.protobuf.UInt32Value"), "a whole number"),
    **dict.fromkeys(("FLOAT", "DOUBLE", "google.protobuf.DoubleValue"), "a number"),
    **dict.fromkeys(("BOOL", "google.protobuf.BoolValue"), "true or false"),
    **dict.fromkeys(("STRING", "google.protobuf.StringValue"), "text"),
    "BYTES": "base64",
    _DURATION: "a duration such as 0.5s",
}


def merge(bootstrap: Node, files: Mapping[str, Node], overlay: Document) -> None:
    """Merge an overlay into a complete bootstrap, and into the filters that stand in `files` of their own.

    Raises:
        ConfigError: with every problem found: the overlay's line and field, what is wrong and what helps.
    """
    merging = _Merging(files, overlay)
    merging.message(bootstrap, overlay.data, _found(_BOOTSTRAP), (), False)
    if merging.problems:
        raise ConfigError(merging.problems)


class _Merging:
    def __init__(self, files: Mapping[str, Node], overlay: Document) -> None:
        self._files = files
        self._overlay = overlay
        self.problems: list[Problem] = []

    def _refuse(self, path: Path, message: str) -> None:
        self.problems.append(self._overlay.problem(path, message))

    def message(self, base: Node, over: Any, kind: Descriptor | None, path: Path, replaceable: bool) -> None:
        """Merge `over`, a message of `kind`, into `base`; None: of a kind that is not known here, so unchecked."""
        if not isinstance(over, Mapping):
            self._refuse(path, f"{shown(over)} is not allowed: must be a mapping, as Envoy's {_name(kind)} is one")
            return
        if kind is not None and kind.full_name == _ANY:
            if not self._is_typed(base, over, path):
                return
            kind = _found(str(base.get("@type", over.get("@type"))))
        for key, value in over.items():
            here = (*path, key)
            if value is None:
                self._refuse(here, "null takes nothing away: an overlay adds and changes; leave the field out")
            elif key in _FIXED and (key in base or base.keys() & {"typed_config", "config_discovery"}):
                self._refuse(here, f"{shown(value)} is not allowed: the balancer depends on this part; leave it")
            elif key == "@type" or kind is None:
                self._plain(base, key, value, here)
            elif (field := kind.fields_by_name.get(key)) is None:
                hint = did_you_mean(key, kind.fields_by_name)
                self._refuse(here, f"unknown field of Envoy's {kind.name} (its value is {shown(value)}); {hint}")
            elif other := _excluded(field, base):
                self._refuse(here, f"stands beside {other}, which the bootstrap has; Envoy takes one of both")
            else:
                self._field(base, field, value, here, replaceable)

    def _is_typed(self, base: Node, over: Mapping[str, Any], path: Path) -> bool:
        had, given = base.get("@type"), over.get("@type")
        if given is None and had is None:
            self._refuse(path, 'needs "@type": the bootstrap has nothing here that says which type it is')
        elif had is not None and given not in (None, had):
            self._refuse((*path, "@type"), f"{shown(given)} would replace {had}; add it by another name")
        elif had is None and _found(str(given)) is None and (_modules(str(given)) or not _TYPE.fullmatch(str(given))):
            self._refuse((*path, "@type"), f"{shown(given)} is no type of Envoy's API; write it as Envoy's pages do")
        else:
            return True
        return False

    def _field(self, base: Node, field: FieldDescriptor, value: Any, path: Path, replaceable: bool) -> None:
        below = field.message_type
        if below is not None and below.GetOptions().map_entry:
            self._map(base.setdefault(field.name, {}), below.fields_by_name["value"], value, path, replaceable)
        elif field.is_repeated:
            self._list(base, field, value, path, replaceable)
        elif below is None or (below.full_name.startswith(_PLAIN) and below.full_name not in (_ANY, _STRUCT)):
            if self._fits(field, value, path):
                base[field.name] = value
        elif below.full_name == _STRUCT:
            self._plain(base, field.name, value, path)
        elif field.name == "typed_config" and "config_discovery" in base:
            (resource,) = self._files[f"{base['name']}.yaml"]["resources"]
            self.message(resource["typed_config"], value, below, path, replaceable)
        else:
            self.message(base.setdefault(field.name, {}), value, below, path, replaceable)

    def _map(self, base: Node, value_field: FieldDescriptor, over: Any, path: Path, replaceable: bool) -> None:
        if not isinstance(over, Mapping):
            self._refuse(path, f"{shown(over)} is not allowed: must be a mapping")
            return
        for key, value in over.items():
            if value_field.message_type is None:
                base[key] = value
            else:
                self.message(base.setdefault(key, {}), value, value_field.message_type, (*path, key), replaceable)

    def _list(self, base: Node, field: FieldDescriptor, over: Any, path: Path, replaceable: bool) -> None:
        if not isinstance(over, list):
            self._refuse(path, f"{shown(over)} is not allowed: must be a list")
            return
        had: list[Any] = base.get(field.name, [])
        below = field.message_type
        by_name = bool(over) and all(isinstance(item, Mapping) and "name" in item for item in over)
        if below is not None and by_name:
            base[field.name] = had
            for number, item in enumerate(over):
                self._named(had, field, item, (*path, number), replaceable)
            return
        if had and not replaceable:
            what = f"{len(had)} that the balancer depends on, and would lose them"
            self._refuse(path, f"a list whose items have no `name` would replace the bootstrap's, of {what}; leave it")
            return
        if below is None:
            fitting = [item for number, item in enumerate(over) if self._fits(field, [item], (*path, number))]
            base[field.name] = fitting
            return
        base[field.name] = [{} for _ in over]
        for number, (new, item) in enumerate(zip(base[field.name], over, strict=True)):
            self.message(new, item, below, (*path, number), replaceable)

    def _named(self, had: list[Any], field: FieldDescriptor, item: Any, path: Path, replaceable: bool) -> None:
        name = item["name"]
        same = [each for each in had if isinstance(each, dict) and each.get("name") == name]
        if len(same) > 1:
            self._refuse(path, f"the bootstrap has {len(same)} of the name {shown(name)}, so none is meant; leave it")
            return
        if same:
            self.message(same[0], item, field.message_type, path, replaceable or name in _REPLACEABLE)
            return
        new: Node = {}
        self.message(new, item, field.message_type, path, True)
        had.insert(_PLACES.get(field.name, len)(had), new)

    def _fits(self, field: FieldDescriptor, value: Any, path: Path) -> bool:
        message = cast(Any, message_factory.GetMessageClass(field.containing_type))()
        try:
            json_format.ParseDict({field.name: value}, message)
        except json_format.ParseError as error:
            self._refuse(path, f"{shown(value)} is not allowed: must be {_wanted(field) or error}")
            return False
        if isinstance(getattr(message, field.name), Duration) and getattr(message, field.name).ToNanoseconds() < 0:
            self._refuse(path, f"{shown(value)} is not allowed: must be {_KINDS[_DURATION]}, which is not negative")
            return False
        return self._is_finite(value, path)

    def _plain(self, base: Node, key: str, value: Any, path: Path) -> None:
        if not self._is_finite(value, path):
            return
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            for inner, each in value.items():
                self._plain(base[key], inner, each, (*path, inner))
        else:
            base[key] = value

    def _is_finite(self, value: Any, path: Path) -> bool:
        """Whether no number of a value is infinite or none at all, which JSON cannot carry."""
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(path, f"{value} is not allowed: must be a finite number")
            return False
        parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        return all(self._is_finite(each, (*path, at)) for at, each in parts)


def _before_the_decision(filters: list[Any]) -> int:
    return next(at for at, each in enumerate([*filters, {"name": ""}]) if each["name"] not in _ACCESS)


_PLACES: Mapping[str, Callable[[list[Any]], int]] = {
    "http_filters": _before_the_decision,
    # The bootstrap's own end with one for whatever is left.
    "routes": lambda _: 0,
}
"""Where a new item goes in a list whose order counts; in others it is the last."""


def _excluded(field: FieldDescriptor, base: Node) -> str:
    choice = field.containing_oneof
    if choice is None or (field.name == "typed_config" and "config_discovery" in base):
        return ""
    return next((each.name for each in choice.fields if each.name != field.name and each.name in base), "")


def _wanted(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return "one of " + ", ".join(value.name for value in field.enum_type.values)
    kinds = {getattr(FieldDescriptor, f"TYPE_{name}"): text for name, text in _KINDS.items() if name.isupper()}
    return _KINDS.get(field.message_type.full_name, "") if field.message_type else kinds.get(field.type, "")


def _name(kind: Descriptor | None) -> str:
    return "message" if kind is None else kind.name


_pool: Callable[[], Any] = descriptor_pool.Default


@functools.cache
def _found(url: str) -> Descriptor | None:
    """The type in Envoy's API; None: it has none of that name, as far as it is known here."""
    _modules(url)
    try:
        return cast(Descriptor, _pool().FindMessageTypeByName(url.rpartition("/")[2]))
    except KeyError:
        return None


@functools.cache
def _modules(url: str) -> list[ModuleType]:
    """Those that tell protobuf of the type and its neighbours; empty: the package is not known here."""
    if (match := _TYPE.fullmatch(url)) is None:
        return []
    try:
        folder = importlib.import_module(match[1])
    except ImportError:
        return []
    return [importlib.import_module(each.name) for each in pkgutil.iter_modules(folder.__path__, f"{match[1]}.")]
