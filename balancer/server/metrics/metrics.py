"""The metrics of one process.

Counters and histograms are fed by what takes requests; what describes the fleet is read from its arrays when scraped.
"""

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import prometheus_client as prometheus
from prometheus_client.core import InfoMetricFamily, Metric

from balancer.config.watch import ConfigState
from balancer.extproc.endpoints import Ads
from balancer.kernel.view import LiveView
from balancer.reports.intake import ReportCounts
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.fleet import ANY_MODEL, Fleet
from balancer.scheduler.snapshot import ready
from balancer.server.metrics.scraped import counter, gauge
from balancer.server.metrics.series import (
    OTHER,
    SLICE_SAMPLES,
    Count,
    Counters,
    Exemplar,
    Exposition,
    Family,
    Histograms,
    SeriesDistribution,
    Text,
)
from balancer.server.security.certificates import Certificates
from policies.base import FloatArray, Request
from policies.columns import DECLARED, columns_of

_SHADOW_COUNTERS = {
    "decisions": "Decisions that the shadow was asked about",
    "answers": "Decisions that it had a valid answer to",
    "agreements": "Answers with the same most likely worker as the serving policy's",
    "distance": "Sum over the answers of the total variation distance to the serving policy's: 0 same, 1 disjoint",
    "failures": "Exceptions and invalid answers of the shadow",
    "seconds": "Sum over the decisions of the time that the shadow took",
}


def policy_metrics(router: AnyRouter) -> Iterator[Metric]:
    """What guards, shadow and rollout do; a family is without samples where nothing of the kind is configured."""
    selector = router.selector
    guards = {} if selector is None else selector.guards()
    fallen = {policy: guard.breach is not None for policy, guard in guards.items()}
    yield gauge("balancer_guard_fallen_back", "1 while a baseline decides in the policy's stead", fallen, "policy")
    share = {}
    if selector is not None and selector.rollout is not None and selector.plan.new is not None:
        share[selector.plan.new.name] = selector.rollout.share
    yield gauge("balancer_rollout_share", "Share of the requests that the new policy decides", share, "policy")
    shadow = None if selector is None else selector.shadow
    for name, says in _SHADOW_COUNTERS.items():
        counted = {} if shadow is None else {shadow.policy.name: getattr(shadow, name)}
        yield counter(f"balancer_shadow_{name}", says, counted, "policy")


def split_metrics(splits: Splits) -> Iterator[Metric]:
    arms = {
        (model, version): split.arms[new]
        for model, split in splits.of.items()
        for new, version in ((False, split.settings.old), (True, split.settings.new))
    }
    requests, errors = ({of: getattr(arm, what) for of, arm in arms.items()} for what in ("requests", "errors"))
    yield counter("balancer_split_requests", "Requests that a split version got", requests, "model", "version")
    yield counter("balancer_split_errors", "Those of them that failed", errors, "model", "version")
    returned = {model: bool(split.returned) for model, split in splits.of.items()}
    says = "1: the new version did worse, and gets no requests"
    yield gauge("balancer_split_returned", says, returned, "model")
    says = "Requests of split models that name no version, and into which none could be written"
    yield counter("balancer_split_left", says, splits.left, "model", "reason")


prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# OpenTelemetry's.
_FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DECISION_BUCKETS_S = (1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3)
_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_STATUSES = frozenset(
    (*(f"grpc_{code}" for code in range(17)), "http_0", *(f"http_{status.value}" for status in HTTPStatus))
)
"""Labels of a request's status; `http_0`: the client left before there was one."""


class Metrics:
    def __init__(self, router: AnyRouter, clock: Callable[[], float], process: str = "0") -> None:
        self._router = router
        self.clock = clock
        self.families: list[Family[Any]] = []
        self.requests = self._counter("requests", "Requests that ended, by status", "model", "worker", "status")
        self.errors = self._counter("errors", "Requests that failed by the worker's fault", "model", "worker")
        says = "Latency of the worker's answer, successful unary inference"
        self.latency = self._histogram("request_duration_seconds", says, LATENCY_BUCKETS_S, "model", "worker")
        says = "Until the worker's answer began, successful unary inference"
        self.first_byte = self._histogram("first_byte_seconds", says, LATENCY_BUCKETS_S, "model")
        self.received = self._counter("received_bytes", "Bodies of the requests that workers got", "model")
        self.sent = self._counter("sent_bytes", "Bodies of their answers", "model")
        says = "Of streams of language models, from the pick to the first token"
        self.first_token = self._of_tokens("time_to_first_token", says, _FIRST_TOKEN_BUCKETS_S)
        says = "Of streams of language models, between tokens, in the mean of each"
        self.each_token = self._of_tokens("time_per_output_token", says, _EACH_TOKEN_BUCKETS_S)
        says = "Of prompts that workers got, of those what they had cached, and of answers"
        self.tokens = self._counter("tokens", says, "model", "worker", "kind")
        says = "Time to read a request, decide, and write the answer"
        self.decision_duration = self._histogram("decision_duration_seconds", says, _DECISION_BUCKETS_S).labels()
        says = "How long requests waited at the balancer for a worker with room, by what became of them"
        self.held = self._histogram("held_seconds", says, LATENCY_BUCKETS_S, "model", "result")
        self.decisions = self._counter("decisions", "Picks by the policy that made them", "policy")
        self.refusals = self._counter("refusals", "Requests answered without a worker", "reason")
        self.fallbacks = self._counter("fallbacks", "Requests not served as picked, by cause", "cause")
        says = "Requests that were not answered to their end, by who ended them"
        self.aborted = self._counter("aborted_requests", says, "by")
        says = "Calls that failed by a mistake of the balancer's; none was answered as if it had not"
        self.handler_errors = self._counter("handler_errors", says, "handler")
        says = "Messages refused because a field was out of bounds"
        self.refused_inputs = self._counter("refused_inputs", says, "message", "field")
        says = "Connections to the admin pages closed before they were answered"
        self.admin_closed = self._counter("admin_connections_closed", says, "cause")
        says = "By how much the event loop was late, looked at every 100 ms"
        self.loop_lag = self._histogram("event_loop_lag_seconds", says, _LAG_BUCKETS_S).labels()
        self.config_loads = self._counter("config_loads", "Config files seen, by what became of them", "result")
        says = "Times that a guard took a policy out of service, by why"
        self.guard_breaches = self._counter("guard_breaches", says, "policy", "reason")
        says = "Rollouts that returned to the old policy, by why"
        self.rollout_returns = self._counter("rollout_returns", says, "policy", "reason")
        self.held_now: Callable[[], int] = lambda: 0
        # Of the library, which has a lock: a thread of its own writes the log.
        self.decision_log_lines = prometheus.Counter(
            "balancer_decision_log_lines",
            "Lines of the decision log, by what became of them",
            ["result"],
            registry=None,
        )
        self.scraped: list[Callable[[], Iterable[Metric]]] = [
            lambda: _about(process),
            lambda: [gauge("balancer_held_requests", "Requests that wait for a worker with room", self.held_now())],
            prometheus.ProcessCollector(registry=None).collect,
            self.decision_log_lines.collect,
            lambda: _fleet(router, clock()),
            lambda: policy_metrics(router),
        ]
        self._plain, self._open = (
            Exposition(self.scraped, self.families, clock, self._prepare, open_metrics)
            for open_metrics in (False, True)
        )
        self.catch_up: Callable[[], None] = lambda: None
        """Takes in what was not counted yet; before a text is made. Must not raise."""

    def register(self, families: Callable[[], Iterable[Metric]]) -> None:
        self.scraped.append(families)

    def watch(
        self, streams: ReportCounts, envoys: Ads, config: ConfigState, certificates: Mapping[str, Certificates]
    ) -> None:
        self.register(lambda: _process(streams, envoys, config, certificates))

    def requests_of(self, model: str, worker: str, status: str) -> Count:
        """The counter of requests with these labels; `status` as `grpc_0` or `http_200`.

        What is no known code counts as `grpc_other` or `http_other`, and what the fleet has not as `other`.
        """
        if status not in _STATUSES:
            status = "grpc_other" if status.startswith("grpc_") else "http_other"
        return self.requests.labels(self.model_label(model), self._worker_label(worker), status)

    def errors_of(self, model: str, worker: str) -> Count:
        return self.errors.labels(self.model_label(model), self._worker_label(worker))

    def latency_of(self, model: str, worker: str) -> SeriesDistribution:
        return self.latency.labels(self.model_label(model), self._worker_label(worker))

    def told_first_token(self, model: str, worker: str, seconds: float) -> None:
        """Of one stream of a language model's."""
        self.first_token.labels(self.model_label(model), self._worker_label(worker)).observe(seconds)

    def told_tokens(self, model: str, worker: str, seconds: float) -> None:
        """Seconds between its tokens, in their mean."""
        self.each_token.labels(self.model_label(model), self._worker_label(worker)).observe(seconds)

    def exemplify(self, model: str, worker: str, latency_s: float, trace: str) -> None:
        self.latency_of(model, worker).exemplify(Exemplar(trace, latency_s, time.time()))

    def count_tokens(self, model: str, worker: str, prompt: float, cached: float, output: float) -> None:
        """Of one request to a language model."""
        labels = self.model_label(model), self._worker_label(worker)
        for kind, tokens in (("prompt", prompt), ("cached", cached), ("output", output)):
            self.tokens.labels(*labels, kind).inc(tokens)

    def model_label(self, model: str) -> str:
        """The model's name where the fleet has it; empty for calls about no model."""
        return model if not model or model in self._router.fleet.models else OTHER

    def _worker_label(self, worker: str) -> str:
        """The worker's name where the fleet has it, which the last outcomes of a removed one no longer find."""
        return worker if not worker or worker in self._router.fleet.index else OTHER

    def forget_gone(self) -> None:
        """Drop the series of workers and models that the fleet no longer has, so that years of pods do not pile up."""
        for family in self.families:
            family.keep("worker", self._router.fleet.index)
            family.keep("model", self._router.fleet.models)

    def _prepare(self) -> None:
        self.catch_up()
        self.forget_gone()

    def exposition(self, open_metrics: bool = False) -> bytes:
        return b"".join((self._open if open_metrics else self._plain).slices())

    async def latest(self, open_metrics: bool = False) -> Text:
        """As `exposition`, made at most once a second, while requests are served."""
        return await (self._open if open_metrics else self._plain).latest()

    def _counter(self, name: str, says: str, *labels: str) -> Counters:
        self.families.append(family := Counters(f"balancer_{name}", says, *labels))
        return family

    def _of_tokens(self, name: str, says: str, bounds: Sequence[float]) -> Histograms:
        """Named as OpenTelemetry's conventions for generative models have it."""
        self.families.append(family := Histograms(f"gen_ai_server_{name}_seconds", says, bounds, "model", "worker"))
        return family

    def _histogram(self, name: str, says: str, bounds: Sequence[float], *labels: str) -> Histograms:
        self.families.append(family := Histograms(f"balancer_{name}", says, bounds, *labels))
        return family


def _about(process: str) -> Iterator[Metric]:
    says = "Unix time at which this text was begun; it is made once a second at most"
    yield gauge("balancer_metrics_timestamp_seconds", says, time.time())
    yield InfoMetricFamily("balancer_process", "This process", {"number": process})
    build = {"version": importlib.metadata.version("balancer"), "python": platform.python_version()}
    yield InfoMetricFamily("balancer_build", "What runs", build)


def _fleet(router: AnyRouter, now_s: float) -> Iterator[Metric]:
    fleet = router.fleet
    view = LiveView(fleet, fleet.servable("", ""), fleet.models[ANY_MODEL], Request(""), now_s)
    for name in columns_of("moment"):
        shown = f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name
        yield from _by_worker(shown, DECLARED[name].says, fleet.names, getattr(view, name).tolist())
    says = "1: ready, not draining, and not silent"
    yield from _by_worker("ready", says, fleet.names, ready(fleet, now_s).astype(float).tolist())
    told = [(name, share) for name, share in zip(fleet.names, memory_share(fleet).tolist(), strict=True) if share >= 0]
    says = "Share of the tokens for which memory has room that requests hold; of language models that tell"
    yield from _by_worker("memory_share", says, [name for name, _ in told], [share for _, share in told])
    yield gauge("balancer_policy_in_force", "1 for the policy in force", {router.policy.name: 1}, "policy")
    yield counter("balancer_reports", "Reports by what became of them", fleet.reports, "result")
    yield counter("balancer_outcomes", "Outcomes heard of, by whether the pick was known", router.outcomes, "result")
    says = "Invalid answers of a policy; another stood in"
    yield counter("balancer_policy_failures", says, router.failures, "policy")


def memory_share(fleet: Fleet) -> FloatArray:
    """By worker, of the tokens for which its memory has room, those that requests hold; NaN: it does not tell."""
    room = fleet.prefixes.memory_tokens.sum(axis=-1)
    held = fleet.prefixes.held_tokens.sum(axis=-1)
    share: FloatArray = np.divide(held, room, out=np.full(len(room), np.nan), where=room > 0)
    return share


def _by_worker(name: str, says: str, workers: list[str], values: list[float]) -> Iterator[Metric]:
    named = list(zip(workers, values, strict=True))
    for start in range(0, max(len(named), 1), SLICE_SAMPLES):
        yield gauge(f"balancer_worker_{name}", says, dict(named[start : start + SLICE_SAMPLES]), "worker")


def _process(
    streams: ReportCounts, envoys: Ads, config: ConfigState, certificates: Mapping[str, Certificates]
) -> Iterator[Metric]:
    yield gauge("balancer_report_streams", "Agents' report streams open now", streams.streams)
    yield gauge("balancer_report_relays", "Relays' streams open now", streams.relays)
    says = "Questions of agents, what is in flight at their workers"
    yield counter("balancer_report_questions", says, streams.questions)
    ended = {cause: getattr(streams, cause) for cause in ("silent", "invalid", "refused", "taken_over")}
    says = "Report streams that this process ended, by cause"
    yield counter("balancer_report_streams_ended", says, ended, "cause")
    yield gauge("balancer_envoys_connected", "Envoys that ask for endpoints", envoys.connected)
    yield counter("balancer_envoy_nacks", "Updates of endpoints that an Envoy refused", envoys.rejections)
    yield InfoMetricFamily("balancer_config", "The config in force", {"hash": config.hash})
    says = "Unix time at which the config in force was taken over"
    yield gauge("balancer_config_loaded_timestamp_seconds", says, config.loaded_at_s)
    says = "1 while the newest config file is refused, and the last good one is in force"
    yield gauge("balancer_config_refused", says, config.last_error is not None)
    learned = config.learned
    stage = {} if learned is None else {learned.stage: 1}
    yield gauge("balancer_learning", "1 for what balancer learn is at; none: nobody learns", stage, "stage")
    says = "1 while a policy of balancer learn is in force in place of the config's"
    yield gauge("balancer_learned_in_force", says, learned is not None and learned.kept is not None)
    expiry = {name: each.expires_s for name, each in certificates.items() if each.expires_s is not None}
    says = "Unix time at which the first certificate of the chain that a listener shows expires"
    yield gauge("balancer_certificate_expiry_timestamp_seconds", says, expiry, "listener")
