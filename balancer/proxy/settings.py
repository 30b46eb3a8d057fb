"""The sections `proxy` and `models.NAME.proxy` of the config file, which the front end `proxy` reads as they are.

The text under a field is its documentation, in `docs/config.md` too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from pydantic import ByteSize, Field, PrivateAttr, model_validator

from balancer import bounds
from balancer.extproc.kserve import HeaderNames
from balancer.files.regular import UnreadableError
from balancer.files.schema import ConfigFile, HeaderName, Name, NotNegative, StrictModel, field_error
from balancer.proxy.prompts.chat_template import ChatError, ChatTemplate, read_template

MOST_WAIT_S = 0.004
"""That a request waits to be joined with others, whatever is configured."""

Seconds = Annotated[float, Field(ge=0, le=3600)]
StoredBytes = Annotated[ByteSize, Field(ge=0, le=2**36)]


class RetriesSection(StrictModel):
    """When a request goes to another worker: where nothing was executed, or it is repeatable; never in a sequence."""

    max_attempts: int = Field(default=3, ge=1, le=16)
    """Attempts of one request, the first included."""


class BreakerSection(StrictModel):
    """A worker that fails at a model again and again gets none of its requests for 5 s."""

    failures: int = Field(default=5, ge=0, le=1000)
    """Failures in a row, by the worker's fault; 0: there is no breaker."""


class TenantLimitsSection(StrictModel):
    """Limits of one tenant."""

    requests_per_s: NotNegative = 0.0
    """Requests a second; 0: no limit."""
    rows_per_s: NotNegative = 0.0
    """Rows a second; 0: no limit."""
    tokens_per_s: NotNegative = 0.0
    """Tokens a second, of prompts and answers of language models; 0: no limit. A prompt counts as it comes, by
    estimate; what the answer tells is settled afterwards. Of Triton's `generate`, prompts alone."""
    burst_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """So many seconds' worth may come at once."""

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self.requests_per_s or self.rows_per_s or self.tokens_per_s)


class TenantsSection(TenantLimitsSection):
    """What each tenant may send to each balancer process; beyond it, RESOURCE_EXHAUSTED, or 429."""

    named: Mapping[str, TenantLimitsSection] = {}
    """Tenants with limits of their own, by name."""

    @property
    def limits_anybody(self) -> bool:
        """Whether any tenant may only send so much."""
        return any(each.is_limited for each in (self, *self.named.values()))


class BatchSection(StrictModel):
    """Requests of one model that wait for each other and go to one worker as one. Only for models that batch, with raw
    tensors; requests with parameters, sequences or routing keys go alone."""

    max_rows: int = Field(default=0, ge=0, le=bounds.MAX_ROWS)
    """Rows of a joined request, at most the model's `max_batch_size`; 0: none are joined."""
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S)] = 0.0005
    """Seconds of waiting for others; again while some come, up to 0.004."""


class OpenAISection(StrictModel):
    """A model of Tritons that has `generate_stream`: requests of OpenAI's API for it are translated, and go to them."""

    chat_template: ConfigFile | None = None
    """File that makes a text of a chat: the model's Jinja template, or its `tokenizer_config.json`. It is read with the
    config. None: the model has no chats, only completions."""
    defaults: Mapping[Name, str | bool | int | float] = {}
    """Members of `generate_stream` for requests that leave them out, such as `max_tokens: 512`, and those that only the
    operator sets, such as `return_num_input_tokens: true` for vLLM's backend."""
    _template: ChatTemplate | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.chat_template is not None:
            try:
                self._template = read_template(Path(self.chat_template))
            except (UnreadableError, ChatError) as error:
                raise field_error(("chat_template",), self.chat_template, str(error)) from error
        return self

    @property
    def template(self) -> ChatTemplate | None:
        """What the file has."""
        return self._template


class ModelProxySection(StrictModel):
    """What the front end `proxy` does for one model."""

    repeatable: bool = False
    """Whether an inference may be executed twice: then it is sent again also where a worker may have begun with it. The
    header `x-repeatable: true` says so of one request."""
    hedge: bool = False
    """Whether a repeatable request that takes longer than 95% of its model's goes to a second worker too."""

    once_s: Seconds = 0.0
    """Seconds for which an id is remembered after its request: who sends the same request again gets the first answer.
    0: ids are not looked at. Needs one balancer process, and holds at this gateway alone."""
    cache_ttl_s: Seconds = 0.0
    """Seconds for which an answer serves requests that are equal but for their id; 0: none is kept. Not for models that
    answer equal requests differently."""
    batch: BatchSection = BatchSection()
    """Requests that are joined."""
    openai: OpenAISection | None = None
    """How OpenAI's clients reach a model of Tritons; null: they do not."""

    @model_validator(mode="after")
    def _joined_are_repeatable(self) -> Self:
        if self.batch.max_rows and not self.repeatable:
            rule = "needs repeatable: true, since a joined request that fails is sent again one by one"
            raise field_error(("batch", "max_rows"), self.batch.max_rows, rule)
        return self


class ConfidenceCascadeSection(StrictModel):
    """Unary requests go on from model to model until the answer is sure enough, or the next would miss the deadline. A
    sequence, and a request with outputs in shared memory, gets the first model."""

    models: Annotated[tuple[Name, ...], Field(min_length=2, max_length=16)]
    """The fastest first."""
    output: Name
    """Output (FP16, FP32 or FP64, at most 256 KiB) that says how sure an answer is: the greatest element of each row,
    the least of those. Without it an answer is not sure."""
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    """An answer with less goes on to the next model."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for number, model in enumerate(self.models):
            if model in self.models[:number]:
                raise field_error(("models", number), model, "is named twice; name each model once")
        return self


class ProxySection(StrictModel):
    """What the balancer does beside forwarding; see also `models.NAME.proxy`."""

    retries: RetriesSection = RetriesSection()
    """Requests that are sent again."""
    breaker: BreakerSection = BreakerSection()
    """Workers that are left alone for a while."""
    tenants: TenantsSection = TenantsSection()
    """Limits of each tenant."""
    resume: bool = False
    """Whether a stream of OpenAI's API whose worker dies goes on at another, once, from what was said so far. Where it
    cannot, as else, an event with the error ends it."""
    cascades: Mapping[str, Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]] = {}
    """Models that may serve a name, by that name, the best first: a unary request goes to the first that is expected to
    meet its deadline, else to the last that has a worker. `x-served-model` in the answer names it."""
    confidence_cascades: Mapping[Name, ConfidenceCascadeSection] = {}
    """Models that serve a name one after the other, until one is sure."""

    once_bytes: StoredBytes = ByteSize(64 * 2**20)
    """Memory for answers that are kept for ids; later repetitions get ALREADY_EXISTS."""
    cache_bytes: StoredBytes = ByteSize(64 * 2**20)
    """Memory for answers that serve equal requests."""
    ignored_headers: Annotated[tuple[HeaderName, ...], Field(max_length=64)] = ()
    """Headers that do not tell callers apart, such as a tracer's. Only requests with the same other headers share an
    answer, an id or a joined request. Never name one by which a Triton restricts calls, or a model decides."""

    @model_validator(mode="after")
    def _cascades_end(self) -> Self:
        names = {*self.cascades, *self.confidence_cascades}
        for name in self.confidence_cascades:
            if name in self.cascades:
                raise field_error(("confidence_cascades", name), name, "is in cascades too; leave it in one of both")
        places: dict[tuple[str, ...], tuple[str, ...]] = {
            ("cascades", name): steps for name, steps in self.cascades.items()
        }
        places |= {
            ("confidence_cascades", name, "models"): each.models for name, each in self.confidence_cascades.items()
        }
        for place, steps in places.items():
            for number, step in enumerate(steps):
                if step in names:
                    raise field_error((*place, number), step, "is a cascade itself; name a model")
        return self


@dataclass(frozen=True, slots=True)
class ProxyConstants:
    """Numbers that no config changes, but tests do."""

    retry_base_s: float = 0.005
    """Mean wait before the second attempt; it doubles with each further one."""
    retry_max_s: float = 0.25
    """Longest wait before an attempt."""
    retry_share: float = 0.2
    """Attempts beyond the first, as a share of the requests: more retries do not help a fleet that fails them all."""
    retry_burst: float = 20.0
    """Attempts beyond the first that may come at once."""
    breaker_open_s: float = 5.0
    """How long a breaker stays open before one request tries the worker again."""
    pushback_s: float = 0.1
    """Mean time after which a client that was turned away should try again."""
    hedge_share: float = 0.05
    """Second copies, as a share of the requests that may have one."""
    hedge_min_s: float = 0.001
    """Least wait before a second copy."""
    once_entries: int = 100_000
    """Ids that are remembered at most."""


CONSTANTS = ProxyConstants()
_PLAIN, _NOTHING, _NAMES = ModelProxySection(), ProxySection(), HeaderNames()


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All that the front end `proxy` is configured with."""

    proxy: ProxySection = _NOTHING
    models: Mapping[str, ModelProxySection] = field(default_factory=dict)
    names: HeaderNames = _NAMES
    tenant_of_user: bool = False
    """As of `read_request`."""
    constants: ProxyConstants = CONSTANTS

    def of(self, model: str) -> ModelProxySection:
        return self.models.get(model, _PLAIN)
