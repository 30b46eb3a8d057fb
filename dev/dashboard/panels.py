"""What the dashboard shows: rows of panels, each with its queries in PromQL.

Grafana replaces `$job`, `$model`, `$worker` (regular expressions) and `$__rate_interval` in the queries.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Unit = Literal["reqps", "short", "s", "percentunit", "bytes", "Bps", "cps"]
"""Grafana's names."""


class Query(NamedTuple):
    expr: str
    legend: str
    """Template of Grafana's, over the labels."""


class Panel(NamedTuple):
    title: str
    unit: Unit
    queries: tuple[Query, ...]
    says: str = ""
    stacked: bool = False
    exemplars: bool = False
    """Whether traced requests are shown as points."""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


_JOB = 'job=~"$job"'
_MODEL = f'{_JOB},model=~"$model"'
_WORKER = f'{_JOB},worker=~"$worker"'
_BOTH = f'{_MODEL},worker=~"$worker"'
_FAILED = 'status=~"grpc_(2|4|8|13|14|15)|http_(429|5..)"'


def _rate(metric: str, labels: str, by: str = "") -> str:
    """Counts a second of a counter, summed over all but the labels in `by`."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _quantile(share: float, histogram: str, labels: str, by: str = "") -> str:
    groups = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', labels, groups)})"


def _percentiles(histogram: str, labels: str, by: str = "") -> tuple[Query, ...]:
    name = f" {{{{{by}}}}}" if by else ""
    return tuple(Query(_quantile(share, histogram, labels, by), f"p{share * 100:.0f}{name}") for share in (0.5, 0.99))


def _of_workers(metric: str, how: str) -> tuple[Query, ...]:
    """A gauge of workers; `how` puts together what several balancers say of one."""
    return (Query(f"{how} by (worker) ({metric}{{{_WORKER}}})", "{{worker}}"),)


_TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Requests by model",
            "reqps",
            (Query(_rate("balancer_requests_total", _BOTH, "model"), "{{model}}"),),
            "Requests that ended.",
            stacked=True,
        ),
        Panel(
            "Requests by worker",
            "reqps",
            (Query(_rate("balancer_requests_total", _BOTH, "worker"), "{{worker}}"),),
            "Without a name: no worker got them.",
            stacked=True,
        ),
        Panel(
            "Bodies",
            "Bps",
            (
                Query(_rate("balancer_received_bytes_total", _MODEL), "to workers"),
                Query(_rate("balancer_sent_bytes_total", _MODEL), "to clients"),
            ),
        ),
    ),
)
_ERRORS = Row(
    "Errors",
    (
        Panel(
            "Share of requests that fail, by model",
            "percentunit",
            (
                Query(
                    f"{_rate('balancer_requests_total', f'{_BOTH},{_FAILED}', 'model')}"
                    f" / {_rate('balancer_requests_total', _BOTH, 'model')}",
                    "{{model}}",
                ),
            ),
            "What the client cannot help, as the objective counts it.",
        ),
        Panel(
            "Failed requests by status and worker",
            "reqps",
            (Query(_rate("balancer_requests_total", f"{_BOTH},{_FAILED}", "status, worker"), "{{status}} {{worker}}"),),
        ),
        Panel(
            "By the worker's fault",
            "reqps",
            (Query(_rate("balancer_errors_total", _BOTH, "worker"), "{{worker}}"),),
        ),
        Panel(
            "Ended before they were answered, by whom",
            "reqps",
            (Query(_rate("balancer_aborted_requests_total", _JOB, "by"), "{{by}}"),),
        ),
        Panel(
            "Budget used up, 1 hour",
            "short",
            (
                Query(
                    f"balancer:requests_failed:ratio_rate1h{{{_MODEL}}} / scalar(balancer:availability:budget)",
                    "availability {{model}}",
                ),
                Query(
                    f"balancer:answers_slow:ratio_rate1h{{{_MODEL}}} / scalar(balancer:latency:budget)",
                    "latency {{model}}",
                ),
            ),
            "Burn rate: 1 uses up the budget of 30 days in 30 days. Needs the rules of slo.yaml.",
        ),
    ),
)
_LATENCY = Row(
    "Latency",
    (
        Panel(
            "By model",
            "s",
            _percentiles("balancer_request_duration_seconds", _BOTH, "model"),
            "A point is a traced request; it leads to its trace where the data source knows of one for traces.",
            exemplars=True,
        ),
        Panel("By worker", "s", _percentiles("balancer_request_duration_seconds", _BOTH, "worker"), exemplars=True),
        Panel("First byte by model", "s", _percentiles("balancer_first_byte_seconds", _MODEL, "model")),
        Panel("Decision", "s", _percentiles("balancer_decision_duration_seconds", _JOB)),
    ),
)
_QUEUES = Row(
    "Queues",
    (
        Panel("Expected wait", "s", _of_workers("balancer_worker_backlog_seconds", "max"), "What to scale on."),
        Panel("Pending", "short", _of_workers("balancer_worker_pending", "max"), "Queued or executing."),
        Panel("In flight", "short", _of_workers("balancer_worker_in_flight", "sum"), "Sent by these balancers.", True),
        Panel("Queued, as reported", "short", _of_workers("balancer_worker_reported_pending", "max")),
    ),
)
_WORKERS = Row(
    "Workers",
    (
        Panel("Ready and not draining", "short", _of_workers("balancer_worker_ready", "min")),
        Panel("Report age", "s", _of_workers("balancer_worker_report_age_seconds", "max"), "No line: none ever came."),
        Panel("Error rate", "percentunit", _of_workers("balancer_worker_error_rate", "max"), "As policies see it."),
        Panel(
            "Report streams",
            "short",
            (
                Query(f"sum by (instance) (balancer_report_streams{{{_JOB}}})", "open {{instance}}"),
                Query(_rate("balancer_report_streams_ended_total", _JOB, "cause"), "ended a second: {{cause}}"),
            ),
        ),
        Panel("Reports", "cps", (Query(_rate("balancer_reports_total", _JOB, "result"), "{{result}}"),)),
    ),
)
_DECISIONS = Row(
    "Decisions",
    (
        Panel(
            "Picks by policy",
            "reqps",
            (Query(_rate("balancer_decisions_total", _JOB, "policy"), "{{policy}}"),),
            stacked=True,
        ),
        Panel(
            "Refusals",
            "reqps",
            (
                Query(_rate("balancer_refusals_total", _JOB, "reason"), "{{reason}}"),
                Query(_rate("balancer_refused_inputs_total", _JOB, "message, field"), "{{message}}: {{field}}"),
            ),
        ),
        Panel(
            "Not served as picked",
            "reqps",
            (Query(_rate("balancer_fallbacks_total", _JOB, "cause"), "{{cause}}"),),
            "no_pick: Envoy placed it by itself. retried: it tried more than one worker.",
        ),
        Panel(
            "Outcomes",
            "reqps",
            (Query(_rate("balancer_outcomes_total", _JOB, "result"), "{{result}}"),),
            "expired: never heard of.",
        ),
    ),
)
_CARE = Row(
    "Guard, rollout, shadow, config",
    (
        Panel(
            "Guard",
            "short",
            (
                Query(f"max by (policy) (balancer_guard_fallen_back{{{_JOB}}})", "out: {{policy}}"),
                Query(
                    f"sum by (policy, reason) (increase(balancer_guard_breaches_total{{{_JOB}}}[$__rate_interval]))",
                    "breach {{policy}}: {{reason}}",
                ),
                Query(_rate("balancer_policy_failures_total", _JOB, "policy"), "invalid answers a second {{policy}}"),
            ),
        ),
        Panel(
            "Rollout",
            "percentunit",
            (
                Query(f"avg by (policy) (balancer_rollout_share{{{_JOB}}})", "share of {{policy}}"),
                Query(
                    f"sum by (policy, reason) (increase(balancer_rollout_returns_total{{{_JOB}}}[$__rate_interval]))",
                    "returned {{policy}}: {{reason}}",
                ),
            ),
        ),
        Panel(
            "Shadow",
            "percentunit",
            (
                Query(
                    f"{_rate('balancer_shadow_agreements_total', _JOB, 'policy')}"
                    f" / {_rate('balancer_shadow_answers_total', _JOB, 'policy')}",
                    "agrees {{policy}}",
                ),
                Query(
                    f"{_rate('balancer_shadow_distance_total', _JOB, 'policy')}"
                    f" / {_rate('balancer_shadow_answers_total', _JOB, 'policy')}",
                    "distance {{policy}}",
                ),
                Query(
                    f"{_rate('balancer_shadow_failures_total', _JOB, 'policy')}"
                    f" / {_rate('balancer_shadow_decisions_total', _JOB, 'policy')}",
                    "fails {{policy}}",
                ),
            ),
        ),
        Panel(
            "Config",
            "short",
            (
                Query(f"count by (hash) (balancer_config_info{{{_JOB}}})", "in force {{hash}}"),
                Query(f"sum by (instance) (balancer_config_refused{{{_JOB}}})", "file refused {{instance}}"),
                Query(f"sum(balancer_envoys_connected{{{_JOB}}})", "Envoys connected"),
            ),
        ),
    ),
)
_NATIVE = Row(
    "Native: Envoy decides",
    (
        Panel(
            "What became of requests",
            "reqps",
            (Query(_rate("balancer_native_requests_total", _JOB, "result"), "{{result}}"),),
        ),
        Panel(
            "In flight", "short", (Query(f"sum by (instance) (balancer_native_in_flight{{{_JOB}}})", "{{instance}}"),)
        ),
        Panel(
            "Lost tellings, states given up",
            "cps",
            (
                Query(_rate("balancer_native_lost_total", _JOB, "what"), "{{what}}"),
                Query(_rate("balancer_native_states_total", _JOB), "states"),
            ),
        ),
    ),
)
_PROCESS = Row(
    "The process",
    (
        Panel("CPU", "percentunit", (Query(_rate("process_cpu_seconds_total", _JOB, "instance"), "{{instance}}"),)),
        Panel(
            "Memory",
            "bytes",
            (Query(f"max by (instance) (process_resident_memory_bytes{{{_JOB}}})", "{{instance}}"),),
        ),
        Panel("Open files", "short", (Query(f"max by (instance) (process_open_fds{{{_JOB}}})", "{{instance}}"),)),
        Panel(
            "Event loop late, p99",
            "s",
            (Query(_quantile(0.99, "balancer_event_loop_lag_seconds", _JOB, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Mistakes",
            "cps",
            (Query(_rate("balancer_handler_errors_total", _JOB, "handler"), "{{handler}}"),),
            "Bugs of the balancer's, by what they met.",
        ),
    ),
)
ROWS = (_TRAFFIC, _ERRORS, _LATENCY, _QUEUES, _WORKERS, _DECISIONS, _CARE, _NATIVE, _PROCESS)
