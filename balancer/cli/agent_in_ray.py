"""The agent within each replica of Ray Serve, which calls `middlewares` where its environment says

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=balancer.cli.agent_in_ray:middlewares
    BALANCER_AGENT_OPTIONS="--balancer 10.0.0.5:9102"

The options are those of `balancer agent`. The application's name is that of its model.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware

from balancer.agent.agent import run_agent
from balancer.agent.asgi_source import AsgiSource, Reporting
from balancer.cli.agent import OPTIONS, options_in
from balancer.discovery.ray_serve import worker_name

logger = logging.getLogger(__name__)


def middlewares() -> Sequence[Middleware]:
    """For a replica: what sees its requests and reports on it; for Serve's own proxies nothing.

    Raises:
        OperatorError: the options do not fit; Serve shows that as the deployment's state.
    """
    try:
        replica = serve.get_replica_context()
    except RayServeException:
        return []
    of_replica = replica.replica_id
    name = worker_name(of_replica.deployment_id.app_name, of_replica.deployment_id.name, of_replica.unique_id)
    options = options_in(os.environ.get(OPTIONS, ""), name)

    def at_once() -> int:
        # Nothing else tells, and a new config of the deployment changes it while the replica runs.
        return int(serve.get_replica_context()._deployment_config.max_ongoing_requests)

    source = AsgiSource(of_replica.deployment_id.app_name, at_once)

    async def report() -> None:
        try:
            await run_agent(options, asyncio.Event(), source)
        except Exception:
            logger.exception("this replica is not reported on any more")

    return [Middleware(Reporting, source, report)]
