"""An agent beside a Triton of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.stack.child import Child
from tools.stack.tritonserver import TritonServer


def agent_beside(
    triton: TritonServer,
    balancers: Iterable[str],
    log_path: Path,
    *,
    control: Path | None = None,
    further: Sequence[str] = (),
) -> Child:
    """`balancer agent` for this Triton, to be started; `balancers` are the addresses that take reports.

    `control` is the socket of `balancer agent drain`; None: it cannot be told to drain. `further` are more arguments.
    """
    arguments = [
        "agent",
        *("--worker", triton.name),
        *("--triton-grpc", triton.grpc_endpoint),
        *("--triton-metrics", f"{triton.address}:{triton.metrics_port}"),
        *("--triton-http", triton.http_endpoint),
        *("--control", "" if control is None else str(control)),
        *(argument for balancer in balancers for argument in ("--balancer", balancer)),
        *further,
    ]
    return Child(arguments, log_path=log_path)
