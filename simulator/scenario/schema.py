"""The file of a scenario. The text under a field is its documentation."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from balancer.files.schema import Count, Fraction, NotNegative, Positive, StrictModel, did_you_mean, field_error
from balancer.load.arrivals import Bursts
from balancer.server.decision_log.reading import read_log
from simulator.log.workload import recorded_from
from simulator.scenario.fleet import ScenarioFleetSection
from simulator.spec import FleetSpec
from simulator.workload.draws import (
    ONE,
    Distribution,
    Exponential,
    Lognormal,
    Pareto,
    Sessions,
    Shares,
    UniformInt,
    UniformKeys,
    ZipfKeys,
)
from simulator.workload.extras import Patience, Sequences, Stream
from simulator.workload.prompts import PromptText
from simulator.workload.times import Diurnal, FlashCrowd, Poisson, Uniform
from simulator.workload.trace import Recorded, TraceColumns, read_recorded
from simulator.workload.workload import ModelTraffic, Workload

TokenCount = Annotated[int, Field(ge=0, le=1_000_000)]


class OneOf(StrictModel):
    """A choice: exactly one of the fields is given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(value is not None for _, value in self) != 1:
            raise ValueError(f"must have exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def only(self) -> Any:
        """The value given."""
        return next(value for _, value in self if value is not None)


class TraceSection(StrictModel):
    """Recorded requests, over and over from a place that depends on the seed; what it tells goes before the rest."""

    file: str
    """CSV, gzipped if the name ends in .gz; beside this file, or one of the shipped traces."""
    columns: TraceColumns = TraceColumns()
    """Columns in other units that become rows and work."""


class ScenarioLogSection(StrictModel):
    """Requests that a balancer recorded (`decision_log.folder` of its config), repeated as a trace is; their models,
    rows, keys, deadlines, priorities and tenants go before the rest."""

    path: str
    """The folder, or one file of it; beside this file."""


class ArrivalsSection(OneOf):
    """When requests arrive."""

    poisson: Poisson | None = None
    """Independently of each other: `{}`."""
    uniform: Uniform | None = None
    """Evenly spaced: `{}`."""
    bursts: Bursts | None = None
    """A two-state Markov-modulated Poisson process."""
    diurnal: Diurnal | None = None
    """By a sine."""
    flash_crowd: FlashCrowd | None = None
    """The rate jumps and decays."""
    trace: TraceSection | None = None
    """As recorded in a table."""
    log: ScenarioLogSection | None = None
    """As a balancer recorded them."""


class WholeSection(OneOf):
    """A whole number of a request; drawn ones are rounded up."""

    fixed: Count | None = None
    """Always so many."""
    uniform: UniformInt | None = None
    """Each size equally often."""
    shares: Mapping[Count, NotNegative] | None = None
    """Weight by size."""
    pareto: Pareto | None = None
    """Heavy tail up to a bound."""
    lognormal: Lognormal | None = None
    """Lognormal."""

    @property
    def distribution(self) -> Distribution:
        """As it is drawn from."""
        if self.fixed is not None or self.shares is not None:
            return Shares(self.shares or {self.only: 1.0})
        found: Distribution = self.only
        return found


class RowsSection(WholeSection):
    """Rows of a request: sizes that are listed must fit the model's max_batch_rows, drawn ones are capped by it."""

    def check(self, model: str, most_rows: int) -> None:
        """Raise `ValueError` where a listed size is more than the model takes."""
        largest = max((self.fixed or 0, *(self.shares or ())))
        if largest > most_rows:
            raise ValueError(f"rows of {model} are {largest}: give at most {most_rows}, its batching.max_batch_rows")


class WorkSection(OneOf):
    """Work of a request that the balancer does not see, over its mean."""

    exponential: Exponential | None = None
    """Exponential: `{}`."""
    lognormal: Lognormal | None = None
    """Lognormal."""
    pareto: Pareto | None = None
    """Heavy tail up to a bound."""


class StreamSection(StrictModel):
    """Each request is answered by several responses, evenly over its time on the device."""

    responses: WholeSection
    """How many. It is work that the balancer does not see. Of a model that generates: tokens."""
    first: Annotated[float, Field(ge=1)] = 1.0
    """What the first response takes, in later ones: a prefill."""
    follows: Literal["rows", "key"] | None = None
    """What the balancer sees and the number goes with: many rows (of a model that generates: a long prompt) many
    responses, or by key; none: nothing."""
    correlation: Fraction = 0.8
    """How closely: of the normal scores of both."""
    at_most: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    """Responses."""

    def stream(self) -> Stream:
        """As the workload has it."""
        return Stream(self.responses.distribution, self.first, self.follows, self.correlation, self.at_most)


class PromptsSection(StrictModel):
    """What a model that generates is asked: what all prompts begin with, then what those of its key have next, then its
    own tokens. `stream.responses` are the tokens that it generates; none: one."""

    tokens: WholeSection
    """Its own."""
    common_tokens: TokenCount = 0
    """That all begin with: a system prompt."""
    key_tokens: TokenCount = 0
    """That those of one key have next: a document, or a tenant's system prompt."""
    conversation: bool = False
    """Whether all prompts and answers before it with the same key are repeated before its own."""
    at_most: Annotated[int, Field(ge=1, le=1_000_000)] = 32_768
    """Tokens of a prompt; longer ones are cut at their end."""

    def text(self) -> PromptText:
        """As the workload has it."""
        return PromptText(
            self.tokens.distribution, self.common_tokens, self.key_tokens, self.conversation, self.at_most
        )


class KeysSection(OneOf):
    """Routing keys."""

    uniform: UniformKeys | None = None
    """All equally often."""
    zipf: ZipfKeys | None = None
    """A few keys are most of the requests."""
    sessions: Sessions | None = None
    """A key comes several times and then never again."""


class TrafficSection(StrictModel):
    """The requests to one model."""

    share: Positive = 1.0
    """Its share of the requests is this over the sum over models; a trace that names models goes before."""
    rows: RowsSection = RowsSection(fixed=1)
    """Rows of a request."""
    work: WorkSection | None = None
    """Hidden work; none: all the same."""
    deadline_s: Positive | Mapping[Positive, NotNegative] | None = None
    """From arrival, or weights by such; none: no deadline."""
    sequences: Sequences | None = None
    """Stateful sequences; none: no request belongs to one."""
    stream: StreamSection | None = None
    """Several responses to each request; none: one."""
    patience: Patience | None = None
    """When clients give up; none: never."""
    prompts: PromptsSection | None = None
    """What a model that generates is asked, unless a trace tells; none: the model does not."""

    @model_validator(mode="after")
    def _follows_what_differs(self) -> Self:
        fixed = self.rows.fixed is not None and self.prompts is None
        if self.stream is not None and self.stream.follows == "rows" and fixed:
            raise field_error(("stream", "follows"), "rows", "needs rows that differ: give other rows than `fixed`")
        return self

    def traffic(self, name: str) -> ModelTraffic:
        """As the workload has it."""
        work = ONE if self.work is None else self.work.only
        due = self.deadline_s
        deadline_s = Shares(due) if isinstance(due, Mapping) else math.inf if due is None else due
        stream = None if self.stream is None else self.stream.stream()
        prompts = None if self.prompts is None else self.prompts.text()
        extras = self.sequences, stream, self.patience
        return ModelTraffic(name, self.share, self.rows.distribution, work, deadline_s, *extras, prompts)


class WorkloadSection(StrictModel):
    """The requests. Exactly one of `load`, `rate_per_s` and `clients` says how many there are."""

    load: Positive | None = None
    """Mean rate as a share of the fleet's capacity (`simulator/capacity.py` defines it)."""
    rate_per_s: Positive | None = None
    """Mean rate over all models."""
    clients: int | None = Field(default=None, ge=1)
    """A closed loop of so many clients, each of whom sends when it has its answer."""
    arrivals: ArrivalsSection = ArrivalsSection(poisson=Poisson())
    """When they arrive, in an open loop."""
    models: Mapping[str, TrafficSection] = {}
    """By model; nothing: all the fleet's models alike."""
    keys: KeysSection | None = None
    """Routing keys; none: no request has one."""
    priorities: Mapping[Annotated[int, Field(ge=0, le=1000)], NotNegative] = {0: 1.0}
    """Weight by priority number: 1 is the highest, 0 the model's default."""
    tenants: Annotated[Mapping[str, NotNegative], Field(min_length=1)] = {"all": 1.0}
    """Weight by tenant; results number them in this order."""
    balancers: tuple[NotNegative, ...] = ()
    """Weight by balancer; nothing: requests fall to all alike."""

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if [self.load, self.rate_per_s, self.clients].count(None) != 2:
            raise ValueError("must have exactly one of load, rate_per_s, clients")
        if self.clients is not None and (self.arrivals.trace or self.arrivals.log):
            raise field_error(
                ("clients",), self.clients, "goes without a trace or log, as answers say when requests come"
            )
        for name, section in self.models.items():
            follows = section.stream.follows if section.stream is not None else None
            if follows == "rows" and (self.arrivals.trace or self.arrivals.log):
                rule = "goes without a trace or log, which may tell the rows"
                raise field_error(("models", name, "stream", "follows"), follows, rule)
            if follows == "key" and self.keys is None and section.sequences is None and not self.arrivals.log:
                raise field_error(("models", name, "stream", "follows"), follows, "needs keys: give `keys` as well")
        for name, weights in (("priorities", self.priorities), ("tenants", self.tenants)):
            if not sum(weights.values()) > 0:
                raise field_error((name,), dict(weights), "must have a weight above 0")
        if self.balancers and not sum(self.balancers) > 0:
            raise field_error(("balancers",), list(self.balancers), "must have a weight above 0")
        return self

    def workload(self, fleet: FleetSpec, recorded: Recorded | None) -> Workload:
        """As it is simulated; at a rate of 1 where `load` is given, which the caller resolves."""
        models = self.models or {model.name: TrafficSection() for model in fleet.models}
        for model in fleet.models:
            if model.name in models:
                models[model.name].rows.check(model.name, model.batching.max_batch_rows)
                if models[model.name].prompts is not None and model.generation is None:
                    raise ValueError(f"prompts of {model.name} are given, and it does not generate: leave them out")
        return Workload(
            rate_per_s=self.rate_per_s or 1.0,
            traffic=tuple(section.traffic(name) for name, section in models.items()),
            process=Poisson() if recorded is not None else self.arrivals.only,
            recorded=recorded,
            keys=None if self.keys is None else self.keys.only,
            priorities=Shares(self.priorities),
            tenants=Shares(dict(enumerate(self.tenants.values()))),
            balancers=self.balancers,
            clients=self.clients or 0,
        )

    def recorded(self, folders: Sequence[Path]) -> Recorded | None:
        """The trace or log, if there is one, from the first of the folders that has it.

        Raises:
            ValueError: no folder has it, or it does not fit.
        """
        trace, log = self.arrivals.trace, self.arrivals.log
        if trace is not None:
            return read_recorded(_first("trace", trace.file, folders), trace.columns)
        return None if log is None else recorded_from(read_log(_first("decision log", log.path, folders)))


def _first(kind: str, name: str, folders: Sequence[Path]) -> Path:
    """Where the first of the folders has it; ValueError where none does."""
    found = [folder / name for folder in folders if (folder / name).exists()]
    if not found:
        places = " nor in ".join(str(folder) for folder in folders)
        raise ValueError(f"{kind} {name!r} is neither in {places}; check the name")
    return found[0]


class ScenarioFile(StrictModel):
    """A scenario; its name is the file's."""

    summary: Annotated[str, Field(min_length=1, max_length=120)]
    """One line: what is particular about it."""
    split: Literal["train", "held-out"]
    """Whether policies may be tuned on it, or are judged by it."""
    requests: int = Field(default=20_000, ge=1)
    """How many a run has unless said otherwise."""
    fleet: ScenarioFleetSection
    """The workers, and what is between them and the requests."""
    workload: WorkloadSection
    """The requests."""

    @model_validator(mode="after")
    def _models_known(self) -> Self:
        for name in self.workload.models:
            if name not in self.fleet.models:
                rule = f"no such model in the fleet; {did_you_mean(name, self.fleet.models)}"
                raise field_error(("workload", "models", name), name, rule)
        weights = self.workload.balancers
        if weights and len(weights) != self.fleet.balancers:
            rule = f"must be as many as there are balancers, {self.fleet.balancers}"
            raise field_error(("workload", "balancers"), list(weights), rule)
        return self
