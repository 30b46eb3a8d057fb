"""The router that a config asks for."""

from __future__ import annotations

import logging

from balancer.config.config import Config
from balancer.kernel.compiled.library import Compiled, Library, LibraryError
from balancer.native.envoy_module import Module, ModuleError
from balancer.native.folder import Folder, FolderError
from balancer.native.router import SharedRouter
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.router import Router

logger = logging.getLogger(__name__)


def router_of(config: Config, seed: int) -> AnyRouter:
    """By the compiled kernel where there is one that fits, and shared with Envoys where that is wanted."""
    policy, settings, folder = config.policy.built, config.settings(), config.shared_folder
    try:
        library = Library()
    except LibraryError as error:
        logger.warning("decisions are made in Python, several times as slowly: %s", error)
        return Router(policy, settings, seed)
    if folder is not None:
        try:
            return SharedRouter(policy, settings, seed, library, Module(library), Folder(folder))
        except (ModuleError, FolderError, OSError) as error:
            logger.warning("envoy.frontend: Envoy will ask the balancer for each request: %s", error)
    return Router(policy, settings, seed, Compiled(library))
