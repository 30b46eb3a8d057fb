"""A version that is written into a request is what Triton reads, unless the client named one itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from balancer.extproc.inference_bytes import (
    COMPRESSED,
    UNREADABLE,
    LeftError,
    framed_with_version,
    path_with_version,
    pinned_version,
)
from balancer.extproc.kserve import Kind, rest_call
from balancer.extproc.responses import By, of_version
from balancer.kernel.settings import ModelSettings, Settings
from balancer.scheduler.events import ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from policies import BUILTIN

Message = service_pb2.ModelInferRequest
VERSIONS = st.integers(0, 2**63 - 1).map(str)
MESSAGES = st.builds(
    lambda name, ident, tensors: Message(model_name=name, id=ident, raw_input_contents=tensors),
    st.text(max_size=20),
    st.text(max_size=20),
    st.lists(st.binary(max_size=300), max_size=3),
)


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def unframed(body: bytes) -> bytes:
    assert int.from_bytes(body[1:5], "big") == len(body) - 5
    return body[5:]


@given(MESSAGES, VERSIONS, st.integers(min_value=5))
def test_triton_reads_the_version_and_all_else_as_it_was(message: Message, version: str, cut: int) -> None:
    body = framed(message.SerializeToString())
    # A gateway may hand over the start alone.
    written = framed_with_version(body[:cut], version) + body[cut:]
    found = Message.FromString(unframed(written))
    assert found.model_version == version
    found.ClearField("model_version")
    assert found == message


@given(MESSAGES, VERSIONS, VERSIONS, st.booleans())
def test_a_version_of_the_clients_own_stays_in_force(message: Message, own: str, version: str, last: bool) -> None:
    named = Message(model_version=own).SerializeToString()
    rest = message.SerializeToString()
    data = rest + named if last else named + rest
    with pytest.raises(LeftError) as left:
        framed_with_version(framed(data), version)
    assert left.value.why == ""
    # Also where it is not seen, as it comes later.
    [begin, end] = framed_with_version(framed(data)[:5], version), data
    assert Message.FromString(begin[5:] + end).model_version == own


@given(st.binary(max_size=200), VERSIONS)
def test_whatever_comes_is_lengthened_or_left(body: bytes, version: str) -> None:
    try:
        written = framed_with_version(body, version)
    except LeftError:
        return
    assert written.endswith(body[5:])
    assert int.from_bytes(written[1:5], "big") - int.from_bytes(body[1:5], "big") == len(written) - len(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"\1" + bytes(9), COMPRESSED), (b"\0\0", UNREADABLE), (b"\0\xff\xff\xff\xffabc", UNREADABLE)],
)
def test_what_cannot_be_written_into_is_left(body: bytes, why: str) -> None:
    with pytest.raises(LeftError) as left:
        framed_with_version(body, "2")
    assert left.value.why == why


@pytest.mark.parametrize("verb", ["infer", "generate"])
@pytest.mark.parametrize("model", ["m", "a%20b", "versions"])
@pytest.mark.parametrize("tail", ["", "?x=/v2/models/m/infer"])
def test_a_path_names_the_version(verb: str, model: str, tail: str) -> None:
    path = path_with_version(f"/v2/models/{model}/{verb}{tail}", "2")
    assert path == f"/v2/models/{model}/versions/2/{verb}{tail}"
    assert rest_call(path.partition("?")[0]) == (Kind.INFERENCE, model.replace("%20", " "), "2")


@pytest.mark.parametrize(
    ("grpc_status", "http_status", "by", "good"),
    [
        (0, 200, "", True),
        (5, 200, "", False),
        (4, 200, "", False),
        (13, 200, "", False),
        (3, 200, "", None),
        (8, 200, "", None),
        (1, 200, "", False),
        (-1, 200, "", True),
        (-1, 404, "", False),
        (-1, 500, "", False),
        (-1, 400, "", None),
        (0, 200, "client", None),
        (14, 200, "gateway", None),
        (-1, 0, "worker", False),
    ],
)
def test_how_a_request_ended_speaks_of_its_version(
    grpc_status: int, http_status: int, by: By, good: bool | None
) -> None:
    assert of_version(grpc_status, http_status, by) is good


PINNED = {
    "the one that is pinned": (("1",), ["12"], "1"),
    "the one, though it is the latest too": (("2",), ["12"], "2"),
    "the one, though one worker has another": (("1",), ["1", "2"], "1"),
    "none of a version that nobody has": (("3",), ["12"], ""),
    "the one, where nobody has the model": (("3",), [""], "3"),
    "Triton's choice, where that is permitted": (("1", "2"), ["12", "1"], ""),
    "the latest of several, where it is not": (("1", "2"), ["123", "12"], "2"),
    "of a worker without any nothing is asked": (("1", "2"), ["12", "3"], ""),
    "none without pins": ((), ["12"], ""),
    "a text that is no version of Triton's": (("new",), [""], ""),
}


@pytest.mark.parametrize("case", PINNED)
def test_a_request_of_a_pinned_model_gets(case: str) -> None:
    pins, loaded, expected = PINNED[case]
    router = Router(BUILTIN["round_robin"](), Settings(models={"m": ModelSettings(versions=pins)}))
    for number, versions in enumerate(loaded):
        name = f"w{number}"
        router.observe(WorkerAdded(name), 0.0)
        models = tuple(ModelReport("m", version, ready=True) for version in versions)
        router.observe(Report(name, 1, 1, True, models=models), 0.0)
    assert pinned_version(router.fleet, "m") == expected
    assert pinned_version(router.fleet, "other") == ""
