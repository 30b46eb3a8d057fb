"""What Envoy's module says of the requests that it decided about, taken where the recorder takes what it hears."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.extproc.kserve import Kind
from balancer.extproc.responses import ERRORS, INVALID_CODES
from balancer.extproc.verdict import By
from balancer.native.layouts import ENDERS, LINE, OUTCOME, UNKNOWN_MODEL, VOIDS, DrawFlags, Source
from balancer.native.router import SharedRouter
from balancer.scheduler.canary.split import VersionDraw
from balancer.server.logs import DecisionLines
from balancer.server.metrics.series import OTHER
from balancer.server.tally import REASONS, Ended, Measured, Tally

_Told: Any = namedtuple("_Told", OUTCOME.names or ())  # type: ignore[misc]  # the layout names them
_Line: Any = namedtuple("_Line", LINE.names or ())  # type: ignore[misc]  # likewise
_INVALID = INVALID_CODES[1]
_MULTIPLIERS = np.random.default_rng().integers(2**64, size=OUTCOME.itemsize // 8, dtype=np.uint64) | np.uint64(1)
_KINDS = tuple(Kind)
Compare = Callable[[VersionDraw, int, int, By, float, float], None]


class NativeOutcomes:
    """Counts what ended. The estimators have learned of it already."""

    def __init__(self, router: SharedRouter, tally: Tally, lines: DecisionLines, compare: Compare) -> None:
        """`compare`: `Recorder.compare`."""
        self._router, self._tally, self._lines, self._compare = router, tally, lines, compare

    def take(self, batch: npt.NDArray[Any]) -> None:
        """As `OUTCOME`. Not empty."""
        models = {column: model for model, column in self._router.fleet.models.items()}
        models |= {0: "", UNKNOWN_MODEL: OTHER}
        for rows in _alike(batch):
            told: Any = _Told._make(rows[0].item())
            if told.source == Source.REFUSED:
                self._refused(told, rows, models)
            else:
                self._ended(told, rows, models)

    def _policy(self, told: Any) -> str:
        return self._router.policy_of(told.directory, told.decider)

    def _refused(self, told: Any, rows: npt.NDArray[Any], models: dict[int, str]) -> None:
        if told.refusal == _INVALID:
            self._tally.invalid(told.endpoint.decode("utf-8", "replace"), len(rows))
        else:
            self._tally.refused(REASONS[ERRORS[told.refusal]], rows["decision_s"].tolist())
        ended = _ended_as(told, models, "")
        self._tally.unserved(ended, rows["at_s"].tolist())
        self._tell_split(told, rows, ended._replace(grpc_status=told.refusal))

    def _ended(self, told: Any, rows: npt.NDArray[Any], models: dict[int, str]) -> None:
        picked = told.source == Source.BY_POLICY
        policy = self._policy(told) if picked else ""
        if picked:
            self._tally.decided(policy, rows["decision_s"].tolist())
        ended = _ended_as(told, models, self._router.worker_at(_text(told.endpoint)), policy)
        if not told.endpoint:
            self._tally.unserved(ended, rows["at_s"].tolist())
            return
        self._router.outcomes["matched" if told.matched else "unmatched"] += len(rows)
        times = (rows[name].tolist() for name in ("at_s", "latency_s", "first_byte_s"))
        moved = (int(rows[name].sum()) for name in ("bytes_in", "bytes_out"))
        self._tally.served(ended, Measured(*times, *moved))
        self._tally.placed(picked, told.attempts, len(rows))
        self._tell_split(told, rows, ended)

    def _tell_split(self, told: Any, rows: npt.NDArray[Any], ended: Ended) -> None:
        """How requests ended that a lot gave a version."""
        split = self._router.split_of(told.directory, told.split) if told.split else None
        if split is None:
            return
        keyed, new = bool(told.draw & DrawFlags.DRAWN_BY_KEY), bool(told.draw & DrawFlags.DRAWN_NEW)
        for key, latency_s, at_s in zip(*(rows[name].tolist() for name in ("key", "latency_s", "at_s")), strict=True):
            draw = split.drawn(key if keyed else None, new)
            self._compare(draw, ended.grpc_status, ended.http_status, ended.by, latency_s, at_s)

    def lines(self, batch: npt.NDArray[Any]) -> None:
        """Decisions of which the log is to tell, as `LINE`."""
        for row in batch.tolist():
            told: Any = _Line._make(row)
            named = [self._router.worker_at(endpoint) for endpoint in _text(told.named).split(",") if endpoint]
            self._lines.write(
                number=None if told.refusal else told.number,
                request_id=_text(told.request_id),
                triton_request_id=_text(told.id),
                model=_text(told.model),
                worker=named[0] if named else "",
                policy=self._policy(told),
                propensity=told.propensity,
                fallbacks=tuple(named[1:]),
                reason=REASONS[ERRORS[told.refusal]] if told.refusal else "picked",
            )


def _text(told: bytes) -> str:
    return told.decode("utf-8", "replace")


def _ended_as(told: Any, models: dict[int, str], worker: str, policy: str = "") -> Ended:
    return Ended(
        model=models.get(told.column, OTHER),
        worker=worker,
        grpc_status=told.grpc_status if told.grpc else -1,
        http_status=told.http_status,
        inference=_KINDS[told.kind] is Kind.INFERENCE,
        picked=told.source == Source.BY_POLICY,
        ok=bool(told.ok),
        void=VOIDS[told.void_kind],
        by=ENDERS[told.aborted],
        policy=policy,
    )


def _alike(batch: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Outcomes in groups whose bytes from `directory` on are equal, each in order: what is alike is counted together.

    Told apart by a random linear hash of 64 bits, which is a tenth of the work of comparing bytes.
    """
    assert OUTCOME.fields is not None
    words = batch.view(np.uint64).reshape(len(batch), -1)[:, OUTCOME.fields["directory"][1] // 8 :]
    _, group = np.unique((words * _MULTIPLIERS[: words.shape[1]]).sum(axis=1), return_inverse=True)
    order = np.argsort(group, kind="stable")
    return np.split(batch.take(order), np.flatnonzero(np.diff(group[order])) + 1)
