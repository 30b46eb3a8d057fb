"""The certificate of a listener: read, matched with its key, and read again when its files change."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel

from balancer.config.listen import AdminListenerTls, EnvoyListenerTls, GatewaysListenerTls, ReportsListenerTls
from balancer.files.off_loop import OffLoop
from balancer.files.regular import UnreadableError, read_regular
from balancer.files.watch import READ_LIMIT_S
from balancer.files.yaml_document import ConfigError, Problem

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_SOON = datetime.timedelta(days=14)
_LAST_PART = 3
"""Certificates that live for days only are renewed, as a rule, when a third of their time is left."""
_SELF_SIGNED_LIFE = datetime.timedelta(days=3650)
_CLOCKS_APART = datetime.timedelta(days=1)
_SELF_SIGNED_NAME = "balancer"
ListenerTls = EnvoyListenerTls | GatewaysListenerTls | ReportsListenerTls | AdminListenerTls


@dataclass(frozen=True, slots=True)
class Material:
    """What the files of one listener hold, PEM; it fits together."""

    chain: bytes
    key: bytes
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.client_ca)

    def context(self) -> ssl.SSLContext:
        """As asyncio takes it.

        Raises:
            ssl.SSLError: key and certificate do not fit, or one is no PEM.
        """
        context = _with_pair(self.chain, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _with_pair(chain: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL reads files only; this one is in memory, so that no key is written anywhere.
    descriptor = os.memfd_create("certificate")
    with open(descriptor, "wb") as file:
        file.write(chain + b"\n" + key)
        file.flush()
        # Without a password of our own, OpenSSL would ask for an encrypted key's at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    return context


def tls_files(section: BaseModel) -> dict[str, str]:
    return {name: file for name, file in section if name.endswith("_file") and file is not None}


def read_material(name: str, tls: ListenerTls) -> Material:
    """The files that section `tls.NAME` names, or a certificate made here where the config wants one; blocks.

    Raises:
        ConfigError: one cannot be read, or they do not fit together; each problem names its field.
    """
    contents = read_fitting(f"tls.{name}", tls_files(tls))
    if isinstance(tls, GatewaysListenerTls) and tls.self_signed:
        contents["cert_file"], contents["key_file"] = _self_signed()
    return Material(contents["cert_file"], contents["key_file"], contents.get("client_ca_file"))


@cache
def _self_signed() -> tuple[bytes, bytes]:
    """Certificate and private key, PEM: one pair for each process, kept in memory alone. Nobody vouches for it: it
    hides what is sent, and keeps nobody out.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _SELF_SIGNED_NAME)])
    names = x509.SubjectAlternativeName([x509.DNSName(_SELF_SIGNED_NAME), x509.DNSName("localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + _SELF_SIGNED_LIFE)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def read_fitting(section: str, files: Mapping[str, str]) -> dict[str, bytes]:
    """What `files` hold, by field: `cert_file` with `key_file`, and the authority in a field that ends in `ca_file`;
    blocks.

    Raises:
        ConfigError: one cannot be read, or they do not fit together; each problem names its field of `section`.
    """
    contents: dict[str, bytes] = {}
    problems = []
    for field, file in files.items():
        try:
            contents[field] = read_regular(Path(file))
        except UnreadableError as error:
            problems.append(Problem("config", None, f"{section}.{field}", f"{file} {error}"))
    if not problems:
        problems = list(_misfits(section, files, contents))
    if problems:
        raise ConfigError(problems)
    return contents


def _misfits(section: str, files: Mapping[str, str], contents: Mapping[str, bytes]) -> Iterator[Problem]:

    def problem(field: str, message: str) -> Problem:
        return Problem("config", None, f"{section}.{field}", f"{files[field]} {message}")

    sound = []
    for field in files:
        what = "private key" if field == "key_file" else "certificate"
        if f"{what.upper()}-----".encode() in contents[field]:
            sound.append(field)
        else:
            yield problem(field, f"has no {what} in it; name a PEM file that has")
    for field in sound:
        if field.endswith("ca_file"):
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=contents[field].decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                yield problem(field, f"cannot be used: {_reason(error)}; name a PEM file of certificates")
    if "cert_file" in sound and "key_file" in sound:
        try:
            _with_pair(contents["cert_file"], contents["key_file"])
        except (ssl.SSLError, ValueError) as error:
            if _reason(error) == "KEY_VALUES_MISMATCH":
                yield problem("key_file", f"is not the key of {files['cert_file']}; name the two that belong together")
            else:
                yield problem("cert_file", f"and {files['key_file']} cannot be used: {_reason(error)}; check each")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def expiry_warnings(
    section: str, files: Mapping[str, str], contents: Mapping[str, bytes], now: datetime.datetime
) -> Iterator[tuple[bool, str, str]]:
    """What to say of the time of the certificates in `files` of a section of the config: for each whether it is of no
    use at `now`, its dotted field, and the words, with a remedy.
    """
    for field, file in files.items():
        if field in contents and field != "key_file":
            useless, words = _expiry_warning(contents[field], now, authorities=field.endswith("ca_file"))
            if words:
                yield useless, f"{section}.{field}", f"{file} {words}"


def _expiry_warning(pem: bytes, now: datetime.datetime, *, authorities: bool) -> tuple[bool, str]:
    """All certificates of a chain must be valid. Of `authorities` one is enough: others may have been left in on
    purpose.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        return False, f"its certificates' time cannot be read ({error}); look at it with openssl x509 -enddate"
    choose = max if authorities else min
    first = choose(found, key=lambda each: each.not_valid_after_utc)
    since, until = first.not_valid_before_utc, first.not_valid_after_utc
    if until <= now:
        return True, f"expired on {until:%Y-%m-%d %H:%M UTC}; renew it"
    if since > now:
        return True, f"is valid from {since:%Y-%m-%d %H:%M UTC} on only; wait, or set this machine's clock"
    if until - now < min(_SOON, (until - since) / _LAST_PART):
        return False, f"expires on {until:%Y-%m-%d %H:%M UTC}; renew it"
    return False, ""


class Certificates:
    def __init__(self, name: str, tls: ListenerTls) -> None:
        """Reads the files, so it blocks; ConfigError as of `read_material`."""
        self._name = name
        self._tls = tls
        self._refusal = ""
        self._use(read_material(name, tls))

    @property
    def role(self) -> str | None:
        """The subject alternative name that clients must have; None: clients show no certificate."""
        return None if self._tls.client_ca_file is None else self._tls.client_san

    @property
    def expires_s(self) -> float | None:
        """Unix time at which the first certificate of the chain expires; None: unknown."""
        try:
            chain = x509.load_pem_x509_certificates(self._material.chain)
            return min(each.not_valid_after_utc for each in chain).timestamp()
        except ValueError:
            return None

    def credentials(self) -> grpc.ServerCredentials:
        """For one port of a gRPC server: a second port would miss a change that the first has taken."""
        given = self._material

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if given is self._material:
                return None
            given = self._material
            return given.for_grpc()

        return grpc.dynamic_ssl_server_credentials(
            given.for_grpc(),
            fetch,  # type: ignore[arg-type]  # None means no change, which the stubs do not know
            require_client_authentication=given.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For an asyncio server. Every handshake takes the newest certificate and client authority."""
        context = self._material.context()

        def newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._newest

        context.sni_callback = newest
        return context

    async def follow(self, stop: asyncio.Event) -> None:
        """Take over what the files say until `stop` is set. What does not fit is logged once, and changes nothing.

        An expired certificate is served: whoever connects may not mind, and without it nobody could. It is warned of,
        at the start and with each change of the files.
        """
        self._warn_of_expiry()
        reader: OffLoop[Material] = OffLoop(READ_LIMIT_S)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_EVERY_S)
                return
            try:
                self._take(await reader.run(lambda: read_material(self._name, self._tls)))
            except ConfigError as error:
                self._refuse(str(error))
            except TimeoutError:
                self._refuse(f"tls.{self._name}: its files were not read within {READ_LIMIT_S:g} s")

    def _take(self, material: Material) -> None:
        if self._refusal:
            self._refusal = ""
            logger.info("the certificate files of listen.%s can be used again", self._name)
        if material != self._material:
            self._use(material)
            logger.info("listen.%s has a new certificate, for connections from now on", self._name)
            self._warn_of_expiry()

    def _use(self, material: Material) -> None:
        self._newest, self._material = material.context(), material

    def _refuse(self, why: str) -> None:
        if why != self._refusal:
            self._refusal = why
            logger.error("certificate refused, the last good one stays in use: %s", why)

    def _warn_of_expiry(self) -> None:
        contents = {"cert_file": self._material.chain}
        if self._material.client_ca is not None:
            contents["client_ca_file"] = self._material.client_ca
        files, now = tls_files(self._tls), datetime.datetime.now(datetime.UTC)
        for _, field, words in expiry_warnings(f"tls.{self._name}", files, contents, now):
            logger.warning("%s: %s", field, words)
