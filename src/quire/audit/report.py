"""What all of it comes to: by conversation, by cause, in tokens and in money; read by as many cores as there are."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TypeVar

import msgspec

from quire.archive.sent_calls import SentCall
from quire.archive.sessions import FilePart, files_under, parts, sent_calls
from quire.audit.causes import CAUSES
from quire.audit.conversations import Grouping, Spent, WatchedConversation
from quire.audit.what_if import PolicyOutcome
from quire.errors import MissingPart, QuireError
from quire.values import JsonObject

Given = TypeVar("Given")
Made = TypeVar("Made")


def file_parts(path: str | Path) -> Iterator[FilePart]:
    """The files at a path, long logs in parts."""
    for file in files_under(Path(path)):
        yield from parts(file)


def read_calls(path: str | Path) -> Iterator[SentCall]:
    """The requests of a file or of all files in a folder, as they come; a shape that nobody knows is an error."""
    for part in file_parts(path):
        yield from sent_calls(part.open())


class AuditReport(msgspec.Struct, frozen=True):
    """Everything that was audited; conversations that lost most come first."""

    total: Spent
    conversations: tuple[WatchedConversation, ...]

    @property
    def by_cause(self) -> dict[str, Spent]:
        """What each cause lost, the dearest first."""
        out: dict[str, Spent] = {}
        for audited in self.conversations:
            for found in audited.verdicts:
                row = out.setdefault(found.cause, Spent())
                row += Spent(1, lost=found.lost, lost_usd=found.usd or 0.0)
        return dict(sorted(out.items(), key=lambda item: (-item[1].lost_usd, -item[1].lost)))

    def as_json(self) -> JsonObject:
        causes = [
            {"cause": cause, "what": CAUSES[cause][0], "fix": CAUSES[cause][1], **spent.as_json()}
            for cause, spent in self.by_cause.items()
        ]
        rows = [
            {
                "name": audited.name,
                "kind": audited.kind,
                "bodies": audited.bodies,
                **audited.spent.as_json(),
                "losses": [msgspec.to_builtins(found) for found in audited.verdicts],
            }
            for audited in self.conversations
        ]
        return {"total": self.total.as_json(), "causes": causes, "conversations": rows}


def audit(calls: Iterable[SentCall]) -> AuditReport:
    """What recorded calls lost of the provider's cache, and why."""
    grouping = Grouping()
    for call in calls:
        grouping.add(call)
    return report_of(grouping)


def report_of(grouping: Grouping) -> AuditReport:
    total = Spent()
    for each in grouping.conversations:
        total += each.spent
    worst = sorted(grouping.conversations, key=lambda each: (-each.spent.lost_usd, -each.spent.lost))
    return AuditReport(total, tuple(worst))


# Files, and parts of long ones, are read apart and put together in their order: whoever reads them, the report is
# the same.


class PartOfAudit(msgspec.Struct, frozen=True):
    """What one file, or a part of one, tells: conversations, and the calls of which only usage is known."""

    part: FilePart
    grouping: Grouping
    usage_only: tuple[SentCall, ...] = ()
    problem: QuireError | None = None


def audit_part(part: FilePart) -> PartOfAudit:
    """Read one file; pure, and the same wherever it runs."""
    grouping, usage_only = Grouping(), list[SentCall]()
    problem = None
    try:
        for call in sent_calls(part.open()):
            grouping.add(call) if call.body else usage_only.append(call)
    except QuireError as error:
        problem = error
    return PartOfAudit(part, grouping, tuple(usage_only), problem)


def audit_files(
    files: Iterable[FilePart],
    run: Callable[[Callable[[FilePart], PartOfAudit], Iterable[FilePart]], Iterator[PartOfAudit]] = map,
    each: Callable[[PartOfAudit], None] = lambda part: None,
) -> AuditReport:
    """The report over files; `run` is how parts are read (`map`, `on_cores`, `on_ray`), `each` is told of every one."""
    grouping = Grouping()
    for part in run(audit_part, files):
        each(part)
        grouping.join(part.grouping, part.usage_only)
    return report_of(grouping)


def on_cores(count: int) -> Callable[[Callable[[Given], Made], Iterable[Given]], Iterator[Made]]:
    """`map` on so many processes, in order; only as much as they are about to need is handed out."""

    def run(function: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[Made]:
        from concurrent.futures import Future, ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as workers:
            ahead: deque[Future[Made]] = deque()
            for each in given:
                ahead.append(workers.submit(function, each))
                if len(ahead) > 2 * count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    return run


def on_ray(address: str) -> Callable[[Callable[[Given], Made], Iterable[Given]], Iterator[Made]]:
    """`map` on a Ray cluster, whose nodes see the same files; in order, a few parts for each core ahead."""

    def run(function: Callable[[Given], Made], given: Iterable[Given]) -> Iterator[Made]:
        try:
            import ray
        except ImportError as error:
            raise MissingPart("Ray is not installed", hint="pip install 'quire[ray]'") from error
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        try:
            remote = ray.remote(num_cpus=1)(function)
            most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            ahead: deque[object] = deque()
            for each in given:
                ahead.append(remote.remote(each))
                if len(ahead) > most:
                    yield ray.get(ahead.popleft())
            while ahead:
                yield ray.get(ahead.popleft())
        finally:
            ray.shutdown()

    return run


# The report as one HTML page that stands by itself: no script, nothing loaded, every text escaped.

_STYLE = """
:root{color-scheme:light dark;--ink:#1c1f23;--dim:#667;--line:#d8dce2;--good:#2e7d4f;--bad:#c2452d;--back:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--dim:#9aa3ad;--line:#353a41;--good:#5fbf86;--bad:#f0795f;--back:#15181c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{margin:.3rem 0}.dim{color:var(--dim)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--dim)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code{font:13px ui-monospace,monospace;word-break:break-word}
.big{font-size:2.4rem;font-weight:650}.row{display:flex;gap:2.5rem;flex-wrap:wrap;margin:1rem 0}svg{display:block;width:100%;height:14px}
.read{fill:var(--good)}.lost{fill:var(--bad)}.rest{fill:var(--line)}
"""


def html_page(report: JsonObject, outcomes: Sequence[PolicyOutcome] = (), top: int = 50) -> str:
    """The page of a report, as `AuditReport.as_json` gives it."""
    allowed = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    body = "".join(
        (_head(report["total"]), _causes(report), _conversations(report, top), _policies(outcomes))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Cache audit</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _head(total: JsonObject) -> str:
    figures = (
        (f"{100 * total['reuse']:.0f} %", "of what could be read was read"),
        (f"{total['lost']:,}", "tokens could have been read and were not"),
        (f"${total['lost_usd']:,.2f}", f"lost, of ${total['usd']:,.2f}"),
    )
    shown = "".join(
        f'<div><div class="big">{escape(value)}</div><div class="dim">{escape(what)}</div></div>'
        for value, what in figures
    )
    untold = [
        f"{total[key]:,} requests {what}."
        for key, what in (("untold", "said nothing of their usage"), ("unpriced", "have no known price"))
        if total[key]
    ]
    said = f"{total['requests']:,} requests, {total['input']:,} tokens in, {total['read']:,} read from the cache, {total['written']:,} written. {' '.join(untold)}"
    return (
        f'<h1>What the cache lost</h1><p class="dim">{escape(said)}</p><div class="row">{shown}</div>'
        + _bar(total)
    )


def _bar(spent: JsonObject) -> str:
    """Read, lost, and what was new, of all that went in."""
    whole = max(1, spent["input"])
    read, lost = 1000 * spent["read"] / whole, 1000 * min(spent["lost"], whole - spent["read"]) / whole
    return (
        '<svg viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label="read, lost, new">'
        f'<rect class="rest" width="1000" height="14"/><rect class="read" width="{read:.1f}" height="14"/>'
        f'<rect class="lost" x="{read:.1f}" width="{lost:.1f}" height="14"/></svg>'
    )


def _causes(report: JsonObject) -> str:
    firsts: dict[str, JsonObject] = {}
    for each in report["conversations"]:
        for loss in each["losses"]:
            firsts.setdefault(loss["cause"], loss)
    rows = [
        (
            f"<strong>{escape(each['cause'])}</strong>",
            escape(f"{each['what']}. {each['fix']}") + _first(firsts.get(each["cause"], {})),
            each["requests"],
            each["lost"],
            _money(each["lost_usd"]),
        )
        for each in report["causes"]
    ]
    if not rows:
        return "<h2>Why</h2><p>Nothing was lost: nothing to do.</p>"
    return "<h2>Why</h2>" + _table(
        ("cause", "what it is and what to change", "times", "tokens", "money"), rows
    )


def _first(loss: JsonObject) -> str:
    if not loss:
        return ""
    place = f", {loss['path']}, {loss['offset']:,} characters in" if loss["path"] else ""
    note = f": {loss['note']}" if loss["note"] else ""
    sure = "" if loss["confidence"] == "certain" else f" ({loss['confidence']})"
    return f'<p class="dim">first at <code>{escape(loss["source"] + place + note + sure)}</code></p>'


def _conversations(report: JsonObject, top: int) -> str:
    rows = [
        (
            f"<code>{escape(each['name'])}</code>"
            + ("" if each["bodies"] else ' <span class="dim">usage only</span>'),
            escape(each["kind"]),
            each["requests"],
            f"{100 * each['reuse']:.0f} %" + _bar(each),
            each["lost"],
            _money(each["lost_usd"]),
            escape(", ".join(dict.fromkeys(loss["cause"] for loss in each["losses"])) or "nothing to do"),
        )
        for each in report["conversations"][:top]
    ]
    more = len(report["conversations"]) - len(rows)
    rest = f'<p class="dim">and {more:,} more</p>' if more > 0 else ""
    columns = ("conversation", "kind", "requests", "reuse", "lost", "money", "why")
    return "<h2>Conversations</h2>" + _table(columns, rows) + rest


def _policies(outcomes: Sequence[PolicyOutcome]) -> str:
    if not outcomes:
        return ""
    rows = [
        (
            escape(each.policy),
            each.tokens,
            f"{each.reuse:.1%}",
            "not known" if each.usd is None else _money(each.usd),
            f"{each.kept:.0%}",
            f"{each.grounding:.1%}",
            each.over,
        )
        for each in outcomes
    ]
    columns = ("policy", "tokens", "reuse", "input money", "kept", "grounded", "over budget")
    said = "Simulated: the recorded conversations sent again under each policy; tokens are counted here, replies are as recorded."
    return f'<h2>Under other policies</h2><p class="dim">{said}</p>' + _table(columns, rows)


def _money(usd: float) -> str:
    return f"${usd:,.2f}"


def _table(columns: Iterable[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of escaped HTML; numbers are shown to the right."""
    numeric = [all(isinstance(row[at], int) for row in rows) for at, _ in enumerate(rows[0])] if rows else []
    head = "".join(f"<th{_right(numeric, at)}>{escape(name)}</th>" for at, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_right(numeric, at)}>{f'{cell:,}' if isinstance(cell, int) else cell}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _right(numeric: Sequence[bool], at: int) -> str:
    return ' class="n"' if at < len(numeric) and numeric[at] else ""
