"""How long steps take of a model that generates, by when the tokens of a log's answers came.

Of a step nothing is told. But between the first token of an answer and the last there are as many steps as tokens, and
all that the worker did then was in them: what the others generated, and the prompts that it computed. So the seconds of
an answer are a sum over its steps, linear in what a step's time is made of (`StepTimes`), and least squares finds it.
What was under way when is known to about a step; so the same is asked of simulated answers, and the times corrected
until both say the same (indirect inference: Gourieroux, Monfort and Renault 1993).
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from balancer.server.decision_log.lines import COLUMNS
from balancer.server.decision_log.recorded import DecisionLog
from policies.base import BoolArray, FloatArray, IntArray, Policy
from simulator.arrivals import Arrivals
from simulator.compare.metrics import WARM_UP_SHARE
from simulator.log.prompts import believed
from simulator.result import Result, Status
from simulator.run import run
from simulator.spec import FleetSpec, GeneratingDevice, GenerationSpec, ModelSpec, ServiceTime

KNEE_TOKENS = 256
"""Of a step, up to which a further token costs as one that is generated, and beyond as one of a prompt."""
_LEAST_ANSWERS = 50
_LEAST_S = 1e-6
_STEP_TOKENS, _MAX_SEQUENCES = 2048, 256
"""As servers have them where nobody says otherwise."""
_MUCH_MEMORY_TOKENS = 10_000_000
_ROUNDS, _SEEDS = 6, (0, 1)
_COMPARED = (0.5, 0.99)
"""Quantiles."""
_SHARE = 0.8
"""Of what is found to be wrong, as a logarithm, that a round corrects."""
_MOST = 2.0
"""By which it does."""
_CLOSE = 0.01
"""Latencies that are no farther off end the rounds."""


class StepTimes(NamedTuple):
    """What the seconds of a step are the sum of."""

    once_s: float
    generated_s: float
    """By each token that is generated."""
    prompt_s: float
    """By each token of a prompt."""
    context_s: float
    """By each token that those which are generated have before them."""
    attention_s: float
    """By each pair of a prompt's token and one before it."""

    def service(self, step_tokens: int) -> ServiceTime:
        """By the tokens of a step."""
        knee = min(KNEE_TOKENS, step_tokens)
        at_knee_s = self.once_s + self.generated_s * knee
        points = {1: self.once_s + self.generated_s, knee: at_knee_s}
        points[step_tokens] = at_knee_s + max(self.prompt_s, _LEAST_S) * (step_tokens - knee)
        return ServiceTime(tuple(points), tuple(max(seconds, _LEAST_S) for seconds in points.values()))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TimedAnswers:
    """Those of one model that were whole, and when their tokens came; `(k,)` each."""

    worker: IntArray
    sent_s: FloatArray
    first_s: FloatArray
    """When the first token came."""
    end_s: FloatArray
    tokens: FloatArray
    """Of the prompt."""
    had: FloatArray
    """Those of them that the worker had, or was taken to have."""
    output: FloatArray

    @property
    def to_compute(self) -> FloatArray:
        """Tokens of the prompt that the worker did not have, at least 1."""
        return np.maximum(self.tokens - self.had, 1.0)

    @property
    def beyond_knee(self) -> FloatArray:
        """Of those, the tokens beyond the first `KNEE_TOKENS` of their step."""
        steps = np.floor(self.to_compute / _STEP_TOKENS)
        rest = self.to_compute - steps * _STEP_TOKENS
        found: FloatArray = steps * (_STEP_TOKENS - KNEE_TOKENS) + np.maximum(rest - KNEE_TOKENS, 0.0)
        return found

    @property
    def pairs(self) -> FloatArray:
        """How many pairs attention computes: each token to compute with each token before it."""
        return self.to_compute * (self.tokens - 0.5 * self.to_compute)

    def of(self, chosen: BoolArray) -> "TimedAnswers":
        return TimedAnswers(*(getattr(self, each.name)[chosen] for each in dataclasses.fields(self)))


def answers_of_log(log: DecisionLog, model: str, workers: Sequence[str]) -> tuple[TimedAnswers, bool]:
    """Workers by their place among those; and whether they say what they had of prompts."""
    joined, matched = log.joined(), COLUMNS.index("matched_tokens")
    place = {name: number for number, name in enumerate(workers)}
    rows = []
    outputs = believed(joined.output_tokens, joined.latency_s)
    for index in np.flatnonzero(joined.ok & (joined.served == joined.pick) & (outputs >= 1)):
        decision = log.decisions[index]
        name = decision.workers.names[decision.pick] if decision.pick >= 0 else ""
        if decision.request.model != model or name not in place:
            continue
        at_s, tokens = log.unix_s(decision.run, decision.at_s), float(np.max(decision.request.prompt_tokens))
        whole_s = float(joined.latency_s[index])
        first_s = float(joined.first_s[index]) if np.isfinite(joined.first_s[index]) else whole_s
        had = joined.cached_tokens[index], float(decision.columns[matched, decision.pick])
        rows.append((place[name], at_s, at_s + first_s, at_s + whole_s, tokens, *had, outputs[index]))
    place_of, sent_s, began_s, end_s, prompt, cached, taken, output = np.array(rows, np.float64).reshape(-1, 8).T
    tells = bool(cached.any())
    had_tokens = cached if tells else taken
    return TimedAnswers(place_of.astype(np.int64), sent_s, began_s, end_s, prompt, had_tokens, output), tells


def answers_of_result(
    result: Result, arrivals: Sequence[Arrivals], model: int, *, tells_cached: bool
) -> list[TimedAnswers]:
    """By environment."""
    found = []
    for e, one in enumerate(arrivals):
        assert one.prompts is not None  # a model generates
        whole = TimedAnswers(
            result.worker[e].astype(np.int64),
            result.arrival_s[e],
            result.arrival_s[e] + result.first_s[e],
            result.arrival_s[e] + result.latency_s[e],
            result.prompt_tokens[e],
            (result.cached_tokens if tells_cached else result.matched_tokens)[e],
            one.prompts.output.astype(np.float64),
        )
        found.append(whole.of((result.status[e] == Status.OK) & (result.model[e] == model)))
    return found


def fit(answers: Sequence[TimedAnswers], kinds: IntArray) -> dict[int, StepTimes]:
    """By kind of device, where there are enough answers; `kinds`: of each worker."""
    found = {}
    for kind in np.unique(kinds):
        parts = [each.of(each.worker == worker) for each in answers for worker in np.flatnonzero(kinds == kind)]
        own = [part for part in parts if len(part.worker)]
        if not own:
            continue
        x, seconds = map(np.concatenate, zip(*map(equations, own), strict=True))
        usable = (x[:, 0] >= 1) & (seconds > 0)
        if np.count_nonzero(usable) >= _LEAST_ANSWERS:
            # Relative errors, of terms of like size. No token costs more than one of a prompt.
            x = x[usable] / seconds[usable, None]
            x[:, 1] += x[:, 2]
            scale = np.maximum(x.mean(axis=0), 1e-30)
            weights, _ = nnls(x / scale, np.ones(len(x)))
            once_s, token_s, further_s, context_s, attention_s = (weights / scale).tolist()
            found[int(kind)] = StepTimes(once_s, token_s, token_s + further_s, context_s, attention_s)
    return found


def equations(a: TimedAnswers) -> tuple[FloatArray, FloatArray]:
    """How many of the parts of `StepTimes` each span of time is made of, `(2 k, 5)`, and its seconds, `(2 k,)`: of all
    answers of one worker from the first token to the last, then from the prompt to the first token."""
    meanwhile = _Meanwhile(a)
    spans_s = np.concatenate([a.end_s - a.first_s, a.first_s - a.sent_s])
    return np.concatenate([_after_first(a, meanwhile), _until_first(a, meanwhile)]), spans_s


def _after_first(a: TimedAnswers, meanwhile: "_Meanwhile") -> FloatArray:
    steps = a.output - 1
    # A prompt is computed just before the first token.
    by_first = np.argsort(a.first_s, kind="stable")
    places = [np.searchsorted(a.first_s[by_first], each, side="right") for each in (a.first_s, a.end_s)]

    def computed(of: FloatArray) -> FloatArray:
        total = np.concatenate([[0.0], np.cumsum(of[by_first])])
        found: FloatArray = total[places[1]] - total[places[0]]
        return found

    generated, context = meanwhile.between(a.first_s, a.end_s, steps)
    cheap, dear = computed(a.to_compute - a.beyond_knee), computed(a.beyond_knee)
    return np.stack([steps, generated + cheap, dear, context, computed(a.pairs)], axis=1)


def _until_first(a: TimedAnswers, meanwhile: "_Meanwhile") -> FloatArray:
    """All 0 where the worker computed another prompt too."""
    # When the prompt comes, a step is under way, half of it left in the mean.
    steps = np.ceil(a.to_compute / _STEP_TOKENS) + 0.5
    generated, context = meanwhile.between(a.sent_s, a.first_s, steps)
    cheap = generated + a.to_compute - a.beyond_knee
    return np.stack([steps, cheap, a.beyond_knee, context, a.pairs], axis=1) * _alone(a)[:, None]


class _Meanwhile:
    """What a worker generated between two moments."""

    def __init__(self, a: TimedAnswers) -> None:
        steps, lasts_s = a.output - 1, np.maximum(a.end_s - a.first_s, _LEAST_S)
        ends_s = np.concatenate([a.first_s, a.end_s])
        order = np.argsort(ends_s, kind="stable")
        self._at_s = ends_s[order]
        span_s = np.diff(self._at_s, append=self._at_s[-1:])
        rates = np.cumsum(np.concatenate([steps / lasts_s, -steps / lasts_s])[order])
        self._generated = _until(rates * span_s)
        # What is before a token grows with each that is generated, and falls when the answer is whole.
        context = np.cumsum(np.concatenate([a.tokens, -(a.tokens + steps)])[order]) + self._generated
        self._context_s = _until((context + 0.5 * rates * span_s) * span_s)

    def between(self, from_s: FloatArray, to_s: FloatArray, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Tokens, and over so many steps those before them; `(k,)` each."""

        def over(until: FloatArray) -> FloatArray:
            return np.interp(to_s, self._at_s, until) - np.interp(from_s, self._at_s, until)

        return over(self._generated), over(self._context_s) / np.maximum(to_s - from_s, _LEAST_S) * steps


def _alone(a: TimedAnswers) -> BoolArray:
    ends_s = np.sort(a.first_s)
    before, after = (np.searchsorted(ends_s, each, side="right") for each in (a.sent_s, a.first_s))
    alone: BoolArray = after - before == 1
    return alone


def _until(parts: FloatArray) -> FloatArray:
    before: FloatArray = np.cumsum(parts) - parts
    return before


class Generating:
    """What a log tells of its models that generate."""

    def __init__(
        self, log: DecisionLog, models: Collection[str], held: Mapping[str, Collection[str]], kinds: Mapping[str, str]
    ) -> None:
        """`held`: models by worker; `kinds`: kinds of device by worker."""
        self.notes: list[str] = []
        self.answers: dict[str, TimedAnswers] = {}
        self.told: dict[str, dict[str, StepTimes]] = {}
        """By kind of device, where there are enough answers."""
        self.times: dict[str, dict[str, StepTimes]] = {}
        """The same, with those of the fastest where there are not."""
        self.tells_cached: dict[str, bool] = {}
        self._memory: dict[str, dict[str, int]] = {}
        self.workers = sorted(kinds)
        self.kinds = sorted(set(kinds.values()))
        self.kind_of: IntArray = np.array([self.kinds.index(kinds[name]) for name in self.workers], np.int64)
        for model in sorted(models):
            wanted = sorted({kinds[name] for name, own in held.items() if model in own and name in kinds})
            self.answers[model], self.tells_cached[model] = answers_of_log(log, model, self.workers)
            found = {self.kinds[kind]: times for kind, times in fit([self.answers[model]], self.kind_of).items()}
            if not found:
                raise ValueError(
                    f"the log has fewer than {_LEAST_ANSWERS} answers of {model} whose tokens are known: record for "
                    "longer, by a balancer that writes format version 7, from clients that stream answers"
                )
            fastest = min(found, key=lambda kind: found[kind].once_s)
            self.notes += [
                f"{kind} answered {model} too seldom: it is taken to be as fast as {fastest}"
                for kind in wanted
                if kind not in found
            ]
            self.told[model] = found
            self.times[model] = {kind: found.get(kind, found[fastest]) for kind in wanted}
            self._memory[model] = dict(_memory(log, model, kinds))
            self.notes += [
                f"{kind} tells no memory for {model}: it is taken to be enough"
                for kind in wanted
                if kind not in self._memory[model]
            ]

    def model(self, name: str, max_sequences: int) -> ModelSpec:
        """`max_sequences`: as workers report; 1: they do not."""
        most = max_sequences if max_sequences > 1 else _MAX_SEQUENCES
        generation = GenerationSpec({}, _STEP_TOKENS, min(most, _STEP_TOKENS))
        return self.with_times(ModelSpec(name, {}, generation=generation), self.times[name])

    def with_times(self, model: ModelSpec, times: Mapping[str, StepTimes]) -> ModelSpec:
        assert model.generation is not None  # it generates
        memory, most = self._memory[model.name], model.generation.step_tokens
        devices = {
            kind: GeneratingDevice(memory.get(kind, _MUCH_MEMORY_TOKENS), one.context_s, one.attention_s)
            for kind, one in times.items()
        }
        service = {kind: one.service(most) for kind, one in times.items()}
        generation = dataclasses.replace(model.generation, devices=devices)
        return dataclasses.replace(model, service=service, generation=generation)


def _memory(log: DecisionLog, model: str, kinds: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """By kind of device: tokens, as most of the decisions had it."""
    row = COLUMNS.index("memory_tokens")
    told: dict[str, list[float]] = {}
    for decision in log:
        if decision.request.model == model:
            for name, tokens in zip(decision.workers.names, decision.columns[row].tolist(), strict=True):
                if tokens > 0 and name in kinds:
                    told.setdefault(kinds[name], []).append(tokens)
    for kind, several in told.items():
        yield kind, int(np.median(several))


def policy_of(log: DecisionLog) -> Policy | None:
    """The policy in force that decided most, or the hash that placed all; None where there is no decision.

    Raises `DecisionLogError` where it cannot be had.
    """
    made = Counter(decision.policy for decision in log)
    return max(made, key=lambda policy: (policy.in_force, made[policy])).build() if made else None


def refine_steps(fleet: FleetSpec, logged: Arrivals, policy: Policy, known: Generating) -> FleetSpec:
    """The fleet with times of steps under which simulated answers say of them what the log's say."""
    times = {model: dict(own) for model, own in known.times.items()}
    kind_of = known.kind_of[[known.workers.index(worker.name) for worker in fleet.workers]]
    arrivals, best, least = [logged] * len(_SEEDS), fleet, np.inf
    for _ in range(_ROUNDS):
        models = (known.with_times(one, times[one.name]) if one.name in times else one for one in fleet.models)
        believed = dataclasses.replace(fleet, models=tuple(models))
        result = run(believed, arrivals, policy, seeds=_SEEDS)
        off = []
        for m, model in enumerate(result.models):
            if model in times:
                answers = answers_of_result(result, arrivals, m, tells_cached=known.tells_cached[model])
                off.append(_off(answers, known.answers[model]))
                found = fit(answers, kind_of)
                for kind, one in times[model].items():
                    wanted, simulated = known.told[model].get(kind), found.get(known.kinds.index(kind))
                    times[model][kind] = _corrected(one, wanted, simulated)
        if np.mean(off) < least:
            best, least = believed, float(np.mean(off))
        if least < _CLOSE:
            break
    return best


def _corrected(believed: StepTimes, wanted: StepTimes | None, simulated: StepTimes | None) -> StepTimes:
    """By the ratio of what both say; where either says nothing of a part, by their difference."""
    if wanted is None or simulated is None:
        return believed
    found = []
    for one, right, wrong in zip(believed, wanted, simulated, strict=True):
        ratio = (right / wrong) ** _SHARE if right > 0 and wrong > 0 and one > 0 else 0.0
        found.append(one * min(max(ratio, 1 / _MOST), _MOST) if ratio else max(one + _SHARE * (right - wrong), 0.0))
    return StepTimes(found[0], min(found[1:3]), *found[2:])


def _off(simulated: Sequence[TimedAnswers], logged: TimedAnswers) -> float:
    """How far their latencies are off, and those of first tokens, as a mean of logarithms."""
    found = np.mean([_quantiles(each) for each in simulated], axis=0) if simulated else np.inf
    return float(np.abs(found - _quantiles(logged)).mean())


def _quantiles(answers: TimedAnswers) -> FloatArray:
    """Logarithms, after the warm-up."""
    late = answers.of(answers.sent_s >= np.quantile(answers.sent_s, WARM_UP_SHARE))
    found: FloatArray = np.log([np.quantile(until - late.sent_s, _COMPARED) for until in (late.first_s, late.end_s)])
    return found
