"""The inspector in a real Chromium: every flow, on a thread of 2,000 requests too; hostile content; no violation of axe.

The pictures in the docs are made here: `QUIRE_PICTURES=1 pytest tests/inspector` writes them into docs/images.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pages import HOSTILE, MODEL, chromium, hostile, recorded, session

import quire
from conftest import ROOT
from quire import Policy, open_store
from quire.server.app import Running
from quire.server.inspector import page as page_of
from quire.server.inspector import report
from quire.server.service import Keys, Service, ServiceLimits, open_own
from quire.server.views import ThreadView
from quire.testing import Slow, emulator
from quire.values import Call, Text
from toolbox import until

pytestmark = [pytest.mark.moves_prefix(reason="threads are cut on purpose"), pytest.mark.xdist_group("inspector")]
REQUESTS = 2_000
IMAGES = ROOT / "docs/images"
NOTES = "release%20notes"
SIZES = {"desk": (1280, 800), "wide": (1920, 1080), "phone": (390, 844)}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A service with threads to look at, a model that answers, and a browser."""
    folder = tmp_path_factory.mktemp("inspector")
    db = folder / "q.db"
    with open_store(db) as store:
        recorded(store)
        store.append("hostile", hostile())
        store.append(HOSTILE[:120], session(6))
    long = ThreadView("long", session(REQUESTS, 6), Policy(budget=12_000, model=MODEL))
    (folder / "long.html").write_text(report(long))
    limits = ServiceLimits(per_s=0)
    with (
        emulator("anthropic", lambda body: "You are welcome. " * 20, lenient=True) as model,
        Running(Service(db, model=MODEL, base_url=model.url, limits=limits)) as running,
        chromium() as browser,
    ):
        yield SimpleNamespace(url=running.url, browser=browser, model=model, folder=folder)


class Page:
    """A page that tells of every error, and of whatever it asked for elsewhere."""

    def __init__(self, shown: SimpleNamespace, size: str = "desk", scheme: str = "light", base: str = "") -> None:
        width, height = SIZES[size]
        self.context = shown.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)  # many tests share the machine
        self.base, self.errors = base or f"{shown.url}/", list[str]()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self._say(said.type, said.text))
        self.page.on("request", lambda asked: self._ask(asked.url))

    def _say(self, kind: str, text: str) -> None:
        # A turn that somebody looks at is tried again; the browser tells of it all the same.
        if kind == "error" and "409 (Conflict)" not in text:
            self.errors.append(text)

    def _ask(self, url: str) -> None:
        if not url.startswith((self.base, "blob:", "data:")):
            self.errors.append(f"asked for {url}")

    def go(self, path: str, wait: str) -> Any:
        self.page.goto("about:blank")  # else what is waited for may be there already, from the view before
        self.page.goto(f"{self.base}#/{path}")
        self.page.locator(wait).first.wait_for()
        return self.page

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *raised: object) -> None:
        self.context.close()
        if not any(raised):
            assert self.errors == []


# The pictures of the docs; those whose words do not change with the day look as they did.
KEPT = "threads picture picture-dark picture-phone long request body compare where what-if live audit".split()
STEADY = ("picture", "picture-dark", "picture-phone", "long", "request", "compare", "where")


def picture(page: Any, name: str, folder: Path) -> None:
    """Take a picture of the page: for the docs where that is asked for, else to compare with the docs' one."""
    if name not in KEPT:
        return
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    wanted = os.environ.get("QUIRE_PICTURES")
    file = (IMAGES if wanted else folder) / f"{name}.png"
    file.parent.mkdir(exist_ok=True)

    def taken() -> bool:
        page.screenshot(path=file)
        return bool(wanted) or name not in STEADY or difference(file, IMAGES / f"{name}.png") < 6

    until(taken, f"{name} looks otherwise: see {file}")


def difference(one: Path, other: Path) -> float:
    """How far two pictures are from each other, on average over coarse tiles, in steps of 255.

    A tile is compared with those around it too: another font moves words and lines, but no card, chart or colour.
    """
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    wide, tall = 48, 30
    tiles = [
        image.open(file).convert("L").resize((wide, tall), image.Resampling.BOX).tobytes() for file in (one, other)
    ]

    def nearest(x: int, y: int) -> int:
        near = itertools.product(range(max(0, x - 1), min(wide, x + 2)), range(max(0, y - 2), min(tall, y + 3)))
        return min(abs(tiles[0][y * wide + x] - tiles[1][v * wide + u]) for u, v in near)

    return sum(nearest(x, y) for x in range(wide) for y in range(tall)) / (wide * tall)


VIEWS = {
    "threads": ("", "table"),
    "picture": (f"thread/{NOTES}", ".chart canvas"),
    "request": (f"thread/{NOTES}/request/14", ".segment"),
    "body": (f"thread/{NOTES}/request/14?show=body", ".line"),
    "left out": (f"thread/{NOTES}/request/22?show=left-out", "table"),
    "compare": (f"thread/{NOTES}/compare/12/22", ".pair"),
    "where": (f"thread/{NOTES}/where?text=src/m1.py", ".strip"),
    "what if": (f"thread/{NOTES}/what-if?budget=3000", "tr.own"),
    "talk": (f"thread/{NOTES}/chat", ".said"),
    "audit": ("audit", "table"),
    "search": ("?text=parser", "table"),
}


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark"), ("wide", "dark")])
def test_every_view_fits_its_screen_and_has_no_violation(shown: SimpleNamespace, size: str, scheme: str) -> None:
    axe = ROOT / "inspector/node_modules/axe-core/axe.min.js"
    with Page(shown, size, scheme) as open_:
        for name, (path, wait) in VIEWS.items():
            page = open_.go(path, wait)
            page.wait_for_load_state("networkidle") if name not in ("talk", "threads", "search") else None
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} overflows"
            if axe.exists() and size != "wide":
                # The page runs no other script, so axe is brought in beside its policy.
                page.evaluate(axe.read_text()) if not page.evaluate("'axe' in window") else None
                found = page.evaluate("axe.run({resultTypes: ['violations']}).then(all => all.violations)")
                assert [(each["id"], each["nodes"][0]["html"][:160]) for each in found] == [], name
            if scheme == "light" or size == "phone":
                picture(page, f"{name.replace(' ', '-')}{'-phone' if size == 'phone' else ''}", shown.folder)
            elif name in ("picture", "what if"):
                picture(page, f"{name.replace(' ', '-')}-dark", shown.folder)
            if size == "phone":
                page.set_viewport_size({"width": 320, "height": 640})
                # A picture is drawn anew when its room has changed.
                # Asked from outside: what waits in the page would evaluate strings, which its policy forbids.
                fits = "document.documentElement.scrollWidth <= innerWidth"
                until(lambda page=page, fits=fits: page.evaluate(fits), f"{name} overflows on a narrow phone")
                page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))


def test_a_thread_of_2000_requests_is_drawn_at_once_and_moved_through(shown: SimpleNamespace) -> None:
    with Page(shown, base=(shown.folder / "long.html").as_uri()) as open_:
        page = open_.go("", ".chart canvas")
        picture(page, "long", shown.folder)
        if os.environ.get("QUIRE_PICTURES"):  # the docs name a time too: that of the page's own thread
            asked = open_.context.new_cdp_session(page)
            asked.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.reload()
            page.locator(".chart canvas").first.wait_for()
            told = {one["name"]: one["value"] for one in asked.send("Performance.getMetrics")["metrics"]}
            assert told["ScriptDuration"] + told["LayoutDuration"] < 0.3
        # Only what is in sight is drawn, wherever one is: that is what makes it quick.
        drawn = page.evaluate(
            """async () => {
                const found = [], rows = document.querySelector('.rows');
                for (let n = 0; n < 30; n++) {
                    rows.scrollTop += 1500;
                    await new Promise(requestAnimationFrame);
                    found.push([rows.scrollTop, document.querySelectorAll('main *').length]);
                }
                return found;
            }"""
        )
        assert drawn[-1][0] > 20_000
        assert max(nodes for _, nodes in drawn) < 1_000
        chart = page.locator(".chart")
        chart.focus()
        page.keyboard.press("End")
        seen(page, ".reading", f"Request {REQUESTS}")
        for key in ("+", "+", "Shift+ArrowLeft"):
            page.keyboard.press(key)
        seen(page, ".reading", "rebase")
        page.keyboard.press("Enter")
        seen(page, "main", "A new epoch begins here")
        page.go_back()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 200)
        seen(page, ".reading", "Request ")
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 200)
        seen(page, "main h2", "Request ")
        open_.go("thread/long/where?text=Task 3:", ".strip")
        seen(page, ".verdict", "It entered with entry")
        open_.go("thread/long/compare/1400/1900", ".pair")
        seen(page, ".verdict", "rebase")


def test_a_report_and_the_service_say_the_same_of_a_string(shown: SimpleNamespace, tmp_path: Path) -> None:
    with open_store(shown.folder / "q.db") as store:
        made = report(ThreadView("release notes", store.read("release notes")))
    (tmp_path / "r.html").write_text(made)
    told = []
    for base in ("", (tmp_path / "r.html").as_uri()):
        with Page(shown, base=base) as open_:
            page = open_.go(f"thread/{NOTES}/where?text=src/m2.py", ".strip")
            told.append(page.locator("[aria-label='How it stood'] tbody").inner_text())
            page = open_.go(f"thread/{NOTES}/request/20", ".segment")
            told[-1] += page.locator(".segment").last.inner_text() + page.locator(".figures").inner_text()
    assert told[0] == told[1]


def test_keys_links_copies_and_files(shown: SimpleNamespace, tmp_path: Path) -> None:
    with Page(shown) as open_:
        page = open_.go(f"thread/{NOTES}", ".chart canvas")
        page.keyboard.press("?")
        page.locator("dialog").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("d")
        until(lambda: page.evaluate("document.documentElement.dataset.theme") == "dark")
        open_.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.keyboard.press("c")
        page.get_by_text("Command copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "quire assemble 'release notes'"
        for name, begins in (("CSV", b"n,turn,step"), ("SVG", b"<svg "), ("PNG", b"\x89PNG")):
            with page.expect_download() as saved:
                page.get_by_role("button", name=name, exact=True).click()
            file = tmp_path / name
            saved.value.save_as(file)
            assert file.read_bytes().startswith(begins)
        open_.go(f"thread/{NOTES}/chat", ".composer textarea")
        for name in ("Attach", "Window"):  # a choice of files is seen where its name stands
            label = page.locator("label.button", has_text=name)
            label.locator("input").focus()
            assert label.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
            inside, around = (one.bounding_box() for one in (label.locator("input"), label))
            assert around["x"] <= inside["x"] <= inside["x"] + inside["width"] <= around["x"] + around["width"]
        (tmp_path / "a.txt").write_text("a")
        for _ in range(2):  # one that was left out can be attached again
            page.locator("label.button", has_text="Attach").locator("input").set_input_files(tmp_path / "a.txt")
            page.get_by_role("button", name="Leave a.txt out").click()
        page.keyboard.press("Escape")
        open_.go(f"thread/{NOTES}", ".chart canvas")
        for key, wait in (("2", ".segment"), ("]", ".segment"), ("3", ".pair"), ("4", "input"), ("5", ".split")):
            page.keyboard.press(key)
            page.locator(wait).first.wait_for()
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.get_by_role("link", name="release notes").wait_for()
        page.keyboard.press("/")
        page.keyboard.type("parser")
        page.keyboard.press("Enter")
        page.get_by_text("words: parser").first.wait_for()
        assert page.locator(".hits mark").first.inner_text().lower() == "parser"
        open_.go(f"thread/{NOTES}/request/3", ".segment")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.segment .first'))")
        page.locator(".follow").wait_for()
        page.keyboard.press("w")
        page.get_by_text("It entered with entry").wait_for()


def test_a_slider_recomputes_the_whole_thread(shown: SimpleNamespace) -> None:
    with Page(shown) as open_:
        page = open_.go(f"thread/{NOTES}/what-if", "text=Hindsight optimum")
        slider = page.get_by_label("Budget: Tokens one request may hold")
        slider.focus()
        page.keyboard.press("Home")
        until(lambda: "budget=1024" in page.evaluate("location.hash"))
        page.locator("tr.own").wait_for()
        before = int(page.locator("tbody tr").first.locator("td").nth(7).inner_text())
        until(lambda: int(page.locator("tr.own td").nth(7).inner_text()) > before)
        page.reload()
        page.locator("tr.own").wait_for()


def test_hostile_content_is_shown_as_text(shown: SimpleNamespace) -> None:
    name = HOSTILE[:120].replace("/", "%2F").replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    with Page(shown) as open_:
        for path, wait in (
            ("", "table"),
            (f"thread/{name}", ".chart canvas"),
            ("thread/hostile", ".chart canvas"),
            ("thread/hostile/request/2", ".segment"),
            ("thread/hostile/request/1?show=body", ".line"),
            ("thread/hostile/compare/1/2", ".pair"),
            ("thread/hostile/where?text=<script>", ".strip"),
            ("thread/hostile/chat", ".said"),
        ):
            page = open_.go(path, wait)
            assert page.evaluate("window.hacked") is None, path
            assert page.locator("main script, main img, main svg[onload], main a[href^=javascript]").count() == 0, path
            assert "\u202e" not in page.locator("main").inner_text(), path
        said = page.locator(".said").first.inner_text()
        assert "<script>window.hacked = 1</script>" in said
        assert "⟨U+202E⟩gnp.exe" in said
    assert page_of().count("<script") == 2


def seen(page: Any, where: str, text: str) -> None:
    """Wait until a text stands at a place: what stood there before may still be drawn."""
    page.locator(where, has_text=text).first.wait_for()


def last_entry(page: Any) -> str:
    """The seq of the newest entry that the page shows."""
    return str(page.locator("main [data-entry]").last.get_attribute("data-entry"))


def test_a_turn_streams_into_two_browsers_alike_is_stopped_and_resumed(shown: SimpleNamespace) -> None:
    tools = [{"name": "stock", "description": "How many.", "parameters": {"type": "object", "properties": {}}}]
    with open_store(shown.folder / "q.db") as store:
        from quire import tools as define

        store.append("live", [define(tools)])
    with Page(shown) as one, Page(shown) as other:
        talking, watching = (each.go("thread/live/chat", ".composer textarea") for each in (one, other))
        talking.locator(".composer textarea").fill("Hello?")
        talking.keyboard.press("Enter")
        for page in (talking, watching):
            page.get_by_text("You are welcome.").first.wait_for()
        picture(talking, "live", shown.folder)
        shown.model.next(Slow("Too late.", 600))
        before = len(shown.model.requests)
        talking.locator(".composer textarea").fill("And now?")
        talking.get_by_role("button", name="Send").click()
        until(lambda: len(shown.model.requests) > before)
        watching.get_by_role("button", name="Stop").click()
        watching.get_by_role("button", name="Resume").click()
        for page in (talking, watching):
            page.locator(".said.respond").nth(1).wait_for()
        # The words stand there before the turn has ended: until then the service takes no other.
        until(lambda: not httpx.get(f"{shown.url}/api/threads/live/turn").json()["running"])
        shown.model.next([Text("I look."), Call("c1", "stock", {})])
        talking.locator(".composer textarea").fill("How many?")
        talking.get_by_role("button", name="Send").click()
        watching.get_by_text("A call waits").wait_for()
        watching.get_by_placeholder("The result").fill("42 pieces")
        watching.get_by_role("button", name="Resume").click()
        for page in (talking, watching):
            page.get_by_text("42 pieces").first.wait_for()
            page.locator(".said.respond").nth(3).wait_for()
        shared = "[...document.querySelectorAll('.said > div')].map(each => each.textContent)"
        until(lambda: talking.evaluate(shared) == watching.evaluate(shared))
        until(lambda: not httpx.get(f"{shown.url}/api/threads/live/turn").json()["running"])
        newest = httpx.get(f"{shown.url}/api/threads/live/turn").json()["seq"]
        until(lambda: int(last_entry(talking)) == newest)
        talking.keyboard.press("Escape")
        for back in (1, 2, 3):
            talking.keyboard.press("[")
            until(lambda: int(last_entry(talking)) == newest - back)  # noqa: B023
        talking.keyboard.press("]")
        until(lambda: int(last_entry(talking)) == newest - 2)
        talking.get_by_role("button", name="Pin").first.click()
        talking.get_by_text("is pinned").wait_for()
        talking.keyboard.press("]")
        for label, name in (("Attach", "seen.txt"), ("Window", "kept.txt")):
            file = {"name": name, "mimeType": "text/plain", "buffer": name.encode()}
            talking.locator(".composer label", has_text=label).locator("input").set_input_files(file)
        talking.get_by_role("button", name="Take kept.txt out of the window").wait_for()
        talking.locator(".composer textarea").fill("What do you see?")
        talking.get_by_role("button", name="Send").click()
        until(lambda: "What do you see?" in str(shown.model.requests[-1].body))
        asked = str(shown.model.requests[-1].body["messages"])
        assert all(f"{name}\\n</context_item>" in asked for name in ("seen.txt", "kept.txt"))
        talking.get_by_role("button", name="Take kept.txt out of the window").click()
        until(lambda: httpx.get(f"{shown.url}/api/threads/live/window").json()["items"] == [])


def test_a_thread_that_is_deleted_and_made_anew_is_read_from_its_beginning(shown: SimpleNamespace) -> None:
    threads = f"{shown.url}/api/threads/anew"

    def made(*texts: str) -> None:
        entries = [{"kind": "user", "text": text} for text in texts]
        assert httpx.post(f"{threads}/entries", json={"entries": entries}).status_code == 201

    made("one", "two")
    with Page(shown) as open_:
        page = open_.go("thread/anew/chat", "text=two")
        for texts in (["three"], ["four", "five", "six"]):
            httpx.delete(threads)
            made(*texts)
            shared = "[...document.querySelectorAll('.said > div')].map(each => each.textContent)"
            until(lambda: page.evaluate(shared) == texts)  # noqa: B023
        httpx.delete(threads)
        page.locator(".state.error").wait_for()
        made("seven")
        page.get_by_text("seven").wait_for()
        open_.errors[:] = [error for error in open_.errors if "404" not in error]  # the browser tells of every one


def test_nothing_there_and_what_goes_wrong_are_said(shown: SimpleNamespace) -> None:
    with Page(shown) as open_:
        page = open_.go("thread/nope", ".state.error")
        seen(page, ".state.error", "nope")
        open_.go(f"thread/{NOTES}/request/9999", ".state.error")
        seen(page, ".state.error", "requests 1 to")
        open_.go("proxy", "text=No client has passed yet")
        open_.go(f"thread/{NOTES}/where", ".state")
        with open_store(shown.folder / "q.db") as store:
            store.append("cut short", [quire.user("Hello?")])
        page.route("**/turn", lambda asked: asked.abort())
        open_.go("thread/cut%20short/chat", "text=Hello?")
        assert not page.get_by_role("button", name="Resume").is_visible()
        page.unroute("**/turn")  # the service is back
        page.get_by_role("button", name="Resume").wait_for()
        page.route("**/api/**", lambda asked: asked.abort())  # and gone again: nothing that was typed is lost
        page.locator(".composer textarea").fill("Are you there?")
        page.get_by_role("button", name="Send").click()
        seen(page, ".state.error", "The service does not answer")
        assert page.locator(".composer textarea").input_value() == "Are you there?"
        file = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"}
        page.locator(".composer label", has_text="Window").locator("input").set_input_files(file)
        seen(page, "footer", "the service does not answer")
        page.get_by_label("Recall").fill("parser")
        page.get_by_role("button", name="Recall").click()
        page.wait_for_timeout(200)
        assert page.get_by_text("Nothing was found").count() == 0
        page.unroute("**/api/**")
        open_.go("", "table")
        page.route("**/api/threads", lambda asked: asked.abort())
        page.get_by_label("Talk in a new thread").fill("new")
        page.get_by_role("button", name="Talk").click()
        seen(page, ".state.error", "The service does not answer")
        assert [error for error in open_.errors if "Failed to load resource" not in error] == []
        open_.errors.clear()  # the browser tells of every 404


def test_a_service_that_demands_keys_asks_for_one(shown: SimpleNamespace, tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as store:
        recorded(store, turns=2)
    with open_own(tmp_path / "q.db") as own:
        key = Keys(own).add("laptop", "default", 0)
    with Running(Service(tmp_path / "q.db", limits=ServiceLimits(per_s=0))) as running:
        here = SimpleNamespace(url=running.url, browser=shown.browser)
        with Page(here) as open_:
            page = open_.go(f"thread/{NOTES}/chat", ".state.error")
            seen(page, ".state.error", "A key is needed")
            for tried, wait in (("qk_none", ".state.error"), ("qk_…", ".state.error"), (key, ".said")):
                page.get_by_label("Key", exact=True).fill(tried)
                page.keyboard.press("Enter")
                page.locator(wait).first.wait_for()
            open_.go(f"thread/{NOTES}", ".chart canvas")
            page.evaluate("sessionStorage.clear()")
            open_.go("", ".state.error")
            page.get_by_label("Key", exact=True).fill(key)
            with page.expect_response("**/inspect/threads"):  # it looks again every two seconds
                pass
            page.keyboard.press("Enter")
            page.get_by_role("link", name="release notes").wait_for()
            open_.errors.clear()  # the browser tells of every 401


def test_a_picture_grows_with_its_thread_and_stays_where_one_looks(shown: SimpleNamespace) -> None:
    with open_store(shown.folder / "q.db") as store:
        recorded(store, "growing", turns=10)
        with Page(shown) as open_:
            page = open_.go("thread/growing", ".chart canvas")
            requests = page.locator(".figures dd").first
            assert requests.inner_text().startswith("20 ")
            page.get_by_role("button", name="Look closer").click()
            looked = page.locator(".track i").bounding_box()
            recorded(store, "growing", turns=10)
            until(lambda: requests.inner_text().startswith("40 "))
            now = page.locator(".track i").bounding_box()
            assert (now["x"], now["width"] < 0.6 * looked["width"]) == (pytest.approx(looked["x"], abs=120), True)
            request = open_.go("thread/growing/request/40", ".segment")
            assert request.get_by_title("Next request").is_disabled()
            recorded(store, "growing", turns=1)
            until(lambda: request.get_by_title("Next request").is_enabled())


def test_what_passes_the_proxy_is_shown_as_it_happens(shown: SimpleNamespace, tmp_path: Path) -> None:
    from quire.server.mend import Mender
    from quire.server.proxy import Passing, ProxyOptions
    from quire.server.watch import CacheWatcher

    service, options = Service(tmp_path / "p.db"), ProxyOptions(to=shown.model.url, mender=Mender(["volatile"]))
    with Running(service, proxies=lambda _: Passing(options, CacheWatcher())) as running:
        here = SimpleNamespace(url=running.url, browser=shown.browser)
        with Page(here) as open_:
            page = open_.go("proxy", "text=No client has passed yet")
            said = [{"role": ("user", "assistant")[n % 2], "content": f"Hello {n}"} for n in range(5)]
            for turn, clock in enumerate(("09:00", "09:05", "09:10")):
                body = {"model": "claude-opus-5-5", "max_tokens": 50, "messages": said[: 2 * turn + 1]}
                text = f"It is {clock}. " + "Be brief. " * 2_000
                body["system"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
                headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
                assert httpx.post(f"{running.url}/v1/messages", json=body, headers=headers).status_code == 200
            saved = page.get_by_role("region", name="What mending saved")
            saved.wait_for()
            until(lambda: saved.locator("tbody td").nth(1).inner_text() == "2")
            rule, times, *_ = saved.locator("tbody td").all_inner_texts()
            assert (rule, times) == ("volatile", "2")
            # The rule moves the sentence that says the time, not the line that it begins.
            assert len(str(shown.model.requests[-1].body["messages"])) < 500


def test_an_audit_is_a_page_of_the_same_parts(shown: SimpleNamespace, tmp_path: Path) -> None:
    lost = {"requests": 2, "input": 9000, "read": 1000, "written": 0, "lost": 5000, "lost_usd": 0.5, "usd": 2.0}
    cause = {**lost, "cause": "clock", "what": "a date stands in the head", "fix": HOSTILE}
    loss = {"cause": "clock", "confidence": "certain", "lost": 5000, "usd": 0.5, "source": "request 2"}
    row = {**lost, "name": HOSTILE, "kind": "main", "bodies": True, "losses": [loss]}
    (tmp_path / "a.html").write_text(page_of({"audit": {"total": lost, "causes": [cause], "conversations": [row]}}))
    with Page(shown, base=(tmp_path / "a.html").as_uri()) as open_:
        page = open_.go("", "table")
        seen(page, "main", "$0.500")
        assert page.evaluate("window.hacked") is None
