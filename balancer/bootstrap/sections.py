"""The sections of `envoy` that the bootstrap takes as they are: TLS, who may pass the listener and how often, traces.

The text under a field is its documentation, in `docs/config.md` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.addresses import check_balancers
from balancer.files.schema import Address, ConfigFile, Fraction, StrictModel, field_error

Per = Literal["principal", "tenant", "address"]
Claim = Annotated[str, Field(min_length=1, max_length=128)]


def _service(address: str) -> str:
    check_balancers((address,))
    return address


class EnvoyTlsSection(StrictModel):
    """Certificate of Envoy's listener; absolute paths where Envoy runs."""

    cert_file: str
    """Certificate chain of the server."""
    key_file: str
    """Its private key."""
    client_ca_file: str | None = None
    """Authority that clients' certificates must come from; null: they need none."""


class ServerTrustSection(StrictModel):
    """What Envoy trusts and shows towards servers of one kind, in PEM files. Envoy reads them, maybe on another
    machine: give absolute paths."""

    ca_file: str
    """Authority that the server's certificate must come from."""
    server_name: Annotated[str, Field(min_length=1)]
    """Name in the server's certificate; sent as SNI."""
    cert_file: str | None = None
    """Certificate chain that Envoy shows, where the server asks for one."""
    key_file: str | None = None
    """Its private key."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; give both or neither")
        return self

    def trust(self) -> BalancerTls:
        """By its files."""
        certificate, key = (None if name is None else Path(name) for name in (self.cert_file, self.key_file))
        return BalancerTls(Path(self.ca_file), self.server_name, certificate, key)


class BalancerTlsSection(ServerTrustSection):
    """What Envoy trusts and shows towards the balancer; absolute paths where Envoy runs."""


class TritonTlsSection(ServerTrustSection):
    """TLS from Envoy to the workers, whose certificates have one name in common."""

    rest: bool = True
    """Whether REST goes by TLS too, which needs a proxy beside Triton; false: plain text."""


class JwtSection(StrictModel):
    """Tokens (`authorization: Bearer TOKEN`) that clients must show. Envoy verifies signature, issuer, audience and
    times; tokens without an expiry are refused."""

    issuer: Annotated[str, Field(min_length=1)]
    """The claim `iss`."""
    audiences: Annotated[tuple[str, ...], Field(min_length=1)]
    """One must be in the claim `aud`."""
    jwks_file: ConfigFile | None = None
    """File of the issuer's public keys (JWKS). `balancer envoy` reads it: run it again (with `--secrets`) when keys
    change."""
    jwks_url: str | None = None
    """Where the issuer publishes them, in place of a file; Envoy asks every 5 minutes."""
    principal_claim: Claim = "sub"
    """Claim that says who sends a request."""
    tenant_claim: Claim | None = None
    """Claim that names the tenant; null: the principal is the tenant."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.jwks_file is None) == (self.jwks_url is None):
            raise ValueError("give exactly one of jwks_file and jwks_url")
        if self.jwks_file is not None and not Path(self.jwks_file).is_absolute():
            raise field_error(
                ("jwks_file",), self.jwks_file, "must be an absolute path: Envoy reads it, maybe elsewhere"
            )
        if self.jwks_url is not None and not _is_url(self.jwks_url):
            raise field_error(
                ("jwks_url",), self.jwks_url, "must be a URL of http or https, such as https://idp/jwks.json"
            )
        return self


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and "@" not in url.netloc
    except ValueError:
        return False


class ApiKeysSection(StrictModel):
    """API keys that clients must show in the header `x-api-key`. Whose key it is, is the principal."""

    file: ConfigFile
    """YAML, `CLIENT: KEY` or `CLIENT: [KEY, KEY]`, of 16 characters or more. `balancer envoy FILE --secrets FOLDER`
    reads it: run it again when keys change."""


class LocalRateLimitSection(StrictModel):
    """Requests that each Envoy lets pass; more get 429, RESOURCE_EXHAUSTED."""

    per: Per
    """`principal` (who sends) or `tenant`, as Envoy verified it; or `address` (of IPv6, the first 64 bits)."""
    requests: int = Field(ge=1, lt=2**31)
    """Requests that may pass in `every_s`, and at once."""
    every_s: Annotated[float, Field(ge=0.05, le=86_400)] = 1.0
    """Seconds."""


class RateLimitSection(StrictModel):
    """Requests that all Envoys let pass, as a rate limit service (RLS v3) says; without its answer they pass."""

    service: Annotated[str, AfterValidator(_service)]
    """Its gRPC address: `host:port`, or `unix:/path`."""
    per: Per
    """As in `local_rate_limit`; the descriptor's key (`masked_remote_address` for `address`)."""


class AuditLogSection(StrictModel):
    """One JSON object a request: who asked for what, and who served it."""

    file: Annotated[str, Field(min_length=1)]
    """File, or `/dev/stdout`."""


class TracesSection(StrictModel):
    """Traces of requests, sent by Envoy to a collector, and gone on with by Triton."""

    collector: Address
    """OTLP over gRPC in plain text: a collector on the same machine, by custom at port 4317."""
    share: Fraction = 0.01
    """Share of requests that are traced, of those without a trace of their own."""
    follow_clients: bool = True
    """Whether a client's `traceparent` counts; false: it is removed."""
