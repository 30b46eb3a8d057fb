"""Reads the few lines that matter out of Triton's `/metrics` page, 20 to 100 times a second.

A page is the same text every time but for the numbers, so what a line means is worked out once and looked up by the
text before the number from then on: about a tenth of what a general parser costs.
"""

import re
from dataclasses import dataclass

ModelKey = tuple[str, str]
"""(model, version)."""

_FIELDS = {
    b"nv_inference_pending_request_count": "pending",
    b"nv_inference_request_success": "succeeded",
    b"nv_inference_request_failure": "failed",
    b"nv_inference_compute_input_duration_us": "compute_us",
    b"nv_inference_compute_infer_duration_us": "compute_us",
    b"nv_inference_compute_output_duration_us": "compute_us",
}
_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_MAX_REMEMBERED_LINES = 100_000
"""Far above any page; bounds memory where model names come and go for months."""


class MetricsError(ValueError):
    """The page is not what Triton serves; the message says what is wrong with it."""


@dataclass(slots=True)
class ModelMetrics:
    """One version of one model; counters are cumulative, and summed over GPUs and failure reasons."""

    pending: float = 0.0
    succeeded: float = 0.0
    failed: float = 0.0
    compute_us: float = 0.0
    """Microseconds of input, inference and output, of every request that succeeded: a batch of 8 counts 8 times."""


class MetricsParser:
    def __init__(self) -> None:
        self._meanings: dict[bytes, tuple[ModelKey, str] | None] = {}

    def parse(self, page: bytes) -> dict[ModelKey, ModelMetrics]:
        """The metrics of each model and version that the page names.

        Raises:
            MetricsError: if a line that matters cannot be read.
        """
        meanings = self._meanings
        if len(meanings) > _MAX_REMEMBERED_LINES:
            meanings.clear()
        models: dict[ModelKey, ModelMetrics] = {}
        for line in page.split(b"\n"):
            series, _, number = line.rpartition(b" ")
            try:
                meaning = meanings[series]
            except KeyError:
                meaning = meanings[series] = _meaning(series)
            if meaning is None:
                continue
            key, field = meaning
            try:
                value = float(number)
            except ValueError:
                raise MetricsError(f"{series.decode(errors='replace')}: {number!r} is not a number") from None
            model = models.get(key)
            if model is None:
                model = models[key] = ModelMetrics()
            setattr(model, field, getattr(model, field) + value)
        return models


def _meaning(series: bytes) -> tuple[ModelKey, str] | None:
    """Which field of which model the series is; None: none that matters."""
    name, brace, labels = series.partition(b"{")
    field = _FIELDS.get(name)
    if field is None or not brace:
        return None
    values = {match[1]: _unescape(match[2]) for match in _LABEL.finditer(labels)}
    try:
        return (values[b"model"], values[b"version"]), field
    except KeyError as missing:
        label = missing.args[0].decode()
        raise MetricsError(f"{series.decode(errors='replace')}: has no label {label!r}") from None


def _unescape(value: bytes) -> str:
    """A label's value as the text format escapes it: backslash, quote and newline."""
    text = value.decode(errors="replace")
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
