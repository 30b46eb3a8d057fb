import re

import pytest

from balancer.bootstrap import proxy
from balancer.fleet_api import rest_calls
from balancer.fleet_api.fan_out import FailedError
from balancer.fleet_api.rest_calls import read_path


@pytest.mark.parametrize(
    ("path", "call", "name", "version"),
    [
        ("/v2", "ServerMetadata", "", ""),
        ("/v2/models/m", "ModelMetadata", "m", ""),
        ("/v2/models/m%20n/versions/3/config", "ModelConfig", "m n", "3"),
        ("/v2/models/stats", "ModelStatistics", "", ""),
        ("/v2/models/m/stats", "ModelStatistics", "m", ""),
        ("/v2/models/m/trace/setting", "TraceSetting", "m", ""),
        ("/v2/trace/setting", "TraceSetting", "", ""),
        ("/v2/repository/models/m/unload", "RepositoryModelUnload", "m", ""),
        ("/v2/systemsharedmemory/region/r/register", "SystemSharedMemoryRegister", "r", ""),
        ("/v2/cudasharedmemory/unregister", "CudaSharedMemoryUnregister", "", ""),
    ],
)
def test_a_path_asks_for_a_call(path: str, call: str, name: str, version: str) -> None:
    found = read_path(path)
    assert found is not None
    assert (found.method, found.name, found.version) == (call, name, version)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v2/",
        "/v1",
        "/v2/models/m/infer",
        "/v2/models/a%2fb",
        "/v2/models/a%00b",
        "/v2/models//ready",
        "/v2%0a",
    ],
)
def test_any_other_asks_for_none(path: str) -> None:
    assert read_path(path) is None


def test_what_envoy_sends_is_known() -> None:
    """The routes that are added, each with every way that its pattern can be met."""
    for pattern in (proxy._READ_REST, proxy._CHANGED_REST):
        paths = [
            *("/v2/trace/setting", "/v2/models/m/trace/setting", "/v2/logging"),
            *(f"/v2/{kind}sharedmemory/{verb}" for kind in ("system", "cuda") for verb in ("status", "unregister")),
            *(
                f"/v2/{kind}sharedmemory/region/r/{verb}"
                for kind in ("system", "cuda")
                for verb in ("status", "register")
            ),
            *(f"/v2/repository/models/m/{verb}" for verb in ("load", "unload")),
        ]
        met = [path for path in paths if re.fullmatch(pattern, path)]
        assert len(met) >= 6
        assert all(read_path(path) is not None for path in met)


def test_json_of_a_change_becomes_its_message() -> None:
    request = rest_calls.request_of(
        "RepositoryModelLoad", "m", b'{"parameters": {"config": "{}", "file:1/model.py": "aGk=", "n": 3, "b": true}}'
    )
    assert request.parameters["config"].string_param == "{}"  # type: ignore[attr-defined]  # of the generated message
    assert request.parameters["file:1/model.py"].bytes_param == b"hi"  # type: ignore[attr-defined]  # likewise
    assert request.parameters["n"].int64_param == 3  # type: ignore[attr-defined]  # likewise
    assert request.parameters["b"].bool_param is True  # type: ignore[attr-defined]  # likewise
    traces = rest_calls.request_of("TraceSetting", "", b'{"trace_level": ["TIMESTAMPS"], "trace_rate": null}')
    settings = traces.settings  # type: ignore[attr-defined]  # likewise
    assert {key: list(value.value) for key, value in settings.items()} == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": [],
    }


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("RepositoryModelLoad", b"{"),
        ("RepositoryModelLoad", b"[]"),
        ("RepositoryModelLoad", b'{"parameters": [1]}'),
        ("RepositoryModelLoad", b'{"parameters": {"file:a": "?"}}'),
        ("RepositoryModelLoad", b'{"parameters": {"n": 99999999999999999999}}'),
        ("LogSettings", b'{"log_verbose_level": -1}'),
        ("LogSettings", b'{"log_verbose_level": {}}'),
        ("TraceSetting", b'{"trace_rate": 3}'),
        ("SystemSharedMemoryRegister", b"{}"),
        ("SystemSharedMemoryRegister", b'{"key": "/k", "byte_size": -4}'),
        ("CudaSharedMemoryRegister", b'{"raw_handle": {"b64": 3}, "device_id": 0, "byte_size": 4}'),
        ("RepositoryModelLoad", b"[" * 100_000),
    ],
)
def test_json_that_does_not_fit_is_refused_in_words(call: str, body: bytes) -> None:
    with pytest.raises(FailedError, match="JSON") as error:
        rest_calls.request_of(call, "m", body)
    assert error.value.failure.http_status == 400
