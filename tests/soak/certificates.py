"""Certificates for mutual TLS between Envoy, agents and the balancer: made anew for each run, and rotated in it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from balancer.files.schema import split_address

SERVER_NAME = "balancer.test"
_VALID = dt.timedelta(days=2)


@dataclass
class Certificates:
    """An authority, and a certificate for each part in a folder."""

    folder: Path
    workers: Sequence[str]
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of the soak")])
        authority = self._begun(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self._put("ca.pem", _pem(authority.sign(self._key, hashes.SHA256())))
        self.rotate()

    def rotate(self) -> None:
        """Give every part a new certificate and key of the same authority, each file by renaming."""
        local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        self._issue("balancer", [x509.DNSName(SERVER_NAME), local])
        self._issue("envoy", [x509.UniformResourceIdentifier("spiffe://balancer/envoy")])
        for worker in self.workers:
            self._issue(f"agent-{worker}", [x509.UniformResourceIdentifier(f"spiffe://balancer/agent/{worker}")])

    def sections(self) -> dict[str, Any]:
        """`tls` and `envoy.balancer_tls` of the config."""
        listener = {**self._pair("balancer"), "client_ca_file": self.path("ca.pem")}
        towards = {"ca_file": self.path("ca.pem"), "server_name": SERVER_NAME, **self._pair("envoy")}
        return {"tls": {"envoy": listener, "reports": listener}, "balancer_tls": towards}

    def agent_arguments(self, worker: str) -> list[str]:
        pair = self._pair(f"agent-{worker}")
        return [
            *("--tls-ca", self.path("ca.pem"), "--tls-name", SERVER_NAME),
            *("--tls-cert", pair["cert_file"], "--tls-key", pair["key_file"]),
        ]

    def is_served(self, address: str) -> bool:
        """Whether a listener shows the balancer's certificate as the file has it now."""
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        pair = self._pair("envoy")
        context.load_cert_chain(pair["cert_file"], pair["key_file"])
        in_file = ssl.PEM_cert_to_DER_cert((self.folder / "balancer.pem").read_text())
        with (
            socket.create_connection(split_address(address), timeout=2.0) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as connection,
        ):
            return connection.getpeercert(binary_form=True) == in_file

    def path(self, name: str) -> str:
        return str((self.folder / name).resolve())

    def _pair(self, part: str) -> dict[str, str]:
        return {"cert_file": self.path(f"{part}.pem"), "key_file": self.path(f"{part}.key")}

    def _issue(self, part: str, names: Sequence[x509.GeneralName]) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, part)])
        begun = self._begun(subject, key).add_extension(x509.SubjectAlternativeName(names), critical=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._put(f"{part}.key", secret)
        self._put(f"{part}.pem", _pem(begun.sign(self._key, hashes.SHA256())))

    def _begun(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + _VALID)
        )

    def _put(self, name: str, content: bytes) -> None:
        draft = self.folder / f"{name}.new"
        draft.write_bytes(content)
        draft.rename(self.folder / name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
