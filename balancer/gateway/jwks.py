"""The file of an issuer's public keys (JWKS)."""

from __future__ import annotations

import json
from pathlib import Path

from balancer.errors import OperatorError
from balancer.files.yaml_document import read_file

_REMEDY = 'give the JSON that the issuer publishes: {"keys": [...]}'


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
