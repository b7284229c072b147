"""Random threads: every kind of entry, in orders that real logs and broken ones show."""

from __future__ import annotations

from itertools import chain

from hypothesis import strategies as st

from quire import values
from quire.values import Entry

words = st.text(st.sampled_from("ab cd\n`<>/#\\é中"), max_size=40)
long = st.integers(1, 60).map(lambda n: "\n".join(f"line {i} of the long result" for i in range(n)))
texts = st.one_of(words, long, st.just(""), st.just("  \n"))
ids = st.sampled_from(["c1", "c2", "c3"])
names = st.sampled_from(["read", "grep"])


@st.composite
def items(draw: st.DrawFn) -> dict[str, object]:
    source = draw(st.sampled_from(["note", "active_note", "url", "selection", None]))
    path = draw(st.sampled_from(["a.md", "b.md", "dir/c.md"]))
    meta: dict[str, object] = {"source": source, "path": path, "url": f"https://example.org/{path}"}
    if source == "selection":
        meta |= {"start_line": 1, "end_line": 3}
    if source is None:
        meta = {}
    return {"id": path, "type": "text", "content": draw(texts), "metadata": meta, "timestamp": 0}


tool = st.sampled_from(["read", "grep", "late"]).map(
    lambda name: {
        "name": name,
        "description": f"does {name}",
        "parameters": {"type": "object", "properties": {}},
    }
)
at = st.one_of(st.none(), st.integers(0, 2_000_000))


def _at(entry: Entry, time: int | None) -> Entry:
    return entry if time is None else Entry(entry.kind, {**entry.body, "at": time})


entries = st.builds(
    _at,
    st.one_of(
        st.builds(values.user, texts, st.lists(items(), max_size=2)),
        st.builds(values.user, texts),
        st.builds(values.respond, texts),
        st.builds(values.think, texts),
        st.builds(values.call, ids, names, st.just({"path": "x"})),
        st.builds(values.call, ids, names, st.just({"path": "x"})),
        st.builds(values.result, ids, st.none(), texts),
        st.builds(values.result, ids, st.just("done"), texts, st.booleans()),
        st.builds(values.note, words),
        st.builds(values.system, words),
        st.builds(values.tools, st.lists(tool, max_size=2)),
        st.builds(values.attach, items()),
        st.builds(lambda text, pin: values.user(text, meta={"pin": pin}), words, st.just(True)),
    ),
    at,
)
threads = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([[], [values.system("You are helpful.")]]),
    st.lists(entries, max_size=60),
)
# The shape of a real agent's log, so that long tool loops and parallel calls are common.
step = st.lists(st.tuples(ids, long), min_size=1, max_size=3, unique_by=lambda p: p[0]).map(
    lambda pairs: [
        *(values.call(id, "read", {"path": id}) for id, _ in pairs),
        *(values.result(id, None, text) for id, text in pairs),
    ]
)
turn = st.builds(
    lambda text, attached, steps, answer: [
        values.user(text, attached),
        *chain.from_iterable(steps),
        values.respond(answer),
    ],
    words.filter(str.strip),
    st.lists(items(), max_size=1),
    st.lists(step, max_size=6),
    words.filter(str.strip),
)
agent_threads = st.lists(turn, min_size=1, max_size=8).map(
    lambda turns: [values.system("Help."), *chain.from_iterable(turns)]
)
