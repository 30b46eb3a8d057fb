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
from pathlib import Path

import grpc
from pydantic import BaseModel

from balancer.config.listen import AdminListenerTls, EnvoyListenerTls, GatewaysListenerTls, ReportsListenerTls
from balancer.files.off_loop import OffLoop
from balancer.files.regular import UnreadableError, read_regular
from balancer.files.watch import READ_LIMIT_S
from balancer.files.yaml_document import ConfigError, Problem
from balancer.security.expiry import expires_s, troubles
from balancer.security.self_signed import self_signed

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
ListenerTls = EnvoyListenerTls | GatewaysListenerTls | ReportsListenerTls | AdminListenerTls


@dataclass(frozen=True, slots=True)
class Material:
    """What the files of one listener hold, PEM; it fits together."""

    chain: bytes
    key: bytes
    client_ca: bytes | None

    def contents(self) -> dict[str, bytes]:
        """The certificates, by field of the config."""
        authority = {} if self.client_ca is None else {"client_ca_file": self.client_ca}
        return {"cert_file": self.chain, **authority}

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """As gRPC takes it."""
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
    with _memory_file(chain + b"\n" + key) as path:
        # Without a password of our own, OpenSSL would ask for an encrypted key's at the terminal.
        context.load_cert_chain(path, password="")
    return context


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("certificate")
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def tls_files(section: BaseModel) -> dict[str, str]:
    """The files that a section of the config names, by field."""
    return {name: file for name, file in section if name.endswith("_file") and file is not None}


def read_material(name: str, tls: ListenerTls) -> Material:
    """The files that section `tls.NAME` names, or a certificate made here where that is asked for; blocks.

    Raises:
        ConfigError: one cannot be read, or they do not fit together; each problem names its field.
    """
    if isinstance(tls, GatewaysListenerTls) and tls.self_signed:
        chain, key = self_signed()
        authority = read_fitting(f"tls.{name}", tls_files(tls)).get("client_ca_file")
        return Material(chain, key, authority)
    contents = read_fitting(f"tls.{name}", tls_files(tls))
    return Material(contents["cert_file"], contents["key_file"], contents.get("client_ca_file"))


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
    """What keeps these from being used."""

    def problem(field: str, message: str) -> Problem:
        return Problem("config", None, f"{section}.{field}", f"{files[field]} {message}")

    holding = {field: "private key" if field == "key_file" else "certificate" for field in files}
    empty = [field for field, what in holding.items() if f"{what.upper()}-----".encode() not in contents[field]]
    for field in empty:
        yield problem(field, f"has no {holding[field]} in it; name a PEM file that has")
    sound = [field for field in files if field not in empty]
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


class Certificates:
    """The certificate of one listener, followed. gRPC asks for it in threads of its own."""

    def __init__(self, name: str, tls: ListenerTls) -> None:
        """Reads the files, so it blocks; ConfigError as of `read_material`."""
        self._name = name
        self._tls = tls
        self._material = read_material(name, tls)
        self._admin_context = self._material.context()
        self._trouble = ""
        self.expires_s = expires_s(self._material.chain)
        """Unix time at which the first certificate of the chain expires; None: unknown."""

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
        """Take over what the files say until `stop` is set. What does not fit is logged once, and changes nothing.

        An expired certificate is served: whoever connects may not mind, and without it nobody could. It is warned of,
        at the start and with each change of the files.
        """
        self._mind_the_time()
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
            self.expires_s = expires_s(material.chain)
            logger.info("listen.%s has a new certificate, for connections from now on", self._name)
            self._mind_the_time()

    def _mind_the_time(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        for _, field, message in troubles(f"tls.{self._name}", tls_files(self._tls), self._material.contents(), now):
            logger.warning("%s: %s", field, message)

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.error("certificate refused, the last good one stays in use: %s", trouble)
