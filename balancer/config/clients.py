"""The sections of `envoy` that say who may pass its listener, how often, and what is told of it.

The text under a field is its documentation, in `docs/config.md` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from balancer.balancer_tls import BalancerTls
from balancer.files.schema import ConfigFile, HeaderName, StrictModel, field_error
from balancer.gateway.bootstrap_access import ApiKeys, GlobalLimit, Jwt, LocalLimit, Per
from balancer.gateway.bootstrap_addresses import check_balancers
from balancer.gateway.bootstrap_logs import AuditLog
from balancer.gateway.bootstrap_tls import TritonTls

Claim = Annotated[str, Field(min_length=1, max_length=128)]
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _service(address: str) -> str:
    check_balancers((address,))
    return address


class ServerTrustSection(StrictModel):
    """What Envoy trusts and shows towards servers of one kind, in PEM files. Envoy reads them, maybe on another
    machine: give absolute paths."""

    ca_file: str
    """Authority that the server's certificate must come from."""
    server_name: Annotated[str, Field(min_length=1)]
    """A name in the server's certificate; sent as SNI and required."""
    cert_file: str | None = None
    """Certificate chain that Envoy shows, where the server asks for one; with `key_file`."""
    key_file: str | None = None
    """Its private key."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; give both or neither")
        return self

    def options(self) -> BalancerTls:
        """For the bootstrap."""
        return BalancerTls(Path(self.ca_file), self.server_name, _path(self.cert_file), _path(self.key_file))


class TritonTlsSection(ServerTrustSection):
    """TLS from Envoy to the workers. All of them have a certificate with the same name, beside names of their own."""

    rest: bool = True
    """Whether REST goes by TLS too. Triton has TLS at its gRPC port only, so REST needs a proxy beside it that ends
    TLS; false: REST goes in plain text."""

    def triton_options(self) -> TritonTls:
        """For the bootstrap."""
        return TritonTls(self.options(), self.rest)


class JwtSection(StrictModel):
    """Tokens (JWT) that clients must show, as `authorization: Bearer TOKEN`. Envoy verifies signature, issuer, audience
    and times, and takes the token out of the request. Tokens without an expiry are refused."""

    issuer: Annotated[str, Field(min_length=1)]
    """The claim `iss`, exactly."""
    audiences: Annotated[tuple[str, ...], Field(min_length=1)]
    """One of these must be in the claim `aud`."""
    jwks_file: ConfigFile | None = None
    """File of the issuer's public keys (JWKS), relative to the folder of the config file. `balancer envoy` reads it;
    where that wrote into a folder (`--secrets`), run it again when the keys have changed: Envoy needs no restart."""
    jwks_url: str | None = None
    """Where the issuer publishes them, in place of `jwks_file`; Envoy asks there at its start and every 5 minutes."""
    jwks_ca_file: str = SYSTEM_AUTHORITIES
    """Authorities that the certificate of an https `jwks_url` may come from; Envoy reads the file at its start."""
    principal_claim: Claim = "sub"
    """The claim that says who sends a request."""
    tenant_claim: Claim | None = None
    """The claim that names the tenant; it replaces the header `requests.tenant_header`. null: the principal is the
    tenant."""

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

    def options(self) -> Jwt:
        """For the bootstrap."""
        return Jwt(
            issuer=self.issuer,
            audiences=self.audiences,
            jwks_file=_path(self.jwks_file),
            jwks_url=self.jwks_url or "",
            jwks_ca=Path(self.jwks_ca_file),
            principal_claim=self.principal_claim,
            tenant_claim=self.tenant_claim or "",
        )


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and "@" not in url.netloc
    except ValueError:
        return False


class ApiKeysSection(StrictModel):
    """API keys that clients must show in a header; Envoy takes it out of the request. The client is the principal."""

    file: ConfigFile
    """YAML, `CLIENT: KEY` or `CLIENT: [KEY, KEY]`, 16 characters or more each; relative to the folder of the config
    file. `balancer envoy FILE --secrets FOLDER` reads it and writes what Envoy reads: run it again when keys change."""
    header: HeaderName = "x-api-key"
    """The header that has the key."""

    def options(self) -> ApiKeys:
        """For the bootstrap."""
        return ApiKeys(Path(self.file), self.header)


class LocalRateLimitSection(StrictModel):
    """Requests that each Envoy lets pass, by a token bucket for each of whom it counts; more get 429,
    RESOURCE_EXHAUSTED."""

    per: Per
    """`principal`: who sends, and `tenant`: for whom, as Envoy verified it; `address`: the client's (of IPv6, the
    first 64 bits)."""
    requests: int = Field(ge=1, lt=2**31)
    """That may pass in `every_s`."""
    every_s: Annotated[float, Field(ge=0.05, le=86_400)] = 1.0
    """Seconds; the bucket fills evenly over them."""
    burst: int | None = Field(default=None, ge=1, lt=2**31)
    """Requests at once, at most; null: as many as `requests`."""
    max_counted: int = Field(default=10_000, ge=1, le=1_000_000)
    """That are counted apart at a time. For one more, the one seen least recently begins with a full bucket."""

    def options(self) -> LocalLimit:
        """For the bootstrap."""
        return LocalLimit(self.per, self.requests, self.every_s, self.burst or self.requests, self.max_counted)


class RateLimitSection(StrictModel):
    """Requests that all Envoys together let pass, as a rate limit service (RLS v3) says; more get 429,
    RESOURCE_EXHAUSTED."""

    service: Annotated[str, AfterValidator(_service)]
    """The service's gRPC address: `host:port`, or `unix:/path`."""
    domain: Annotated[str, Field(min_length=1)] = "balancer"
    """What the service calls its limits for these requests."""
    per: Per
    """As in `local_rate_limit`; the descriptor's key, for `address` `masked_remote_address`."""
    timeout_s: Annotated[float, Field(ge=0.001, le=10)] = 0.05
    """Seconds that a request waits for the service's answer."""
    when_away: Literal["allow", "refuse"] = "allow"
    """What becomes of requests without an answer: they pass, or get 503, UNAVAILABLE."""
    tls: ServerTrustSection | None = None
    """TLS towards the service; null: plain text."""

    def options(self) -> GlobalLimit:
        """For the bootstrap."""
        tls = None if self.tls is None else self.tls.options()
        return GlobalLimit(self.per, self.service, self.domain, self.timeout_s, self.when_away == "refuse", tls)


class AuditLogSection(StrictModel):
    """One JSON object a request: who asked for what, whence, and who served it. Written by Envoy."""

    file: Annotated[str, Field(min_length=1)]
    """File, or `/dev/stdout`. To rotate a file, move it and POST `/reopen_logs` to Envoy's admin interface."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of requests that are told, drawn by lot: 1 is all."""

    def options(self) -> AuditLog:
        """For the bootstrap."""
        return AuditLog(self.file, self.share)
