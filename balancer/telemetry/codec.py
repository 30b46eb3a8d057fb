"""Reports to and from the wire.

A stream delivers in order or breaks, so each end remembers what the stream has carried, and models (and their batch
statistics) cross it only when they changed. A report that was never written to the stream loses nothing: the next
one is encoded against what was.
"""

from __future__ import annotations

import math

from balancer.core.events import ModelReport, Report
from balancer.telemetry import report_pb2

_Key = tuple[str, str]


class InvalidReportError(ValueError):
    """A report that breaks the rules of report.proto; the message names the field, its value and the remedy."""


class ReportEncoder:
    """Encodes the reports of one stream, in the order in which they are written to it."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._carried: dict[_Key, ModelReport] = {}

    def encode(self, report: Report) -> report_pb2.WorkerReport:
        """The message for `report`, on the understanding that it is written next."""
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
    )
    if with_batches:
        for rows, executions, compute_s in model.batches:
            entry.batches.add(rows=rows, executions=executions, compute_s=compute_s)


class ReportDecoder:
    """Decodes the reports of one stream, in the order in which they were read from it."""

    def __init__(self) -> None:
        self.worker = ""
        """The worker that this stream speaks of; empty until its first valid report."""
        self.incarnation = -1
        """Of the last report."""
        self._models: dict[_Key, ModelReport] = {}
        self._tuple: tuple[ModelReport, ...] = ()

    def decode(self, message: report_pb2.WorkerReport) -> Report:
        """The event that `message` means. Models that did not change are the same objects as in the last one.

        Raises:
            InvalidReportError: if it breaks the rules of report.proto; the decoder is then as before.
        """
        worker, incarnation, everything = message.worker, message.incarnation, message.all_models
        if worker != self.worker or not worker:
            self._check_worker(worker)
        if incarnation != self.incarnation and not everything:
            raise InvalidReportError(
                "field all_models: false in the first report of a stream or incarnation; "
                "the agent must list all models there"
            )
        utilisation = _utilisation(message)
        changed = message.models
        if everything or len(changed):
            models = {} if everything else self._models.copy()
            for entry in changed:
                model = _decode_model(entry, models)
                models[(model.model, model.version)] = model
            self._models, self._tuple = models, tuple(models.values())
        self.worker, self.incarnation = worker, incarnation
        return Report(
            worker=worker,
            incarnation=incarnation,
            number=message.number,
            ready=message.ready,
            models=self._tuple,
            balancers=message.balancers or 1,
            device=message.device,
            memory_bytes=message.memory_bytes,
            memory_used_bytes=message.memory_used_bytes,
            utilisation=utilisation,
        )

    def _check_worker(self, worker: str) -> None:
        if not worker:
            raise InvalidReportError("field worker: is empty; start the agent with the worker's name (--worker)")
        if self.worker:
            raise InvalidReportError(
                f"field worker: is {worker!r} on a stream of {self.worker!r}; open a stream for each worker"
            )


def _decode_model(entry: report_pb2.ModelReport, carried: dict[_Key, ModelReport]) -> ModelReport:
    name, version = entry.model, entry.version
    if not name:
        raise InvalidReportError("field models.model: is empty; every model has a name")
    pending, executing = entry.pending, entry.executing
    # Compared like this, NaN fails too.
    if not 0.0 <= pending < math.inf:
        raise InvalidReportError(f"field models.pending of {name!r}: is {pending}; it is a number, 0 or more")
    if not 0.0 <= executing < math.inf:
        raise InvalidReportError(f"field models.executing of {name!r}: is {executing}; it is a number, 0 or more")
    if len(entry.batches):
        batches = tuple((batch.rows, batch.executions, batch.compute_s) for batch in entry.batches)
        _check_batches(name, batches)
    else:
        before = carried.get((name, version))
        batches = before.batches if before is not None else ()
    return ModelReport(
        model=name,
        version=version,
        ready=entry.ready,
        pending=pending,
        executing=executing,
        succeeded=entry.succeeded,
        failed=entry.failed,
        max_batch_rows=entry.max_batch_rows or 1,
        instances=entry.instances or 1,
        batches=batches,
    )


def _check_batches(name: str, batches: tuple[tuple[int, int, float], ...]) -> None:
    for rows, _, compute_s in batches:
        if not rows:
            raise InvalidReportError(f"field models.batches.rows of {name!r}: is 0; a batch has rows")
        if not 0.0 <= compute_s < math.inf:
            raise InvalidReportError(
                f"field models.batches.compute_s of {name!r}: is {compute_s}; it is seconds, 0 or more"
            )


def _utilisation(message: report_pb2.WorkerReport) -> float:
    """0 to 1; NaN where unknown."""
    if not message.HasField("utilisation"):
        return math.nan
    utilisation = message.utilisation
    if not 0.0 <= utilisation <= 1.0:
        raise InvalidReportError(f"field utilisation: is {utilisation}; it is a share, 0 to 1")
    return utilisation
