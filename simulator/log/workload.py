"""A decision log as a workload: the requests that a balancer saw, when they came."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import rescaled
from balancer.server.decision_log.recorded import DecisionLog, RecordedDecision, Refusal
from policies.base import FloatArray, Request
from simulator.arrivals import Arrivals
from simulator.engine.check import MOST_LEVELS
from simulator.log.prompts import believed, prompts_of
from simulator.workload.trace import Recorded

_UNKNOWN = "unknown_model"


def models_of(log: DecisionLog) -> list[str]:
    """The models that requests were for, sorted; those that no worker knew are not among them."""
    return sorted({each.request.model for each in _came(log)})


def generating(log: DecisionLog) -> set[str]:
    """Those of them that generate: their requests have prompts."""
    return {each.request.model for each in _came(log) if np.any(each.request.prompt_tokens)}


def recorded_from(log: DecisionLog) -> Recorded:
    """A log as a trace for scenarios.

    Raises:
        ValueError: as `arrivals_from_log`, or all requests came at once.
    """
    models = models_of(log)
    return recorded_of(arrivals_from_log(log, models), models)


def recorded_of(arrivals: Arrivals, models: Sequence[str]) -> Recorded:
    """Arrivals as a trace for scenarios; ValueError: all came at once."""
    return Recorded(
        time_s=rescaled(arrivals.time_s, 1.0),
        models=tuple(models[index] for index in arrivals.model),
        rows=arrivals.rows.astype(np.float64),
        work=None,
        keys=arrivals.key,
        deadline_s=arrivals.deadline_s,
        priorities=arrivals.priority,
        tenants=arrivals.tenant,
        prompts=arrivals.prompts,
    )


def arrivals_from_log(log: DecisionLog, models: Sequence[str], most: int | None = None) -> Arrivals:
    """The requests of a log as a workload: the times, models, rows, keys, deadlines, priorities, tenants and prompts
    recorded.

    Shed requests are in it, and those for which no worker was there; questions about models or servers are not, nor
    requests for models that no worker knew. Processes that recorded into one folder are merged by the time of day, each
    a balancer. Tenants are numbered in the order of their names.

    Args:
        log: From `read_log`.
        models: The fleet's, whose indices the arrivals have.
        most: The first so many; None: all.

    Raises:
        ValueError: a share of the requests only was recorded, none was, or one is for none of the models.
    """
    for run in log.runs:
        if run.share < 1:
            raise ValueError(
                f"the log has a share of {run.share:g} of the requests of process {run.process}, which is not the "
                "traffic: record with decision_log.share 1"
            )
    came = sorted(_came(log), key=attrgetter("time_s"))[:most]
    if not came:
        raise ValueError("the log has no request for a model: record while requests flow")
    index = {name: number for number, name in enumerate(models)}
    requests = [each.request for each in came]
    output_tokens, cached_tokens, latency_s = np.array([each.answer for each in came]).T
    if missing := sorted({request.model for request in requests} - index.keys()):
        raise ValueError(f"the log has requests for {', '.join(missing)}: give these models to the fleet")
    tenants = {name: number for number, name in enumerate(sorted({request.tenant for request in requests}))}
    processes = {name: number for number, name in enumerate(sorted({each.process for each in came}))}
    return Arrivals(
        time_s=np.array([each.time_s for each in came]) - came[0].time_s,
        model=np.array([index[request.model] for request in requests], np.int16),
        rows=_whole([request.rows for request in requests], 1, np.int32),
        work=np.ones(len(came)),
        key=np.array([0 if request.key is None else request.key for request in requests], np.uint64),
        deadline_s=np.array([request.deadline_s for request in requests], np.float64),
        priority=_whole([request.priority for request in requests], 0, np.int16),
        balancer=np.array([processes[each.process] for each in came], np.int16),
        tenant=np.array([tenants[request.tenant] for request in requests], np.int16),
        prompts=prompts_of(requests, believed(output_tokens, latency_s), cached_tokens),
    )


def level_of(request: Request) -> int:
    """The priority level that the request names, 1 to `MOST_LEVELS`; 0: it names none."""
    return int(np.clip(np.nan_to_num(np.max(request.priority)), 0, MOST_LEVELS))


def _whole(values: Sequence[float | FloatArray], lowest: int, kind: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    """Whole numbers from what clients wrote, which may be anything."""
    return np.clip(np.round(np.array(values, np.float64)), lowest, np.iinfo(kind).max).astype(kind)


class _Came(NamedTuple):
    time_s: float
    """Since 1970."""
    process: str
    request: Request
    answer: tuple[float, float, float]
    """Its tokens, as the worker said, 0: not known; those of the prompt that the worker said it had; its latency in
    seconds."""


def _came(log: DecisionLog) -> Iterator[_Came]:
    """All that is load."""
    seen: Sequence[RecordedDecision | Refusal] = [
        *(d for d in log.decisions if (d.run, d.request.number) not in log.questions),
        *(r for r in log.refusals if r.reason != _UNKNOWN),
    ]
    for each in seen:
        if each.request.model:
            end = log.outcomes.get((each.run, int(each.request.number)))
            answer = (0.0, 0.0, 0.0) if end is None else (end.output_tokens, end.cached_tokens, end.latency_s)
            yield _Came(log.unix_s(each.run, each.at_s), log.runs[each.run].process, each.request, answer)
