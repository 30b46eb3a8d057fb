"""The sections of the config file. The text under a field is its documentation, in `docs/config.md` too.

Defaults of what the core and Envoy's bootstrap use are theirs, not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from balancer.config.clients import (
    ApiKeysSection,
    AuditLogSection,
    JwtSection,
    LocalRateLimitSection,
    RateLimitSection,
    ServerTrustSection,
    TritonTlsSection,
)
from balancer.config.listen import is_local
from balancer.config.policy_options import build_policy, checked_options, policy_class
from balancer.config.profile_file import load_profile
from balancer.config.proxy import ModelProxySection, Name
from balancer.config.split import SplitSection
from balancer.config.traces import TracesSection
from balancer.core import bounds
from balancer.core.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings
from balancer.files.schema import (
    Address,
    Bytes,
    ConfigFile,
    HeaderName,
    Positive,
    StrictModel,
    field_error,
    join_address,
)
from balancer.files.yaml_document import ConfigError
from balancer.gateway.bootstrap import BootstrapOptions
from balancer.gateway.bootstrap_addresses import check_balancers
from balancer.gateway.kserve import HeaderNames
from balancer.gateway.names import MOST_FORWARDED
from policies.base import Policy

_SETTINGS = Settings()
_LIMITS = Limits()
_ESTIMATORS = EstimatorSettings()
_TOKENS = TokenSettings()
_BOOTSTRAP = BootstrapOptions()
_NAMES = HeaderNames()

Seconds = Annotated[float, Field(gt=0, le=1e6)]
BufferBytes = Annotated[ByteSize, Field(gt=0, lt=2**32)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known_policy(name: str) -> str:
    policy_class(name)
    return name


def _texts(value: Any) -> Any:
    """`[1, 2]` as `("1", "2")`: versions are numbers to whoever writes them, and text to Triton."""
    if not isinstance(value, list):
        return value
    return tuple(str(item) if type(item) is int else item for item in value)


def _reachable(balancers: tuple[str, ...]) -> tuple[str, ...]:
    check_balancers(balancers)
    return balancers


PolicyName = Annotated[str, AfterValidator(_known_policy)]


class PolicySection(StrictModel):
    """The rule that picks a worker. A name alone, such as `policy: wlpr`, is short for `{name: wlpr}`."""

    short_for: ClassVar[str] = "name"

    name: PolicyName = "expected_latency"
    """One of `balancer policies`."""
    options: Mapping[str, Any] = Field(default={}, validate_default=True)
    """The policy's own options, as `balancer policies NAME` explains them."""

    _policy: Policy = PrivateAttr()

    @field_validator("options")
    @classmethod
    def _fits_policy(cls, options: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
        if "name" not in info.data:
            return options
        return checked_options(policy_class(info.data["name"]), options, (info.context or {}).get("folder", Path()))

    @model_validator(mode="after")
    def _build(self) -> Self:
        self._policy = build_policy(self.name, self.options)
        return self

    @property
    def built(self) -> Policy:
        """The policy with its options. Built with the section, so that what its files held then is what serves."""
        return self._policy


class ModelSection(StrictModel):
    """One row of the model table."""

    memory_bytes: Bytes = ByteSize(ModelSettings().memory_bytes)
    """Device memory that the model needs, in bytes or as text such as `12GiB`; a worker known to have less is not
    eligible."""
    devices: tuple[str, ...] = ModelSettings().devices
    """Device kinds that it may run on; empty: any."""
    versions: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ModelSettings().versions
    """Versions that may be served (pinning); empty: all that are loaded."""
    split: SplitSection | None = None
    """Two versions that share the requests; null: what names no version gets Triton's choice."""
    proxy: ModelProxySection = ModelProxySection()
    """What the front end `proxy` does for it."""


class LimitsSection(StrictModel):
    """When requests are turned away (429, RESOURCE_EXHAUSTED) rather than queued."""

    max_pending_per_worker: Positive | None = _finite(_LIMITS.max_pending_per_worker)
    """Workers with this many requests queued or executing take no more; null: no limit."""
    sheddable_priority: int = Field(default=_LIMITS.sheddable_priority, ge=0)
    """Requests with this priority number or a larger (less important) one are sheddable; 0: none is."""
    sheddable_max_pending_per_worker: Positive | None = _finite(_LIMITS.sheddable_max_pending_per_worker)
    """The lower limit that holds for sheddable requests; null: none."""
    shed_late: bool = _LIMITS.shed_late
    """Whether to shed a request whose deadline no worker is expected to meet."""


class TokensSection(StrictModel):
    """The token bucket that every worker has; the policy `token_bucket` picks by it."""

    capacity: float = Field(default=_TOKENS.capacity, ge=1)
    """Tokens in a full bucket, so the largest burst to one worker."""
    refill_per_s: Positive = _TOKENS.refill_per_s
    """Tokens a second into the bucket of a worker with an empty queue."""
    target_pending: Positive = _TOKENS.target_pending
    """Pending requests at which the refill stops; it falls linearly towards there."""


class EstimatorsSection(StrictModel):
    """Time constants and priors of what is estimated of each worker."""

    latency_decay_s: Positive = _ESTIMATORS.latency_decay_s
    """Time constant, in seconds, with which the latency average forgets a peak."""
    error_decay_s: Positive = _ESTIMATORS.error_decay_s
    """Time constant, in seconds, with which the error rate forgets."""
    service_memory: Positive = _ESTIMATORS.service_memory
    """Executions after which a batch's measured service time has lost 63% of its say."""
    service_memory_s: Positive = _ESTIMATORS.service_memory_s
    """Time constant, in seconds, with which service times are forgotten, so that a worker avoided as slow is tried
    again."""
    default_service_s: Positive = _ESTIMATORS.default_service_s
    """Service time, in seconds, assumed of a worker and model of which nothing is known yet, nor of the model
    elsewhere."""
    key_memory: Positive = _ESTIMATORS.key_memory
    """New routing keys sent to a worker after which 63% of those that its cache had are taken to be gone: about as many
    as a worker's cache holds. Of no effect with `sticky_keys`."""
    tokens: TokensSection = TokensSection()
    """Token buckets."""
    profiles: tuple[ConfigFile, ...] = ()
    """Files written by `balancer profile`: what is assumed of a worker until its own executions tell, by its device
    kind and the model. Relative to the folder of the config file; read when the config is."""

    _profiles: dict[tuple[str, str], tuple[float, float]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _load_profiles(self) -> Self:
        for number, name in enumerate(self.profiles):
            try:
                profile = load_profile(Path(name))
            except ConfigError as error:
                raise field_error(("profiles", number), name, str(error)) from error
            for model in profile.models:
                key = (profile.device, model.model)
                if key in self._profiles:
                    rule = f"profiles {model.model} on {profile.device}, as a file before it does; keep one of them"
                    raise field_error(("profiles", number), name, rule)
                self._profiles[key] = model.affine()
        return self

    def settings(self) -> EstimatorSettings:
        """What the core is configured with, the profiles as straight lines."""
        plain = {name: value for name, value in self if name not in ("tokens", "profiles")}
        return EstimatorSettings(**plain, tokens=TokenSettings(**dict(self.tokens)), profiles=self._profiles)


class RequestsSection(StrictModel):
    """What is read of a request, and how its worker is chosen beside the policy.

    A header stands in for what Envoy could not read in the message. It can narrow and never widen: of priority and
    deadline the stricter one counts, and limits, pins and the model table hold whatever a header says. null: no header
    is read for it. Rows alone are the header's wherever it is sent.
    """

    model_header: HeaderName | None = _NAMES.model
    """Header with the model's name, for gateways that do not extract it from the message and set the header themselves;
    never used where path or message name a model."""
    rows_header: HeaderName | None = _NAMES.rows
    """Header with the batch size, in rows, which counts before what the message says. Without it a message of gRPC
    tells; one of REST does with `native` and `proxy`, and counts as one row with `pick`."""
    routing_key_header: HeaderName | None = _NAMES.key
    """Header whose value keeps requests together; `consistent_hash` and `sticky_keys` go by it."""
    sequence_header: HeaderName | None = _NAMES.sequence
    """Header with the sequence id of a stateful model; over REST nothing else tells with `pick`."""
    priority_header: HeaderName | None = _NAMES.priority
    """Header with the priority as Triton numbers it: 1 is the highest, 0 the model's default."""
    deadline_header: HeaderName | None = _NAMES.deadline
    """Header with the milliseconds that the client will still wait; gRPC's own `grpc-timeout` is read anyway."""
    tenant_header: HeaderName | None = _NAMES.tenant
    """Header with the tenant's name. Where Envoy verifies who sends (`envoy.jwt`, `envoy.api_keys`) it sets this header
    itself: print its bootstrap anew when the name changes."""
    sticky_keys: bool = _SETTINGS.sticky_keys
    """Whether a request with a routing key goes to the key's worker whatever the policy."""
    max_fallbacks: int = Field(default=_SETTINGS.max_fallbacks, ge=0, le=bounds.MAX_FALLBACKS)
    """Workers named after the pick, for Envoy to try where nothing was executed."""
    fallbacks_for_all: bool = False
    """Whether gateways other than the bootstrap's Envoy get fallbacks too. Most know no lists of workers, and answer
    503 to one."""
    objectives: Mapping[str, Annotated[int, Field(ge=0, le=bounds.MAX_PRIORITY)]] = {}
    """Priority by the name of an InferenceObjective, which such gateways' clients give in
    `x-gateway-inference-objective`; numbered as in `priority_header`. Those of the cluster
    (`discovery.kubernetes.inference_pool`) count beside, where none of the name stands here."""
    outcome_timeout_s: Seconds = _SETTINGS.outcome_timeout_s
    """A request whose outcome was not heard for so many seconds no longer counts as in flight."""

    def header_names(self) -> HeaderNames:
        """Those that are read."""
        return HeaderNames(
            model=self.model_header,
            rows=self.rows_header,
            key=self.routing_key_header,
            sequence=self.sequence_header,
            priority=self.priority_header,
            tenant=self.tenant_header,
            deadline=self.deadline_header,
        )


class TelemetrySection(StrictModel):
    """What is expected of the agents' reports."""

    required: bool = _SETTINGS.reports_required
    """Whether a worker is eligible only once its agent has reported; without reports, all workers have all models."""
    stale_after_s: Seconds = _SETTINGS.stale_after_s
    """Workers whose last report is older, in seconds, are avoided while others are fresh."""


class AdminSection(StrictModel):
    """What the admin pages at `listen.admin` allow. They are only read, but for `balancer drain`; each connection
    carries one request."""

    max_connections: int = Field(default=64, ge=1, le=4096)
    """Connections at once; for one more, the one that has kept its place longest is cut off."""
    request_timeout_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    """Seconds for a connection, from its start until the last byte of the answer is taken; then it is cut off."""
    max_watchers: int = Field(default=8, ge=1, le=64)
    """Pages that are open and updated at once; one more is refused. Each is one of the connections."""
    inference_pool: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the InferencePool that the workers are: /metrics then has the main figures also under the names that
    dashboards of the Gateway API Inference Extension read (`inference_objective_...`, `inference_pool_...`). null: not
    so."""
    token_file: ConfigFile | None = None
    """File that holds a bearer token (one line, 16 characters or more), without which only `/live` and `/ready` are
    answered; null: none is needed. Relative to the folder of the config file; read again when it changes."""


class EnvoyTlsSection(StrictModel):
    """Certificate of Envoy's listener, in PEM files that Envoy reads, maybe elsewhere: give absolute paths."""

    cert_file: str
    """Certificate chain of the server."""
    key_file: str
    """Its private key."""
    client_ca_file: str | None = None
    """Authority that clients' certificates must come from; null: clients need none."""


class BalancerTlsSection(ServerTrustSection):
    """What Envoy trusts and shows towards the balancer, in PEM files. Envoy reads them, maybe on another machine: give
    absolute paths."""


class EnvoySection(StrictModel):
    """What `balancer envoy` and `balancer up` write into Envoy's bootstrap."""

    listen: Address = join_address(_BOOTSTRAP.listener_address, _BOOTSTRAP.listener_port)
    """Where clients send requests, gRPC and HTTP on one port."""
    admin: Address = join_address(_BOOTSTRAP.admin_address, _BOOTSTRAP.admin_port)
    """Envoy's admin interface; never expose it."""
    message_timeout_s: Seconds = _BOOTSTRAP.message_timeout_s
    """Seconds that Envoy waits for a pick before it falls back to its own least-request."""
    health_timeout_s: Seconds = _BOOTSTRAP.health_timeout_s
    """Seconds of silence after which Envoy takes a balancer process for hung, and stops asking it."""
    access_log_flush_s: Seconds = _BOOTSTRAP.flush_interval_s
    """Seconds for which Envoy gathers outcomes before it sends them to the balancer. With `frontend: native` it has no
    part in this: what is asked about is told of at once."""
    request_buffer_limit_bytes: BufferBytes = ByteSize(_BOOTSTRAP.request_buffer_limit_bytes)
    """Largest gRPC message, in bytes or as text such as `80MiB`; also the largest request that can be retried. Reading
    the model's name out of a message holds the message until it is complete."""
    request_timeout_s: Seconds = _BOOTSTRAP.request_timeout_s
    """Seconds that a request may take to arrive. An answer that begins before ends the count, so a stream of
    inferences lives on once it was answered; an inference that is complete may take any time."""
    max_connections: int = Field(default=_BOOTSTRAP.max_connections, ge=1, lt=2**31)
    """Connections of clients that Envoy holds; one more is closed at once."""
    max_heap_bytes: Annotated[ByteSize, Field(ge=2**26)] = ByteSize(_BOOTSTRAP.max_heap_bytes)
    """Memory at which Envoy is full, in bytes or as text such as `2GiB`; keep it under what its container may use. From
    90% on it turns new requests away (503, UNAVAILABLE), then resets the streams that hold most."""
    access_log: str | None = None
    """File, or `/dev/stdout`, for one JSON object a request; null: none. To rotate a file, move it and POST
    `/reopen_logs` to Envoy's admin interface."""
    traces: TracesSection | None = None
    """Traces of requests; null: none."""
    frontend: Literal["pick", "native", "proxy"] | None = None
    """Who decides: `pick`: the balancer, whom Envoy asks for each request; `native`: a module within Envoy, over what
    the balancer shares in memory, for one balancer process and Envoys of the same machine and user. Where it cannot
    (a shadow's share, or a policy that is neither compiled nor published), the balancer is asked. `proxy`: the
    balancer, which forwards inferences itself (section `proxy`): gRPC's, and with `listen.fleet` those of REST's
    `infer`; for all else it is asked. null: `native` in `balancer up` with one process, else `pick`."""
    forwarded: Annotated[tuple[Name, ...], Field(max_length=MOST_FORWARDED)] = ()
    """Models, and names of `proxy.cascades`, whose inferences the balancer forwards as with `frontend: proxy`, while
    all others go as with `pick` or `native`; refused beside `frontend: proxy`."""
    shared_folder: str | None = None
    """Absolute path of the folder that is shared then, best in memory, such as `/dev/shm/balancer`; null: one in
    `/dev/shm`, by user and `listen.envoy`."""
    ready_after_listener: bool = False
    """Whether /ready waits until the listener answers too; `balancer up` sets it. Envoy may start after the balancer,
    so picks do not wait for it."""
    node_id: str = _BOOTSTRAP.node_id
    """Tells Envoys apart in the balancer's logs."""
    balancers: Annotated[tuple[str, ...], AfterValidator(_reachable)] = ()
    """The address of each balancer process as Envoy reaches it, in the order of their numbers: `host:port`, or
    `unix:/path` (beside which IP addresses may stand, but no names); empty: each process's own address of
    `listen.envoy`, on the same machine where that says all interfaces. Where none of them is loopback or a Unix socket,
    Envoy counts as being on another machine: its ports may be those of `listen`, and its files need not be here."""
    fleet: Annotated[tuple[str, ...], AfterValidator(_reachable)] = ()
    """The addresses of `listen.fleet` (gRPC's) as Envoy reaches them, where it is on another machine; HTTP is beside
    each, as there. Empty: those of this machine."""
    tls: EnvoyTlsSection | None = None
    """TLS of the listener; null: plain text."""
    balancer_tls: BalancerTlsSection | None = None
    """TLS towards the balancer; needed exactly where `tls.envoy` is set."""
    triton_tls: TritonTlsSection | None = None
    """TLS towards the workers; null: plain text."""
    jwt: JwtSection | None = None
    """Tokens that clients must show; null: none. Not beside `api_keys`."""
    api_keys: ApiKeysSection | None = None
    """API keys that clients must show; null: none."""
    open_health: bool = False
    """Whether health calls need no token and no key: REST `/v2/health/live` and `/v2/health/ready`, gRPC `ServerLive`,
    `ServerReady` and `grpc.health.v1.Health`."""
    local_rate_limit: LocalRateLimitSection | None = None
    """A limit that each Envoy keeps; null: none."""
    rate_limit: RateLimitSection | None = None
    """A limit that a service keeps for all Envoys; null: none."""
    audit_log: AuditLogSection | None = None
    """Who asked for what; null: nothing is told."""

    @model_validator(mode="after")
    def _principals_are_verified(self) -> Self:
        if self.jwt is not None and self.api_keys is not None:
            rule = "cannot stand beside envoy.jwt, which names principals too; keep one of them"
            raise field_error(("api_keys",), self.api_keys.model_dump(), rule)
        verified = self.jwt or self.api_keys or (self.tls and self.tls.client_ca_file)
        for name, limit in (("local_rate_limit", self.local_rate_limit), ("rate_limit", self.rate_limit)):
            if limit is not None and limit.per != "address" and not verified:
                rule = (
                    "needs envoy.jwt, envoy.api_keys or envoy.tls.client_ca_file; set one of them, or count per address"
                )
                raise field_error((name, "per"), limit.per, rule)
        return self

    @property
    def on_this_machine(self) -> bool:
        """Whether Envoy reaches a balancer by loopback or a Unix socket, or is not told how."""
        return not self.balancers or any(is_local(balancer) for balancer in self.balancers)
