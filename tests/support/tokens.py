"""Real tokens (JWT, ES256) of an issuer with keys of its own."""

import base64
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from balancer.stack.stack import replace_text

ISSUER, AUDIENCE = "https://issuer.example", "inference"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Issuer:
    """Signs tokens."""

    kid: str = "1"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def jwks(self) -> str:
        """The public key, as JSON."""
        numbers = self._key.public_key().public_numbers()
        x, y = (_encoded(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.kid, "x": x, "y": y}
        return json.dumps({"keys": [key]})

    def write(self, path: Path) -> Path:
        """The public key, moved to `path` as whoever renews a file does."""
        replace_text(path, self.jwks())
        return path

    def token(self, subject: str | None = "alice", **claims: Any) -> str:
        """Good for an hour, unless the claims say otherwise; None as value leaves a claim out."""
        payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": int(time.time()) + 3600} | claims
        kept = {name: value for name, value in payload.items() if value is not None}
        head = {"alg": "ES256", "typ": "JWT", "kid": self.kid}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, kept))
        r, s = utils.decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
