"""The page in a real browser: what a person sees, on a desk and on a phone, and what hostile names do not do."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.page_fleet import PageFleet
from support.waiting import eventually

from balancer.config.config import from_mapping
from balancer.config.sections import AdminSection
from balancer.files.yaml_document import ConfigError, Problem
from balancer.scheduler.canary.selector import PolicySelector
from balancer.scheduler.canary.switchback import Finding
from balancer.server.events import EventReporter
from dev.browser import MISSING, Tab, chromium, tab
from policies.base import Request
from policies.expected_latency import ExpectedLatency

pytestmark = [pytest.mark.integration, pytest.mark.skipif(chromium() is None, reason=MISSING)]

HOSTILE = "<script>window.hacked=1</script>"
IMAGE = '"><img src=x onerror=window.hacked=1>'
LIVE = "document.getElementById('live').textContent === 'live'"
ROWS = "[...document.querySelectorAll('#{}-table tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


@pytest.fixture(autouse=True)
def made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document, though the fleet's clock stands still."""
    monkeypatch.setattr("balancer.server.page.page_data.FRESH_S", 0.0)


@pytest.fixture
async def page() -> AsyncIterator[Tab]:
    async with tab() as opened:
        yield opened


def troubled(workers: int = 64) -> PageFleet:
    fleet = PageFleet(workers, names={5: HOSTILE, 6: IMAGE}, models=("m", HOSTILE))
    fleet.traffic()
    fleet.break_some()
    fleet.events.add("worker", "error", f"listed: {HOSTILE}")
    fleet.state.accept(from_mapping({"seed": 1, "models": {IMAGE: {"versions": ["1"]}}}), 1100.0)
    fleet.state.refuse(ConfigError([Problem("balancer.yaml", 3, "policy.name", f"{HOSTILE} is not allowed")]), 1200.0)
    fleet.not_ready = f"no worker is ready ({HOSTILE})"
    return fleet


async def test_it_shows_the_fleet_and_follows_it(page: Tab) -> None:
    fleet = PageFleet(3)
    fleet.traffic()
    async with fleet.served() as (admin, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        rows = await page.evaluate(ROWS.format("workers"))
        assert [row[:2] for row in rows] == [[f"worker-{number}", "ready"] for number in range(3)]
        assert [row[:2] for row in await page.evaluate(ROWS.format("traffic"))] == [["m", "wlpr"], ["n", "wlpr"]]
        fleet.break_some()
        await page.until(f"{ROWS.format('workers')}[0][1] === 'silent'")
        assert "its report stream broke" in (await page.evaluate(ROWS.format("workers")))[0][-1]
        assert "no report for more than 1 s: worker-1" in await page.evaluate(
            "document.getElementById('events').innerText"
        )
        assert page.problems == []
        assert len(admin._streams) == 1
        await page.call("Page.navigate", url="about:blank")
        await eventually(lambda: not len(admin._streams), "nobody watches any more")


async def test_hostile_names_are_text_and_nothing_is_fetched_from_elsewhere(page: Tab) -> None:
    async with troubled().served() as (_, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        names = {row[0] for row in await page.evaluate(ROWS.format("workers"))}
        assert {HOSTILE, IMAGE} <= names
        assert await page.evaluate("document.querySelectorAll('#model option').length") == 2
        assert HOSTILE in await page.evaluate("document.getElementById('notices').innerText")
        assert HOSTILE in await page.evaluate("document.getElementById('events').innerText")
        assert await page.evaluate("document.querySelectorAll('script').length") == 1
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert await page.evaluate("window.hacked") is None
        assert page.problems == []
        fetched = await page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(name.startswith((f"{url}/", "data:")) for name in fetched)
        # Were one to get in as markup, the page's policy would not run it.
        attempt = "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')"
        assert await page.evaluate(f"try {{ {attempt}; 'in' }} catch {{ 'refused' }}") == "refused"
        added = "const s = document.createElement('script'); s.append('window.hacked=1'); document.body.append(s)"
        await page.evaluate(f"try {{ {added} }} catch {{}}")
        assert await page.evaluate("window.hacked") is None


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (390, "dark"), (1280, "dark")])
async def test_it_is_readable_on_a_phone_and_by_day_and_night(page: Tab, width: int, scheme: str) -> None:
    async with troubled().served() as (_, url):
        await page.open(f"{url}/", width, 844, scheme)  # type: ignore[arg-type]  # one of its two
        await page.until(LIVE)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 100")
        assert dark == (scheme == "dark")
        ratio, *where = await page.evaluate(CONTRAST)
        assert ratio >= 4.5, where


CUT = """[...document.querySelectorAll('td, tbody th')].filter(cell => {
    const at = cell.getBoundingClientRect(), part = cell.closest('.scroll').getBoundingClientRect();
    const cut = at.left < part.left - 1 || at.right > part.right + 1 || cell.scrollWidth > cell.clientWidth + 1;
    return at.width && cut;
}).map(cell => cell.textContent)"""
HINTS = "[...document.querySelectorAll('#workers .hint')].map(each => each.textContent)"


async def test_on_a_phone_no_column_is_cut_and_each_number_stands_under_its_title(page: Tab) -> None:
    async with troubled().served() as (_, url):
        await page.open(f"{url}/", 360, 844)
        await page.until(LIVE)
        assert await page.evaluate(CUT) == []
        label = "getComputedStyle(document.querySelector('#workers-table td:nth-child(3)'), '::before').content"
        assert await page.evaluate(label) == '"queue"'
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        roles = [each["role"]["value"] for each in tree if not each["ignored"]]
        assert min(roles.count("table"), roles.count("columnheader"), roles.count("rowheader")) > 2
        # 64 workers are more than the window has: what is below is said, until it is seen.
        assert await page.evaluate(HINTS) == ["more below ↓"]
        await page.evaluate("document.querySelector('#workers .scroll').scrollTop = 1e6")
        await page.until(f"{HINTS}[0] === ''")


async def test_columns_that_do_not_fit_are_shown_until_they_are_seen(page: Tab) -> None:
    async with troubled(3).served() as (_, url):
        await page.open(f"{url}/", 700, 844)
        await page.until(LIVE)
        await page.until(f"{HINTS}[0].includes('more columns to the right')")
        await page.evaluate("document.querySelector('#workers .scroll').scrollLeft = 1e6")
        await page.until(f"!{HINTS}[0].includes('more columns')")
        await page.resize(1600, 844)
        await page.until(f"{HINTS}[0] === ''")
        assert page.problems == []


async def test_that_there_is_no_traffic_is_shown(page: Tab) -> None:
    fleet = PageFleet(2, policy=ExpectedLatency())
    async with fleet.served() as (_, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        for place in ("now-words", "traffic-words"):
            assert (
                await page.evaluate(f"document.getElementById('{place}').textContent") == "No requests in the last 5 s."
            )
        fleet.traffic()
        await page.until("document.getElementById('now-words').textContent === ''")
        titles = "[...document.querySelectorAll('thead th, dt')].map(cell => cell.textContent)"
        shown = await page.evaluate(titles)
        assert {"queue of other models", "wait", "errors"} <= set(shown)
        assert not [title for title in shown if "_" in title or title.endswith(" can")]


async def test_guard_shadow_and_rollout_are_shown_with_the_reason(page: Tab) -> None:
    fleet = PageFleet(3)
    sections = {
        "policy": {"name": "wlpr"},
        "guard": {"enabled": True},
        "shadow": {"name": "round_robin", "share": 1.0},
        "rollout": {"name": "power_of_two"},
    }
    plan = from_mapping(sections).plan(fleet.router.policy)
    selector = fleet.router.selector = PolicySelector(
        fleet.router.policy,
        plan,
        listener=EventReporter(fleet.router, fleet.metrics, fleet.events, lambda: fleet.now_s),
    )
    assert selector.rollout is not None
    for _ in range(20):
        fleet.router.route(Request("m"), fleet.now_s)
    async with fleet.served() as (_, url):
        await page.open(f"{url}/")
        words = "document.getElementById('canary').innerText"
        await page.until(f"{words}.includes('Shadow: round_robin')")
        shown = await page.evaluate(words)
        assert "Rollout from wlpr to power_of_two" in shown
        assert "running, step" in shown
        assert "Guard of wlpr" in shown
        titles = "[...document.querySelectorAll('#why-table thead th')].map(cell => cell.textContent)"
        assert (await page.evaluate(titles))[:3] == ["worker", "probability", "by the shadow"]
        part = "wlpr, power_of_two for 1% of the requests (rollout), round_robin only looks on (shadow)"
        assert f"policy {part};" in await page.evaluate("document.getElementById('who').textContent")
        selector.rollout.give_up(Finding("errors", f"more errors {HOSTILE}"), fleet.now_s)
        await page.until(
            f"document.getElementById('notices').innerText.includes('returned to wlpr: more errors {HOSTILE}')"
        )
        who = await page.evaluate("document.getElementById('who').textContent")
        assert who.startswith("policy wlpr, round_robin only looks on (shadow);")
        events = await page.evaluate("document.getElementById('events').innerText")
        assert "rollout: power_of_two at 0% of the requests, returned" in events
        assert page.problems == []


async def test_it_can_be_used_by_keyboard_and_screen_reader(page: Tab) -> None:
    async with troubled(8).served() as (_, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        await page.evaluate("document.querySelector('#workers-table th:nth-child(3) button').focus()")
        for order in ("descending", "ascending"):
            await page.press("Enter")
            assert await page.evaluate("document.querySelector('#workers-table th:nth-child(3)').ariaSort") == order
            queue = [float(row[2]) for row in await page.evaluate(ROWS.format("workers"))]
            assert queue == sorted(queue, reverse=order == "descending")
            assert await page.evaluate("document.activeElement.textContent") == "queue"
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        named = [(each["role"]["value"], each.get("name", {}).get("value", "")) for each in tree if not each["ignored"]]
        assert {"balancer", "Now", "Workers"} <= {name for role, name in named if role == "heading"}
        levels = await page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(each => +each.tagName[1])")
        assert levels[0] == 1
        assert all(later - former <= 1 for former, later in itertools.pairwise(levels)), levels
        assert ("combobox", "Model") in named
        assert ("status", "") in named
        assert sum(role == "columnheader" for role, _ in named) > 10
        assert sum(role == "rowheader" for role, _ in named) >= 16
        for role in ("region", "table"):
            assert all(name for found, name in named if found == role)


async def test_another_model_is_asked_about_and_kept_in_the_address(page: Tab) -> None:
    fleet = PageFleet(2)
    async with fleet.served() as (_, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        assert await page.evaluate("document.getElementById('model').value") == "m"
        await page.evaluate("document.getElementById('model').value = 'n'")
        await page.evaluate("document.getElementById('model').dispatchEvent(new Event('change'))")
        await page.until("document.getElementById('states').textContent.includes('model n')")
        await page.call("Page.reload")
        await page.until("document.getElementById('states')?.textContent.includes('model n')")
        assert await page.evaluate("location.search") == "?model=n"


async def test_one_too_many_is_refused_with_the_reason_and_let_in_later(
    page: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("balancer.server.admin.pages.MOST_STREAMS", 1)
    async with PageFleet(1).served() as (_, url), tab() as other:
        await other.open(f"{url}/")
        await other.until(LIVE)
        await page.open(f"{url}/")
        await page.until("document.getElementById('live').textContent.includes('as many as may be')")
        await other.call("Page.navigate", url="about:blank")
        await page.until(LIVE)


async def test_a_balancer_that_is_away_is_shown_and_found_again(page: Tab) -> None:
    fleet = PageFleet(1)
    async with fleet.served() as (admin, url):
        await page.open(f"{url}/")
        await page.until(LIVE)
        await admin.stop()
        await page.until("document.getElementById('live').textContent.includes('no answer')")
        admin._streams._ended.clear()
        await admin.start(url.removeprefix("http://"))
        await page.until(LIVE)


async def test_with_the_token_as_password_all_of_it_works(page: Tab, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    section = AdminSection(token_file=str(tmp_path / "token"))
    async with PageFleet(1).served(section=section) as (_, url):
        await page.open(f"{url.replace('://', '://anybody:0123456789abcdef@')}/")
        await page.until(LIVE)
        await page.evaluate("document.getElementById('config-details').open = true")
        await page.until("document.getElementById('config-all').textContent.includes('token_file')")
