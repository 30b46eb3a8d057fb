"""The section `envoy` of the config file, from which the bootstrap is made.

The text under a field is its documentation, in `docs/config.md` too.
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ByteSize, Field, model_validator

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.nodes import check_balancers
from balancer.extproc.names import MOST_FORWARDED
from balancer.files.schema import Address, ConfigFile, Fraction, Name, StrictModel, field_error, is_local

Per = Literal["principal", "tenant", "address"]
Claim = Annotated[str, Field(min_length=1, max_length=128)]

BufferBytes = Annotated[ByteSize, Field(gt=0, lt=2**32)]


def _reachable(balancers: tuple[str, ...]) -> tuple[str, ...]:
    check_balancers(balancers)
    return balancers


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
    """TLS from Envoy to the Tritons, whose certificates have one name in common."""

    rest: bool = True
    """Whether REST goes by TLS too, which needs a proxy beside Triton; false: plain text."""


class OpenAITlsSection(ServerTrustSection):
    """TLS from Envoy to the servers of OpenAI's API, whose certificates have one name in common."""


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


class EnvoySection(StrictModel):
    """What `balancer envoy` and `balancer up` write into Envoy's bootstrap."""

    listen: Address = "0.0.0.0:8080"
    """Where clients send requests, gRPC and HTTP on one port."""
    admin: Address = "127.0.0.1:9901"
    """Envoy's admin interface; never expose it."""
    request_buffer_limit_bytes: BufferBytes = ByteSize(80 * 2**20)
    """Largest gRPC message, such as `80MiB`; larger REST requests are not retried."""
    max_heap_bytes: Annotated[ByteSize, Field(ge=2**26)] = ByteSize(2 * 2**30)
    """Memory at which Envoy is full, such as `2GiB`, below its container's limit. From 90% on it turns requests
    away."""
    access_log: str | None = None
    """File, or `/dev/stdout`, for one JSON object a request."""
    traces: TracesSection | None = None
    """Traces of requests."""
    frontend: Literal["auto", "pick", "native", "proxy"] = "auto"
    """`pick`: Envoy asks the balancer for each request. `native`: a module within Envoy decides, over memory that it
    shares with one balancer process of the same machine and user, and asks where it cannot. `proxy`: the balancer
    forwards inferences itself (section `proxy`). `auto`: `native` where that is possible, without `listen.gateways`,
    `holding.models` and policies that cannot be traced, else `pick`; `balancer check` says which."""
    forwarded: Annotated[tuple[Name, ...], Field(max_length=MOST_FORWARDED)] = ()
    """Models, and names of cascades, that the balancer forwards, where `frontend` is not `proxy`."""
    shared_folder: str | None = None
    """Absolute path of the folder that `native` shares, best in memory; null: one in `/dev/shm`."""
    endpoints_folder: str | None = "auto"
    """Absolute path of a folder with the last endpoints, for an Envoy with `native` that starts while the balancer is
    away. `auto`: in `$XDG_STATE_HOME/balancer` or `~/.local/state/balancer`, none where `shared_folder` is named. null:
    none."""
    overlay: ConfigFile | None = None
    """YAML of Envoy's own bootstrap, relative to the config file, merged over what is printed: see
    operate/listener.md."""
    ready_after_listener: bool = False
    """Whether /ready waits until the listener answers too; `balancer up` sets it."""
    balancers: Annotated[tuple[str, ...], AfterValidator(_reachable)] = ()
    """Address of each balancer process as Envoy reaches it, `host:port` or `unix:/path`, in the order of their numbers;
    empty: as `listen.envoy` says. Without a local one Envoy counts as being on another machine."""
    fleet: Annotated[tuple[str, ...], AfterValidator(_reachable)] = ()
    """Addresses of `listen.fleet` (gRPC) as Envoy reaches them, where it is on another machine."""
    tls: EnvoyTlsSection | None = None
    """TLS of the listener."""
    balancer_tls: BalancerTlsSection | None = None
    """TLS towards the balancer; needed exactly where `tls.envoy` is set."""
    triton_tls: TritonTlsSection | None = None
    """TLS towards the Tritons."""
    openai_tls: OpenAITlsSection | None = None
    """TLS towards the servers of OpenAI's API."""
    jwt: JwtSection | None = None
    """Tokens that clients must show. Not beside `api_keys`."""
    api_keys: ApiKeysSection | None = None
    """API keys that clients must show."""
    open_health: bool = False
    """Whether health calls need neither token nor key."""
    local_rate_limit: LocalRateLimitSection | None = None
    """A limit that each Envoy keeps."""
    rate_limit: RateLimitSection | None = None
    """A limit that a service keeps for all Envoys."""
    audit_log: AuditLogSection | None = None
    """Who asked for what."""

    @model_validator(mode="after")
    def _principals_are_verified(self) -> Self:
        if self.jwt is not None and self.api_keys is not None:
            rule = "cannot stand beside envoy.jwt, which names principals too; keep one of them"
            raise field_error(("api_keys",), self.api_keys.model_dump(), rule)
        verified = self.jwt or self.api_keys or (self.tls and self.tls.client_ca_file)
        needed = "needs envoy.jwt, envoy.api_keys or envoy.tls.client_ca_file; set one of them, or count per address"
        for name, limit in (("local_rate_limit", self.local_rate_limit), ("rate_limit", self.rate_limit)):
            if limit is not None and limit.per != "address" and not verified:
                raise field_error((name, "per"), limit.per, needed)
        return self

    @property
    def on_this_machine(self) -> bool:
        """Whether Envoy reaches a balancer by loopback or a Unix socket, or is not told how."""
        return not self.balancers or any(is_local(balancer) for balancer in self.balancers)
