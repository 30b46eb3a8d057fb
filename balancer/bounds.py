"""How large and how many: the bounds of everything that comes from outside, declared once.

Each kind of message has one gate, which turns it into values of the core's types and refuses what is out of bounds:
requests in `balancer.extproc.kserve`, outcomes in `balancer.extproc.outcomes`, reports in
`balancer.reports.codec`. What passed a gate is finite, non-negative and small, so estimators need not look again.
"""

MAX_TEXT_BYTES = 256
"""Of a name, version, id or key, as UTF-8."""
MAX_ROWS = 65_536
"""Of one request or batch."""
MAX_PRIORITY = 32_767
"""More levels than any model has."""
MAX_PARAMETERS = 256
"""Of one request."""
MAX_FIELD_VALUES = 1024
"""Of one field of a gRPC message, whatever it says: what has more is not handed over. Envoy's bootstrap has it too."""
MAX_FIELD_BYTES = 65_536
"""Of one field of a gRPC message. Envoy's bootstrap has it too."""
MAX_PREFIX_BYTES = 65_536
"""Of a gRPC message, before its tensors: as much is held until a worker is chosen."""
MAX_JSON_BYTES = 2**20
"""Of JSON that is read for what concerns routing: as much is held until a worker is chosen."""
MAX_JSON_NODES = 262_144
"""The balancer reads no body with a prompt that has more opening brackets: each may begin an object or array, which
takes 100 bytes and more once read."""
MAX_JSON_VALUES = 2**20
"""Nor one that has more commas: reading it would take longer than Envoy waits."""
MAX_PROMPT_BYTES = 16 * 2**20
"""Envoy holds a body with a prompt until all of it was read, and refuses one that has more bytes. The bootstrap has the
same bound."""
MAX_INFLATED_BYTES = 80 * 2**20
"""Of a compressed message, inflated: it is read to its end."""
MAX_INFLATED_TOTAL_BYTES = 256 * 2**20
"""Of all compressed messages together that one balancer process forwards, which has some three copies of each."""
MAX_INFLATING = 1024
"""Compressed messages that Envoy's module reads at once; each takes some 40 KB."""
MAX_DEADLINE_S = 1e9
"""Of a header; later ones mean none."""
MAX_IN_FLIGHT = 200_000
"""Requests of one balancer process whose outcome is awaited; for one more, the oldest counts as expired."""
MAX_LATENCY_S = 86_400.0
"""Of one outcome; Envoy ends a stream that is silent for an hour."""
MAX_MODELS = 1024
"""Versions of models in one report."""
MAX_MODELS_IN_FLIGHT = 256
"""That one balancer, or all others together, are told to have requests of at one worker."""
MAX_PROMPTS_TOLD = 64
"""That one message between a balancer and an agent tells of; of more, the last ones."""
MAX_PICKS_TOLD = 4096
"""Workers and models in one message of a peer; of more, the rest follows."""
MAX_PROMPT_INPUTS = 64
"""Inputs of a message of gRPC, from the first on, among which a prompt is looked for: each may have as many fields."""
MAX_PROMPT_TOKENS = 1e7
"""Tokens of a prompt that a report or an acknowledgement tells of."""
MAX_WAITING_TOKENS = 1e12
"""Tokens that one worker has still to compute of all its prompts, as a balancer or a report says."""
MAX_FALLBACKS = 16
"""Workers named after a pick."""
MAX_FLEET_MODELS = 4096
"""Models of the whole fleet; a worker is not asked for those beyond."""
MAX_DEVICE_KINDS = 64
"""That are told apart; workers of those beyond are taken for alike."""
MAX_VERSIONS = 64
"""Of one model in one report."""
MAX_BATCH_SIZES = 1024
"""Different ones of one version of a model in one report."""
MAX_REPORT_BATCH_SIZES = 8192
"""Of all models of one report together."""
MAX_REPORT_BYTES = 2**20
"""Of one report on the wire; the largest that keeps all other bounds takes some 850,000."""
MAX_REPORT_STREAMS = 4096
"""Open at one balancer process at once; each is an agent's."""
MAX_RELAYS = 256
"""Open at one balancer process at once."""
MAX_RELAYED = 64
"""Workers in one message of a relay: as many reports as are taken in before anything else has its turn."""
MAX_RELAYED_WORKERS = 32_768
"""That all relays of one balancer process may report on; a worker of two relays counts twice."""
MAX_STREAMS_PER_CONNECTION = 64
"""Of reports; an agent's connection carries one."""
MAX_COUNT = 2**53
"""Of any counter: beyond it, floats have gaps."""
MAX_PENDING = 1e9
"""Requests queued or executing at a worker."""
MAX_INSTANCES = 65_536
"""Of one model on one worker."""
MAX_BALANCERS = 1024
"""That one agent reports to."""
MAX_COMPUTE_S = 1e12
"""Seconds of compute, cumulative, of one batch size."""
MAX_FILE_BYTES = 16 * 2**20
"""Of a file that an operator names: config, workers, profile, certificate."""
SHOWN_CHARACTERS = 60
"""Of a value that is quoted in a refusal."""


class OutOfBoundsError(ValueError):
    """A value from outside that is refused: `field` is what it stood in (a label of metrics), the message is for people
    and names field, value and limit."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        """`rule` says what is allowed: "is a whole number from 1 to 65536"."""
        super().__init__(f"{field}: {shown(value)} is refused; it {rule}")
        self.field = field


class RefusedInputError(OutOfBoundsError):
    """The same in other words, such as Triton's own."""

    def __init__(self, field: str, words: str) -> None:
        ValueError.__init__(self, words)
        self.field = field


def shown(value: object) -> str:
    """A value as messages and logs quote it: escaped, and cut where it is long."""
    if isinstance(value, int | float):
        return f"{value:.17g}" if isinstance(value, float) else str(value)[:SHOWN_CHARACTERS]
    text = str(value)
    cut = text[:SHOWN_CHARACTERS]
    return ascii(cut) if cut == text else f"{cut!a}... ({len(text)} characters)"


def text(field: str, value: str, *, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """`value`, if it is no longer than a name may be; OutOfBoundsError else."""
    # No character takes less than a byte, so most texts need no encoding to be told short.
    if len(value) * 4 > most_bytes and len(value.encode("utf-8", "surrogatepass")) > most_bytes:
        raise OutOfBoundsError(field, value, f"has {most_bytes} bytes at most")
    return value


def at_most(field: str, entries: int, most: int) -> None:
    """OutOfBoundsError where there are more entries than may be."""
    if entries > most:
        raise OutOfBoundsError(field, f"{entries} entries", f"has {most} at most")


def number(field: str, value: float, least: float, most: float) -> float:
    """`value`, if it lies between `least` and `most`, both allowed; OutOfBoundsError else, and for NaN."""
    # Compared like this, NaN fails too.
    if not least <= value <= most:
        raise OutOfBoundsError(field, value, f"is a number from {least:.12g} to {most:.12g}")
    return value
