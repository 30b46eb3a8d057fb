"""A real browser without a window, over its own protocol (Chrome DevTools): Debian's Chromium, where there is one."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import aiohttp

_NAMES = ("chromium-headless-shell", "chromium")
MISSING = f"no Chromium ({' or '.join(_NAMES)}) is installed; on Debian: apt-get install chromium-headless-shell"
_POLL_S = 0.05
_PATIENCE_S = 60.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",  # which refuses to run as root; only pages of this machine's own balancer are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """Path of the program; None: it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """What the page's scripts threw, and what its policy forbade."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol. RuntimeError where it fails."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                message = await self._socket.receive_json()
                self._note(message)
                if message.get("id") == number:
                    if "error" in message:
                        raise RuntimeError(f"{method}: {message['error']}")
                    result: dict[str, Any] = message["result"]
                    return result

    def _note(self, message: Mapping[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    async def open(
        self,
        url: str,
        width: int = 1280,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Go to a page, in a window of that size, for a person who likes it light or dark."""
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await self.call(f"{domain}.enable")
        await self.call("Network.setExtraHTTPHeaders", headers=dict(headers or {}))
        await self.resize(width, height)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.call("Page.navigate", url=url)

    async def resize(self, width: int, height: int) -> None:
        mobile = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited. RuntimeError where it throws."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """The first true value of an expression. TimeoutError where there is none in a minute."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    with contextlib.suppress(RuntimeError):  # the page is not all there yet
                        if value := await self.evaluate(expression):
                            return value
                    await asyncio.sleep(_POLL_S)
        body = await self.evaluate("document.body.innerText.slice(0, 3000)")
        raise TimeoutError(f"never so: {expression}; problems: {self.problems}; the page says: {body}")

    async def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "ArrowRight": 39}
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def picture(self, whole: bool = False) -> bytes:
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """A page of a browser of its own, which ends with it. RuntimeError where none is installed."""
    program = chromium()
    if program is None:
        raise RuntimeError(MISSING)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *(program, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    pages = [each for each in await response.json() if each["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=2**26) as socket:
                    yield Tab(socket)
        finally:
            # Debian's program is a script that starts the browser, and a browser is several processes: all of them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(_PATIENCE_S):
        while not (file.exists() and "\n" in file.read_text()):
            if process.returncode is not None:
                raise RuntimeError(f"Chromium ended with {process.returncode}")
            await asyncio.sleep(_POLL_S)
    return int(file.read_text().splitlines()[0])
