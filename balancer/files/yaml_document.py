"""A YAML file read strictly: text in, plain data and the line of every field out, or an error that names the place.

Stricter than YAML where YAML surprises: an empty file and duplicate keys are refused, keys are text as written, dates
stay text, and `1e3` is a number (as in YAML 1.2 and JSON). Anchors and aliases work; merge keys and tags do not.
"""

import pathlib
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from balancer.errors import OperatorError
from balancer.files.regular import UnreadableError, read_regular

Path = tuple[str | int, ...]
"""Where in a document: keys and list positions from the top."""

_MAX_NODES = 200_000
"""Aliases of aliases grow exponentially; ten thousand workers need less than this."""
_MAX_DEPTH = 100
"""Of lists and mappings in each other. libyaml's composer recurses in C: without a bound, depth ends the process."""

_SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))
_MAP_TAG = "tag:yaml.org,2002:map"
_SEQUENCE_TAG = "tag:yaml.org,2002:seq"


def dotted(path: Path) -> str:
    """`("models", "a", "versions", 0)` as `models.a.versions[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    source: str
    line: int | None
    """Counted from 1; None where no line is to blame."""
    field: str
    """Dotted; empty for the file as a whole."""
    message: str
    """The offending value, what is allowed, and the remedy."""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line is not None else self.source
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


class ConfigError(OperatorError):
    """A file that is not in force because of `problems`, one line of the message each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def problem(self, path: Path, message: str, *, name: str = "") -> Problem:
        """A problem at `path`, at the line of the innermost part that is really in the file."""
        line = next((self.lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self.lines), None)
        return Problem(self.source, line, name or dotted(path), message)


# libyaml where PyYAML has it: pure Python takes half a minute for 10 MB.
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]  # one of two classes, by what is installed
    """SafeLoader with the resolvers of `_resolvers`."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what `_Loader` would not read as text."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's, without dates and merge keys, and with floats that have an exponent but no point."""
    dropped = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge"}
    resolvers = {
        first: [entry for entry in entries if entry[0] not in dropped]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    exponent = ("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"))
    for first in "-+0123456789":
        resolvers[first] = [*resolvers.get(first, []), exponent]
    return resolvers


_Loader.yaml_implicit_resolvers = _resolvers()
_Dumper.yaml_implicit_resolvers = _resolvers()


class _Reader:
    """One walk over the nodes of a document, collecting lines and problems."""

    def __init__(self, loader: _Loader, source: str) -> None:
        self._loader = loader
        self._source = source
        self._open: set[int] = set()
        self._nodes = 0
        self.lines: dict[Path, int] = {}

    def fail(self, node: yaml.Node, path: Path, message: str) -> ConfigError:
        return ConfigError([Problem(self._source, node.start_mark.line + 1, dotted(path), message)])

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if id(node) in self._open:
            raise self.fail(node, path, "the alias contains itself; write the value out")
        if self._nodes > _MAX_NODES:
            raise self.fail(node, path, f"more than {_MAX_NODES} values once aliases are expanded; write fewer")
        self._open.add(id(node))
        try:
            return self._value(node, path)
        finally:
            self._open.discard(id(node))

    def _value(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP_TAG:
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE_TAG:
            items = []
            for position, item in enumerate(node.value):
                self.lines[*path, position] = item.start_mark.line + 1
                items.append(self.value(item, (*path, position)))
            return items
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS:
            try:
                scalar: Hashable = self._loader.construct_object(node)
            except ValueError as error:
                message = f"{node.value!r} cannot be read: {error}; quote it if it is text"
                raise self.fail(node, path, message) from error
            return scalar
        raise self.fail(node, path, f"the tag {node.tag} is not supported; write the value without it")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fail(key_node, path, "a key must be text, not a list or a mapping")
            key = str(key_node.value)
            here = (*path, key)
            if key in mapping:
                first = self.lines[here]
                raise self.fail(key_node, here, f"is there twice, first in line {first}; keep one of the two")
            self.lines[here] = key_node.start_mark.line + 1
            mapping[key] = self.value(value_node, here)
        return mapping


def _check_size(text: str, source: str) -> None:
    """Refuse what is too deep or has too many values before any of it is made."""
    events = _Loader(text)
    depth = nodes = 0
    while (event := events.get_event()) is not None:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.NodeEvent)
        line = event.start_mark.line + 1
        if depth > _MAX_DEPTH:
            message = f"nested too deeply, in more than {_MAX_DEPTH} lists and mappings; no field needs that"
            raise ConfigError([Problem(source, line, "", message)])
        if nodes > 2 * _MAX_NODES:  # a key and its value are a node each
            raise ConfigError([Problem(source, line, "", f"more than {_MAX_NODES} values; write fewer")])
        if isinstance(event, yaml.StreamEndEvent):
            return


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem(source, line, "", message)]) from error


def read_file(path: pathlib.Path) -> bytes:
    """The content of a file.

    Raises:
        ConfigError: it cannot be read, is no regular file, or is too long.
    """
    try:
        return read_regular(path)
    except UnreadableError as error:
        raise ConfigError([Problem(str(path), None, "", str(error))]) from error


def read_document(content: bytes | str, source: str, bare_list: str = "") -> Document:
    """Parse one YAML document whose top is a mapping; JSON is YAML too. A top that is a list is taken for that of the
    field `bare_list`, where one is named.

    Raises:
        ConfigError: not UTF-8, empty, not YAML, several documents, a duplicate key, or the top is no mapping.
    """
    data, line, lines = _read(content if isinstance(content, str) else _text(content, source), source)
    if data is None:
        message = "the file is empty; write {} where the defaults are really meant"
        raise ConfigError([Problem(source, None, "", message)])
    if bare_list and isinstance(data, list):
        data, lines = {bare_list: data}, {(bare_list, *path): of for path, of in lines.items()}
    if not isinstance(data, dict):
        message = f"the top is {type(data).__name__}, but must be a mapping of sections, such as `policy: {{...}}`"
        raise ConfigError([Problem(source, line, "", message)])
    return Document(source, data, lines)


def read_value(text: str, source: str) -> Any:
    """One value, read as strictly as a file; None where the text is empty.

    Raises:
        ConfigError: not YAML, several documents, or a duplicate key.
    """
    return _read(text, source)[0]


def _read(text: str, source: str) -> tuple[Any, int | None, Mapping[Path, int]]:
    """The data, the line where it begins, and those of all parts."""
    try:
        _check_size(text, source)
        loader = _Loader(text)
        node = loader.get_single_node()
        reader = _Reader(loader, source)
        data = None if node is None else reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        line_of = mark.line + 1 if mark is not None else None
        raise ConfigError([Problem(source, line_of, "", f"not YAML: {reason}; mend the syntax")]) from error
    except yaml.YAMLError as error:
        raise ConfigError([Problem(source, None, "", f"not YAML: {error}; mend the syntax")]) from error
    except RecursionError as error:
        raise ConfigError([Problem(source, None, "", "nested too deeply; no field needs that")]) from error
    return data, None if node is None else node.start_mark.line + 1, reader.lines


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as block-style YAML that `read_document` reads back as it was, keys in the order given."""
    # ASCII, because PyYAML writes U+0085 unescaped otherwise, and reads it back as a line break.
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=120)
