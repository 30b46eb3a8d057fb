"""Files of keys: which client has which API key, and an issuer's public keys (JWKS)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from balancer.errors import OperatorError
from balancer.files.yaml_document import ConfigError, read_document, read_file

MOST_KEYS = 10_000
_CLIENT = re.compile(r"[A-Za-z0-9._@:/-]{1,128}")
_REMEDY = 'give the JSON that the issuer publishes: {"keys": [...]}'
_KEY = re.compile(r"[\x21-\x7e]{16,256}")


def read_keys(path: Path) -> list[tuple[str, str]]:
    """Clients and their keys, a pair for each key.

    The file is YAML: `client: key`, or `client: [key, key]` while one takes the place of another.

    Raises:
        OperatorError: it cannot be read or used; the message names the client, and never a key.
    """
    content = read_file(path)
    try:
        document = read_document(content, str(path))
    except ConfigError as error:
        # Without its words, which quote the file.
        lines = sorted({problem.line for problem in error.problems if problem.line})
        where = f"{path}:{lines[0]}" if lines else str(path)
        raise OperatorError(f"{where}: is no mapping of clients to keys; write `CLIENT: KEY`, a line each") from None
    if not document.data:
        raise OperatorError(f"{path}: has no key; write `CLIENT: KEY`, a line each")
    pairs = [pair for client, value in document.data.items() for pair in _of_client(path, client, value)]
    if len(pairs) > MOST_KEYS:
        raise OperatorError(f"{path}: {len(pairs)} keys are more than {MOST_KEYS}; use tokens (envoy.jwt) for so many")
    owners: dict[str, str] = {}
    for client, key in pairs:
        if key in owners:
            raise OperatorError(f"{path}: {client} has a key of {owners[key]}; give each key once")
        owners[key] = client
    return pairs


def _of_client(path: Path, client: object, value: object) -> list[tuple[str, str]]:
    if not isinstance(client, str) or not _CLIENT.fullmatch(client):
        rule = "has 1 to 128 letters, digits or . _ @ : / -"
        raise OperatorError(f"{path}: a client's name {rule}; {_named(client)} has not")
    given = value if isinstance(value, list) else [value]
    keys = [key for key in given if isinstance(key, str) and _KEY.fullmatch(key)]
    if not keys or len(keys) < len(given):
        rule = "16 to 256 visible ASCII characters in quotes"
        raise OperatorError(f"{path}: {client} needs a key, or a list of keys, of {rule}; one of its own is none")
    return [(client, key) for key in keys]


def _named(client: object) -> str:
    """Cut: whoever writes the line the wrong way round has a key in the place of a name."""
    return f"the one that begins with {str(client)[:4]!r}"


def read_jwks(path: Path) -> str:
    """The file's content, which Envoy can use.

    Raises:
        OperatorError: it cannot be read or used; the message shows none of it.
    """
    content = read_file(path)
    try:
        keys = json.loads(content)["keys"]
        kinds = [key["kty"] for key in keys]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OperatorError(f"{path}: is no JWKS; {_REMEDY}") from error
    if not kinds:
        raise OperatorError(f"{path}: has no key; {_REMEDY}")
    if "oct" in kinds:
        rule = "who can verify with it can sign with it too; let the issuer sign with a private key, such as ES256"
        raise OperatorError(f"{path}: a key is symmetric (kty oct): {rule}")
    return content if isinstance(content, str) else content.decode()
