"""Every setting of `balancer train`, as `--set` changes them and `config.json` lists them."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from balancer.files.schema import CHECKED, Count, Fraction, NotNegative, Positive, did_you_mean


@dataclass(config=CHECKED, frozen=True, slots=True)
class TrainingSettings:
    """What is trained on, how PGPE explores and steps, and how the network is judged on the way."""

    iterations: Count = 60
    """Steps, after which it is done."""
    requests: Count = 2000
    """Of an episode; at most as many as training has of a log."""
    pairs: Count = 128
    """Episodes of an iteration, each played twice."""
    coefficients_share: Fraction = 0.4
    """Share of the iterations, the first ones, that move only beta and the constant coefficients of the cost terms, or
    the numbers of the cost: some numbers are found sooner than some hundred, and the rest then starts from the best
    heuristic of this form."""
    deviation: Positive = 0.1
    """Standard deviation of the noise on weights of the hidden layers."""
    step: Positive = 2.0
    """Length of the first steps, in deviations; they shrink linearly to a tenth, and so again once all weights move."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    regret_weight: NotNegative = 1.0
    """Weight of what mean and tail are above those of `expected_latency`: a chosen policy must not lose anywhere."""
    tasks: Count = 4
    """Into which the episodes of an iteration are cut, at most as many as episodes: no more processes than that have
    work. Fewer are cheaper: what NumPy takes for a decision of 64 episodes is less than twice that for 32."""
    candidates: Annotated[int, Field(ge=4)] = 40
    """For one fleet: costs that an iteration tries."""
    episodes: Count = 1
    """For one fleet: those that each candidate plays."""
    hidden: Annotated[int, Field(ge=0)] = 8
    """Units of the network's layers; 0: it corrects nothing."""
    beta: Positive = 20.0
    """At the start."""
    tail_weight: NotNegative = 0.5
    """What slow requests cost, where 1 is for a mean latency of that of `expected_latency`."""
    deadline_weight: NotNegative = 0.5
    """What missed deadlines cost."""
    random_share: Fraction = 0.7
    """Of episodes with a random scenario, the others having one of those named; in validation as in training."""
    evaluate_every: Count = 10
    """Iterations from one evaluation to the next."""
    patience: Count = 10
    """Evaluations without improvement after which training ends."""
    validation_episodes: Annotated[int, Field(ge=2)] = 256
    """Played at each evaluation."""
    report_seeds: Annotated[int, Field(ge=2)] = 10
    """Of each scenario in the scoreboard at the end; five times as many random scenarios."""
    range_episodes: Count = 256
    """From which the ranges of the inputs are taken at the end."""
    episode_requests: Annotated[int, Field(ge=20)] = 3000
    """Of the episodes of evaluation, scoreboard and ranges; at most as many, too."""


def make_settings(values: Mapping[str, Any]) -> TrainingSettings:
    """The defaults with these values.

    Raises:
        ValueError: there is no such setting, or it does not take the value; named, with the remedy.
    """
    known = [field.name for field in dataclasses.fields(TrainingSettings)]
    for name in values:
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; {did_you_mean(name, known)}")
    try:
        return TrainingSettings(**values)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        rule = wrong["msg"].removeprefix("Value error, ").replace("Input should", "it must")
        raise ValueError(f"{wrong['loc'][0]} is {wrong['input']!r}: {rule}") from error
