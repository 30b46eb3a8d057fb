"""Whatever config can be written: it survives being printed; whatever text: it is a config or a ConfigError."""

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.config import config
from balancer.config.config import Config, ConfigError
from policies import BUILTIN

# Other tests and builds may have the processor: no deadline.
quick = settings(deadline=None, max_examples=50)
positive = st.floats(min_value=1e-6, max_value=1e12)
names = st.text(min_size=1, max_size=12)
maybe = st.one_of(st.none(), positive)


def sections(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


configs = sections(
    policy=sections(name=st.sampled_from(sorted(set(BUILTIN) - {"learned"}))),
    models=st.dictionaries(
        names,
        sections(memory_bytes=st.integers(0, 2**60), devices=st.lists(names), versions=st.lists(names | st.integers())),
    ),
    limits=sections(
        max_pending_per_worker=maybe,
        sheddable_priority=st.integers(0, 2**40),
        sheddable_max_pending_per_worker=maybe,
        shed_late=st.booleans(),
    ),
    estimators=sections(key_memory=positive, tokens=sections(refill_per_s=positive)),
    requests=sections(tenant_header=st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)),
    telemetry=sections(required=st.booleans(), stale_after_s=st.floats(1e-6, 1e6)),
    discovery=sections(file=st.none() | names),
    log=sections(level=st.sampled_from(["debug", "error"]), decisions_share=st.floats(0, 1)),
    seed=st.integers(0, 2**63 - 1),
    guard=sections(enabled=st.just(False), quiet_s=st.floats(0.1, 600)),
    shadow=st.none() | st.just({"name": "wlpr"}),
)


@quick
@given(configs)
def test_effective_config_parses_to_itself(data: dict[str, Any]) -> None:
    parsed = config.from_mapping(data)
    again = config.parse(config.effective_yaml(parsed), "again")
    assert again == parsed
    assert again.hash == parsed.hash
    assert config.needs_restart(parsed, again) == []


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@quick
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | st.text(max_size=5), json_like, max_size=4))
def test_any_data_is_a_config_or_a_config_error(data: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        config.from_mapping(data)


@quick
@given(st.text() | st.binary() | st.text(alphabet="ab:- \n[]{}&*!#?,1.e\"'|>%~<"))
def test_any_content_is_a_config_or_a_config_error(content: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        config.parse(content, "f")
