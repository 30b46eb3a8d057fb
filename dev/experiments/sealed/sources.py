"""A digest of the code that a run depends on, so that what is kept of one is used until that code changes."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_OURS = ("balancer", "policies", "simulator")
_CATALOGUE = "policies"
"""Names all policies, of which a run uses one: that one is named by itself."""


@functools.cache
def digest(*modules: str) -> str:
    """Of the modules and all of ours that they import, at any depth; comments and docstrings do not count."""
    content = hashlib.sha256()
    for name in sorted(_closure(modules)):
        content.update(name.encode())
        content.update(_code(name).encode())
    return content.hexdigest()


def _closure(modules: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = [name for module in modules for name in _existing(module)]
    while waiting:
        name = waiting.pop()
        if name not in found and name != _CATALOGUE:
            found.add(name)
            waiting += [each for imported in _imports(name) for each in _existing(imported)]
    return found


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_file(name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _existing(name: str) -> Iterator[str]:
    """The module and the packages around it, as far as they are ours and there."""
    parts = name.split(".")
    if parts[0] in _OURS:
        yield from (each for i in range(len(parts)) if _file(each := ".".join(parts[: i + 1])).is_file())


def _file(name: str) -> Path:
    path = _ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _code(name: str) -> str:
    tree = ast.parse(_file(name).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A string that stands alone documents, and does nothing.
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]  # checked above
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
