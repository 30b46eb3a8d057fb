"""What is compressed is understood as what it inflates to, which zlib says; nothing else of it is, and within bounds.

The program under test ends at the first mistake that a sanitizer sees, and then each test fails.
"""

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.understand import INFER, Reader, Refused, Understood, framed
from tritonclient.grpc import service_pb2

from balancer import bounds

GRPC = {"content-type": "application/grpc", ":path": INFER}
REST = {"content-type": "application/json", ":path": "/v2/models/m/infer"}
GZIP, ZLIB = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE)
NEITHER = "message: is not compressed by gzip or deflate, which is refused"
fixtures = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def inference(tensor: bytes = b"\x0a\x01x" * 8) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="model", model_version="1", id="mine")
    message.parameters["sequence_id"].int64_param = 42
    message.parameters["priority"].uint64_param = 3
    message.inputs.add(name="INPUT", datatype="FP32", shape=[8, 3])
    message.outputs.add(name="OUTPUT")
    message.raw_input_contents.append(tensor)
    data: bytes = message.SerializeToString()
    return data


def packed(data: bytes, container: int = GZIP, level: int = 9, strategy: int = 0, flush_at: int = 0) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, container, strategy=strategy)
    start = packer.compress(data[:flush_at]) + packer.flush(zlib.Z_FULL_FLUSH) if flush_at else b""
    return start + packer.compress(data[flush_at:]) + packer.flush()


def frame(data: bytes) -> bytes:
    return b"\1" + struct.pack(">I", len(data)) + data


def chunks_of(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def words_of(read: Understood | Refused) -> str:
    assert isinstance(read, Refused), read
    return read.text


@given(
    tensor=st.one_of(
        st.binary(max_size=400),
        st.integers(0, 200_000).map(lambda size: random.Random(size).randbytes(9) * (size // 9)),
    ),
    container=st.sampled_from([GZIP, ZLIB, 16 + 9, 9]),
    level=st.integers(0, 9),
    strategy=st.sampled_from(STRATEGIES),
    flush_at=st.integers(0, 300),
    size=st.integers(1, 5000),
)
@fixtures
def test_a_compressed_message_is_the_message(
    reader: Reader, tensor: bytes, container: int, level: int, strategy: int, flush_at: int, size: int
) -> None:
    message = inference(tensor)
    body = frame(packed(message, container, level, strategy, flush_at))
    assert reader.ask(GRPC, chunks_of(body, size)) == reader.ask(GRPC, [framed(message)])


@given(seed=st.integers(0, 2**32), size=st.integers(1, 400), container=st.sampled_from([GZIP, ZLIB]))
@fixtures
def test_what_zlib_makes_something_else_of_is_never_understood(
    reader: Reader, seed: int, size: int, container: int
) -> None:
    generator = random.Random(seed)
    data = bytearray(
        packed(inference(generator.randbytes(40) * 3), container, generator.randrange(10), generator.choice(STRATEGIES))
    )
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(data))
        match generator.randrange(3):
            case 0:
                data[at] ^= 1 << generator.randrange(8)
            case 1:
                del data[at : at + generator.randrange(4)]
            case 2:
                data[at:at] = generator.randbytes(generator.randrange(4))
    read = reader.ask(GRPC, chunks_of(frame(bytes(data)), size))
    unpacker = zlib.decompressobj(container)
    try:
        message = unpacker.decompress(bytes(data))
    except zlib.error:
        return
    if unpacker.eof and not unpacker.unused_data:
        assert read == reader.ask(GRPC, [framed(message)])
    else:
        assert isinstance(read, Refused)


def test_the_head_of_gzip_may_have_all_that_it_can(reader: Reader) -> None:
    plain = packed(inference())
    head = b"\x1f\x8b\x08\x1f" + plain[4:10] + struct.pack("<H", 5) + b"extra" + b"name\0" + b"comment\0" + b"\0\0"
    body = frame(head + plain[10:])
    for size in (1, 7, len(body)):
        assert reader.ask(GRPC, chunks_of(body, size)) == reader.ask(GRPC, [framed(inference())])


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:-20],
        lambda whole: whole + b"\0",
        lambda whole: whole + whole,
        lambda whole: b"",
        lambda whole: b"\x1f\x8b\x07" + whole[3:],
        lambda whole: b"\x1f\x8b\x08\x20" + whole[4:],
        lambda whole: b"\x78\xbb" + zlib.compress(inference())[2:],  # with a dictionary
        lambda whole: b"\x88\x1c" + zlib.compress(inference())[2:],  # a window of 64 KiB
        lambda whole: whole[:10] + b"\7" + whole[11:],  # no kind of block
        packed,  # twice
        lambda whole: inference(),
    ],
)
def test_what_is_not_whole_or_something_else_is_refused(reader: Reader, change: Callable[[bytes], bytes]) -> None:
    body = frame(change(packed(inference()[:60] + b"\x3a\xff\x01" + bytes(255))))
    for size in (1, len(body)):
        words = words_of(reader.ask(GRPC, chunks_of(body, size)))
        assert words in {NEITHER, "message: is not one of protobuf, which is refused"}


def test_a_frame_that_is_none_of_grpcs_is_refused(reader: Reader) -> None:
    body = b"\2" + framed(inference())[1:]
    assert words_of(reader.ask(GRPC, [body])) == "Unsupported gRPC frame 'Compressed-Flag'2"


def test_a_bomb_is_refused(reader: Reader) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    start = inference()[:-26] + b"\x3a\xff\xff\xff\xff\x0f"
    body = packer.compress(start) + b"".join(packer.compress(bytes(2**20)) for _ in range(81)) + packer.flush()
    words = words_of(reader.ask(GRPC, chunks_of(frame(body), 16_384)))
    assert words == f"message: has more than {bounds.MAX_INFLATED_BYTES} bytes inflated, which is refused"


@pytest.mark.parametrize(
    "idle",
    [
        b"\0\0\0\xff\xff" * 2_000_000,  # stored blocks of nothing
        bytes.fromhex("04c08100000000009054fe0b") * 100_000,  # codes for nothing
    ],
)
def test_blocks_without_content_come_to_an_end(reader: Reader, idle: bytes) -> None:
    body = frame(b"\x1f\x8b\x08\0\0\0\0\0\0\0" + idle)
    assert words_of(reader.ask(GRPC, chunks_of(body, 16_384))) == NEITHER
    named = frame(b"\x1f\x8b\x08\x08\0\0\0\0\0\0" + b"x" * 10_000_000)
    assert words_of(reader.ask(GRPC, chunks_of(named, 16_384))) == NEITHER


@pytest.mark.parametrize(("encoding", "container"), [("gzip", GZIP), ("deflate", ZLIB), ("deflate", GZIP)])
def test_json_is_inflated(reader: Reader, encoding: str, container: int) -> None:
    body = json.dumps(
        {"id": "a", "inputs": [{"shape": [8], "data": [1] * 99_999}], "parameters": {"sequence_id": 5, "priority": 9}}
    ).encode()
    headers = REST | {"content-encoding": encoding}
    for size in (1, 100_000):
        read = reader.ask(headers, chunks_of(packed(body, container), size))
        assert read == reader.ask(REST, [body])
        assert isinstance(read, Understood)
        assert (read.rows, read.priority, read.sequence) == (8, 9, True)


def test_what_is_wrong_with_compressed_json_is_for_triton_to_say(reader: Reader) -> None:
    headers = REST | {"content-encoding": "gzip"}
    start = gzip.compress(b'{"id": "a", "parameters": {"priority": 9}, "x": ' + b"[" * 10_000)
    for body in (b"{}", start[:-10], start + b"more", b"\x1f\x8b\x08\0\0\0\0\0\0\0" + b"\0\0\0\xff\xff" * 1_000_000):
        assert isinstance(reader.ask(headers, chunks_of(body, 16_384)), Understood)
    read = reader.ask(headers | {"inference-header-content-length": "9"}, [start])
    assert isinstance(read, Understood)
    assert read.priority == 0
