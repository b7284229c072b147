"""Random threads: every kind of entry, in orders that real logs and broken ones show."""

from itertools import chain

from hypothesis import strategies as st

from quire import Entry, Policy, values

words = st.text(st.sampled_from("ab cd\n`<>/#\\é中"), max_size=40)
long = st.integers(1, 32).map(lambda n: "\n".join(f"line {i} of the long result" for i in range(n)))
texts = st.one_of(words, long, st.just(""), st.just("  \n"))
ids = st.sampled_from(["c1", "c2", "c3"])
seldom = st.integers(0, 7).map(lambda n: n == 7)
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
    if draw(seldom):
        meta["pin"] = True
    # An image counts for more than most of the budgets here.
    if source in ("note", "active_note") and draw(seldom) and draw(seldom):
        meta["images"] = ["https://example.org/i.png"]
    return {"id": path, "type": "text", "content": draw(texts), "metadata": meta, "timestamp": 0}


tool = st.sampled_from(["read", "grep", "late"]).map(
    lambda name: {"name": name, "description": f"does {name}", "parameters": {"type": "object", "properties": {}}}
)
at = st.one_of(st.none(), st.integers(0, 2_000_000))


def _at(entry: Entry, time: int | None, meta: dict[str, object]) -> Entry:
    more = {} if time is None else {"at": time}
    if meta:
        more["meta"] = {**entry.meta, **meta}
    return Entry(entry.kind, {**entry.body, **more})


beside = {"placement": "context", "shown": ["path"]}
image = {"media_type": "image/png", "data": "AA=="}
# Whole entries, spans (which an entry may hold or not), and earlier entries, some of which have left.
pins = st.one_of(
    st.just({"pin": True}),
    st.sampled_from(["line 0 of", "ab", "nowhere"]).map(lambda span: {"pin": span}),
    st.integers(1, 20).map(lambda seq: {"pins": [seq]}),
)
metas = st.one_of(*[st.just(dict[str, object]())] * 15, pins)
spoken = st.one_of(
    st.builds(values.user, texts, st.lists(items(), max_size=2)),
    st.builds(values.user, texts),
    st.builds(lambda text, seen: values.user(text, **({"images": [image]} if seen else {})), words, seldom),
    st.builds(values.respond, texts),
    st.builds(values.think, texts),
    st.builds(values.call, ids, names, st.just({"path": "x"})),
    st.builds(values.call, ids, names, st.just({"path": "x"})),
    st.builds(lambda id, name: values.call(id, name, {"path": "y"}, meta=beside), ids, names),
    st.builds(values.result, ids, st.none(), texts),
    st.builds(values.result, ids, st.just("done"), texts, st.booleans()),
    st.builds(values.note, words),
    st.builds(values.system, words),
    st.builds(values.tools, st.lists(tool, max_size=2)),
    st.builds(lambda one: values.tools([one], meta={"replace": True}), tool),
    st.builds(values.attach, items()),
)
entries = st.builds(_at, spoken, at, metas)


def _sent(model: str, total: int | None) -> Entry:
    body = {"kind": "sent", "provider": "p", "model": model, "request_sha256": "", "segments": []}
    return Entry("sent", body if total is None else {**body, "usage": {"input_total": total}})


# What was sent, at any place: with a report behind an answer, without one in front of it, or where neither belongs.
sent = st.builds(_sent, st.sampled_from(["m", "n"]), st.sampled_from([None, None, 0, 10, 300, 3_000]))
threads = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([[], [values.system("You are helpful.")]]),
    st.lists(entries, max_size=30),
)
sent_threads = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([[], [values.system("You are helpful.")]]),
    st.lists(st.one_of(entries, entries, entries, entries, sent), max_size=30),
)
# The shape of a real agent's log, so that long tool loops and parallel calls are common.
step = st.lists(st.tuples(ids, long, metas), min_size=1, max_size=3, unique_by=lambda p: p[0]).map(
    lambda pairs: [
        *(values.call(id, "read", {"path": id}) for id, _, _ in pairs),
        *(_at(values.result(id, None, text), None, meta) for id, text, meta in pairs),
    ]
)
searched = st.one_of(
    st.just(list[Entry]()),
    st.just(list[Entry]()),
    st.tuples(long, metas).map(
        lambda found: [
            values.call("k", "search", {"path": "x"}, meta=beside),
            _at(values.result("k", None, found[0]), None, found[1]),
        ]
    ),
)
turn = st.builds(
    lambda text, attached, found, steps, answer: [
        values.user(text, attached),
        *found,
        *chain.from_iterable(steps),
        values.respond(answer),
    ],
    words.filter(str.strip),
    st.lists(items(), max_size=1),
    searched,
    st.lists(step, max_size=4),
    words.filter(str.strip),
)
agent_threads = st.lists(turn, min_size=1, max_size=5).map(
    lambda turns: [values.system("Help."), *chain.from_iterable(turns)]
)
any_thread = st.one_of(threads, agent_threads)
logs = st.one_of(threads, sent_threads, agent_threads)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    shares = st.sampled_from([{}, {}, {}, {"L2": 0.2}, {"L4": 0.5}, {"L5": 0.3}])
    return Policy(
        budget=draw(st.sampled_from([200, 600, 1_000, 1_500, 2_500, 100_000])),
        promote=draw(st.sampled_from(["at-rebase", "each-turn"])),
        handles=draw(st.sampled_from([0.0, 0.125, 0.25])),
        floor=draw(st.sampled_from([0.375, 0.5])),
        opening=draw(st.sampled_from([0.0, 0.0, 0.1])),
        thinking=draw(st.booleans()),
        late_tools=draw(st.booleans()),
        unused_turns=draw(st.sampled_from([1, 20])),
        times=draw(seldom),
        model=draw(st.sampled_from(["", "", "p:m"])),
        shares=draw(shares),
    )
