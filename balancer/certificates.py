"""The certificate of a listener: read, matched with its key, and read again when its files change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from balancer.config_listen import AdminListenerTls, EnvoyListenerTls, ReportsListenerTls
from balancer.file_watch import READ_LIMIT_S
from balancer.off_loop import OffLoop
from balancer.regular_file import UnreadableError, read_regular
from balancer.yaml_document import ConfigError, Problem

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
ListenerTls = EnvoyListenerTls | ReportsListenerTls | AdminListenerTls


@dataclass(frozen=True, slots=True)
class Material:
    """What the files of one listener hold, PEM; it fits together."""

    chain: bytes
    key: bytes
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """As gRPC takes it."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.client_ca)

    def context(self) -> ssl.SSLContext:
        """As asyncio takes it.

        Raises:
            ssl.SSLError: key and certificate do not fit, or one is no PEM.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # OpenSSL reads files only; this one is in memory, so that no key is written anywhere.
        with _memory_file(self.chain + b"\n" + self.key) as path:
            # Without a password of our own, OpenSSL would ask for an encrypted key's at the terminal.
            context.load_cert_chain(path, password="")
        if self.client_ca is not None:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("certificate")
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def read_material(name: str, tls: ListenerTls) -> Material:
    """The files that section `tls.NAME` names; blocks.

    Raises:
        ConfigError: one cannot be read, or they do not fit together; each problem names its field.
    """
    contents: dict[str, bytes] = {}
    problems = []
    for field in ("cert_file", "key_file", "client_ca_file"):
        file = getattr(tls, field)
        if file is None:
            continue
        try:
            contents[field] = read_regular(Path(file))
        except UnreadableError as error:
            problems.append(Problem("config", None, f"tls.{name}.{field}", f"{file} {error}"))
    if problems:
        raise ConfigError(problems)
    material = Material(contents["cert_file"], contents["key_file"], contents.get("client_ca_file"))
    try:
        material.context()
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError([_misfit(name, tls, material, error)]) from error
    return material


def _misfit(name: str, tls: ListenerTls, material: Material, error: Exception) -> Problem:
    """Which file is to blame for `error`."""
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        message = f"{tls.key_file} is not the key of {tls.cert_file}; name the two that belong together"
        return Problem("config", None, f"tls.{name}.key_file", message)
    for field, content, mark in (
        ("cert_file", material.chain, b"CERTIFICATE-----"),
        ("key_file", material.key, b"PRIVATE KEY-----"),
        ("client_ca_file", material.client_ca, b"CERTIFICATE-----"),
    ):
        if content is not None and mark not in content:
            what = mark.strip(b"-").decode().lower()
            message = f"{getattr(tls, field)} has no {what} in it; name a PEM file that has"
            return Problem("config", None, f"tls.{name}.{field}", message)
    message = f"{tls.cert_file}, {tls.key_file} and {tls.client_ca_file} cannot be used: {reason}; check each"
    return Problem("config", None, f"tls.{name}", message)


class Certificates:
    """The certificate of one listener, followed. gRPC asks for it in threads of its own."""

    def __init__(self, name: str, tls: ListenerTls) -> None:
        """Reads the files, so it blocks; ConfigError as of `read_material`."""
        self._name = name
        self._tls = tls
        self._material = read_material(name, tls)
        self._admin_context = self._material.context()
        self._trouble = ""

    @property
    def role(self) -> str | None:
        """The subject alternative name that clients must have; None: clients show no certificate."""
        return None if self._tls.client_ca_file is None else self._tls.client_san

    def credentials(self) -> grpc.ServerCredentials:
        """For one port of a gRPC server: a second port would miss what the first was told of a change."""
        told = self._material

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            if told is self._material:
                return None
            told = self._material
            return told.for_grpc()

        return grpc.dynamic_ssl_server_credentials(
            told.for_grpc(),
            fetch,  # type: ignore[arg-type]  # None means no change, which the stubs do not know
            require_client_authentication=told.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For an asyncio server. Every handshake takes the newest certificate and client authority."""
        context = self._material.context()

        def newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._admin_context

        context.sni_callback = newest
        return context

    async def follow(self, stop: asyncio.Event) -> None:
        """Take over what the files say until `stop` is set. What does not fit is logged once, and changes nothing."""
        reader: OffLoop[Material] = OffLoop(READ_LIMIT_S)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_EVERY_S)
                return
            try:
                self._take(await reader.run(lambda: read_material(self._name, self._tls)))
            except ConfigError as error:
                self._complain(str(error))
            except TimeoutError:
                self._complain(f"tls.{self._name}: its files were not read within {READ_LIMIT_S:g} s")

    def _take(self, material: Material) -> None:
        if self._trouble:
            self._trouble = ""
            logger.info("the certificate files of listen.%s can be used again", self._name)
        if material != self._material:
            self._admin_context = material.context()
            self._material = material
            logger.info("listen.%s has a new certificate, for connections from now on", self._name)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.error("certificate refused, the last good one stays in use: %s", trouble)
