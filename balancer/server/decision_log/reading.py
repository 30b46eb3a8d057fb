"""Reads decision logs back, bit for bit. Imports no gateway, so that the simulator may use it."""

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from balancer.kernel.settings import Settings
from balancer.server.decision_log.files import SUFFIX, number_of
from balancer.server.decision_log.lines import COLUMNS, COLUMNS_SINCE, FORMAT, VERSION
from balancer.server.decision_log.recorded import (
    DecisionLog,
    DecisionLogError,
    ModelService,
    RecordedDecision,
    RecordedOutcome,
    RecordedPolicy,
    RecordedService,
    Refusal,
    Run,
    Workers,
)
from policies.base import FloatArray, Request
from policies.hashing import kind_hash_of

_COLUMNS = {
    version: COLUMNS[: len(COLUMNS) - sum(len(names) for since, names in COLUMNS_SINCE.items() if since > version)]
    for version in range(1, VERSION + 1)
}
_SETTINGS = TypeAdapter(Settings)


def read_log(path: Path) -> DecisionLog:
    """A file of a decision log, or all those in a folder.

    Raises:
        DecisionLogError: nothing is there, it is no decision log or one of another format version, or a line is
            damaged. A file that merely ends too early is read up to there, and named in `cut`.
    """
    files = sorted(path.glob(f"decisions-*{SUFFIX}"), key=_order) if path.is_dir() else [path]
    if not files:
        raise DecisionLogError(
            f"{path} holds no decisions-*{SUFFIX}; give the folder that decision_log.folder of the config names, or "
            "one of its files"
        )
    log, began_s = DecisionLog(), dict[tuple[int, int], float]()
    for file in files:
        _FileReader(log, file, began_s).read()
    return log


def _order(file: Path) -> tuple[str, int]:
    return file.name.rpartition("-")[0], number_of(file)


class _FileReader:
    def __init__(self, log: DecisionLog, file: Path, began_s: dict[tuple[int, int], float]) -> None:
        """`began_s`: first tokens of answers whose end may be in the next file, by run and number."""
        self._log, self._began_s = log, began_s
        self._file = file
        self._run = -1
        self._workers: Workers | None = None
        self._index: dict[str, int] = {}
        self._policies: dict[int, RecordedPolicy] = {}
        self._take = {
            "header": self._header,
            "workers": self._take_workers,
            "settings": self._settings,
            "service": self._service,
            "policy": self._policy,
            "decision": self._decision,
            "refusal": self._refusal,
            "first_token": self._first_token,
            "outcome": self._outcome,
            "no_inference": self._no_inference,
        }

    def read(self) -> None:
        number = 0
        try:
            with gzip.open(self._file, "rb") as lines:
                for number, text in enumerate(lines, 1):
                    ((kind, content),) = json.loads(text).items()
                    if number == 1 and (kind, content.get("format")) != ("header", FORMAT):
                        raise self._no_log("it does not begin with the header of one")
                    self._take[kind](content)
        except EOFError:
            self._log.cut.append(f"{self._file} ends in the middle of line {number + 1}, as after a crash")
        except OSError as error:
            if number:
                raise self._damaged(number + 1, error) from error
            raise self._no_log(str(error)) from error
        except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(number + isinstance(error, zlib.error), error) from error
        if not number and self._file.stat().st_size == 0:
            self._log.cut.append(f"{self._file} is empty, as after a crash")

    def _no_log(self, why: str) -> DecisionLogError:
        return DecisionLogError(
            f"{self._file} is no decision log: {why}; give a file that a balancer wrote to decision_log.folder"
        )

    def _damaged(self, line: int, error: Exception) -> DecisionLogError:
        return DecisionLogError(
            f"{self._file}: line {line} is damaged ({type(error).__name__}: {error}); copy the file anew from where it "
            "was written, or leave it out: every other file is complete in itself"
        )

    def _header(self, content: Mapping[str, Any]) -> None:
        if _COLUMNS.get(content["version"]) != tuple(content["columns"]):
            raise DecisionLogError(
                f"{self._file}: line 1: format version {content['version']} with the columns "
                f"{', '.join(content['columns'])}; this balancer reads 1 to {VERSION} with {', '.join(COLUMNS)}: "
                "use the version of the balancer that wrote it"
            )
        # Older logs do not have what has a default.
        given = [field.name for field in fields(Run) if field.name in content or field.default is MISSING]
        run = Run(**{name: content[name] for name in given})
        if run not in self._log.runs:
            self._log.runs.append(run)
        self._run = self._log.runs.index(run)

    def _take_workers(self, content: Mapping[str, Any]) -> None:
        rows = content["rows"]
        self._workers = Workers(
            names=tuple(row["name"] for row in rows),
            devices=tuple(row["device"] for row in rows),
            weight=_frozen(np.array([row["weight"] for row in rows], np.float64)),
            name_hash=_frozen(np.array([int(row["name_hash"], 16) for row in rows], np.uint64)),
            kind_hash=_frozen(np.array([kind_hash_of(row["device"]) for row in rows], np.uint64)),
        )
        self._index = {name: row for row, name in enumerate(self._workers.names)}

    def _settings(self, content: Mapping[str, Any]) -> None:
        self._log.settings = _SETTINGS.validate_python(content)

    def _service(self, content: Mapping[str, Any]) -> None:
        models = tuple(
            ModelService(
                model["model"],
                model["max_batch_rows"],
                model["instances"],
                tuple((rows, executions, seconds) for rows, executions, seconds in model["batches"]),
            )
            for model in content["models"]
        )
        worker, at_s, incarnation, balancers = (content[n] for n in ("worker", "at_s", "incarnation", "balancers"))
        self._log.service.append(RecordedService(self._run, worker, at_s, incarnation, balancers, models))

    def _policy(self, content: Mapping[str, Any]) -> None:
        options = json.dumps(content["options"], sort_keys=True)
        role = content.get("role", "in_force" if content["in_force"] else "hash")  # logs of before the guard have none
        policy = RecordedPolicy(content["name"], options, content["in_force"], content["sha256"], role)
        self._policies[content["id"]] = policy

    def _decision(self, content: Mapping[str, Any]) -> None:
        workers = self._workers
        if workers is None:
            raise ValueError("no line of workers is before it")
        subset = content["subset"]
        decision = RecordedDecision(
            run=self._run,
            request=_request(content),
            at_s=content["at_s"],
            subset=None if subset is None else tuple(subset),
            workers=workers,
            columns=_with_all_columns(_array(content["columns"], "<f8"), len(workers.names)),
            eligible=_array(content["eligible"], "?"),
            policy=self._policies[content["policy"]],
            valid=content["valid"],
            probabilities=_array(content["probabilities"], "<f8"),
            pick=-1 if content["worker"] is None else self._index[content["worker"]],
            propensity=content["propensity"],
            fallbacks=tuple(content["fallbacks"]),
        )
        self._log.decisions.append(decision)

    def _refusal(self, content: Mapping[str, Any]) -> None:
        self._log.refusals.append(Refusal(self._run, _request(content), content["at_s"], content["reason"]))

    def _first_token(self, content: Mapping[str, Any]) -> None:
        self._began_s[self._run, content["number"]] = content["at_s"]

    def _outcome(self, content: Mapping[str, Any]) -> None:
        latency_s = content.get("latency_s")
        self._log.outcomes[self._run, content["number"]] = RecordedOutcome(
            content["at_s"],
            content.get("worker"),
            math.nan if latency_s is None else latency_s,
            content.get("ok", False),
            self._began_s.pop((self._run, content["number"]), math.nan),
            content.get("said_s", math.nan),
            float(content.get("output_tokens", 0.0)),
            float(content.get("cached_tokens", 0.0)),
        )

    def _no_inference(self, content: Mapping[str, Any]) -> None:
        self._log.questions.add((self._run, content["number"]))


def _request(content: Mapping[str, Any]) -> Request:
    key, deadline_s = content["key"], content["deadline_s"]
    return Request(
        model=content["model"],
        version=content["version"],
        rows=content["rows"],
        number=content["number"],
        key=None if key is None else int(key, 16),
        deadline_s=math.inf if deadline_s is None else deadline_s,
        priority=content["priority"],
        tenant=content["tenant"],
        sequence=content["sequence"],
        prompt_tokens=content.get("prompt_tokens", 0.0),
        max_tokens=content.get("max_tokens", 0.0),
        prefix=tuple((int(identity, 16), tokens) for identity, tokens in content.get("prefix", ())),
    )


def _with_all_columns(recorded: FloatArray, workers: int) -> FloatArray:
    """`(columns, n)`; those that an older log does not have are 0."""
    columns = recorded.reshape(-1, workers)
    if len(columns) == len(COLUMNS):
        return columns
    if len(columns) not in map(len, _COLUMNS.values()):
        raise ValueError(f"{len(columns)} columns")
    return _frozen(np.concatenate([columns, np.zeros((len(COLUMNS) - len(columns), workers))]))


def _array(text: str, kind: str) -> npt.NDArray[Any]:
    return np.frombuffer(bytes.fromhex(text), kind)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
