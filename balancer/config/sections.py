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

from balancer import bounds
from balancer.bootstrap.addresses import check_balancers
from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.bootstrap.sections import (
    ApiKeysSection,
    AuditLogSection,
    BalancerTlsSection,
    EnvoyTlsSection,
    JwtSection,
    LocalRateLimitSection,
    RateLimitSection,
    TracesSection,
    TritonTlsSection,
)
from balancer.config.listen import is_local
from balancer.config.placing import SplitSection
from balancer.config.policy_options import build_policy, checked_options, policy_class
from balancer.config.profile_file import load_profile
from balancer.extproc.kserve import HeaderNames
from balancer.extproc.names import MOST_FORWARDED
from balancer.files.schema import (
    Address,
    Bytes,
    ConfigFile,
    Fraction,
    HeaderName,
    Positive,
    StrictModel,
    field_error,
    join_address,
)
from balancer.files.yaml_document import ConfigError
from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings
from balancer.proxy.settings import ModelProxySection, Name
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
    """The policy's own, as `balancer policies NAME` explains them."""

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
    """Device memory that it needs, such as `12GiB`; workers known to have less are not eligible."""
    devices: tuple[str, ...] = ModelSettings().devices
    """Device kinds that it may run on; empty: any."""
    versions: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ModelSettings().versions
    """Versions that may be served; empty: all that are loaded. A request that names none gets the latest."""
    split: SplitSection | None = None
    """Two versions that share the requests."""
    proxy: ModelProxySection = ModelProxySection()
    """What the front end `proxy` does for it."""


class LimitsSection(StrictModel):
    """When requests are turned away (429, RESOURCE_EXHAUSTED) rather than queued."""

    max_pending_per_worker: Positive | None = _finite(_LIMITS.max_pending_per_worker)
    """Workers with so many requests queued or executing take no more."""
    sheddable_priority: int = Field(default=_LIMITS.sheddable_priority, ge=0)
    """Requests of this priority number or a larger (less important) one are sheddable; 0: none."""
    sheddable_max_pending_per_worker: Positive | None = _finite(_LIMITS.sheddable_max_pending_per_worker)
    """The lower limit for sheddable requests."""
    shed_late: bool = _LIMITS.shed_late
    """Whether to shed requests whose deadline no worker is expected to meet."""


class TokensSection(StrictModel):
    """The token bucket of each worker, for the policy `token_bucket`."""

    capacity: float = Field(default=_TOKENS.capacity, ge=1)
    """Tokens in a full bucket: the largest burst to one worker."""
    refill_per_s: Positive = _TOKENS.refill_per_s
    """Tokens a second while the worker's queue is empty; fewer with a longer queue, none with 16 requests."""


class EstimatorsSection(StrictModel):
    """Time constants and priors of what is estimated of each worker."""

    key_memory: Positive = _ESTIMATORS.key_memory
    """Routing keys that a worker's cache holds. Without effect with `sticky_keys`."""
    tokens: TokensSection = TokensSection()
    """Token buckets."""
    profiles: tuple[ConfigFile, ...] = ()
    """Files of `balancer profile`, relative to the config file: what is assumed of device kinds and models until
    executions tell."""

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
    """What is read of a request, and how its worker is chosen beside the policy. Clients may send `x-batch-rows`,
    `x-routing-key`, `x-sequence-id`, `x-priority` (as Triton numbers it) and `x-deadline-ms`. Of priority and deadline
    the stricter of header and message counts."""

    model_header: HeaderName | None = _NAMES.model
    """Header with the model's name, for gateways that do not read messages; used only where neither path nor message
    has one."""
    tenant_header: HeaderName | None = _NAMES.tenant
    """Header with the tenant's name; null: none is read. With `envoy.jwt` or `envoy.api_keys` Envoy sets it."""
    sticky_keys: bool = _SETTINGS.sticky_keys
    """Whether a request with a routing key goes to the key's worker whatever the policy."""
    fallbacks_for_all: bool = False
    """Whether gateways other than our Envoy get fallbacks too. Most cannot use them, and answer 503."""
    objectives: Mapping[str, Annotated[int, Field(ge=0, le=bounds.MAX_PRIORITY)]] = {}
    """Priority by the name of an InferenceObjective (header `x-gateway-inference-objective`), before those of the
    cluster."""
    outcome_timeout_s: Seconds = _SETTINGS.outcome_timeout_s
    """Seconds without an outcome after which a request no longer counts as in flight."""

    def header_names(self) -> HeaderNames:
        return HeaderNames(model=self.model_header, tenant=self.tenant_header)


class TelemetrySection(StrictModel):
    """What is expected of the agents' reports."""

    required: bool = _SETTINGS.reports_required
    """Whether a worker is eligible only once its agent has reported; without reports, all workers have all models."""
    stale_after_s: Seconds = _SETTINGS.stale_after_s
    """Workers whose last report is older, in seconds, are avoided while others are fresh."""


class LogSection(StrictModel):
    """Structured logs on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`json`, `console` (for people), or `auto`: console at a terminal."""
    decisions_share: Fraction = 0.0
    """Share of decisions that are logged, a line each."""


class DecisionLogSection(StrictModel):
    """Decisions on file, for `balancer replay`: what each rested on, what was decided, how it ended."""

    folder: str | None = None
    """Folder of gzipped JSON lines, relative to the config file; null: nothing is recorded."""
    share: Fraction = 1.0
    """Share of decisions that are recorded."""
    max_files: int = Field(default=16, ge=1)
    """Files of 64 MiB that each process keeps."""


class AdminSection(StrictModel):
    """The pages at `listen.admin`."""

    inference_pool: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the InferencePool that the workers are: /metrics then has its dashboards' names too
    (`inference_objective_...`, `inference_pool_...`)."""
    token_file: ConfigFile | None = None
    """File with a bearer token (one line, 16 characters or more), relative to the config file, that all but `/live` and
    `/ready` need. null: none. Followed."""


class EnvoySection(StrictModel):
    """What `balancer envoy` and `balancer up` write into Envoy's bootstrap."""

    listen: Address = join_address(_BOOTSTRAP.listener_address, _BOOTSTRAP.listener_port)
    """Where clients send requests, gRPC and HTTP on one port."""
    admin: Address = join_address(_BOOTSTRAP.admin_address, _BOOTSTRAP.admin_port)
    """Envoy's admin interface; never expose it."""
    request_buffer_limit_bytes: BufferBytes = ByteSize(_BOOTSTRAP.request_buffer_limit_bytes)
    """Largest gRPC message, such as `80MiB`; larger REST requests are not retried."""
    max_heap_bytes: Annotated[ByteSize, Field(ge=2**26)] = ByteSize(_BOOTSTRAP.max_heap_bytes)
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
    """TLS towards the workers."""
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
