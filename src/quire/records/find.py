"""Finding records: by a selector, by nearness to a text, beside one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from quire.records import rows
from quire.records.file import RecordFile
from quire.records.hit import Hit
from quire.records.meaning import Meaning
from quire.records.ranking import ranked
from quire.records.record import Record, decode
from quire.records.relevance import Corpus, words_of
from quire.records.rows import number
from quire.records.selector import Selector

# Up to FEW records are compared one by one; of more, the MOST that share words with the query.
FEW: Final = 2000
MOST: Final = 500


def select(
    file: RecordFile,
    selector: Selector,
    newest: int | None = None,
    keep: Callable[[Record], bool] = bool,
    now: int | None = None,
) -> list[Record]:
    """What a selector means and `keep` lets through, in the order of creation; or the `newest` so many of it."""
    found: list[Record] = []
    with file.guard() as conn:
        order = rows.by_creation if newest is None else rows.by_change
        for body in order(conn, selector, now):
            if len(found) == newest:
                break
            found += _kept([body], selector, keep)
    return found if newest is None else sorted(found, key=lambda record: number(record.id))


def near(
    file: RecordFile,
    meaning: Meaning | None,
    q: str,
    selector: Selector,
    keep: Callable[[Record], bool] = bool,
    now: int | None = None,
) -> list[Hit]:
    """What a selector means and has anything to do with q, best first, the older first among equals."""
    asked = words_of(q)
    where, values = rows.where(selector, now)
    with file.guard() as conn:
        total = rows.count(conn, where, values)
        few = total <= FEW
        bodies = [] if few else rows.matching(conn, asked, where, values, MOST)
        corpus = None if few else Corpus(total, rows.frequencies(conn, asked))
    found = select(file, selector, keep=keep, now=now) if few else _kept(bodies, selector, keep)
    with file.guard() as conn:
        texts = rows.texts(conn, found)
        vectors = meaning.vectors(conn, found, texts) if meaning else None
    return ranked(q, found, texts, meaning=meaning, vectors=vectors, corpus=corpus)


def _kept(bodies: Iterable[str], selector: Selector, keep: Callable[[Record], bool]) -> list[Record]:
    return [one for one in map(decode, bodies) if selector.matches(one) and keep(one)]


def beside(
    file: RecordFile, record: Record, step: int, selector: Selector, session: str = "", now: int | None = None
) -> Record | None:
    """The next (step 1) or previous (-1) record of the same session; without a session, of those that name none."""
    where, values = rows.where(selector, now)
    if session:
        where += " AND n IN (SELECT n FROM record_tags WHERE tag = ?)"
        values.append(session)
    else:
        where += " AND n NOT IN (SELECT n FROM record_tags WHERE tag >= 'session:' AND tag < 'session;')"
    side = "n > ? ORDER BY n" if step > 0 else "n < ? ORDER BY n DESC"
    query = f"SELECT body FROM records WHERE {where} AND {side} LIMIT 1"
    with file.guard() as conn:
        row = conn.execute(query, [*values, number(record.id)]).fetchone()
    return decode(row[0]) if row else None
