"""The section `discovery` of the config file. The text under a field is its documentation, in `docs/config.md` too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.core.settings import Settings
from balancer.discovery.cluster.api import MAX_SELECTOR_CHARACTERS, Access
from balancer.discovery.dns import NameWanted
from balancer.discovery.pods.watch import PodsWanted
from balancer.discovery.workers import Port, WorkerList
from balancer.files.schema import ConfigFile, StrictModel, field_error

_SETTINGS = Settings()
_PODS = PodsWanted(Access(""))
_NAME = NameWanted("")
_ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
_Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class KubernetesSection(StrictModel):
    """Pods as workers, by a watch. Needs the package's extra `kubernetes`, and a role with get, list and watch on the
    namespace's pods; with `inference_pool`, also on its InferencePools and InferenceObjectives."""

    label_selector: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SELECTOR_CHARACTERS)] | None = None
    """Which pods, in Kubernetes' own terms, such as `app=triton`; null: `inference_pool` says so."""
    inference_pool: _ObjectName | None = None
    """Name of an InferencePool (Gateway API Inference Extension) of the namespace, in place of `label_selector`: which
    pods, and by which port, is what it says, followed as it changes. The InferenceObjectives of that pool then count as
    well as `requests.objectives`. null: none is read."""
    namespace: _Namespace | None = None
    """Where they are; null: where the balancer is, or the namespace of the kubeconfig's context."""
    kubeconfig: ConfigFile | None = None
    """File with address and credentials of the API, relative to the folder of the config file; null: the service
    account of the pod that the balancer runs in."""
    grpc_port: Port = _PODS.ports[0]
    """Triton's gRPC port in pods that neither annotate one nor name a container port `grpc`. A port of the
    InferencePool that has this number is gRPC's."""
    http_port: Port = _PODS.ports[1]
    """Its HTTP port in pods that neither annotate one nor name a container port `http`. A port of the InferencePool
    that has this number is HTTP's."""
    max_pods: int = Field(default=_PODS.max_pods, ge=1, le=10_000)
    """Pods that are kept; of more, the first by name are, and a warning says so."""

    @model_validator(mode="after")
    def _pods_are_named_once(self) -> Self:
        if (self.label_selector is None) == (self.inference_pool is None):
            raise ValueError("must have either label_selector or inference_pool, which say the pods; keep one of them")
        return self

    def wanted(self) -> PodsWanted:
        """What the watch is told."""
        kubeconfig = None if self.kubeconfig is None else Path(self.kubeconfig)
        access = Access(self.label_selector or "", self.namespace, kubeconfig)
        return PodsWanted(access, (self.grpc_port, self.http_port), self.max_pods, self.inference_pool or "")


class DnsSection(StrictModel):
    """The addresses of a name as workers, such as a headless service's. Each is named by its address, and its agent is
    told so (`--worker 10.0.0.7`)."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?$")]
    """The name, such as `triton.inference.svc.cluster.local`; its IPv4 addresses count."""
    grpc_port: Port = _NAME.ports[0]
    """Triton's gRPC port, the same for all."""
    http_port: Port = _NAME.ports[1]
    """Its HTTP port."""
    every_s: Annotated[float, Field(ge=0.1, le=3600)] = _NAME.every_s
    """Seconds from one look at the name to the next."""

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.grpc_port == self.http_port:
            raise field_error(("http_port",), self.http_port, "is the grpc_port too; each needs one of its own")
        return self

    def wanted(self) -> NameWanted:
        """What the source is told."""
        return NameWanted(self.name, (self.grpc_port, self.http_port), self.every_s)


class DiscoverySection(StrictModel):
    """Which workers exist: pods, addresses of a name, a file that lists them, or a list right here."""

    kubernetes: KubernetesSection | None = None
    """Pods of a Kubernetes namespace; null: another source."""
    dns: DnsSection | None = None
    """A name in DNS, whose addresses are workers; null: another source."""
    file: str | None = None
    """A YAML or JSON file with `workers:`, the list below; watched. Relative to the folder of the config file."""
    workers: WorkerList = ()
    """The workers, where nothing else tells of them."""
    slow_start_s: Annotated[float, Field(ge=0, le=3600)] = _SETTINGS.slow_start_s
    """Seconds over which the share of a worker that joins others grows to all that the policy would give it; it ends as
    soon as the worker's service times are known. 0: it gets all at once."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.file is not None and self.workers:
            raise ValueError("names a file and lists workers; keep one of file and workers")
        others = [name for name in ("kubernetes", "dns") if getattr(self, name) is not None]
        if len(others) > 1 or (others and (self.file is not None or self.workers)):
            raise ValueError(f"names {others[0]} beside another source; keep one of kubernetes, dns, file and workers")
        return self
