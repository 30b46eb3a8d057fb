"""The sections of the config file. The text under a field is its documentation, in `docs/config.md` too.

Defaults of what the core and Envoy's bootstrap use are theirs, not repeated here.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from balancer import bounds
from balancer.bootstrap.sections import EnvoySection
from balancer.config.listen import TlsSection
from balancer.config.placing import SplitSection
from balancer.config.policy_options import build_policy, checked_options, policy_class
from balancer.config.profile_file import load_profile
from balancer.discovery.cluster.api import MAX_SELECTOR_CHARACTERS, ClusterAccess
from balancer.discovery.pods.watch import PodsWanted
from balancer.discovery.ray_serve import ReplicasWanted
from balancer.discovery.workers import TRITON_PORTS, Port, WorkerList, WorkerProtocol
from balancer.extproc.kserve import HeaderNames
from balancer.files.schema import (
    Bytes,
    ConfigFile,
    Fraction,
    HeaderName,
    Positive,
    StrictModel,
    field_error,
    is_local,
)
from balancer.files.yaml_document import ConfigError
from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings
from balancer.proxy.settings import ModelProxySection
from policies.base import Policy

_SETTINGS = Settings()
_LIMITS = Limits()
_ESTIMATORS = EstimatorSettings()
_TOKENS = TokenSettings()
_NAMES = HeaderNames()

Seconds = Annotated[float, Field(gt=0, le=1e6)]


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
    tenant_of_user: bool = False
    """Whether the member `user` of OpenAI's API names the tenant where no header does. Clients choose it freely, and
    prompts of different tenants share nothing. Not with the front end `native`."""
    sticky_keys: bool = _SETTINGS.sticky_keys
    """Whether a request with a routing key goes to the key's worker whatever the policy."""
    fallbacks_for_all: bool = False
    """Whether gateways other than our Envoy get fallbacks too. Most cannot use them, and answer 503."""
    objectives: Mapping[str, Annotated[int, Field(ge=0, le=bounds.MAX_PRIORITY)]] = {}
    """Priority by the name of an InferenceObjective (header `x-gateway-inference-objective`), before those of the
    cluster."""
    sampled_workers: Annotated[float, Field(ge=0, le=65_536)] = _SETTINGS.sampled_workers
    """A decision looks at about so many of the workers that may be picked, where they are more than sixteen times as
    many: by hash, so that a key has the same each time, and several balancers do not all see the same best; 0: at all.
    `round_robin` and `consistent_hash` look at all."""
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


_ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
_Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class KubernetesSection(StrictModel):
    """Pods as workers, by a watch. Needs the extra `kubernetes`, and a role with get, list and watch on the namespace's
    pods (with `inference_pool` also on InferencePools and InferenceObjectives)."""

    label_selector: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SELECTOR_CHARACTERS)] | None = None
    """Which pods, such as `app=triton`; null: `inference_pool` says so."""
    inference_pool: _ObjectName | None = None
    """Name of an InferencePool (Gateway API Inference Extension), in place of `label_selector`. Its pods, ports and
    InferenceObjectives are followed."""
    namespace: _Namespace | None = None
    """Where the pods are; null: where the balancer is, or the kubeconfig's."""
    kubeconfig: ConfigFile | None = None
    """Credentials of the API, relative to the config file; null: the pod's service account."""
    grpc_port: Port = TRITON_PORTS[0]
    """Triton's gRPC port, where neither an annotation nor a container port `grpc` says one."""
    http_port: Port = TRITON_PORTS[1]
    """Its HTTP port, likewise (`http`)."""

    @model_validator(mode="after")
    def _pods_are_named_once(self) -> Self:
        if (self.label_selector is None) == (self.inference_pool is None):
            raise ValueError("must have either label_selector or inference_pool, which say the pods; keep one of them")
        return self

    def wanted(self) -> PodsWanted:
        kubeconfig = None if self.kubeconfig is None else Path(self.kubeconfig)
        access = ClusterAccess(self.label_selector or "", self.namespace, kubeconfig)
        return PodsWanted(access, (self.grpc_port, self.http_port), pool=self.inference_pool or "")


class DnsSection(StrictModel):
    """The IPv4 addresses of a name as workers, looked up every 5 s. A worker's name is its address; start
    its agent with `--worker 10.0.0.7`."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?$")]
    """Such as `triton.inference.svc.cluster.local`."""
    grpc_port: Port = TRITON_PORTS[0]
    """Triton's gRPC port, the same for all."""
    http_port: Port = TRITON_PORTS[1]
    """Its HTTP port."""

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.grpc_port == self.http_port:
            raise field_error(("http_port",), self.http_port, "is the grpc_port too; each needs one of its own")
        return self


class RaySection(StrictModel):
    """Replicas of Ray Serve's applications as workers, asked for every 0.5 s. Ray must run with
    `RAY_SERVE_ENABLE_DIRECT_INGRESS=1`, and Serve's HTTP host must be an address that Envoy reaches."""

    dashboard: Annotated[str, StringConstraints(pattern=r"^https?://[^/\s@?#]+$", max_length=1024)]
    """URL of the cluster's dashboard, such as `http://ray-head:8265`."""
    applications: tuple[Annotated[str, StringConstraints(min_length=1, max_length=256)], ...] = ()
    """Names of Serve's applications; empty: all."""
    protocol: WorkerProtocol = "triton"
    """What they speak, as in `discovery.workers`. With `triton`, route prefixes are `/` or `/v2/models/NAME`."""
    token_file: ConfigFile | None = None
    """The file with the cluster's token, relative to the config file; null: it asks for none."""

    def wanted(self) -> ReplicasWanted:
        token_file = None if self.token_file is None else Path(self.token_file)
        return ReplicasWanted(self.dashboard, self.applications, self.protocol, token_file)


class DiscoverySection(StrictModel):
    """Which workers exist, by one of five sources."""

    kubernetes: KubernetesSection | None = None
    """Pods of a Kubernetes namespace."""
    dns: DnsSection | None = None
    """The addresses of a name in DNS."""
    ray: RaySection | None = None
    """Replicas of Ray Serve."""
    file: str | None = None
    """A YAML or JSON file with the list `workers`, relative to the config file, and watched."""
    workers: WorkerList = ()
    """The workers themselves."""
    slow_start_s: Annotated[float, Field(ge=0, le=3600)] = _SETTINGS.slow_start_s
    """Seconds over which a new worker's share of requests grows, until its service times are known; 0: it gets all at
    once."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.file is not None and self.workers:
            raise ValueError("names a file and lists workers; keep one of file and workers")
        beside = [name for name in ("kubernetes", "dns", "ray") if getattr(self, name) is not None]
        if len(beside) > 1 or (beside and (self.file is not None or self.workers)):
            raise ValueError(
                f"names {beside[0]} beside another source; keep one of kubernetes, dns, ray, file and workers"
            )
        return self


ANYBODY = "*"
"""In the place of a caller."""


class ControlSection(StrictModel):
    """Who may change the workers by calls: load and unload models, set traces and logs, register shared memory. A
    change goes to all workers, and to those that join later."""

    callers: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names that Envoy verified by key, token or certificate. `*`: everybody who reaches `envoy.listen`, which must
    then be local. Empty: nobody. Print Envoy's bootstrap anew when you fill or empty it."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    """Time limit of a change at one worker."""
    file: ConfigFile | None = None
    """File that keeps changes for workers that join later, relative to the config file. null: in memory, with one
    process."""


class FleetSection(StrictModel):
    """Calls about the fleet, answered at `listen.fleet` as one Triton would."""

    ready_workers: int = Field(default=1, ge=1)
    """Workers that must be ready for the server to be."""
    control: ControlSection = ControlSection()
    """Who may change the workers."""


def check_reached(
    control: ControlSection, listen: str | None, envoy: EnvoySection, tls: TlsSection, processes: int
) -> None:
    """PydanticCustomError, of the whole config, where Envoy does not reach `listen.fleet`, or where changes are taken
    of callers that nobody verified."""
    if listen is not None and not envoy.on_this_machine and not envoy.fleet:
        rule = "must name the addresses of listen.fleet where Envoy is on another machine"
        raise field_error(("envoy", "fleet"), envoy.fleet, rule)
    if not control.callers:
        return
    field = ("fleet", "control", "callers")
    if listen is None:
        raise field_error(field, control.callers, "needs listen.fleet, where changes are taken; set it")
    verified = envoy.jwt or envoy.api_keys or (envoy.tls and envoy.tls.client_ca_file)
    if ANYBODY in control.callers and not is_local(envoy.listen):
        rule = "may have * only where envoy.listen is an address of this machine alone; name the callers"
        raise field_error(field, control.callers, rule)
    if ANYBODY not in control.callers and not verified:
        rule = "needs envoy.jwt, envoy.api_keys or envoy.tls.client_ca_file, which say who calls; set one of them"
        raise field_error(field, control.callers, rule)
    if not is_local(listen) and tls.envoy is None:
        rule = "needs tls.envoy where fleet.control has callers: whoever reaches it can name itself one of them"
        raise field_error(("listen", "fleet"), listen, rule)
    if control.file is None and processes > 1:
        rule = "must name a file where processes is not 1: each of them has to know of the others' changes"
        raise field_error(("fleet", "control", "file"), control.file, rule)
