"""What Envoy's module says of the requests that it decided about, taken where the recorder takes what it hears."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from balancer.core.trials.split import Lot
from balancer.front.layouts import ENDERS, KINDS, LINE, OUTCOME, UNKNOWN_MODEL, VOIDS, Drawn, Source, alike
from balancer.front.router import SharedRouter
from balancer.gateway.kserve import Kind
from balancer.gateway.responses import ERRORS, INVALID_CODES
from balancer.gateway.verdict import By
from balancer.operate.logs import DecisionLines
from balancer.operate.metric_series import OTHER
from balancer.operate.tally import REASONS, Ended, Measured, Tally

_Told: Any = namedtuple("_Told", OUTCOME.names or ())  # type: ignore[misc]  # the layout names them
_Line: Any = namedtuple("_Line", LINE.names or ())  # type: ignore[misc]  # likewise
_INVALID = INVALID_CODES[1]
Compare = Callable[[Lot, int, int, By, float, float], None]


class NativeOutcomes:
    """Counts what ended. The estimators have learned of it already."""

    def __init__(self, router: SharedRouter, tally: Tally, lines: DecisionLines, compare: Compare) -> None:
        """`compare`: `Recorder.compare`."""
        self._router, self._tally, self._lines, self._compare = router, tally, lines, compare

    def take(self, batch: npt.NDArray[Any]) -> None:
        """As `OUTCOME`. Not empty."""
        models = {column: model for model, column in self._router.fleet.models.items()}
        models |= {0: "", UNKNOWN_MODEL: OTHER}
        for rows in alike(batch):
            told: Any = _Told._make(rows[0].item())
            if told.source == Source.REFUSED:
                self._refused(told, rows, models)
            else:
                self._ended(told, rows, models)

    def _policy(self, told: Any) -> str:
        """Whose decision it was."""
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
        keyed, new = bool(told.lot & Drawn.DRAWN_BY_KEY), bool(told.lot & Drawn.DRAWN_NEW)
        for key, latency_s, at_s in zip(*(rows[name].tolist() for name in ("key", "latency_s", "at_s")), strict=True):
            lot = split.drawn(key if keyed else None, new)
            self._compare(lot, ended.grpc_status, ended.http_status, ended.by, latency_s, at_s)

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
        inference=KINDS[told.kind] is Kind.INFERENCE,
        picked=told.source == Source.BY_POLICY,
        ok=bool(told.ok),
        void=VOIDS[told.void_kind],
        by=ENDERS[told.aborted],
        policy=policy,
    )
