"""What Envoy and the agents need for TLS towards the balancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BalancerTls:
    """One side's files, PEM, and the name that it expects of the balancer. The side that connects reads the files."""

    ca: Path
    """What signed the balancer's certificate."""
    server_name: str
    """Required in the certificate's alternative names."""
    certificate: Path | None = None
    """Chain to show to the balancer; None: none is shown."""
    private_key: Path | None = None
    """With `certificate`, or neither."""
