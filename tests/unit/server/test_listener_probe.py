import pytest
from aiohttp import web

from balancer.config import config
from balancer.server.listener_probe import ListenerProbe


@pytest.mark.parametrize(
    ("setting", "status", "serves"),
    [
        ("", 200, True),
        ("", 401, False),
        (", api_keys: {file: keys.yaml}", 401, True),
        (", jwt: {issuer: i, audiences: [a], jwks_file: jwks.json}", 401, True),
        (", api_keys: {file: keys.yaml}", 503, False),
    ],
)
async def test_a_listener_that_asks_for_credentials_serves_once_it_turns_somebody_away(
    setting: str, status: int, serves: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/v2/health/ready", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        parsed = config.parse(f"envoy: {{listen: '{address}', ready_after_listener: true{setting}}}\n", "balancer.yaml")
        probe = ListenerProbe(parsed)
        await probe.look(tritons=True)
        assert (probe.not_ready() == "") == serves
    finally:
        await runner.cleanup()
