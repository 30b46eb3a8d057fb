"""What stands before the tensors of a message decides, however the message is compressed and cut, and within bounds."""

import asyncio
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.extproc import wire
from balancer.extproc.compressed import CompressedMessage
from balancer.extproc.kserve import SERVICE, Call, HeaderNames, read_call

GZIP, ZLIB = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS
HEADERS = {"content-type": "application/grpc", ":path": f"{SERVICE}ModelInfer"}
NEITHER = "message: is not compressed by gzip or deflate, which is refused"


def inference(tensor: bytes = b"\x0a\x01x" * 8, *, typed: bool = False) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="model", model_version="1", id="é🙂")
    message.parameters["sequence_id"].int64_param = 42
    message.parameters["priority"].uint64_param = 3
    message.parameters["colour"].string_param = "red"
    message.inputs.add(name="INPUT", datatype="FP32", shape=[8, 3])
    if typed:
        message.inputs[0].contents.fp32_contents.extend([1.0] * 10_000)
    else:
        message.outputs.add(name="OUTPUT")
        message.raw_input_contents.append(tensor)
    data: bytes = message.SerializeToString()
    return data


def packed(data: bytes, container: int = GZIP, level: int = 9) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, container)
    return packer.compress(data) + packer.flush()


def frame(data: bytes, flag: int = 1) -> bytes:
    return bytes([flag]) + struct.pack(">I", len(data)) + data


def read(body: bytes, size: int = 16_384, *, inference: bool = True) -> tuple[Call, int]:
    """What is understood, and how many bytes of the body came until it was."""

    async def fed() -> tuple[Call, int]:
        message, held = CompressedMessage(inference=inference), 0
        for at in range(0, len(body), size):
            held += 0 if message.is_decided else len(body[at : at + size])
            await message.feed(body[at : at + size])
        message.end()
        path = HEADERS[":path"] if inference else f"{SERVICE}ModelReady"
        return read_call(HEADERS | {":path": path}, message.fields(), HeaderNames()), held

    return asyncio.run(fed())


def words_of(body: bytes, size: int = 16_384) -> str:
    with pytest.raises(OutOfBoundsError) as raised:
        read(body, size)
    return str(raised.value)


@given(
    tensor=st.binary(max_size=300),
    container=st.sampled_from([GZIP, ZLIB, None]),
    level=st.integers(0, 9),
    size=st.integers(1, 700),
    typed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_all_that_decides_is_read(tensor: bytes, container: int | None, level: int, size: int, typed: bool) -> None:
    message = inference(tensor, typed=typed)
    body = frame(message, 0) if container is None else frame(packed(message, container, level))
    call, _ = read(body, size)
    request = call.request
    assert (request.model, request.version, call.triton_request_id) == ("model", "1", "é🙂")
    assert (request.rows, request.priority, request.sequence) == (8, 3, True)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 400), container=st.sampled_from([GZIP, ZLIB]))
@settings(max_examples=200, deadline=None)
def test_what_zlib_makes_something_else_of_is_never_understood(seed: int, size: int, container: int) -> None:
    generator = random.Random(seed)
    data = bytearray(packed(inference(generator.randbytes(40)), container, generator.randrange(10)))
    for _ in range(generator.randint(1, 3)):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    try:
        call, _ = read(frame(bytes(data)), size)
    except OutOfBoundsError:
        return
    expected = service_pb2.ModelInferRequest.FromString(zlib.decompress(bytes(data), container))
    assert (call.request.model, call.triton_request_id) == (expected.model_name, expected.id)


def test_questions_about_models_are_read() -> None:
    data = service_pb2.ModelReadyRequest(name="m" * 100, version="2").SerializeToString()
    call, _ = read(frame(packed(data)), 1, inference=False)
    assert (call.request.model, call.request.version) == ("m" * 100, "2")


def test_tensors_are_not_waited_for() -> None:
    body = frame(packed(inference(random.Random(1).randbytes(1_000_000))))
    assert read(body, 100)[1] < 1000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (frame(packed(inference())[:-1]), NEITHER),
        (frame(packed(inference()) * 2), NEITHER),
        (frame(packed(inference()) + b"\0"), NEITHER),
        (frame(packed(inference())[:-8] + bytes(8)), NEITHER),
        (frame(b""), NEITHER),
        (frame(inference()), NEITHER),
        (frame(b"\x78\xbb" + zlib.compress(inference())[2:]), NEITHER),
        (frame(b"\x1f\x8b\x08\0\0\0\0\0\0\0" + b"\0\0\0\xff\xff" * 2_000_000), NEITHER),
        (frame(packed(packed(inference()))), "is a protobuf message"),
        (frame(packed(inference()[:-3])), "is a protobuf message"),
        (frame(inference(), 2), "message: is in no frame of gRPC's, which is refused"),
        (frame(packed(inference()))[:20], "message: ends before it is whole, which is refused"),
        (b"\1\0", "message: ends before it is whole, which is refused"),
        (
            frame(packed(inference(bytes(1_000_000)) + inference()[:7])),
            "model_name: comes after the tensors, which is refused",
        ),
        (frame(packed(b"\x0a\x80\x80\x08" + bytes(131_072))), "model_name: has more than 65536 bytes"),
        (frame(packed(wire.tagged(1, b"\xff") + wire.tagged(7, b""))), "it is UTF-8"),
        (
            frame(packed(wire.tagged(99, bytes(70_000)) + inference())),
            f"message: has more than {bounds.MAX_PREFIX_BYTES} bytes before its tensors",
        ),
        (frame(packed(inference() + b"\x40\1" * 5000)), "has 4096 fields at most"),
    ],
)
def test_what_is_refused(body: bytes, words: str) -> None:
    assert words in words_of(body)


def test_a_bomb_is_refused() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    start = wire.tagged(1, b"m") + b"\x3a\xff\xff\xff\xff\x0f"
    body = packer.compress(start) + b"".join(packer.compress(bytes(2**20)) for _ in range(81)) + packer.flush()
    assert (
        words_of(frame(body)) == f"message: has more than {bounds.MAX_INFLATED_BYTES} bytes inflated, which is refused"
    )


def test_parameters_are_counted() -> None:
    entry: Callable[[int], bytes] = lambda number: wire.tagged(4, wire.tagged(1, b"%d" % number))  # noqa: E731
    assert "parameters: 257 is refused" in words_of(frame(packed(b"".join(map(entry, range(300))))))
