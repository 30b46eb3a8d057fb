"""What the rules are held against is what a real process exports."""

from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.balancer_alone import BalancerAlone
from support.exported import declared
from support.running import running

pytestmark = pytest.mark.integration


async def test_a_real_process_exports_what_is_declared(tmp_path: Path) -> None:
    alone = BalancerAlone(tmp_path, envoy={"frontend": "native", "shared_folder": str(tmp_path / "shared")})
    async with running(alone), aiohttp.ClientSession() as session, session.get(f"{alone.url}/metrics") as response:
        families = list(text_string_to_metric_families(await response.text()))
    # Where no pods are followed, nothing is told of them; tests/integration/kubernetes has them.
    known = {name: labels for name, labels in declared().items() if not name.startswith("balancer_kubernetes_")}
    suffixes = {"counter": "_total", "histogram": "_bucket", "info": "_info"}
    assert {family.name + suffixes.get(family.type, "") for family in families} == {
        name for name in known if not name.endswith(("_count", "_sum"))
    }
    for sample in (sample for family in families for sample in family.samples):
        assert set(sample.labels) == known[sample.name]
