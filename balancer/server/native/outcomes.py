"""What Envoy's module says of the requests that it decided about, taken where the recorder takes what it hears."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.extproc.kserve import Kind
from balancer.extproc.prompts import Usage
from balancer.extproc.responses import ERRORS, INVALID_CODES, By
from balancer.native.enums import DrawFlags, Source
from balancer.native.layouts import ENDERS, LINE, OUTCOME, PORTS, UNKNOWN_MODEL, VOIDS
from balancer.native.router import SharedRouter
from balancer.scheduler.canary.split import VersionDraw
from balancer.server.logs import DecisionLines
from balancer.server.metrics.series import OTHER
from balancer.server.tally import REASONS, Ended, Measured, Tally

_OutcomeRow: Any = namedtuple("_OutcomeRow", OUTCOME.names or ())  # type: ignore[misc]  # the layout names them
_DecisionRow: Any = namedtuple("_DecisionRow", LINE.names or ())  # type: ignore[misc]  # likewise
_INVALID = INVALID_CODES[1]
_MULTIPLIERS = np.random.default_rng().integers(2**64, size=OUTCOME.itemsize // 8, dtype=np.uint64) | np.uint64(1)
_KINDS = tuple(Kind)
_ANSWER = ("prompt_tokens", "cached_tokens", "output_tokens", "bytes_in", "first_token_s", "answering_s")
TakeAnswer = Callable[[str, str, Usage, int, float, float], None]
"""As `Recorder.take_answer`."""
Compare = Callable[[VersionDraw, int, int, By, float, float], None]


class NativeOutcomes:
    """Counts what ended. The estimators have learned of it already."""

    def __init__(
        self, router: SharedRouter, tally: Tally, lines: DecisionLines, compare: Compare, take_answer: TakeAnswer
    ) -> None:
        self._router, self._tally, self._lines, self._compare = router, tally, lines, compare
        self._take_answer = take_answer

    def take(self, batch: npt.NDArray[Any]) -> None:
        """As `OUTCOME`. Not empty."""
        models = {column: model for model, column in self._router.fleet.models.items()}
        models |= {0: "", UNKNOWN_MODEL: OTHER}
        for rows in _alike(batch):
            first: Any = _OutcomeRow._make(rows[0].item())
            if first.source == Source.REFUSED:
                self._refused(first, rows, models)
            else:
                self._ended(first, rows, models)

    def _policy(self, first: Any) -> str:
        return self._router.directory.policy_of(first.directory, first.decider)

    def _refused(self, first: Any, rows: npt.NDArray[Any], models: dict[int, str]) -> None:
        if first.refusal == _INVALID:
            self._tally.invalid(first.endpoint.decode("utf-8", "replace"), len(rows))
        else:
            self._tally.refused(REASONS[ERRORS[first.refusal]], rows["decision_s"].tolist())
        ended = _ended_as(first, models, "")
        self._tally.unserved(ended, rows["at_s"].tolist())
        self._compare_versions(first, rows, ended._replace(grpc_status=first.refusal))

    def _ended(self, first: Any, rows: npt.NDArray[Any], models: dict[int, str]) -> None:
        picked = first.source == Source.BY_POLICY
        policy = self._policy(first) if picked else ""
        if picked:
            self._tally.decided(policy, rows["decision_s"].tolist())
        ended = _ended_as(first, models, self._router.directory.worker_at(_text(first.endpoint)), policy)
        if not first.endpoint:
            self._tally.unserved(ended, rows["at_s"].tolist())
            return
        self._router.outcomes["matched" if first.matched else "unmatched"] += len(rows)
        times = (rows[name].tolist() for name in ("at_s", "latency_s", "first_byte_s"))
        moved = (int(rows[name].sum()) for name in ("bytes_in", "bytes_out"))
        self._tally.served(ended, Measured(*times, *moved))
        self._tally.placed(picked, first.attempts, len(rows))
        self._compare_versions(first, rows, ended)
        if first.prompt and first.ok:
            for row in rows[[*_ANSWER]].tolist():
                prompt, cached, output, bytes_in, first_token_s, answering_s = row
                usage = Usage(float(prompt), float(cached), float(output))
                self._take_answer(ended.model, ended.worker, usage, bytes_in, first_token_s, answering_s)

    def _compare_versions(self, first: Any, rows: npt.NDArray[Any], ended: Ended) -> None:
        split = self._router.directory.split_of(first.directory, first.split) if first.split else None
        if split is None:
            return
        keyed, new = bool(first.draw & DrawFlags.DRAWN_BY_KEY), bool(first.draw & DrawFlags.DRAWN_NEW)
        for key, latency_s, at_s in zip(*(rows[name].tolist() for name in ("key", "latency_s", "at_s")), strict=True):
            draw = split.drawn(key if keyed else None, new)
            self._compare(draw, ended.grpc_status, ended.http_status, ended.by, latency_s, at_s)

    def lines(self, batch: npt.NDArray[Any]) -> None:
        for row in batch.tolist():
            first: Any = _DecisionRow._make(row)
            named = [
                self._router.directory.worker_at(endpoint) for endpoint in _text(first.named).split(",") if endpoint
            ]
            self._lines.write(
                number=None if first.refusal else first.number,
                request_id=_text(first.request_id),
                triton_request_id=_text(first.id),
                model=_text(first.model),
                worker=named[0] if named else "",
                policy=self._policy(first),
                propensity=first.propensity,
                fallbacks=tuple(named[1:]),
                reason=REASONS[ERRORS[first.refusal]] if first.refusal else "picked",
            )


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")


def _ended_as(first: Any, models: dict[int, str], worker: str, policy: str = "") -> Ended:
    return Ended(
        model=models.get(first.column, OTHER),
        worker=worker,
        grpc_status=first.grpc_status if PORTS[first.port] == "grpc" else -1,
        http_status=first.http_status,
        inference=_KINDS[first.kind] is Kind.INFERENCE or PORTS[first.port] == "openai",
        picked=first.source == Source.BY_POLICY,
        ok=bool(first.ok),
        void=VOIDS[first.void_kind],
        by=ENDERS[first.aborted],
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
