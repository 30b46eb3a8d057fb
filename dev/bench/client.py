"""The client: h2load (nghttp2), in C, so that it takes as little as possible of the cores that are measured.

A closed loop: each of `clients` connections keeps one request open and sends the next when the answer is complete.
"""

import asyncio
import re
import resource
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpc_client

from balancer.errors import OperatorError
from balancer.proxy.messages import INFER
from dev.stack import MODEL

_SUMMARY = re.compile(r"(\d+) done, (\d+) succeeded")
_DATA = re.compile(r"\((\d+)\) data")
_SPAN = re.compile(r"finished in ([\d.]+)(us|ms|s)")
_FIRST_RUN = 20
_CLOSE_ENOUGH = 0.15
"""What may be missing of the duration, as a share."""
_GRPC = ("--header", "content-type: application/grpc", "--header", "te: trailers")
_JSON = ("--h1", "--header", "content-type: application/json")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Answers:
    started_s: npt.NDArray[np.float64]
    """When each request was sent, seconds since the epoch."""
    latency_s: npt.NDArray[np.float64]
    duration_s: float
    data_bytes: int
    """Bodies of all responses."""
    not_ok: int
    """HTTP status other than 200; gRPC's own errors show in `data_bytes` alone."""
    client_cpu_s: float

    @property
    def count(self) -> int:
        return len(self.latency_s)

    def failed(self, answer_bytes: int) -> int:
        """Requests without a good answer, where a good one has `answer_bytes` of tensor: gRPC's errors are HTTP 200."""
        return self.not_ok + max(self.count - self.not_ok - self.data_bytes // answer_bytes, 0)

    @property
    def rate_per_s(self) -> float:
        return self.count / self.duration_s


def write_infer(path: Path, tensor_bytes: int) -> int:
    """Write a ModelInfer call of one float32 tensor as gRPC frames it; returns the size of the answer's tensor."""
    tensor = np.zeros(tensor_bytes // 4, np.float32)
    single = grpc_client.InferInput("INPUT", list(tensor.shape), "FP32")
    single.set_data_from_numpy(tensor)
    request = grpc_client.service_pb2.ModelInferRequest(model_name=MODEL, id="benchmark")
    request.inputs.append(single._get_tensor())
    request.raw_input_contents.append(tensor.tobytes())
    path.write_bytes(framed(request.SerializeToString()))
    return tensor.nbytes


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


async def load(
    endpoint: str,
    body: Path,
    duration_s: float,
    clients: int = 1,
    streams: int = 1,
    path: str = INFER,
    http1: bool = False,
) -> Answers:
    """Post `body` to `endpoint` for about `duration_s` over `clients` connections of `streams` requests each.

    As gRPC, or as JSON over HTTP/1.1 (`http1`, `streams` 1: more would be pipelined).

    In several runs of a counted number of requests, the first a short one that tells the rate: a run that ends by the
    clock breaks off requests, and Triton 2.51 sometimes crashes when one that it executes is broken off.

    Raises:
        OperatorError: h2load is missing, or could not do it.
    """
    runs = [await _run(endpoint, body, _FIRST_RUN * clients * streams, clients, streams, path, http1)]
    while (left_s := duration_s - sum(run.duration_s for run in runs)) > _CLOSE_ENOUGH * duration_s:
        requests = max(int(runs[-1].rate_per_s * left_s), clients * streams)
        runs.append(await _run(endpoint, body, requests, clients, streams, path, http1))
    return joined(runs)


def joined(runs: Sequence[Answers]) -> Answers:
    return Answers(
        started_s=np.concatenate([run.started_s for run in runs]),
        latency_s=np.concatenate([run.latency_s for run in runs]),
        duration_s=sum(run.duration_s for run in runs),
        data_bytes=sum(run.data_bytes for run in runs),
        not_ok=sum(run.not_ok for run in runs),
        client_cpu_s=sum(run.client_cpu_s for run in runs),
    )


async def _run(
    endpoint: str, body: Path, requests: int, clients: int, streams: int, path: str, http1: bool = False
) -> Answers:
    with tempfile.TemporaryDirectory(prefix="h2load-") as directory:
        log = Path(directory) / "requests.tsv"
        before_s = _children_cpu_s()
        process = await asyncio.create_subprocess_exec(
            find_h2load(),
            *("--requests", str(requests), "--clients", str(clients), "--max-concurrent-streams", str(streams)),
            *("--data", str(body), "--log-file", str(log)),
            *(_JSON if http1 else _GRPC),
            f"http://{endpoint}{path}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        cpu_s = _children_cpu_s() - before_s
        summary, data, span = _SUMMARY.search(output), _DATA.search(output), _SPAN.search(output)
        if process.returncode or not (summary and data and span):
            raise OperatorError(f"h2load to {endpoint} failed with status {process.returncode}:\n{output}")
        rows: npt.NDArray[np.int64] = np.loadtxt(log, dtype=np.int64, ndmin=2)
    if not len(rows):
        raise OperatorError(f"h2load to {endpoint} got no answer:\n{output}")
    return Answers(
        started_s=rows[:, 0].astype(np.float64) * 1e-6,
        latency_s=rows[:, 2].astype(np.float64) * 1e-6,
        duration_s=float(span[1]) * _UNIT_S[span[2]],
        data_bytes=int(data[1]),
        not_ok=int((rows[:, 1] != 200).sum()),
        client_cpu_s=cpu_s,
    )


def find_h2load() -> str:
    """Its path; OperatorError where it is not installed."""
    found = shutil.which("h2load")
    if found is None:
        raise OperatorError("the client h2load is not installed; on Debian: apt-get install nghttp2-client")
    return found


def _children_cpu_s() -> float:
    """CPU time of children that have ended; no other child ends while one runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
