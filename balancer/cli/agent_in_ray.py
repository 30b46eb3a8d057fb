"""The agent within each replica of Ray Serve, which calls `middlewares` where its environment says

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=balancer.cli.agent_in_ray:middlewares
    BALANCER_AGENT_OPTIONS="--balancer 10.0.0.5:9102"

The options are those of `balancer agent`. The application's name is that of its model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
from ray import serve
from ray.serve.exceptions import RayServeException
from starlette.middleware import Middleware

from balancer.agent.agent import AgentOptions, run_agent
from balancer.agent.asgi_source import AsgiSource, Reporting
from balancer.cli.agent import agent, options_of
from balancer.discovery.ray_serve import worker_name
from balancer.errors import OperatorError

logger = logging.getLogger(__name__)
OPTIONS = "BALANCER_AGENT_OPTIONS"
_OF_THE_COMMAND = ("control", "log_level")


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
    options = agent_options(name, os.environ.get(OPTIONS, ""))
    # Nothing else tells how many requests Serve lets into the replica at once.
    source = AsgiSource(replica.app_name, replica._deployment_config.max_ongoing_requests)

    async def report() -> None:
        try:
            await run_agent(options, asyncio.Event(), source)
        except Exception:
            logger.exception("this replica is not reported on any more")

    return [Middleware(Reporting, source, report)]


def agent_options(worker: str, text: str) -> AgentOptions:
    """Of a worker, by the words of `BALANCER_AGENT_OPTIONS`."""
    try:
        with agent.make_context("agent", ["--worker", worker, *shlex.split(text)]) as context:
            given = {name: value for name, value in context.params.items() if name not in _OF_THE_COMMAND}
            if not given["balancers"]:
                raise ValueError("it has no --balancer HOST:PORT, to whom to report")
            return options_of(given, Path())
    except (click.ClickException, ValueError) as error:
        raise OperatorError(f"{OPTIONS}={text!r}: {error}") from error
