"""Gymnasium environments over simulated fleets. Importing this registers `balancer/Fleet-v0`; see README.md."""

import gymnasium

from simulator.envs.fleet import FlattenFleet, FlattenFleets, FleetEnv, FleetVectorEnv

ENVIRONMENT = "balancer/Fleet-v0"

if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(
        ENVIRONMENT,
        entry_point="simulator.envs.fleet:FleetEnv",
        vector_entry_point="simulator.envs.fleet:FleetVectorEnv",
    )

__all__ = ["ENVIRONMENT", "FlattenFleet", "FlattenFleets", "FleetEnv", "FleetVectorEnv"]
