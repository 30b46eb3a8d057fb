"""What every file schema of the balancer shares: the strict model, common types, and errors that name the remedy."""

import ast
import difflib
import functools
import inspect
import ipaddress
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from balancer import bounds
from balancer.files.yaml_document import ConfigError, Document, Path, Problem

_NESTED = "nested"
_ELSEWHERE = "elsewhere"
_MAX_SHOWN = 80


def field_docs(model: type) -> Mapping[str, str]:
    """The docstrings under the fields of a section."""
    kinds = [kind for kind in reversed(model.__mro__) if kind not in (object, BaseModel)]
    return {name: text for kind in kinds for name, text in _docs_in(kind.__module__).get(kind.__name__, {}).items()}


@functools.cache
def _docs_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class and field. We parse a module when an error or the page of fields shows its docstrings: pydantic's
    `use_attribute_docstrings` parses every class at import, which made a process's start a tenth longer."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}  # a module without source: its fields are shown without text
    return {kind.name: dict(_docs_under(kind)) for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)}


def _docs_under(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(kind.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def _describe(schema: dict[str, Any], model: type) -> None:
    for name, text in field_docs(model).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", text)


CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=_describe)
"""Of a section of a file, and of a record that checks its fields whoever makes it (`pydantic.dataclasses`)."""


class StrictModel(BaseModel):
    """A section of a file: immutable, no unknown fields, no guessing at types, docstrings as descriptions."""

    model_config = ConfigDict(**CHECKED, frozen=True)

    short_for: ClassVar[str] = ""
    """The field that a text in the section's place stands for; empty: a section is a mapping."""


UNIX = "unix:"
"""How the address of a Unix socket begins; the socket's path follows."""

ModelT = TypeVar("ModelT", bound=BaseModel)


def split_address(address: str) -> tuple[str, int]:
    """`"127.0.0.1:9002"` or `"[::1]:9002"` as host without brackets and port, 0 to 65535.

    Raises:
        ValueError: not of that form.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError("put an IPv6 address in brackets, such as [::1]:9002")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("write host:port with a port from 0 to 65535, such as 127.0.0.1:9002")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_unix(address: str) -> bool:
    return address.startswith(UNIX)


def is_local(address: str) -> bool:
    if is_unix(address):
        return True
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable(address: str) -> str:
    """How this machine reaches what listens at `address`, which may stand for all of its interfaces."""
    if is_unix(address):
        return address
    host, port = split_address(address)
    return join_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def _address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_address)]


def _beside_config(name: str, info: ValidationInfo) -> str:
    folder: pathlib.Path = (info.context or {}).get("folder", pathlib.Path())
    return str(folder / name)


ConfigFile = Annotated[str, AfterValidator(_beside_config)]
"""A file, relative to the folder of the config file."""

Bytes = Annotated[ByteSize, Field(ge=0)]
"""A number of bytes, or text such as `12GiB`."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

Name = Annotated[str, Field(min_length=1, max_length=bounds.MAX_TEXT_BYTES)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
"""Lower case, as HTTP/2 carries it."""


def nested_error(error: ValidationError, model: type[BaseModel]) -> PydanticCustomError:
    """For a validator that validates its value against another model: an error that keeps each inner place.

    Pydantic flattens a ValidationError raised in a validator into one text; `validate` unfolds this one.
    """
    context = {"errors": error.errors(include_url=False), "model": model}
    return PydanticCustomError(_NESTED, "does not fit", context)


def field_error(path: Path, value: Any, rule: str) -> PydanticCustomError:
    """For a validator of a whole section: an error that blames the field at `path` below it, which has `value`."""
    return PydanticCustomError(_ELSEWHERE, "{rule}", {"path": path, "value": value, "rule": rule})


def validate(model: type[ModelT], document: Document) -> ModelT:
    """The document as `model`. Validators find the folder of the file, absolute, as `folder` in their context.

    Raises:
        ConfigError: with one problem for each field that does not fit.
    """
    try:
        # Through JSON, because a strict model takes a list for a tuple from JSON only.
        context = {"folder": pathlib.Path(document.source).resolve().parent}
        return model.model_validate_json(json.dumps(_spelled_out(model, document.data)), context=context)
    except ValidationError as error:
        problems = _problems(error.errors(include_url=False), model, (), document)
        raise ConfigError(problems) from error


def _spelled_out(model: type[BaseModel], value: Any) -> Any:
    """The value of a section with every text that is short for a section in its long form.

    Not a validator: pydantic hands those plain data, after which a strict model takes no list for a tuple.
    """
    short_for = model.short_for if issubclass(model, StrictModel) else ""
    if short_for and isinstance(value, str):
        return {short_for: value}
    if not isinstance(value, Mapping):
        return value
    found = dict(value)
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if name in found and isinstance(kind, type) and issubclass(kind, BaseModel):
                found[name] = _spelled_out(kind, found[name])
    return found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` where something is close, else the list of all that is known."""
    known = sorted(known)
    return close_to(word, known) or f"known here: {', '.join(known) or 'none'}"


def close_to(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?`; empty: nothing is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f"did you mean {shown(close[0])}?" if close else ""


def shown(value: Any) -> str:
    """A value as a message quotes it: JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _problems(errors: Iterable[Any], model: type[BaseModel], prefix: Path, document: Document) -> list[Problem]:
    schema = model.model_json_schema()
    problems = []
    for error in errors:
        path = tuple(part for part in error["loc"] if part != "[key]")
        if error["type"] == _NESTED:
            inner = error["ctx"]
            problems += _problems(inner["errors"], inner["model"], (*prefix, *path), document)
        else:
            if error["type"] == _ELSEWHERE:
                path = (*path, *error["ctx"]["path"])
            message = _message(error, _at(schema, path), _at(schema, path[:-1]))
            problems.append(document.problem((*prefix, *path), message))
    return problems


def _message(error: Mapping[str, Any], field: Mapping[str, Any], parent: Mapping[str, Any]) -> str:
    kind, value = error["type"], error["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        hint = did_you_mean(str(error["loc"][-1]), parent.get("properties", {}))
        return f"unknown field (its value is {shown(error['input'])}); {hint}"
    about = _first_sentence(field.get("description", ""))
    if kind == "missing":
        return f"is missing and has no default; add it. {about}".rstrip()
    if kind == _ELSEWHERE:
        value, rule = error["ctx"]["value"], error["msg"]
    elif kind.startswith("byte_size"):
        rule = 'must be a whole number of bytes, or text such as "12GiB"'
    elif kind == "string_pattern_mismatch":
        rule = f"must match {error['ctx']['pattern']}"
    elif kind in ("model_type", "mapping_type", "dict_type"):
        rule = "must be a mapping of fields" + (f": {', '.join(field['properties'])}" if "properties" in field else "")
    elif kind == "tuple_type":
        rule = "must be a list"
    else:
        rule = error["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
    stop = "" if rule.endswith("?") else "."
    return f"{shown(value)} is not allowed: {rule}{stop} {about}".rstrip()


def _first_sentence(description: str) -> str:
    text = " ".join(description.split())
    return text.partition(". ")[0].rstrip(".") + "." if text else ""


def _at(schema: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The part of a JSON schema that `path` leads to, with the field's description; empty where it leads nowhere."""
    node: Mapping[str, Any] = _resolve(schema, schema)
    for part in path:
        below = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        below = below if below is not None else node.get("additionalProperties")
        if not isinstance(below, Mapping):
            return {}
        node = _resolve(below, schema)
    return node


def _resolve(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`node` with its reference followed and an optional's null dropped; its own description wins."""
    for choice in node.get("anyOf", ()):
        if "$ref" in choice:
            node = {**choice, **node}
    if "$ref" in node:
        target = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return {**target, **{key: value for key, value in node.items() if key == "description"}}
    return node
