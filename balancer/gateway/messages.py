"""What the messages of ext_proc say: headers, fields that Envoy extracted, the endpoints that a gateway allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2

from balancer.gateway.names import EXTRACTION, SUBSET, SUBSET_NAMESPACE


def read_fields(message: ext_proc.ProcessingRequest) -> Mapping[str, Sequence[object]]:
    """What Envoy extracted of the client's message; empty where it did not."""
    extracted = message.metadata_context.filter_metadata.get(EXTRACTION)
    return {} if extracted is None else Extracted(extracted)


def read_subset(message: ext_proc.ProcessingRequest) -> list[str] | None:
    """The endpoints that the gateway allows; None: all."""
    hint = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if hint is None or SUBSET not in hint.fields:
        return None
    values = flatten(hint.fields[SUBSET])
    return [part.strip() for value in values for part in str(value).split(",") if part.strip()]


class Extracted(Mapping[str, Sequence[object]]):
    """The fields that Envoy extracted, each read when it is asked for: most requests use a few of them."""

    def __init__(self, extracted: struct_pb2.Struct) -> None:
        self._fields = extracted.fields

    def __getitem__(self, path: str) -> Sequence[object]:
        if path not in self._fields:  # protobuf would add it
            raise KeyError(path)
        return flatten(self._fields[path])

    def get(self, path: str, default: Any = ()) -> Any:  # the inherited one takes an exception for every field not sent
        """The leaves of a field, in order."""
        return flatten(self._fields[path]) if path in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def read_headers(headers: ext_proc.HttpHeaders | ext_proc.HttpTrailers) -> Mapping[str, str]:
    """Names, in lower case as HTTP/2 has them, to values; the last of a repeated header counts."""
    values = headers.trailers if isinstance(headers, ext_proc.HttpTrailers) else headers.headers
    return {h.key: h.raw_value.decode("latin-1") or h.value for h in values.headers}


def flatten(value: struct_pb2.Value) -> list[object]:
    """The leaves of a metadata value, in order: Envoy nests lists where fields repeat within fields that repeat."""
    match value.WhichOneof("kind"):
        case "list_value":
            return [leaf for item in value.list_value.values for leaf in flatten(item)]
        case "string_value":
            return [value.string_value]
        case "number_value":
            return [value.number_value]
        case "bool_value":
            return [value.bool_value]
    return []
