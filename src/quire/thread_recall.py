"""Finding what a thread no longer shows: recall over its store, and what of it joins a turn, asked for or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from quire import values
from quire.assemble import Assembly
from quire.assemble.user_message import entry_text
from quire.errors import CallError, QuireError
from quire.log.store import Store
from quire.recall import RECALL_TOOL, Embedder, Hit, Query, Recall, place, relevant
from quire.recall.document import FLOOR
from quire.recall.languages import WHOLE, terms
from quire.recall.meaning import installed
from quire.recall.placement import PLACED, Asking, in_prompt, shown_ahead, standing
from quire.records import Records
from quire.tokens import counter
from quire.values import SPOKEN, Call, Entry, Json, JsonObject, Prompt, Result, Text, Think

# Of the budget, what recalled text may take in one turn.
SHARE = 0.1
# So many entries at most are recalled unasked, and none into less room than this.
MOST = 5
LEAST_TOKENS = 60
# A call that nobody made names so many characters of what it went by.
_NAMED = 200
# A word that names one thing: four letters and more, with a digit, _, /, @ or a dot inside.
_TELLING = re.compile(r"[\w@/.:#-]{4,}")
_NAMES_ONE = re.compile(r"[\d_/@]|\w\.\w")


class ThreadRecall:
    """Search over a thread's store, records included; by meaning where there is an embedder."""

    most = MOST

    def __init__(
        self, store: Store, thread: str, given: Embedder | Literal["installed"] | None, clock: Callable[[], int]
    ) -> None:
        embedder = installed() if given == "installed" else given
        records = Records(store, embedder)
        self.given, self.embedder, self._thread = given, embedder, thread
        self._recall = Recall(
            store,
            embedder,
            # Vectors of new entries are made beside the conversation.
            background=embedder is not None,
            records=lambda text, k: records.search(text, nn=k, now=clock()),
        )

    def search(self, query: str | Query, k: int, ahead: Callable[[], Assembly], **how: Any) -> list[Hit]:
        """Entries that the next request does not show, unless `exclude` says otherwise; or records."""
        if how.get("scope") != "records" and "exclude" not in how:
            how["exclude"] = shown_ahead(ahead())
        return self._recall.search(query, k, thread=self._thread, **how)

    def close(self) -> None:
        """End the making of vectors; searching goes on."""
        self._recall.close()

    def for_turn(self, text: str, k: int, assembly: Assembly, share: float = SHARE) -> JsonObject:
        """What a turn's message says of older entries: only what the prompt does not hold already."""
        if not assembly.entries:
            return place([], 0).meta
        in_request = shown_ahead(assembly)
        entries = assembly.entries
        query = Query(text, _text_before(assembly))
        hits = self.search(query, k, lambda: assembly, kinds=PLACED, exclude=in_request)
        if not relevant(hits):
            return {}
        room = int(assembly.policy.limit * share)
        return place(hits, room, standing((entries[seq] for seq in sorted(in_request)), in_request), query=query).meta

    def answer(self, call: Entry, assembly: Assembly) -> Entry:
        """The result of a call of the tool `recall`; what is wrong with a call is a result too."""
        asking = Asking(self._recall, self._thread, lambda: shown_ahead(assembly))
        args = call.args if isinstance(call.args, dict) else {}
        try:
            if unknown := set(args) - set(RECALL_TOOL["parameters"]["properties"]):
                raise CallError(f"recall takes no {sorted(unknown)[0]!r}")
            answer = asking(**args)
        except (QuireError, TypeError) as error:
            return values.result(call.call_id, str(error), error=True)
        return values.result(call.call_id, answer.about, answer.text or None)

    def unasked(self, assembly: Assembly, share: float) -> list[Entry]:
        """What the next request should bring back of what was left out: nothing, or the entries that tell it.

        For a user's words it is what fits them, as a call and its result beside them; later in the turn it is what the
        model's newest words and calls name and the request does not hold, as a note.
        """
        if not assembly.rebases:
            return []
        turn = _newest_turn(assembly.entries)
        if not turn or any("recalled_ids" in entry.meta for entry in turn[_newest_request(turn) :]):
            return []
        ahead = assembly.ahead()
        prompt = ahead.epoch.prompt()
        in_request = in_prompt(prompt, ahead.left_out, ahead.entries)
        recalled = [entry for seq in sorted(in_request) if "recalled_ids" in (entry := ahead.entries[seq]).meta]
        room = int(assembly.policy.limit * share) - sum(counter().count(_recalled(entry)) for entry in recalled)
        if room < LEAST_TOKENS:
            return []
        # What was recalled and still stands is never repeated.
        exclude = {*in_request, *(id for entry in recalled for id in entry.meta["recalled_ids"])}
        spoken = any(entry.kind in SPOKEN and entry.meta.get("placement") != "context" for entry in turn)
        if not spoken:
            # Half of the share is left for what later steps of the turn will name.
            before = _text_before(assembly, turn[0].seq)
            return self._for_words(turn[0], before, prompt, max(room // 2, LEAST_TOKENS), exclude)
        return self._for_step(turn, prompt, room, exclude)

    def _for_words(self, user: Entry, before: str, prompt: Prompt, room: int, exclude: set[int | str]) -> list[Entry]:
        query_words = set(terms(user.text, is_query=True))
        # One word ("continue", "thanks") asks for nothing, unless it names one thing.
        if sum(word[0] != WHOLE for word in query_words) < 2 and not _NAMES_ONE.search(user.text):
            return []
        query = Query(user.text, before)
        hits = self._recall.search(query, MOST, thread=self._thread, kinds=PLACED, exclude=exclude)
        # Nobody asked for it: only hits that are surely relevant and share a word with the question are brought back.
        near = [hit for hit in hits if hit.relevance >= FLOOR]
        hits = [hit for hit in near if query_words.intersection(terms(entry_text(hit.entry)))]
        # A summary tells short messages whole.
        prompt_text = "\n".join(_texts(prompt, set())) if hits else ""
        hits = [hit for hit in hits if entry_text(hit.entry).strip() not in prompt_text]
        placed = place(hits, room, query=query)
        if not placed.text:
            return []
        beside: JsonObject = {"placement": "context", "idempotent": True}
        call = values.call(f"recall-{user.seq}", "recall", {"query": user.text[:_NAMED]}, meta=beside)
        meta = {"recalled_ids": list(placed.ids)}
        return [call, values.result(call.call_id, None, placed.text, meta=meta)]

    def _for_step(self, turn: Sequence[Entry], prompt: Prompt, room: int, exclude: set[int | str]) -> list[Entry]:
        newest = [entry for entry in turn[_newest_request(turn) :] if entry.kind in SPOKEN]
        newest_seqs = {entry.seq for entry in turn if entry.seq >= newest[0].seq} if newest else set()
        prompt_text = "\n".join(_texts(prompt, newest_seqs))
        named = [word for word in _telling(newest) if word not in prompt_text]
        if not named:
            return []
        hits = self._recall.search(" ".join(named), 2 * MOST, thread=self._thread, kinds=PLACED, exclude=exclude)
        # A name must match exactly: a hit that merely resembles it is not brought back.
        naming = [hit for hit in hits if any(word in entry_text(hit.entry) for word in named)][:MOST]
        placed = place(naming, room, query=" ".join(named))
        meta = {"recalled_ids": list(placed.ids)}
        return [values.note(placed.text, meta=meta)] if placed.text else []


def _newest_turn(entries: Mapping[int, Entry]) -> list[Entry]:
    """The entries from the user's newest words on."""
    turn: list[Entry] = []
    for seq in sorted(entries, reverse=True):
        turn.append(entries[seq])
        if entries[seq].kind == "user":
            return turn[::-1]
    return []


def _newest_request(turn: Sequence[Entry]) -> int:
    """Where in a turn the newest request was sent; its beginning where none was."""
    sent_at = [at for at, entry in enumerate(turn) if entry.kind == "sent" and not entry.meta.get("aside")]
    # A streamed reply stands between two `sent` entries: the request was sent at the first.
    opening = [at for at in sent_at if "usage" not in turn[at].body]
    return (opening or sent_at or [0])[-1]


def _recalled(entry: Entry) -> str:
    """What an entry tells of others: a user's in its meta, a result and a note by their words."""
    return str(entry.meta.get("recalled") or "") if entry.kind == "user" else entry_text(entry)


def _text_before(assembly: Assembly, before: int | None = None) -> str:
    """What the user said last (before an entry)."""
    entries = assembly.entries
    earlier = (entries[seq] for seq in sorted(entries, reverse=True) if before is None or seq < before)
    return next((entry.text for entry in earlier if entry.kind == "user"), "")


def _texts(prompt: Prompt, excluded: set[int]) -> Iterator[str]:
    """Everything that a prompt says, without the messages of some entries."""
    yield prompt.system
    for message in prompt.messages:
        if excluded.isdisjoint(message.seqs):
            for part in message.parts:
                if isinstance(part, Text | Think | Result):
                    yield part.text
                elif isinstance(part, Call):
                    yield json.dumps(part.args, ensure_ascii=False)


def _telling(entries: Sequence[Entry]) -> list[str]:
    """The words of the model's newest message that name one thing: an id, a path, a date, an address."""
    spoken = (entry for entry in entries if entry.kind != "think")
    text = "\n".join(
        part for entry in spoken for part in (_leaves(entry.args) if entry.kind == "call" else [entry.text])
    )
    words = (word.strip(".:/-#") for word in _TELLING.findall(text))
    return list(dict.fromkeys(word for word in words if len(word) >= 4 and _NAMES_ONE.search(word)))


def _leaves(args: Json) -> Iterator[str]:
    """What a call was given; the names of its arguments stand in every call."""
    if isinstance(args, dict | list):
        for value in args.values() if isinstance(args, dict) else args:
            yield from _leaves(value)
    else:
        yield str(args)
