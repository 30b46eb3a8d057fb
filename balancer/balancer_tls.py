"""What Envoy and the agents need for TLS towards the balancer, and both and the balancer towards the workers."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from balancer.errors import OperatorError


@dataclass(frozen=True, slots=True)
class BalancerTls:
    """One side's files, PEM, and the name that it expects of the balancer. The side that connects reads the files."""

    ca: Path
    server_name: str
    """Required in the certificate's alternative names."""
    certificate: Path | None = None
    """Chain to show to the balancer; None: none is shown."""
    private_key: Path | None = None
    """With `certificate`, or neither."""


def credentials(tls: BalancerTls) -> grpc.ChannelCredentials:
    """For a channel, from the files as they are now: renewed ones are used by the next connection.

    Raises:
        OperatorError: a file cannot be read.
    """
    try:
        pair = (
            tls.private_key.read_bytes() if tls.private_key else None,
            tls.certificate.read_bytes() if tls.certificate else None,
        )
        return grpc.ssl_channel_credentials(tls.ca.read_bytes(), *pair)
    except OSError as error:
        raise OperatorError(f"{error.filename} cannot be read: {error.strerror}; name a PEM file") from error


def contents(tls: BalancerTls) -> tuple[bytes, ...]:
    """Of its files, by which a change is seen.

    Raises:
        OperatorError: a file cannot be read.
    """
    try:
        return tuple(path.read_bytes() for path in (tls.ca, tls.certificate, tls.private_key) if path is not None)
    except OSError as error:
        raise OperatorError(f"{error.filename} cannot be read: {error.strerror}; name a PEM file") from error


def http_context(tls: BalancerTls) -> ssl.SSLContext:
    """For clients of HTTP, from the files as they are now.

    Raises:
        OperatorError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.private_key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(f"{tls.ca} or {tls.certificate} cannot be used: {error}; name PEM files") from error
    return context
