"""`python -m dev.pictures URL FOLDER`: pictures of a balancer's page for the docs, by a real browser.

They are those of whatever runs at URL, such as `balancer up` with `balancer load` beside it.
"""

import asyncio
import io
from pathlib import Path
from typing import Literal, NamedTuple

import click
from PIL import Image

from dev.browser import Tab, tab

_WATCHED_S = 30.0
"""Until the lines of the last seconds are worth a look."""
_MOST_BYTES = 150_000


class _Picture(NamedTuple):
    name: str
    width: int
    height: int
    scheme: Literal["light", "dark"]


_PICTURES = (
    _Picture("light", 1180, 1000, "light"),
    _Picture("dark", 1180, 1000, "dark"),
    _Picture("phone", 390, 844, "light"),
)


@click.command()
@click.argument("url")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def pictures(url: str, folder: Path) -> None:
    """Take them of the page at URL into FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take(url, folder))


async def _take(url: str, folder: Path) -> None:
    for each in _PICTURES:
        async with tab() as page:
            await page.open(url, each.width, each.height, each.scheme)
            await page.until("document.getElementById('live').textContent === 'live'")
            await asyncio.sleep(_WATCHED_S)
            small = await _small(page)
        if len(small) > _MOST_BYTES:
            raise click.ClickException(
                f"{each.name}.png would have {len(small)} bytes; {_MOST_BYTES} at most are wanted"
            )
        (folder / f"{each.name}.png").write_bytes(small)
        click.echo(f"{folder / each.name}.png: {len(small)} bytes")


async def _small(page: Tab) -> bytes:
    """Of few colours, which is a third of the size."""
    picture = Image.open(io.BytesIO(await page.picture())).convert("RGB").quantize(64)
    written = io.BytesIO()
    picture.save(written, "png", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    pictures()
