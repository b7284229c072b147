"""What all of it comes to: by conversation, by cause, in tokens and in money; read by as many cores as there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from quire.archive.sessions import FilePart, files_under, parts, sent_calls
from quire.archive.stored_conversations import SentCall
from quire.audit.causes import CAUSES
from quire.audit.conversations import Grouping, Spent, WatchedConversation
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
