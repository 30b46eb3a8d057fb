"""A real server of OpenAI's API behind TLS, which asks for a key: agent, Envoy and proxy reach it all the same."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest
import pytest_asyncio
from support import fronts
from support.certificates import Authority, Identity
from support.waiting import eventually

from balancer.stack.llama import MODEL, LlamaServer
from balancer.stack.process import free_port_range, free_ports
from balancer.stack.stack import OwnStack, read_samples

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
NAME, KEY = "llm.example", "of-the-server"


@dataclass(slots=True, kw_only=True)
class SecuredServer(LlamaServer):
    """Which the agent beside it asks by TLS, and with the key."""

    authority: Authority
    key_file: Path

    @property
    def agent_arguments(self) -> list[str]:
        """By which `balancer agent` reads it."""
        trust = ["--openai-tls-ca", str(self.authority.file), "--openai-tls-name", NAME]
        return ["--openai", self.http_endpoint, *trust, "--openai-key-file", str(self.key_file)]

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return once it takes requests."""
        context = ssl.create_default_context(cafile=str(self.authority.file))

        async def answers() -> bool:
            try:
                async with session.get("/health", ssl=context, server_hostname=NAME) as response:
                    return response.status == 200
            except aiohttp.ClientConnectionError:
                return False

        async with aiohttp.ClientSession(f"https://{self.http_endpoint}") as session:
            await eventually(answers, patience_s=timeout_s)


@contextlib.asynccontextmanager
async def secured(directory: Path, authority: Authority, own: Identity) -> AsyncIterator[SecuredServer]:
    """The server's package is built without TLS, so its connections come out of TLS here."""
    key_file = directory / "key"
    key_file.write_text(f"{KEY}\n")
    http_port, plain_port = free_ports(2)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, to_there = await asyncio.open_connection("127.0.0.1", plain_port)
            await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.cert, own.key)
    async with await asyncio.start_server(relay, "127.0.0.1", http_port, ssl=context):
        yield SecuredServer(
            name="llm-0",
            http_port=http_port,
            log_path=directory / "llm-0.log",
            further={"port": plain_port, "api_keys": [KEY]},
            authority=authority,
            key_file=key_file,
        )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["native", "proxy"])
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[OwnStack]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "certificates")
    envoy = fronts.envoy_section(request.param, directory)
    envoy["openai_tls"] = {"ca_file": str(authority.file), "server_name": NAME}
    listen = {"fleet": f"127.0.0.1:{free_port_range(2)}"} if request.param == "proxy" else {}
    settings = {"envoy": envoy, "listen": listen}
    async with (
        secured(directory, authority, authority.issue("llm", dns=NAME)) as server,
        OwnStack(directory, language_models=[server], settings=settings) as started,
    ):
        yield started


async def test_a_request_with_its_key_is_answered_and_the_agent_knows_the_server(stack: OwnStack) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key=KEY, max_retries=0) as client:
        answer = await client.completions.create(model=MODEL, prompt="The tide", max_tokens=3)
    assert answer.choices[0].text
    assert await stack.metric("balancer_tokens_total", kind="output") == 3

    async def told() -> bool:
        (worker,) = (await stack.get("/workers"))["workers"]
        samples = await read_samples(stack.admin(0))
        # By its list of models, and by its properties, which need the key.
        return MODEL in worker["models"] and any(each.name == "balancer_worker_memory_share" for each in samples)

    await eventually(told)


async def test_another_key_is_the_server_s_to_refuse(stack: OwnStack) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="another", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model=MODEL, prompt="The tide", max_tokens=3)
