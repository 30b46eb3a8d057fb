"""Lists of workers: what they may say, and what a change of list means to the router."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.discovery.workers import FileSource, WorkerSpec, changes, dump_workers, load_workers, parse_workers
from balancer.files.yaml_document import ConfigError
from balancer.scheduler.events import WorkerAdded, WorkerRemoved, WorkersAdded


def worker(name: str, last: int = 1, **more: Any) -> WorkerSpec:
    return WorkerSpec(name=name, address=f"10.0.0.{last}", grpc_port=8001, http_port=8000, **more)


def refused(content: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_workers(content, "workers.yaml")
    return str(caught.value)


def test_everything_a_file_may_say() -> None:
    (parsed,) = parse_workers(
        "workers:\n- {name: a, address: '::1', grpc_port: 1, http_port: 2, weight: 2, device: L4, memory_bytes: 24GiB, "
        "draining: true}\n",
        "workers.yaml",
    )
    assert parsed.added() == WorkerAdded("a", 2.0, "L4", 24 * 2**30, draining=True)
    assert (parsed.grpc_endpoint, parsed.http_endpoint) == ("[::1]:1", "[::1]:2")


def test_name_and_address_are_enough_where_triton_has_its_default_ports() -> None:
    (parsed,) = parse_workers("workers: [{name: a, address: 127.0.0.1}]", "workers.yaml")
    assert (parsed.grpc_endpoint, parsed.http_endpoint) == ("127.0.0.1:8001", "127.0.0.1:8000")
    message = refused("workers:\n- {name: a, address: 127.0.0.1}\n- {name: b, address: 127.0.0.1}\n")
    assert message.splitlines()[0] == (
        'workers.yaml:3: workers[1].grpc_port: "127.0.0.1:8001" is not allowed: is the grpc_port of workers[0] too; '
        "every worker needs a name and ports of its own. Triton's gRPC port; 0: it takes HTTP alone."
    )


def test_a_worker_that_speaks_openai_has_one_port() -> None:
    workers = parse_workers(
        "workers:\n- {name: a, address: 127.0.0.1, http_port: 1}\n- {name: b, address: 127.0.0.1, protocol: openai}\n",
        "workers.yaml",
    )
    assert [worker.endpoints for worker in workers] == [
        {"grpc": "127.0.0.1:8001", "http": "127.0.0.1:1"},
        {"openai": "127.0.0.1:8000"},
    ]
    assert "must be" in refused("workers: [{name: a, address: 127.0.0.1, protocol: grpc}]")
    one = worker("a", protocol="openai")
    assert changes([one], [worker("a")]) == [WorkerRemoved("a"), WorkersAdded((worker("a").added(),))]


def test_json_is_fine_and_no_workers_must_be_written() -> None:
    assert parse_workers('{"workers": []}', "workers.json") == ()
    assert "the file is empty" in refused("")
    assert "workers: is missing" in refused("{}")


def test_the_list_alone_is_a_file_too() -> None:
    content = "- {name: a, address: 10.0.0.1}\n- {name: b}\n"
    assert [each.name for each in parse_workers(content.splitlines()[0], "workers.yaml")] == ["a"]
    assert refused(content).startswith("workers.yaml:2: workers[1].address: is missing")
    assert "the top is str, but must be a mapping" in refused("workers")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("name: b, address: triton.svc", 'workers[1].address: "triton.svc" is not allowed: must be an IP address'),
        ("name: b, address: 10.0.0.1", 'workers[1].grpc_port: "10.0.0.1:8001" is not allowed: is the grpc_port of'),
        ("name: a, address: 10.0.0.2", 'workers[1].name: "a" is not allowed: is the name of workers[0] too'),
        ("name: b, address: 10.0.0.2, weight: 0", "workers[1].weight: 0 is not allowed: must be greater than 0."),
        ("name: b, address: 10.0.0.2, wait: 1", 'workers[1].wait: unknown field (its value is 1); did you mean "wei'),
        ("name: 'a b', address: 10.0.0.2", 'workers[1].name: "a b" is not allowed: must match'),
    ],
)
def test_refused_by_line_field_and_remedy(row: str, words: str) -> None:
    ports = "grpc_port: 8001, http_port: 8000"
    message = refused(f"workers:\n- {{name: a, address: 10.0.0.1, {ports}}}\n- {{{row}, {ports}}}\n")
    assert message.startswith("workers.yaml:3: ")
    assert words in message


def test_one_port_cannot_be_both() -> None:
    message = refused("workers: [{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 1}]")
    assert 'workers[0].http_port: "10.0.0.1:1" is not allowed: is the grpc_port of workers[0] too' in message


def test_changes() -> None:
    a, b, c = worker("a", 1), worker("b", 2), worker("c", 3)
    assert changes([], [a, b]) == [WorkersAdded((a.added(), b.added()))]
    assert changes([a, b], [b, a]) == []
    assert changes([a, b], [b, c]) == [WorkerRemoved("a"), WorkersAdded((c.added(),))]
    draining = worker("a", 1, draining=True)
    assert changes([a, b], [draining, b]) == [WorkersAdded((draining.added(),))]


def test_a_worker_that_moved_is_another_one() -> None:
    moved = worker("a", 9)
    assert changes([worker("a", 1)], [moved]) == [WorkerRemoved("a"), WorkersAdded((moved.added(),))]


fleets = st.lists(
    st.builds(worker, st.sampled_from("abcdef"), st.integers(1, 3), weight=st.sampled_from([1.0, 2.0])),
    unique_by=lambda spec: spec.name,
)


@settings(deadline=None)
@given(fleets, fleets)
def test_changes_lead_from_one_list_to_the_other(old: list[WorkerSpec], new: list[WorkerSpec]) -> None:
    known = {spec.name: spec.added() for spec in old}
    for event in changes(old, new):
        if isinstance(event, WorkerRemoved):
            del known[event.worker]
        else:
            assert isinstance(event, WorkersAdded)
            known |= {added.worker: added for added in event.workers}
    assert known == {spec.name: spec.added() for spec in new}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    fleet = (worker("a", 1, device="1e3"), worker("b", 2, weight=0.5))
    path = tmp_path / "workers.yaml"
    path.write_text(dump_workers(fleet))
    assert load_workers(path) == fleet


async def test_source_yields_good_lists_and_reports_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    fleet = (worker("a", 1), worker("b", 2))
    path.write_text(dump_workers(fleet[:1]))
    stop, errors = asyncio.Event(), asyncio.Queue[ConfigError]()

    def replace(content: str) -> None:
        new = tmp_path / "new"
        new.write_text(content)
        new.replace(path)

    async with contextlib.aclosing(FileSource(path, errors.put_nowait).updates(stop)) as updates:
        lists = aiter(updates)
        assert await anext(lists) == fleet[:1]
        replace("workers: 3\n")
        following = asyncio.ensure_future(anext(lists))
        assert "workers: 3 is not allowed: must be a list" in str(await asyncio.wait_for(errors.get(), 30))
        replace(dump_workers(fleet))
        assert await asyncio.wait_for(following, 30) == fleet
        stop.set()
        assert [rest async for rest in lists] == []
