"""What Envoy and the agents need for TLS towards the balancer, and the balancer towards the workers."""

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
