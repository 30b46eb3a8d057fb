"""Ray Serve with replicas that answer at once: `replicas.py PORT COUNT FOLDER`, by a Python that has Ray."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

_OBJECTS_BYTES = 100 * 2**20
_MOST_ONGOING = 64


class Replica:
    async def __call__(self, request: Any) -> dict[str, str]:
        await request.body()
        return {"text": "ok"}


def main() -> None:
    port, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ray.init(
        address="local",
        num_cpus=count,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECTS_BYTES,
        _temp_dir=folder,
    )
    # A line a request is no part of the comparison.
    quiet = LoggingConfig(enable_access_log=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=quiet)
    replicas = serve.deployment(
        num_replicas=count, max_ongoing_requests=_MOST_ONGOING, ray_actor_options={"num_cpus": 0}, logging_config=quiet
    )(Replica)
    serve.run(replicas.bind())
    signal.sigwait([signal.SIGTERM])
    ray.shutdown()


if __name__ == "__main__":
    main()
