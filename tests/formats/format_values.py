"""Values of every format, over the texts that would break it."""

from format_texts import CLEAN, JSON, MARKDOWN, REPLAY, XML, texts
from hypothesis import strategies as st

from quire.formats import clean
from quire.formats.markdown import Markdown, MarkdownItem
from quire.formats.replay import Replay, ReplayedCall, ReplayedThought, Respond, User
from quire.values import ITEM_TYPES

# -- markdown


_line = st.integers(0, 99) | st.just(2**63 - 1)
_plain = st.tuples(st.none() | texts(MARKDOWN, size=4), st.none(), st.none())
_ranged = st.tuples(texts(MARKDOWN, size=4), _line, _line)
_tags = st.text("aZ09_+#.-", max_size=4)
blocks = st.builds(
    lambda type, content, annotation, tag: MarkdownItem(type, content, *annotation, tag),
    st.sampled_from(ITEM_TYPES),
    texts(MARKDOWN),
    _plain | _ranged,
    _tags,
)
markdowns = st.builds(
    lambda items, request, wrap, system: Markdown(
        tuple(items),
        request,
        wrap if items or request is None or system is not None else "none",
        system if wrap == "tags" else None,
    ),
    st.lists(blocks, max_size=3),
    st.none() | texts(MARKDOWN),
    st.sampled_from(["none", "tags"]),
    st.none() | texts(MARKDOWN),
)


# -- xml and json: the JSON of a window, to be read

_shown = {"filename": texts(XML, size=3) | JSON, "start_line": st.integers() | JSON, "language": JSON}
metadata = st.none() | st.fixed_dictionaries({}, optional={**_shown, "end_line": JSON, "k": JSON, "\x00": JSON})
items = st.fixed_dictionaries(
    {"content": texts(XML)},
    optional={"type": st.sampled_from(ITEM_TYPES), "metadata": metadata, "timestamp": st.integers(-(2**40), 2**40)},
)
windows = st.fixed_dictionaries(
    {"items": st.lists(items, max_size=4)},
    optional={
        "max_items": st.integers(1, 1000),
        "max_tokens": st.integers(1000, 9000),
        "request": texts(XML) | st.none(),
    },
)

# -- clean

_names = texts(CLEAN, size=3)
tools = st.builds(
    clean.CleanTool,
    _names,
    texts(CLEAN, size=4),
    _names | st.just("general"),
    st.lists(_names, max_size=3).map(tuple),
    texts(CLEAN, size=4),
)
short_tools = st.builds(clean.CleanTool, _names, texts(CLEAN, size=4))
messages = st.builds(clean.CleanMessage, st.sampled_from(["user", "assistant"]), texts(CLEAN))
results = st.builds(clean.ToolResult, _names, texts(CLEAN))


cleans = st.builds(
    lambda tools, messages, results, request: clean.Clean(
        tuple(tools), tuple(messages), tuple(results), request, "full"
    ),
    st.lists(tools, max_size=3),
    st.lists(messages, max_size=3),
    st.lists(results, max_size=3),
    texts(CLEAN),
) | st.builds(
    lambda tools, messages, request: clean.Clean(tuple(tools), tuple(messages), (), request, "short"),
    st.lists(short_tools, min_size=1, max_size=3),
    st.lists(messages, max_size=1),
    texts(CLEAN),
)


# -- replay

_text = texts(REPLAY)
_users, _thinks, _responds = (st.builds(User, _text), st.builds(ReplayedThought, _text), st.builds(Respond, _text))
exchanges = st.builds(ReplayedCall, texts(REPLAY, size=3), JSON, _text, _text)


def _replay(history: list, user: User, rest: list, left_out: int, delimiter: str) -> Replay:
    current = (user, *rest) if rest else ()
    shown = history or rest
    return Replay(tuple(history), current, left_out if history else 0, delimiter if shown else "$")


replays = st.builds(
    _replay,
    st.lists(_users | _responds | exchanges, max_size=3),
    _users,
    st.lists(_thinks | _responds | exchanges, max_size=3),
    st.integers(0, 99),
    st.sampled_from("$§"),
)


def _text_entry(kind: str) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({"kind": st.just(kind), "text": _text})


# Few ids, so that they are reused; calls and results in any order, also without each other.
_ids = st.sampled_from(["a", "b"])
entries = st.lists(
    st.one_of(
        *(_text_entry(kind) for kind in ("user", "think", "respond", "note", "system")),
        st.fixed_dictionaries({"kind": st.just("call"), "call_id": _ids, "name": _names, "args": JSON}),
        st.fixed_dictionaries(
            {"kind": st.just("result"), "call_id": _ids},
            optional={"outcome": _text, "content": _text, "error": st.booleans()},
        ),
    ),
    max_size=12,
)
