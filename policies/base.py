"""What a policy is: a pure function from a view of the fleet to a probability for each worker.

A pick samples the probabilities, policy gradient differentiates their logarithm, off-policy
evaluation divides by them, and a test compares them exactly. Whatever has memory (in-flight counts, latency averages,
tokens) is an estimator of `balancer.kernel` and reaches a policy as a column of the view, so a policy can be swapped,
shadowed or simulated at any moment without warming up.

Arrays carry optional leading batch axes: production passes `(n,)`, the simulator `(environments, n)`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
UintArray = npt.NDArray[np.uint64]

WORST = 1e30
"""What an infinite or unknown (NaN) cost counts as: beyond any real one, yet equal to its like, so they tie."""
# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_WORST, _INF = np.array(WORST), np.array(np.inf)


Prefix = tuple[tuple[int, float], ...]
"""What a prompt begins with: 64-bit hashes, each of its first so many tokens, ascending. Equal hashes are equal
beginnings, of one model and tenant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What routing may know of a request; none of it needs the tensors.

    Numeric fields broadcast against `(..., n)`: a scalar in production, `(..., 1)` in the simulator.
    """

    model: str
    version: str = ""
    """Empty: any version that the model table permits."""
    rows: float | FloatArray = 1
    """Batch size: the first dimension of the inputs of a batching model."""
    number: int | UintArray = 0
    """How many requests this router had before it; round robin and ties are decided by it."""
    key: int | UintArray | None = None
    """64-bit hash of the routing key, or None."""
    deadline_s: float | FloatArray = float("inf")
    """Time that the client will still wait."""
    priority: int | FloatArray = 0
    """As Triton's: 0 is the model's default, 1 the highest, larger is lower."""
    tenant: str = ""
    sequence: bool = False
    """Whether the key is that of a stateful sequence, all of which one worker must serve."""
    prompt_tokens: float | FloatArray = 0.0
    """Of a model that generates: tokens of the prompt; 0: there is none, or it is not known."""
    prefix: Prefix = ()
    """What the prompt begins with. No policy needs it."""
    max_tokens: float | FloatArray = 0.0
    """Most that a request with a prompt allows its answer; 0: it sets no bound."""

    def numbered(self, number: int) -> Request:
        """The same with its number. `dataclasses.replace` would take five times as long."""
        return Request(
            self.model,
            self.version,
            self.rows,
            number,
            self.key,
            self.deadline_s,
            self.priority,
            self.tenant,
            self.sequence,
            self.prompt_tokens,
            self.prefix,
            self.max_tokens,
        )


class HeldRequests(NamedTuple):
    """Requests that wait at the balancer, for `Policy.urgency`; shape `(h,)` each."""

    rows: FloatArray
    deadline_s: FloatArray
    """Time that the client will still wait; infinite: it named none."""
    priority: FloatArray
    """As of a `Request`."""
    waited_s: FloatArray


class FleetView(Protocol):
    """The fleet as every policy sees it, for one request: read-only columns of shape `(..., n)`.

    Columns are computed when first read and must not be written to.
    """

    @property
    def eligible(self) -> BoolArray:
        """Whether the worker may be picked for this request. Policies give all others probability zero."""

    @property
    def weight(self) -> FloatArray:
        """Relative capacity, > 0, as configured at the worker."""

    @property
    def name_hash(self) -> UintArray:
        """Stable 64-bit hash of the worker's name, equal in every balancer."""

    @property
    def identity(self) -> FloatArray:
        """A number in [0, 1) for this worker and the request's model, equal in every balancer, see `hashing`."""

    @property
    def kind_identity(self) -> FloatArray:
        """The same for the worker's kind of device in place of its name."""

    @property
    def in_flight(self) -> FloatArray:
        """Requests that this balancer sent there and has not seen finish; exact, but blind to other balancers."""

    @property
    def reported_pending(self) -> FloatArray:
        """Requests queued at the worker as its last report says, from all balancers; old by `report_age_s`."""

    @property
    def pending(self) -> FloatArray:
        """Requests queued or executing at the worker now, from all balancers, dead-reckoned since the last report."""

    @property
    def backlog_s(self) -> FloatArray:
        """Seconds until the worker has finished all that is there now (batch-aware, dead-reckoned)."""

    @property
    def completion_s(self) -> FloatArray:
        """Expected seconds until this request would be complete if sent there now (batch-aware, dead-reckoned)."""

    @property
    def service_s(self) -> FloatArray:
        """Expected seconds of service for this request, alone on an idle worker."""

    @property
    def latency_s(self) -> FloatArray:
        """Peak-sensitive moving average of latency; 0 where nothing finished yet. A fast error does not lower it."""

    @property
    def error_rate(self) -> FloatArray:
        """Moving average of the share of requests that failed, 0 to 1."""

    @property
    def tokens(self) -> FloatArray:
        """Tokens in the worker's bucket now; the refill rate follows its queue. A pick costs one."""

    @property
    def report_age_s(self) -> FloatArray:
        """Seconds since the last report was received; infinite where none was."""

    @property
    def cached(self) -> FloatArray:
        """The probability that the worker has the request's key warm, 0 to 1; 0 without a key."""

    @property
    def saving_s(self) -> FloatArray:
        """Device seconds that a warm key saves there, from 0, as learned; 0 without a key. With several balancers, what
        it saves all of them, as each pick counts in `completion_s` for the others' too."""

    @property
    def pending_other_models(self) -> FloatArray:
        """Those of `pending` that are for other models than this request's; other balancers' are taken to be of the
        same mix as this one's."""

    @property
    def work_behind_s(self) -> FloatArray:
        """Those seconds of `completion_s` that are for waiting requests of other models, and that would go after this
        request if models took turns, a batch of each instance at a time."""

    @property
    def matched_tokens(self) -> FloatArray:
        """Tokens that the request's prompt begins with and that the worker is taken to have in its cache."""

    @property
    def waiting_tokens(self) -> FloatArray:
        """Tokens of prompts that the worker has still to compute: of requests there of which nothing was generated yet,
        less what was matched. Of other balancers, what the worker last reported, or else as many as of this one."""

    @property
    def first_token_s(self) -> FloatArray:
        """Expected seconds until the first token of the answer, if the request's prompt were sent there now; 0 without
        a prompt."""

    @property
    def prompt_s(self) -> FloatArray:
        """Those of them in which the worker computes the request's own prompt."""

    @property
    def slowdown_s(self) -> FloatArray:
        """Seconds by which the request is expected to delay each other one there: its prompt stalls them, and each of
        its tokens slows theirs; 0 without a prompt."""

    @property
    def cached_tokens(self) -> FloatArray:
        """Tokens of prompts to the model that the worker is taken to have cached, since it last started."""

    @property
    def held_tokens(self) -> FloatArray:
        """Tokens that requests of the model hold in the worker's memory, as its last report says."""

    @property
    def memory_tokens(self) -> FloatArray:
        """Tokens that the worker's memory holds for the model; 0: not known."""


def option(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    file: bool = False,
) -> Any:
    """Declare one option of a policy: its default, one line of documentation with unit, and its bounds.

    The config schema is generated from these, so the bounds are enforced and the page of options cannot go stale. With
    `file`, the value names a file, from the folder of the config file; a config has to give it.
    """
    bounds = {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le)) if value is not None}
    return dataclasses.field(default=default, metadata={"doc": doc, "file": file, **bounds})


def from_file(doc: str) -> Any:
    """Declare a field that is no option: what `Policy.with_files` found in a file; None until then."""
    return dataclasses.field(default=None, repr=False, metadata={"doc": doc, "from_file": True})


@dataclasses.dataclass(frozen=True)
class Policy(ABC):
    """A frozen dataclass whose fields (made by `option`) are the policy's options, and one pure function."""

    name: ClassVar[str]
    """As config files spell it."""
    summary: ClassVar[str]
    """One line for `balancer policies`."""
    source: ClassVar[str]
    """The paper, RFC or implementation it follows."""
    equivariant: ClassVar[bool] = True
    """Whether reordering the workers only reorders the probabilities."""
    needs_key: ClassVar[bool] = False
    """Whether it places requests by their routing key itself, so that the router need not."""
    trained: ClassVar[bool] = False
    """Whether it was made from data, so that it may meet what it was not made for; the guard watches such policies."""
    score_unit: ClassVar[str] = "points of its score"
    """What `contributions` are measured in, for people."""

    def __post_init__(self) -> None:
        """Check every option against what it declares; a ValueError names policy, option, value and remedy."""
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            _check_option(self.name, field, hints[field.name], getattr(self, field.name))

    @abstractmethod
    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """The probability of each worker, shape `(..., n)`.

        Sums to 1 over the last axis and is 0 where not eligible. All zero where no worker is eligible, or where the
        policy sheds the request. Does not write to the view; equal inputs give equal outputs.
        """

    @property
    def digest(self) -> str:
        """Of what is in the policy's files; empty where it has none."""
        return ""

    def options(self) -> dict[str, Any]:
        """Its options by name."""
        fields = (field for field in dataclasses.fields(self) if not field.metadata.get("from_file"))
        return {field.name: getattr(self, field.name) for field in fields}

    def with_files(self, read: Callable[[str], bytes]) -> Policy:
        """The policy with what is in the files that its options name; itself where they name none.

        Args:
            read: Returns the content of a file by the name that the option has.

        Raises:
            ValueError: a file cannot be used; the message says why, and the remedy.
        """
        del read
        return self

    def out_of_range(self, request: Request, fleet: FleetView) -> float | FloatArray:
        """How far inputs lie outside of what the policy was trained on, shape `(...,)`; 0 within, or where not trained.

        In widths of the range of the input that is farthest outside.
        """
        del request, fleet
        return 0.0

    def holds(self, request: Request, fleet: FleetView) -> bool:
        """Whether the request rather waits for now, where it may: its model is held, and no bound is reached.

        By default a request that is held waits while the worker that the policy picks has no room, and no longer.
        """
        del request, fleet
        return False

    def urgency(self, held: HeldRequests, fleet: FleetView) -> FloatArray | None:
        """Who of those that are held is asked for first, `(h,)`: the largest number. None: by the configured order."""
        del held, fleet
        return None

    def contributions(self, request: Request, fleet: FleetView) -> Mapping[str, FloatArray]:
        """What each input, by name, adds to each worker's score, `(..., n)`; empty where the policy does not say.

        Names are for people; more is better; in `score_unit`.
        """
        del request, fleet
        return {}


def _check_option(policy: str, field: dataclasses.Field[Any], hint: Any, value: Any) -> None:
    limits = field.metadata
    wrong = ""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            wrong = "one of " + ", ".join(map(repr, get_args(hint)))
    elif "ge" in limits and not value >= limits["ge"]:
        wrong = f"at least {limits['ge']}"
    elif "gt" in limits and not value > limits["gt"]:
        wrong = f"above {limits['gt']}"
    elif "le" in limits and not value <= limits["le"]:
        wrong = f"at most {limits['le']}"
    if wrong:
        raise ValueError(f"policy {policy}: option {field.name} is {value!r}, must be {wrong}")


def count_of(chosen: BoolArray) -> int | IntArray:
    """How many workers are chosen: an int for shape `(n,)`, else shape `(..., 1)`.

    An int broadcasts like `(1,)` and costs a tenth, which is felt in the one request at a time of production.
    """
    if chosen.ndim == 1:
        return int(np.count_nonzero(chosen))
    counts: IntArray = np.count_nonzero(chosen, axis=-1, keepdims=True)
    return counts


def masked_cost(cost: FloatArray, eligible: BoolArray) -> FloatArray:
    """The cost where eligible, at most `WORST`; infinite elsewhere; shape `(..., n)`."""
    return np.where(eligible, np.fmin(cost, _WORST), _INF)


def uniform_over(chosen: BoolArray) -> FloatArray:
    """Equal shares for the chosen workers, all zero where none is; shape `(..., n)`."""
    count = count_of(chosen)
    shares: FloatArray = chosen / (max(count, 1) if isinstance(count, int) else np.maximum(count, 1))
    return shares


def least(cost: FloatArray, eligible: BoolArray) -> FloatArray:
    """Equal shares for the eligible workers of least cost; ties share, infinite and NaN come last; `(..., n)`."""
    masked = masked_cost(cost, eligible)
    lowest = np.minimum.reduce(masked, axis=-1, keepdims=True, initial=np.inf)
    return uniform_over((masked == lowest) & eligible)
