"""The variants: the policy as it is trained, the same with one thing taken away, and what it is compared to."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.ablations.pgpe import AblatedPgpe
from experiments.ablations.switches import Ablation, Look, OpenBatches, Trial
from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from policies.learned.network import untrained
from policies.wlpr import WeightedLeastPending
from simulator.scenario import load_scenario, scenario_names
from simulator.training.arena import CostWeights
from simulator.training.pgpe import PgpeSettings
from simulator.training.plan import NOT_TRAINED_ON
from simulator.training.scenarios import Randomised


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of the table."""

    title: str
    ablation: Ablation = field(default_factory=Ablation)
    cost: CostWeights = field(default_factory=CostWeights)
    coefficients_share: float = PgpeSettings().coefficients_share
    policy: Policy | None = None
    """Decides, and nothing is trained; None: the network that pgpe trains."""


FULL, EXPECTED, WLPR = "full", "expected_latency", "wlpr"


def _heuristic(ablation: Ablation) -> Policy:
    """The network before training, which is `expected_latency`, with something taken away from what it sees."""
    return Trial(untrained(beta=1 / ExpectedLatency().temperature), Look(ablation))


VARIANTS = {
    FULL: Variant("as shipped: pgpe"),
    "no-prior": Variant("without the heuristic prior", ablation=Ablation(prior=False)),
    "no-dead-reckoning": Variant("without dead reckoning", ablation=Ablation(dead_reckoning=False)),
    "open-batches": Variant("without knowing what executes", ablation=Ablation(executing_known=False)),
    "no-tuning-first": Variant("all weights from the first iteration on", coefficients_share=0.0),
    "no-tail": Variant("without the tail term", cost=CostWeights(tail=0.0)),
    "no-deadline": Variant("without the deadline term", cost=CostWeights(deadline=0.0)),
    "no-regret": Variant("without the regret term", cost=CostWeights(regret=0.0)),
    "fixed-size": Variant("fixed-size network of 16 workers", ablation=Ablation(fixed_workers=16)),
    "no-common-random-numbers": Variant(
        "without common random numbers", ablation=Ablation(common_random_numbers=False)
    ),
    "tuned": Variant("best tuned fixed weights (beta and m alone)", coefficients_share=1.0),
    EXPECTED: Variant("expected_latency, untuned", policy=ExpectedLatency()),
    "expected-as-reported": Variant(
        "expected_latency without dead reckoning", policy=_heuristic(Ablation(dead_reckoning=False))
    ),
    "expected-open-batches": Variant("expected_latency without knowing what executes", policy=OpenBatches()),
    WLPR: Variant("wlpr", policy=WeightedLeastPending()),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What each variant trains on."""

    decisions: int
    seed: int = 0

    def iterations(self, of_each: int) -> int:
        """How many of so many decisions."""
        return max(1, round(self.decisions / of_each))

    def at_most(self, usual: int, of_each: int) -> int:
        """Episodes of an iteration: as usual, or fewer where the whole budget is small."""
        return max(2, min(usual, self.decisions // of_each))


def trained_on() -> Randomised:
    """What `balancer train` draws from by default."""
    names = [name for name in scenario_names("train") if name not in NOT_TRAINED_ON]
    return Randomised(tuple(map(load_scenario, names)))


def make(variant: Variant, budget: Budget, draw: Randomised) -> AblatedPgpe:
    """The variant's algorithm at its start."""
    usual = PgpeSettings()
    pairs = budget.at_most(usual.pairs, 2 * usual.requests)
    settings = PgpeSettings(
        iterations=budget.iterations(2 * pairs * usual.requests),
        coefficients_share=variant.coefficients_share,
        pairs=pairs,
        tasks=2,
        cost=variant.cost,
    )
    return AblatedPgpe(settings, draw, budget.seed, variant.ablation)
