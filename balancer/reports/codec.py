"""Reports to and from the wire, and the gate for what agents say: what is out of `balancer.bounds` is refused.

A stream delivers in order or breaks, so each end remembers what the stream has carried, and models (and their batch
statistics) cross it only when they changed. A report that was never written to the stream loses nothing: the next
one is encoded against what was.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.reports import report_pb2
from balancer.reports.prompts import decode_prompts, encode_prompts
from balancer.scheduler.events import ModelReport, Report

_Key = tuple[str, str]


class ReportEncoder:
    """Encodes the reports of one stream, in the order in which they are written to it."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._carried: dict[_Key, ModelReport] = {}

    def encode(self, report: Report) -> report_pb2.WorkerReport:
        models = {(model.model, model.version): model for model in report.models}
        everything = report.incarnation != self._incarnation or models.keys() != self._carried.keys()
        if everything:
            self._carried = {}
        message = report_pb2.WorkerReport(
            worker=report.worker,
            incarnation=report.incarnation,
            number=report.number,
            ready=report.ready,
            all_models=everything,
            balancers=report.balancers,
            device=report.device,
            memory_bytes=report.memory_bytes,
            memory_used_bytes=report.memory_used_bytes,
            utilisation=None if math.isnan(report.utilisation) else report.utilisation,
            draining=report.draining,
            peers=None
            if report.peers_in_flight is None
            else report_pb2.PeersInFlight(
                in_flight=in_flight_of(report.peers_in_flight), waiting_tokens=report.peers_waiting_tokens
            ),
            prompts=encode_prompts(report.peers_prompts),
        )
        for key, model in models.items():
            before = self._carried.get(key)
            if model != before:
                if before is not None and before.batches and not model.batches:
                    # On the wire, no batches mean no change: say that they are gone by listing everything anew.
                    self._incarnation = -1
                    return self.encode(report)
                _add_model(message, model, with_batches=before is None or model.batches != before.batches)
        self._incarnation, self._carried = report.incarnation, models
        return message


def in_flight_of(counts: Iterable[tuple[str, int]]) -> list[report_pb2.InFlight]:
    return [report_pb2.InFlight(model=model, requests=requests) for model, requests in counts]


def decode_in_flight(field: str, entries: Collection[report_pb2.InFlight], most: float) -> dict[str, int]:
    """Requests in flight by model, `most` of each.

    Raises:
        OutOfBoundsError: if there are too many models or requests.
    """
    bounds.at_most(field, len(entries), bounds.MAX_MODELS_IN_FLIGHT)
    counts = {}
    for entry in entries:
        model = bounds.text(f"{field}.model", entry.model)
        counts[model] = int(bounds.number(f"{field}.requests", entry.requests, 0, most))
    return counts


def _add_model(message: report_pb2.WorkerReport, model: ModelReport, *, with_batches: bool) -> None:
    entry = message.models.add(
        model=model.model,
        version=model.version,
        ready=model.ready,
        pending=model.pending,
        executing=model.executing,
        succeeded=model.succeeded,
        failed=model.failed,
        max_batch_rows=model.max_batch_rows,
        instances=model.instances,
        memory_tokens=model.memory_tokens,
        held_tokens=model.held_tokens,
    )
    if with_batches:
        for rows, executions, compute_s in model.batches:
            entry.batches.add(rows=rows, executions=executions, compute_s=compute_s)


class ReportDecoder:
    """Decodes the reports of one stream, in the order in which they were read from it."""

    def __init__(self) -> None:
        self.worker = ""
        """The worker that this stream speaks of; empty until its first valid report."""
        self._incarnation = -1
        self._models: dict[_Key, ModelReport] = {}
        self._tuple: tuple[ModelReport, ...] = ()

    def decode(self, message: report_pb2.WorkerReport, stream: int = 0) -> Report:
        """The event that `message` means. Models that did not change are the same objects as in the last one.

        Args:
            message: As it was read.
            stream: Number of the stream that carried it.

        Raises:
            OutOfBoundsError: if it breaks the rules of report.proto; the decoder is then as before.
        """
        worker, incarnation, everything = message.worker, message.incarnation, message.all_models
        if worker != self.worker or not worker:
            self._check_worker(worker)
        if incarnation != self._incarnation:
            _count("incarnation", incarnation)
            if not everything:
                raise OutOfBoundsError(
                    "all_models", everything, "is true in the first report of a stream or incarnation"
                )
        # Everything is looked at before anything is kept, so that a refused report leaves the decoder as it was.
        utilisation = bounds.number("utilisation", message.utilisation, 0.0, 1.0)
        models, models_tuple = self._models, self._tuple
        if everything or len(message.models):
            models = _decode_models(message, {} if everything else models.copy())
            models_tuple = tuple(models.values())
        report = Report(
            worker=worker,
            incarnation=incarnation,
            number=_count("number", message.number),
            ready=message.ready,
            models=models_tuple,
            balancers=int(bounds.number("balancers", message.balancers or 1, 1, bounds.MAX_BALANCERS)),
            device=bounds.text("device", message.device),
            memory_bytes=_count("memory_bytes", message.memory_bytes),
            memory_used_bytes=_count("memory_used_bytes", message.memory_used_bytes),
            utilisation=utilisation if message.HasField("utilisation") else math.nan,
            draining=message.draining,
            peers_in_flight=_decode_peers(message),
            peers_waiting_tokens=bounds.number(
                "peers.waiting_tokens", message.peers.waiting_tokens, 0.0, bounds.MAX_WAITING_TOKENS
            ),
            peers_prompts=decode_prompts(message.prompts) if len(message.prompts) else (),
            stream=stream,
        )
        self.worker, self._incarnation, self._models, self._tuple = worker, incarnation, models, models_tuple
        return report

    def _check_worker(self, worker: str) -> None:
        if not worker:
            raise OutOfBoundsError("worker", worker, "names the worker; start the agent with its name (--worker)")
        if self.worker:
            rule = f"stays {bounds.shown(self.worker)} on this stream; open a stream for each worker"
            raise OutOfBoundsError("worker", worker, rule)
        bounds.text("worker", worker)


def _decode_peers(message: report_pb2.WorkerReport) -> tuple[tuple[str, int], ...] | None:
    if not message.HasField("peers"):
        return None
    return tuple(decode_in_flight("peers.in_flight", message.peers.in_flight, bounds.MAX_PENDING).items())


def _decode_models(message: report_pb2.WorkerReport, carried: dict[_Key, ModelReport]) -> dict[_Key, ModelReport]:
    """`carried` with the models of the message in it, its numbers of models, versions and batch sizes bounded."""
    entries = message.models
    # Before any is looked at: one message may name the same model many times.
    bounds.at_most("models", len(entries), bounds.MAX_MODELS)
    for entry in entries:
        model = _decode_model(entry, carried)
        carried[model.model, model.version] = model
    bounds.at_most("models", len(carried), bounds.MAX_MODELS)
    if len(carried) > bounds.MAX_VERSIONS:
        bounds.at_most("models.version", max(Counter(name for name, _ in carried).values()), bounds.MAX_VERSIONS)
    sizes = sum(len(model.batches) for model in carried.values())
    bounds.at_most("models.batches", sizes, bounds.MAX_REPORT_BATCH_SIZES)
    return carried


def _decode_model(entry: report_pb2.ModelReport, carried: dict[_Key, ModelReport]) -> ModelReport:
    name, version = bounds.text("models.model", entry.model), bounds.text("models.version", entry.version)
    if not name:
        raise OutOfBoundsError("models.model", name, "names the model; every model has a name")
    if len(entry.batches):
        bounds.at_most("models.batches", len(entry.batches), bounds.MAX_BATCH_SIZES)
        batches = tuple(_decode_batch(batch) for batch in entry.batches)
    else:
        before = carried.get((name, version))
        batches = before.batches if before is not None else ()
    return ModelReport(
        model=name,
        version=version,
        ready=entry.ready,
        pending=bounds.number("models.pending", entry.pending, 0.0, bounds.MAX_PENDING),
        executing=bounds.number("models.executing", entry.executing, 0.0, bounds.MAX_PENDING),
        succeeded=_count("models.succeeded", entry.succeeded),
        failed=_count("models.failed", entry.failed),
        max_batch_rows=int(bounds.number("models.max_batch_rows", entry.max_batch_rows or 1, 1, bounds.MAX_ROWS)),
        instances=int(bounds.number("models.instances", entry.instances or 1, 1, bounds.MAX_INSTANCES)),
        batches=batches,
        memory_tokens=_count("models.memory_tokens", entry.memory_tokens),
        held_tokens=_count("models.held_tokens", entry.held_tokens),
    )


def _decode_batch(batch: report_pb2.BatchStatistics) -> tuple[int, int, float]:
    rows, executions, compute_s = batch.rows, batch.executions, batch.compute_s
    # All three at once: there are many of these in a report. Only where one is out of bounds it matters which.
    if not (
        1 <= rows <= bounds.MAX_ROWS and executions <= bounds.MAX_COUNT and 0.0 <= compute_s <= bounds.MAX_COMPUTE_S
    ):
        bounds.number("models.batches.rows", rows, 1, bounds.MAX_ROWS)
        _count("models.batches.executions", executions)
        bounds.number("models.batches.compute_s", compute_s, 0.0, bounds.MAX_COMPUTE_S)
    return rows, executions, compute_s


def _count(field: str, value: int) -> int:
    bounds.number(field, value, 0, bounds.MAX_COUNT)
    return value
