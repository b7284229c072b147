"""What `quire run` makes of a vault and of what is attached: meaning, time, aliases, images, pages, documents."""

import json
import os
import time
from collections.abc import Iterator
from datetime import date, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from quire import QuireError
from quire.cli import attachments
from quire.recall.meaning import find_weights
from quire.testing import emulator
from quire.values import JsonObject
from toolbox import PNG, QuietHandler, in_background, invoke

TARGET = "vllm:some-model"


def pdf(text: str) -> bytes:
    """A page with a line on it."""
    stream = f"BT /F 12 Tf 20 200 Td ({text}) Tj ET"
    page = "<</Type/Page/Parent 2 0 R/Contents 4 0 R/MediaBox[0 0 300 300]/Resources<</Font<</F 5 0 R>>>>>>"
    font = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    objects = ["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", page, f"<</Length {len(stream)}>>stream\n{stream}\nendstream", font]  # fmt: skip
    out, places = "%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj{one}endobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    return f"{out}xref\n0 6\n0000000000 65535 f \n{table}trailer<</Root 1 0 R/Size 6>>\nstartxref\n{len(out)}\n%%EOF".encode()


PDF = pdf("The harbor opens")


@pytest.fixture
def notes(home: Path) -> Path:
    folder = home / "notes"
    folder.mkdir()
    return folder


def asked(*words: str, times: int = 1) -> tuple[list[JsonObject], str]:
    """The last messages of what `quire run` sends, and what it says on standard error."""
    with emulator("vllm", lambda body: "Fine.") as server:
        for _ in range(times):
            done = invoke("run", "t", *words, "--model", TARGET, "--base-url", f"{server.url}/v1")
        return [one.body["messages"][-1] for one in server.requests], done.stderr


def found(*words: str, folder: Path) -> list[str]:
    """The notes that were put above a question, in order."""
    (message,), _ = asked(*words, "--vault", str(folder))
    return [line[6:-7] for line in message["content"].split("\n") if line.startswith("<path>")]


def test_notes_are_searched_by_meaning_where_it_is_installed(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (notes / "a.md").write_text("The physician examined my throat and gave me pills.")
    (notes / "b.md").write_text("The train to Bergen leaves at seven.")
    if find_weights() is None:
        pytest.skip("the embedding model is not installed")
    assert found("a doctor and medicine", folder=notes)[0] == "a.md"
    monkeypatch.setattr("quire.cli.run.embedder", lambda: None)
    (message,), said = asked("a doctor and medicine", "--vault", str(notes))
    assert "No relevant documents found." in message["content"]
    assert "notes are searched by words alone: the embedding model is not installed (quire local install minilm)" in said  # fmt: skip
    (notes / "c.md").write_text("---\naliases: [Zanzibar]\n---\nAn island.")
    assert found("Zanzibar", folder=notes)[0] == "c.md"


def test_a_question_about_a_time_is_answered_from_notes_of_it(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cli.run.embedder", lambda: None)
    today = date.today()
    monday = today - timedelta(today.weekday())
    last = monday - timedelta(3)
    month = (today.replace(day=1) - timedelta(1)).replace(day=1) - timedelta(20)
    for name, text in {
        f"{last}.md": "Met Ada about the harvest.",
        f"{last - timedelta(1)}.md": "Painted the fence.",
        f"{today}.md": "Ada called about the harvest.",
        "meeting.md": f"---\ndate: {month}\n---\nThe harvest budget of Ada.",
    }.items():
        (notes / name).write_text(text)
    old = time.time() - 900 * 86_400
    (notes / "untitled.md").write_text("Ada planted the harvest.")
    os.utime(notes / "untitled.md", (old, old))
    week = [f"{last}.md", f"{last - timedelta(1)}.md"]
    assert found("last week", folder=notes) == week
    assert found("What did Ada say about the harvest last week?", folder=notes) == week
    assert found("Who painted the fence last week?", folder=notes) == week[::-1]
    assert found("harvest today", folder=notes) == [f"{today}.md"]
    assert found(f"The harvest on {today.strftime('%A')}", folder=notes) == [f"{today}.md"]
    assert found(f"Ada in {month.strftime('%B')}", folder=notes) == ["meeting.md"]
    assert set(found("the harvest of Ada", folder=notes)) >= {"meeting.md", "untitled.md", f"{today}.md"}


def test_an_attached_note_brings_its_images_once_and_is_known_by_its_alias(notes: Path) -> None:
    (notes / "Piano.md").write_text("---\naliases: [Keys]\n---\n![[dot.png]] Practise.")
    (notes / "img").mkdir()
    (notes / "img" / "dot.png").write_bytes(PNG)
    sent, _ = asked("Look", "--runner", "chat", "--vault", str(notes), "--attach", "[[Keys]]", times=2)
    first, second = (one["content"] for one in sent)
    assert [part["type"] for part in first] == ["text", "image_url"]
    assert "Practise." in first[0]["text"]
    assert (
        second == "Context attached:\n- Piano.md\nFind them above in this conversation.\n\n---\n\n[User query]:\n\nLook"
    )
    (only,), _ = asked("And", "--runner", "chat", "--vault", str(notes), "--attach", "[[dot.png]]")
    assert [part["type"] for part in only["content"]] == ["text", "image_url"]


def test_pdf_and_word_files_are_attached_as_text(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import docx

    (home / "a.pdf").write_bytes(PDF)
    made = docx.Document()
    made.add_heading("Plan", 2)
    made.add_paragraph("Ship in May.")
    made.add_table(1, 2).cell(0, 1).text = "ten"
    made.save(str(home / "b.docx"))
    (message,), _ = asked("Read", "--attach", "a.pdf", "--attach", "b.docx")
    assert "[page 1]\nThe harbor opens" in message["content"]
    assert "## Plan\n\nShip in May.\n\n|  | ten |" in message["content"]
    (home / "no.pdf").write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(QuireError, match=r"no.pdf cannot be read as a PDF"):
        asked("Read", "--attach", "no.pdf")
    for name, module in (("a.pdf", "pypdf"), ("b.docx", "docx")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(QuireError) as failed:
            asked("Read", "--attach", name)
        assert failed.value.hint == "pip install 'quire[documents]'"


class Pages(QuietHandler):
    """A few pages, and some that behave badly."""

    def do_GET(self) -> None:
        html = b"<html><head><title>Tea &amp; more</title><script>no()</script><body><h1>Tea</h1><p>Hot <b>water</b>.</p><ul><li>one<li>two</ul></body></html>"
        kind, body = {
            "/page": ("text/html; charset=utf-8", html),
            "/latin": ("text/plain; charset=latin-1", "Käse".encode("latin-1")),
            "/dot": ("image/png", PNG),
            "/a.pdf": ("application/pdf", PDF),
            "/zip": ("application/zip", b"PK"),
            "/empty": ("text/html", b"<script>x</script>"),
            "/large": ("text/plain", b"a" * 20_000),
        }.get(self.path, ("", b""))
        moved = {"/moved": "/page", "/loop": "/loop", "/away": "file:///etc/hosts"}.get(self.path)
        self.send_response(301 if moved else 200 if kind else 404)
        self.send_header("location" if moved else "content-type", moved or kind)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(attachments, "_MAX_PAGE", 10_000)
    with in_background(ThreadingHTTPServer(("127.0.0.1", 0), Pages)) as url:
        yield url


def test_web_pages_are_attached_under_their_address(home: Path, web: str) -> None:
    (message,), _ = asked("Read", *(word for path in ("/moved", "/latin", "/a.pdf", "/dot") for word in ("--attach", web + path)))  # fmt: skip
    text = message["content"][0]["text"]
    assert f"<url_content>\n<url>{web}/moved</url>\n<content>\n# Tea\n\nHot water.\n\n- one\n- two\n</content>" in text
    assert "Käse" in text
    assert "The harbor opens" in text
    assert message["content"][1]["type"] == "image_url"
    secret = web.replace("//", "//me:secret@") + "/page"
    (again,), _ = asked("Read", "--attach", secret)
    assert "secret" not in json.dumps(again)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("/none", "answered 404"), ("/zip", "is application/zip, which has no text"), ("/empty", "holds no text"), ("/large", "more than 10,000 bytes"),
     ("/loop", "redirects more than 5 times"), ("/away", "is no web address"), ("ftp://x.y/z", "is no web address"), ("http://127.0.0.1:9/", "could not be fetched")],
)  # fmt: skip
def test_a_page_that_cannot_be_attached_says_why(home: Path, web: str, path: str, problem: str) -> None:
    with pytest.raises(QuireError, match=problem) as failed:
        asked("Read", "--attach", path if "://" in path else web + path)
    assert failed.value.hint


def test_the_web_does_not_lead_to_this_machine(home: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(web.rpartition(":")[2])
    monkeypatch.setattr(attachments, "_is_private", lambda host: host == "localhost")
    monkeypatch.setattr(Pages, "do_GET", lambda page: (page.send_response(302), page.send_header("location", f"http://localhost:{port}/page"), page.end_headers()))  # fmt: skip
    with pytest.raises(QuireError, match="leads to localhost, which is no public address"):
        asked("Read", "--attach", f"{web}/x")
