from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerReport(_message.Message):
    __slots__ = ("worker", "incarnation", "number", "ready", "all_models", "models", "balancers", "device", "memory_bytes", "memory_used_bytes", "utilisation", "draining", "peers", "question", "prompts")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ALL_MODELS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    BALANCERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    number: int
    ready: bool
    all_models: bool
    models: _containers.RepeatedCompositeFieldContainer[ModelReport]
    balancers: int
    device: str
    memory_bytes: int
    memory_used_bytes: int
    utilisation: float
    draining: bool
    peers: PeersInFlight
    question: bool
    prompts: _containers.RepeatedCompositeFieldContainer[SentPrompt]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ..., ready: _Optional[bool] = ..., all_models: _Optional[bool] = ..., models: _Optional[_Iterable[_Union[ModelReport, _Mapping]]] = ..., balancers: _Optional[int] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., utilisation: _Optional[float] = ..., draining: _Optional[bool] = ..., peers: _Optional[_Union[PeersInFlight, _Mapping]] = ..., question: _Optional[bool] = ..., prompts: _Optional[_Iterable[_Union[SentPrompt, _Mapping]]] = ...) -> None: ...

class PeersInFlight(_message.Message):
    __slots__ = ("in_flight", "waiting_tokens")
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    in_flight: _containers.RepeatedCompositeFieldContainer[InFlight]
    waiting_tokens: float
    def __init__(self, in_flight: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ..., waiting_tokens: _Optional[float] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("model", "requests")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    requests: int
    def __init__(self, model: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class SentPrompt(_message.Message):
    __slots__ = ("model", "tokens", "prefix", "prefix_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: float
    prefix: _containers.RepeatedScalarFieldContainer[int]
    prefix_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[float] = ..., prefix: _Optional[_Iterable[int]] = ..., prefix_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("model", "version", "ready", "pending", "executing", "succeeded", "failed", "max_batch_rows", "instances", "batches", "memory_tokens", "held_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    EXECUTING_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    ready: bool
    pending: float
    executing: float
    succeeded: int
    failed: int
    max_batch_rows: int
    instances: int
    batches: _containers.RepeatedCompositeFieldContainer[BatchStatistics]
    memory_tokens: int
    held_tokens: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., ready: _Optional[bool] = ..., pending: _Optional[float] = ..., executing: _Optional[float] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., max_batch_rows: _Optional[int] = ..., instances: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[BatchStatistics, _Mapping]]] = ..., memory_tokens: _Optional[int] = ..., held_tokens: _Optional[int] = ...) -> None: ...

class BatchStatistics(_message.Message):
    __slots__ = ("rows", "executions", "compute_s")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    rows: int
    executions: int
    compute_s: float
    def __init__(self, rows: _Optional[int] = ..., executions: _Optional[int] = ..., compute_s: _Optional[float] = ...) -> None: ...

class ReportAck(_message.Message):
    __slots__ = ("received", "answered", "in_flight", "quiet_period_s", "waiting_tokens", "prompts", "knows_worker")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUIET_PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    KNOWS_WORKER_FIELD_NUMBER: _ClassVar[int]
    received: int
    answered: int
    in_flight: _containers.RepeatedCompositeFieldContainer[InFlight]
    quiet_period_s: float
    waiting_tokens: float
    prompts: _containers.RepeatedCompositeFieldContainer[SentPrompt]
    knows_worker: bool
    def __init__(self, received: _Optional[int] = ..., answered: _Optional[int] = ..., in_flight: _Optional[_Iterable[_Union[InFlight, _Mapping]]] = ..., quiet_period_s: _Optional[float] = ..., waiting_tokens: _Optional[float] = ..., prompts: _Optional[_Iterable[_Union[SentPrompt, _Mapping]]] = ..., knows_worker: _Optional[bool] = ...) -> None: ...

class PicksTold(_message.Message):
    __slots__ = ("balancer", "picks", "waits")
    BALANCER_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    balancer: int
    picks: _containers.RepeatedCompositeFieldContainer[WorkerPicks]
    waits: _containers.RepeatedCompositeFieldContainer[WorkerWaits]
    def __init__(self, balancer: _Optional[int] = ..., picks: _Optional[_Iterable[_Union[WorkerPicks, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[WorkerWaits, _Mapping]]] = ...) -> None: ...

class WorkerWaits(_message.Message):
    __slots__ = ("worker", "waiting_tokens")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    waiting_tokens: float
    def __init__(self, worker: _Optional[str] = ..., waiting_tokens: _Optional[float] = ...) -> None: ...

class WorkerPicks(_message.Message):
    __slots__ = ("worker", "model", "sent", "sent_rows", "done", "done_rows")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    SENT_ROWS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DONE_ROWS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    model: str
    sent: int
    sent_rows: float
    done: int
    done_rows: float
    def __init__(self, worker: _Optional[str] = ..., model: _Optional[str] = ..., sent: _Optional[int] = ..., sent_rows: _Optional[float] = ..., done: _Optional[int] = ..., done_rows: _Optional[float] = ...) -> None: ...

class PeerAck(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RelayedReports(_message.Message):
    __slots__ = ("reports", "lost")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reports: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class RelayAck(_message.Message):
    __slots__ = ("received", "quiet_period_s", "refused", "unlisted", "prompts")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    QUIET_PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    UNLISTED_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    received: int
    quiet_period_s: float
    refused: _containers.RepeatedCompositeFieldContainer[WorkerRefused]
    unlisted: _containers.RepeatedScalarFieldContainer[str]
    prompts: _containers.RepeatedCompositeFieldContainer[WorkerPrompts]
    def __init__(self, received: _Optional[int] = ..., quiet_period_s: _Optional[float] = ..., refused: _Optional[_Iterable[_Union[WorkerRefused, _Mapping]]] = ..., unlisted: _Optional[_Iterable[str]] = ..., prompts: _Optional[_Iterable[_Union[WorkerPrompts, _Mapping]]] = ...) -> None: ...

class WorkerRefused(_message.Message):
    __slots__ = ("worker", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class WorkerPrompts(_message.Message):
    __slots__ = ("worker", "prompts")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    prompts: _containers.RepeatedCompositeFieldContainer[SentPrompt]
    def __init__(self, worker: _Optional[str] = ..., prompts: _Optional[_Iterable[_Union[SentPrompt, _Mapping]]] = ...) -> None: ...
