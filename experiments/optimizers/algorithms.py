"""What is compared: each algorithm for so many decisions, and the policy that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from experiments.optimizers.cma_es import CmaEs, CmaEsSettings
from policies.base import Policy
from simulator.training.arena import Draw
from simulator.training.pgpe import Pgpe, PgpeSettings
from simulator.training.ppo import Ppo, PpoSettings
from simulator.training.reinforce import Reinforce, ReinforceSettings
from simulator.training.validation import learned

PGPE, COEFFICIENTS, PPO, REINFORCE, CMA_ES = "pgpe", "pgpe-coefficients", "ppo", "reinforce", "cma-es"
_STEPS = 16
"""Iterations at least, whatever the budget: where it is small, an iteration has fewer episodes."""
_SIDE_BY_SIDE = 64
"""Pairs of a task of PGPE."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One line of the tables."""

    title: str
    make: Callable[[int, Draw, int], Any]
    """Of a budget in decisions, what to draw from, and a training seed: a `trainer.Algorithm` at its start."""
    policy: Callable[[Any], Policy]
    """What it ends with."""


def _within(usual: int, decisions: int, of_each: int) -> int:
    """Episodes of an iteration, as usual or fewer; `of_each`: decisions for one of them."""
    return max(2, min(usual, decisions // (_STEPS * of_each)))


def _iterations(decisions: int, of_each: int) -> int:
    return max(1, round(decisions / of_each))


def _pgpe(coefficients_share: float) -> Callable[[int, Draw, int], Pgpe]:
    def make(decisions: int, draw: Draw, seed: int) -> Pgpe:
        usual = PgpeSettings()
        pairs = _within(usual.pairs, decisions, 2 * usual.requests)
        settings = PgpeSettings(
            iterations=_iterations(decisions, 2 * pairs * usual.requests),
            coefficients_share=coefficients_share,
            pairs=pairs,
            tasks=max(1, pairs // _SIDE_BY_SIDE),
        )
        return Pgpe(settings, draw, seed)

    return make


def _ppo(decisions: int, draw: Draw, seed: int) -> Ppo:
    usual = PpoSettings()
    episodes = _within(usual.episodes, decisions, usual.requests)
    iterations = _iterations(decisions, episodes * usual.requests)
    return Ppo(PpoSettings(episodes=episodes, iterations=iterations, tasks=1), draw, seed)


def _reinforce(decisions: int, draw: Draw, seed: int) -> Reinforce:
    usual = ReinforceSettings()
    episodes = _within(usual.episodes, decisions, usual.requests)
    iterations = _iterations(decisions, episodes * usual.requests)
    return Reinforce(ReinforceSettings(episodes=episodes, iterations=iterations), draw, seed)


def _cma_es(decisions: int, draw: Draw, seed: int) -> CmaEs:
    usual = CmaEsSettings()
    # With common random numbers few episodes rank candidates, and more generations are worth more than more of them.
    of_each = usual.population * usual.requests
    episodes = max(1, min(usual.episodes, decisions // (_STEPS * of_each)))
    return CmaEs(CmaEsSettings(iterations=_iterations(decisions, episodes * of_each), episodes=episodes), draw, seed)


def _of_network(algorithm: Any) -> Policy:
    return learned(algorithm.network)


def _of_options(algorithm: CmaEs) -> Policy:
    return algorithm.policy


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        PGPE: Algorithm("pgpe, all weights: what ships", _pgpe(PgpeSettings().coefficients_share), _of_network),
        COEFFICIENTS: Algorithm("pgpe, the coefficients alone", _pgpe(1.0), _of_network),
        PPO: Algorithm("PPO", _ppo, _of_network),
        REINFORCE: Algorithm("REINFORCE", _reinforce, _of_network),
        CMA_ES: Algorithm("CMA-ES, options of expected_latency", _cma_es, _of_options),
    }
)
AGAINST = PGPE
"""What all are compared to, and whose time they get: it is what ships."""
AT_EQUAL_TIME = (PPO, REINFORCE, CMA_ES)
"""Those that are trained again, for as many decisions as fit the time of `AGAINST`; coefficients alone take that."""
