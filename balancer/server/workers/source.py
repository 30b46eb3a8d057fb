"""Where this process learns from which workers exist, as the config says."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client.core import Metric

from balancer.bounds import MAX_PRIORITY
from balancer.channels.channels import Links
from balancer.config.config import Config
from balancer.discovery.cluster.api import MISSING, is_installed
from balancer.discovery.cluster.watch import WatchCounts
from balancer.discovery.dns import DnsSource
from balancer.discovery.inference.objectives import ObjectiveSource, Priorities
from balancer.discovery.inference.pods import PodSource, PoolCounts
from balancer.discovery.pods.watch import PodCounts
from balancer.discovery.ray_serve import RaySource
from balancer.discovery.workers import FileSource, WorkerSource, WorkerSpec
from balancer.extproc.endpoints import State
from balancer.extproc.kserve import NO_OBJECTIVE, Objectives
from balancer.extproc.picker import Picker
from balancer.files.yaml_document import ConfigError, Problem
from balancer.scheduler.fleet import Fleet
from balancer.server.metrics import Metrics
from balancer.server.metrics.scraped import counter, gauge


class ClusterObjectives:
    """Which priority an objective's name stands for, as the config says, else the cluster."""

    def __init__(self, config: Config, picker: Picker) -> None:
        """The cluster is asked only where the config names a pool."""
        pods = config.discovery.kubernetes
        wanted = None if pods is None else pods.wanted()
        self._source = ObjectiveSource(wanted.access, wanted.pool) if wanted is not None and wanted.pool else None
        self.counts = WatchCounts() if self._source is None else self._source.counts
        self.priorities: Priorities = {}
        self._picker = picker
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._named = config.requests.objectives
        self._sheddable = config.limits.sheddable_priority
        self._combine()

    async def follow(self, stop: asyncio.Event) -> None:
        if self._source is None:
            return
        async for priorities in self._source.updates(stop):
            self.take(priorities)

    def take(self, priorities: Priorities) -> None:
        self.priorities = priorities
        self._combine()

    def _combine(self) -> None:
        self._picker.objectives = {**numbered(self.priorities, self._sheddable), **self._named}


def numbered(priorities: Mapping[str, int], sheddable: int) -> Objectives:
    """The cluster's priorities (higher is more important, negative is sheddable) as Triton numbers them, by rank.

    The highest becomes 1, the next lower 2, and so on. Negative ones begin at `sheddable`, the first number that is
    sheddable, and others stay before it; 0: none is sheddable, and negative ones go on after the others. Requests
    without an objective have the place of the cluster's 0; while nothing is above that, no number (0).
    """
    if not priorities:
        return {}
    levels = sorted({0, *priorities.values()}, reverse=True)
    above = levels.index(0)
    least = sheddable - 1 if sheddable else MAX_PRIORITY
    numbers = {level: min(place, least) if above else 0 for place, level in enumerate(levels[: above + 1], 1)}
    begin = sheddable or above + 2
    numbers |= {level: min(begin + place, MAX_PRIORITY) for place, level in enumerate(levels[above + 1 :])}
    return {NO_OBJECTIVE: numbers[0], **{name: numbers[priority] for name, priority in priorities.items()}}


def follows_source(config: Config) -> bool:
    discovery = config.discovery
    return any(each is not None for each in (discovery.kubernetes, discovery.dns, discovery.ray, discovery.file))


def source_of(
    config: Config,
    config_path: Path,
    on_error: Callable[[ConfigError], None],
    metrics: Metrics,
    objectives: ClusterObjectives,
) -> WorkerSource | None:
    """What tells of workers; None: `discovery.workers` does. `on_error` hears of files that do not fit; `objectives`:
    whose counts are told beside those of pods.

    Raises:
        ConfigError: what it needs is not installed.
    """
    if config.discovery.kubernetes is not None:
        if not is_installed():
            raise ConfigError([Problem(str(config_path), None, "discovery.kubernetes", MISSING)])
        pods = PodSource(config.discovery.kubernetes.wanted())
        metrics.register(lambda: pod_metrics(pods.counts, pods.pool_counts, objectives))
        return pods
    if config.discovery.dns is not None:
        dns = config.discovery.dns
        return DnsSource(dns.name, (dns.grpc_port, dns.http_port))
    if config.discovery.ray is not None:
        return RaySource(config.discovery.ray.wanted())
    file = config.discovery_file(config_path)
    return None if file is None else FileSource(file, on_error)


def links_of(config: Config) -> Links:
    """The ways on which this process itself calls workers, as Envoy does; blocks.

    Raises:
        OperatorError: a certificate that is shown to workers cannot be used.
    """
    calls = config.forwards or config.listen.fleet_at is not None
    tls, openai = (config.envoy.triton_tls, config.envoy.openai_tls) if calls else (None, None)
    trust = None if tls is None else tls.trust()
    rest = trust if tls is not None and tls.rest else None
    return Links(trust, rest, None if openai is None else openai.trust())


def no_list_yet(config: Config, *, refused: bool) -> str:
    """Why no worker is known before the first list: without paths, since who asks may be anybody."""
    if config.discovery.kubernetes is not None:
        pool = config.discovery.kubernetes.inference_pool
        what = "the pods" if pool is None else f"the InferencePool {pool} or its pods"
        return f"discovery.kubernetes: {what} were not listed yet; the log says why where the API refuses"
    if config.discovery.dns is not None:
        return "discovery.dns: no address was found yet; the log says why"
    if config.discovery.ray is not None:
        return "discovery.ray: the cluster has not said yet which replicas run; the log says why"
    if config.discovery.file is None:
        return "discovery: no worker is listed yet"
    return f"discovery.file: no list of workers was read yet{'; the log says why' if refused else ''}"


def endpoint_states(workers: Sequence[WorkerSpec], fleet: Fleet, *, settled: bool) -> tuple[State, ...]:
    """What Envoy's own fallback is told of each worker; `settled`: their agents have had time to report.

    Silence is a reason to avoid a worker only then, and while there are better ones: where no agent is heard at all,
    any listed worker is better than none.
    """
    ready = dict(zip(fleet.names, fleet.servable("", "").tolist(), strict=True))
    silent = {worker.name for worker in fleet.workers if worker.number < 0}
    spared = set() if settled and any(ready.values()) else silent
    return tuple(_state(each, ready[each.name] or each.name in spared) for each in workers)


def _state(worker: WorkerSpec, usable: bool) -> State:
    if worker.draining:
        return "draining"
    return "healthy" if usable else "unhealthy"


def pod_metrics(counts: PodCounts, of_pool: PoolCounts | None, objectives: ClusterObjectives) -> Iterator[Metric]:
    """What the watch of pods counts; `of_pool`: None where there is no pool; `objectives` counts only where there is
    one.
    """
    follows = counts.connected and (of_pool is None or (of_pool.connected and of_pool.is_followed))
    says = "1 while the pods are followed; 0: the list in force may be old"
    yield gauge("balancer_kubernetes_connected", says, follows)
    yield gauge("balancer_kubernetes_pods", "Pods that match, by what they are", counts.pods, "state")
    yield counter("balancer_kubernetes_events", "Changes of pods that were told", counts.events)
    watches: list[WatchCounts] = [counts]
    if of_pool is not None:
        watches += [of_pool, objectives.counts]
        says = "Selectors and ports of the InferencePool that were put in force"
        yield counter("balancer_kubernetes_pool_changes", says, of_pool.changes)
        known = len(objectives.priorities)
        yield gauge("balancer_kubernetes_objectives", "InferenceObjectives of the pool", known)
    yield counter("balancer_kubernetes_lists", "Whole lists of pods, by why", counts.lists.copy(), "why")
    failures, refused = (_sum(each) for each in ([w.failures for w in watches], [w.invalid_values for w in watches]))
    yield counter("balancer_kubernetes_failures", "Requests to the API that failed, by cause", failures, "cause")
    yield counter("balancer_kubernetes_refused_values", "Values that were not taken, by field", refused, "field")


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counters:
        # A copy: the watch's thread may count something new meanwhile.
        total.update(each.copy())
    return total
