"""Real certificates for the TLS tests, with URI and DNS names, as files."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from balancer.stack.stack import replace_text

_HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, PEM files."""

    cert: Path
    key: Path

    @property
    def serial(self) -> int:
        """The certificate's number."""
        return x509.load_pem_x509_certificate(self.cert.read_bytes()).serial_number

    def credentials(self, authority: Authority) -> grpc.ChannelCredentials:
        """For a client that shows this certificate, and trusts what `authority` signed."""
        return grpc.ssl_channel_credentials(authority.pem, self.key.read_bytes(), self.cert.read_bytes())

    def server(self, authority: Authority) -> tuple[grpc.ServerCredentials, ssl.SSLContext]:
        """For servers of gRPC and HTTP that show this certificate, and ask for one that `authority` signed."""
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.cert, self.key)
        return grpc.ssl_server_credentials([pair], authority.pem, require_client_auth=True), context

    def section(self, authority: Authority) -> dict[str, str]:
        """The part of section `tls` for a listener with this certificate, whose clients `authority` signed."""
        files = {"cert_file": self.cert, "key_file": self.key, "client_ca_file": authority.file}
        return {name: str(path) for name, path in files.items()}


@dataclass
class Authority:
    """Signs certificates, into a folder of its own."""

    folder: Path
    name: str = "authority"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = (
            self._builder(self.name, self._key.public_key()).add_extension(constraints, critical=True)
        ).sign(self._key, hashes.SHA256())
        self.file = self.folder / f"{self.name}.pem"
        self.file.write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        file_stem: str,
        *,
        uri: str | None = None,
        dns: str | Sequence[str] = (),
        ip: str | None = None,
        since: datetime.timedelta = -_HOUR,
        until: datetime.timedelta = _HOUR,
    ) -> Identity:
        """A certificate with these names, at `FILE_STEM.crt` and `.key`; renamed over those that were there. It is
        valid between `since` and `until`, counted from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uris = [] if uri is None else [x509.UniformResourceIdentifier(uri)]
        addresses = [] if ip is None else [x509.IPAddress(ipaddress.ip_address(ip))]
        hosts = [x509.DNSName(each) for each in ([dns] if isinstance(dns, str) else dns)]
        names = [*uris, *hosts, *addresses]
        builder = self._builder(file_stem, key.public_key(), since, until)
        certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
            self._key, hashes.SHA256()
        )
        identity = Identity(self.folder / f"{file_stem}.crt", self.folder / f"{file_stem}.key")
        plain = serialization.NoEncryption()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        replace_text(identity.key, key.private_bytes(encoding, form, plain).decode())
        replace_text(identity.cert, certificate.public_bytes(encoding).decode())
        return identity

    def _builder(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        since: datetime.timedelta = -_HOUR,
        until: datetime.timedelta = _HOUR,
    ) -> x509.CertificateBuilder:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + since)
            .not_valid_after(now + until)
        )


def shown_serial(address: str, trusted: ssl.SSLContext, name: str) -> int:
    """The serial number of the certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusted.wrap_socket(plain, server_hostname=name) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number
