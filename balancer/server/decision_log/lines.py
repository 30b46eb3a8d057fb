"""The lines of a decision log, as they are written. What they mean is in the README beside this.

Arrays are hexadecimal of their little-endian bytes: exact, and ten times faster to write than decimal numbers.
"""

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.lib.introspect import opt_func_info

from balancer.kernel.settings import Settings
from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.canary.selector import Role
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.events import Finished, Withdrawn
from balancer.scheduler.fleet import Fleet
from policies.base import FloatArray, Policy, Request, UintArray
from policies.columns import columns_of

FORMAT = "balancer decision log"
VERSION = 7
"""Version 1 had no `service` lines, columns came later, see `COLUMNS_SINCE`; settings, what prompts begin with, their
first tokens and the tokens of answers came with 7. All versions are read."""
COLUMNS = columns_of("moment", "request")
"""The columns of `FleetView` that differ from one decision to the next, float64 each, in the order of the file."""
COLUMNS_SINCE = {
    **{3: ("cached", "saving_s"), 4: ("pending_other_models",), 5: ("work_behind_s",)},
    6: (
        *("matched_tokens", "waiting_tokens", "cached_tokens", "held_tokens", "memory_tokens"),
        *("first_token_s", "prompt_s", "slowdown_s"),
    ),
}
"""The last of them, by the version that brought them. They are 0 in older logs: nothing was known of them."""

_REASONS: dict[type[RoutingError], str] = {UnknownModel: "unknown_model", NoEligibleWorker: "no_worker", Shed: "shed"}
_encode = json.JSONEncoder(separators=(",", ":")).encode


def line(kind: str, content: dict[str, Any]) -> bytes:
    return (_encode({kind: content}) + "\n").encode()


def arithmetic() -> str:
    """What the last bit of exp and log depends on: NumPy, and which of its variants it takes on this processor."""
    variants = opt_func_info("^(exp|log)$", "float64")
    chosen = (f"{name} {kind['current']}" for name, kinds in sorted(variants.items()) for kind in kinds.values())
    return ", ".join([f"NumPy {np.__version__}", *chosen])


def header(process: str, seed: int, share: float, now_s: float, unix_s: float, compiled: bool) -> bytes:
    """The first line of a file; the two times are one moment, in the router's clock and since 1970.

    `compiled`: whether shipped policies decide by the compiled kernel.
    """
    return line(
        "header",
        {
            "format": FORMAT,
            "version": VERSION,
            "process": process,
            "seed": seed,
            "share": share,
            "started_s": now_s,
            "started_unix_s": unix_s,
            "arithmetic": arithmetic(),
            "compiled": compiled,
            "columns": COLUMNS,
        },
    )


class NamedWorker(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str:
        """Its kind; empty where unknown."""


class NamedWorkers(Protocol):
    @property
    def changes(self) -> int: ...

    @property
    def workers(self) -> Sequence[NamedWorker]: ...

    @property
    def weight(self) -> FloatArray:
        """Of each, `(n,)`."""

    @property
    def name_hash(self) -> UintArray:
        """Of each, `(n,)`."""


def workers(fleet: NamedWorkers) -> bytes:
    rows = [
        {"name": worker.name, "device": worker.device, "weight": float(weight), "name_hash": f"{int(name_hash):016x}"}
        for worker, weight, name_hash in zip(fleet.workers, fleet.weight, fleet.name_hash, strict=True)
    ]
    return line("workers", {"rows": rows})


def settings(of_router: Settings) -> bytes:
    """Without service times that were measured beforehand."""
    estimators = dataclasses.replace(of_router.estimators, profiles={})
    return line("settings", dataclasses.asdict(dataclasses.replace(of_router, estimators=estimators)))


def service(fleet: Fleet, row: int, at_s: float) -> bytes:
    """What one worker's agent has reported of its executions: cumulative counters, over all versions of a model."""
    worker = fleet.workers[row]
    models: dict[str, dict[int, list[float]]] = {model: {} for model in sorted(worker.versions)}
    for (model, _, rows), (executions, seconds) in worker.batches.items():
        total = models.setdefault(model, {}).setdefault(rows, [0, 0.0])
        total[0] += executions
        total[1] += seconds
    content = {
        "worker": worker.name,
        "at_s": at_s,
        "incarnation": worker.incarnation,
        "balancers": int(fleet.queue.balancers[row]),
        "models": [
            {
                "model": model,
                "max_batch_rows": int(fleet.service.max_batch_rows[row, fleet.models[model]]),
                "instances": int(fleet.service.instances[row, fleet.models[model]]),
                "batches": [[rows, *total] for rows, total in sorted(batches.items())],
            }
            for model, batches in models.items()
        ],
    }
    return line("service", content)


def policy(identity: int, recorded: Policy, role: Role) -> bytes:
    content = {
        "id": identity,
        "name": recorded.name,
        "options": recorded.options(),
        "in_force": role == "in_force",
        "role": role,
        "sha256": policy_hash(recorded),
    }
    return line("policy", content)


def policy_hash(recorded: Policy) -> str:
    """SHA-256, hexadecimal, of the policy's name, options, files, and the source of its class (empty: there is none).

    What the class calls in other modules is not in it.
    """
    try:
        source = inspect.getsource(type(recorded))
    except (OSError, TypeError):
        source = ""
    content = json.dumps([recorded.name, recorded.options(), recorded.digest, source], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def decision(answered: Answered, made: Decision | None, policy_id: int) -> bytes:
    view = answered.view
    columns = np.concatenate([getattr(view, name) for name in COLUMNS], dtype="<f8")
    content = {
        "number": answered.request.number,
        "at_s": answered.at_s,
        **_request(answered.request),
        "subset": None if answered.subset is None else sorted(answered.subset),
        "policy": policy_id,
        "valid": answered.valid,
        "worker": None if made is None else made.worker,
        "propensity": 0.0 if made is None else made.propensity,
        "fallbacks": () if made is None else made.fallbacks,
        "probabilities": np.asarray(answered.probabilities, "<f8").tobytes().hex(),
        "eligible": np.asarray(view.eligible).tobytes().hex(),
        "columns": columns.tobytes().hex(),
    }
    return line("decision", content)


def refusal(request: Request, error: RoutingError, at_s: float) -> bytes:
    content = {"number": request.number, "at_s": at_s, **_request(request), "reason": _REASONS[type(error)]}
    return line("refusal", content)


def outcome(event: Finished | Withdrawn, at_s: float) -> bytes:
    """How the request of a decision ended; one that its client ended, or got wrong, as one that no worker got."""
    content: dict[str, Any] = {"number": event.number, "at_s": at_s}
    if isinstance(event, Finished) and event.void != "client":
        content |= {"worker": event.worker, "latency_s": event.latency_s, "ok": event.ok}
        if event.output_tokens:
            said_s = at_s if math.isnan(event.said_s) else event.said_s
            content |= {"output_tokens": event.output_tokens, "said_s": said_s, "cached_tokens": event.cached_tokens}
    return line("outcome", content)


def first_token(number: int, at_s: float) -> bytes:
    """The answer to a prompt has begun."""
    return line("first_token", {"number": number, "at_s": at_s})


def no_inference(number: int) -> bytes:
    return line("no_inference", {"number": number})


def _request(request: Request) -> dict[str, Any]:
    deadline_s, key = float(np.max(request.deadline_s)), request.key
    return {
        "model": request.model,
        "version": request.version,
        "rows": float(np.max(request.rows)),
        "key": None if key is None else f"{key:016x}",
        "deadline_s": deadline_s if math.isfinite(deadline_s) else None,
        "priority": request.priority,
        "tenant": request.tenant,
        "sequence": request.sequence,
        "prompt_tokens": float(np.max(request.prompt_tokens)),
        "max_tokens": float(np.max(request.max_tokens)),
        "prefix": [[f"{identity:016x}", tokens] for identity, tokens in request.prefix],
    }
