"""The section `discovery` of the config file. The text under a field is its documentation, in `docs/config.md` too."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.discovery.cluster.api import MAX_SELECTOR_CHARACTERS, ClusterAccess
from balancer.discovery.pods.watch import PodsWanted
from balancer.discovery.workers import TRITON_PORTS, Port, WorkerList
from balancer.files.schema import ConfigFile, StrictModel, field_error
from balancer.kernel.settings import Settings

_SETTINGS = Settings()
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


class DiscoverySection(StrictModel):
    """Which workers exist, by one of four sources."""

    kubernetes: KubernetesSection | None = None
    """Pods of a Kubernetes namespace."""
    dns: DnsSection | None = None
    """The addresses of a name in DNS."""
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
        beside = [name for name in ("kubernetes", "dns") if getattr(self, name) is not None]
        if len(beside) > 1 or (beside and (self.file is not None or self.workers)):
            raise ValueError(f"names {beside[0]} beside another source; keep one of kubernetes, dns, file and workers")
        return self
