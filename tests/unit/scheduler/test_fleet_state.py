"""A fleet's arrays in one block: where they lie, what stays when workers and models come and go, what is refused."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import fleet_states_in, read

from balancer.kernel.block import (
    ALIGNED_TO,
    ENTRY,
    HEADER,
    MOST_AXES,
    OPTIONS,
    FleetSizes,
    ordinary_memory,
)
from balancer.kernel.fleet_state import FIELDS, FleetBlock, arrays_of, options_block
from balancer.kernel.policy_answers import Compiler, answering, options_of
from policies.learned import Learned


def addresses(fleet: FleetBlock) -> dict[str, int]:
    return {name: array.ctypes.data for name, array in fleet.block.arrays.items()}


def filled(workers: int, models: int) -> FleetBlock:
    """Each number another."""
    fleet = FleetBlock(stamp="here")
    fleet.add(workers=workers, models=models)
    for place, array in enumerate(fleet.block.arrays.values()):
        if array.dtype == np.float64:
            array[...] = 1e6 * place + np.arange(array.size).reshape(array.shape)
    return fleet


def test_every_array_lies_in_the_block_for_itself_and_aligned() -> None:
    fleet = filled(5, 3)
    start = np.frombuffer(fleet.block.buffer, np.uint8).ctypes.data
    end = HEADER.itemsize + len(FIELDS) * ENTRY.itemsize
    for name, address in addresses(fleet).items():
        assert (address - start) % ALIGNED_TO == 0
        assert address - start >= end, name
        end = address - start + fleet.block.arrays[name].nbytes
    assert start % ALIGNED_TO == 0
    assert end <= fleet.block.header["bytes"] == memoryview(fleet.block.buffer).nbytes


def test_the_table_has_place_shape_and_strides() -> None:
    fleet = filled(5, 3)
    buffer = fleet.block.buffer
    table = np.frombuffer(buffer, ENTRY, len(FIELDS), HEADER.itemsize)
    start = np.frombuffer(buffer, np.uint8).ctypes.data
    for entry, (name, array) in zip(table, fleet.block.arrays.items(), strict=True):
        axes = int(entry["axes"])
        assert start + int(entry["offset"]) == array.ctypes.data, name
        assert tuple(entry["shape"]) == (*array.shape, *(0,) * (MOST_AXES - axes))
        assert tuple(entry["strides"][:axes]) == array.strides
        assert chr(entry["type"]) == array.dtype.kind
    header = np.frombuffer(buffer, HEADER, 1)[0]
    assert (header["workers"], header["models"], header["in_force"]) == (5, 3, 1)
    assert tuple(header[["room_workers", "room_models"]]) == fleet.block.room == (8, 4)


def test_as_long_as_there_is_room_the_block_and_its_rows_stay() -> None:
    fleet = filled(5, 3)
    block, before, generation, decision = fleet.block, addresses(fleet), fleet.block.generation, fleet.decision
    fleet.add(workers=3, models=1)
    assert fleet.block is block
    assert addresses(fleet) == before
    assert block.generation == generation + 1
    assert fleet.decision is not decision


def test_a_block_without_room_is_replaced_and_says_so() -> None:
    fleet = filled(8, 4)
    block, kept = fleet.block, fleet.queue.known_rows.copy()
    fleet.add(workers=1)
    assert fleet.block is not block
    assert not block.header["in_force"]
    assert fleet.block.header["in_force"]
    assert fleet.block.generation == block.generation + 1
    assert fleet.block.room == (16, 4)
    np.testing.assert_array_equal(fleet.queue.known_rows[:8], kept)


def test_a_thousand_workers_one_by_one_take_few_blocks() -> None:
    given_: list[int] = []

    def memory(size_bytes: int) -> object:
        given_.append(size_bytes)
        return ordinary_memory(size_bytes)

    fleet = FleetBlock(memory)
    for _ in range(1000):
        fleet.add(workers=1)
    assert len(given_) == 8


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "add", "models", "remove"]), st.integers(1, 4)), max_size=20),
)
def test_numbers_stay_with_their_worker_and_model(steps: Sequence[tuple[str, int]]) -> None:
    fleet, number = FleetBlock(), 1.0
    model: dict[str, np.ndarray] = {"queue.known_rows": np.zeros((0, 0)), "tokens.level": np.zeros(0)}
    for step, count in steps:
        workers, models = fleet.sizes
        own_rows, level = model.values()
        if step == "add":
            fleet.add(workers=count)
            own_rows = np.concatenate([own_rows, np.zeros((count, models))])
            level = np.append(level, [np.inf] * count)
        elif step == "models":
            fleet.add(models=count)
            own_rows = np.concatenate([own_rows, np.zeros((workers, count))], axis=1)
        elif workers:
            fleet.remove_worker(count % workers)
            own_rows, level = np.delete(own_rows, count % workers, 0), np.delete(level, count % workers)
        model = {"queue.known_rows": own_rows, "tokens.level": level}
        np.testing.assert_array_equal(fleet.queue.known_rows, own_rows)
        np.testing.assert_array_equal(fleet.tokens.level, level)
        for array in (fleet.queue.known_rows, own_rows, fleet.tokens.level, level):
            array[...] += number
        number *= 2


def test_new_rows_begin_at_their_start_values_where_others_were() -> None:
    fleet = filled(6, 2)
    for _ in range(3):
        fleet.remove_worker(1)
    fleet.add(workers=3, models=2)
    fresh = FleetBlock()
    fresh.add(workers=6, models=4)
    for record in ("queue", "service", "latency", "tokens"):
        for name, array in vars(getattr(fleet, record)).items():
            np.testing.assert_array_equal(array[3:], getattr(getattr(fresh, record), name)[3:], err_msg=name)
    np.testing.assert_array_equal(fleet.decision.reported_s[3:], -np.inf)


def test_another_process_finds_the_same_numbers_at_another_address() -> None:
    fleet = filled(5, 3)
    found = fleet_states_in(bytearray(fleet.block.buffer))
    for name, array in fleet.block.arrays.items():
        record, field = name.split(".")
        np.testing.assert_array_equal(getattr(getattr(found, record), field), array, err_msg=name)


def test_options_have_a_block_with_the_weights_and_room_to_work() -> None:
    found = answering(Learned(), Compiler())
    assert found is not None
    block = options_block(found, FleetSizes(16, 0), "answer_learned", stamp="here")
    options = arrays_of(options_of(found, 16))
    header, arrays = read(bytearray(block.buffer), list(options))
    assert (header["kind"], header["stamp"], header["entry"]) == (OPTIONS, b"here", b"answer_learned")
    for name, array in options.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
