"""Where this process learns from which workers exist, as the config says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.config.config import Config
from balancer.core.fleet import Fleet
from balancer.discovery.cluster.api import MISSING, is_installed
from balancer.discovery.cluster.watch import WatchCounts
from balancer.discovery.dns import DnsSource
from balancer.discovery.file import FileSource
from balancer.discovery.inference.pods import PoolCounts
from balancer.discovery.pods.source import PodSource
from balancer.discovery.pods.watch import PodCounts
from balancer.discovery.workers import WorkerSource, WorkerSpec
from balancer.files.yaml_document import ConfigError, Problem
from balancer.gateway.endpoints import State
from balancer.operate.metrics import Metrics
from balancer.operate.objectives import ClusterObjectives
from balancer.workers.links import Links


def follows_source(config: Config) -> bool:
    """Whether the workers are told by something else than the config."""
    discovery = config.discovery
    return discovery.kubernetes is not None or discovery.dns is not None or discovery.file is not None


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
        metrics.registry.register(Pods(pods.counts, pods.pool_counts, objectives))
        return pods
    if config.discovery.dns is not None:
        return DnsSource(config.discovery.dns.wanted())
    file = config.discovery_file(config_path)
    return None if file is None else FileSource(file, on_error)


def links_of(config: Config) -> Links:
    """The ways on which this process itself calls workers, as Envoy does; blocks.

    Raises:
        OperatorError: a certificate that is shown to workers cannot be used.
    """
    calls = config.forwards or config.listen.fleet is not None
    tls = config.envoy.triton_tls if calls else None
    trust = None if tls is None else tls.options()
    return Links(trust, trust if tls is not None and tls.rest else None)


def no_list_yet(config: Config, *, refused: bool) -> str:
    """Why no worker is known before the first list: without paths, since who asks may be anybody."""
    if config.discovery.kubernetes is not None:
        pool = config.discovery.kubernetes.inference_pool
        what = "the pods" if pool is None else f"the InferencePool {pool} or its pods"
        return f"discovery.kubernetes: {what} were not listed yet; the log says why where the API refuses"
    if config.discovery.dns is not None:
        return "discovery.dns: no address was found yet; the log says why"
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


class Pods(Collector):
    """What the watch of pods counts, read at the moment of the scrape."""

    def __init__(self, counts: PodCounts, of_pool: PoolCounts | None, objectives: ClusterObjectives) -> None:
        """`of_pool`: None where there is no pool; `objectives` counts only where there is one."""
        self._counts = counts
        self._of_pool = of_pool
        self._objectives = objectives

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        counts, of_pool = self._counts, self._of_pool
        follows = counts.connected and (of_pool is None or (of_pool.connected and of_pool.is_followed))
        connected = "1 while the pods are followed; 0: the list in force may be old"
        yield GaugeMetricFamily("balancer_kubernetes_connected", connected, float(follows))
        pods = GaugeMetricFamily("balancer_kubernetes_pods", "Pods that match, by what they are", labels=["state"])
        for state, count in counts.pods.items():
            pods.add_metric([state], count)
        yield pods
        yield CounterMetricFamily("balancer_kubernetes_events", "Changes of pods that were told", counts.events)
        watches: list[WatchCounts] = [counts]
        if of_pool is not None:
            watches += [of_pool, self._objectives.counts]
            changes = "Selectors and ports of the InferencePool that were put in force"
            yield CounterMetricFamily("balancer_kubernetes_pool_changes", changes, of_pool.changes)
            known = len(self._objectives.priorities)
            yield GaugeMetricFamily("balancer_kubernetes_objectives", "InferenceObjectives of the pool", known)
        for name, documentation, label, by in (
            ("lists", "Whole lists of pods, by why", "why", [counts.lists]),
            ("failures", "Requests to the API that failed, by cause", "cause", [each.failures for each in watches]),
            ("refused_values", "Values that were not taken, by field", "field", [each.complaints for each in watches]),
        ):
            counter = CounterMetricFamily(f"balancer_kubernetes_{name}", documentation, labels=[label])
            for value, count in _sum(by).items():
                counter.add_metric([value], count)
            yield counter


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counters:
        # A copy: the watch's thread may count something new meanwhile.
        total.update(each.copy())
    return total
