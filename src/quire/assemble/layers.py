"""The five layers of a request as an envelope: segments with hashes, and tokens per layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quire.assemble.fit import Built
from quire.assemble.policy import Policy, Promote
from quire.assemble.user_message import normal, references, user_text
from quire.errors import BudgetError
from quire.log.hashing import canonical, sha256_hex
from quire.tokens import counter, text_tokens, tools_tokens
from quire.values import LAYERS, Envelope, JsonObject, Layer, LayerId, Prompt, Segment, Text


def segment(id: str, content: str, stable: bool = True, **metadata: object) -> Segment:
    return Segment(id, content, sha256_hex(content), stable, dict(metadata))


def layer(id: LayerId, segments: Iterable[Segment]) -> Layer:
    """A layer's text is its non-empty segments with a blank line between."""
    kept = tuple(segments)
    text = "\n\n".join(segment.content for segment in kept if segment.content)
    return Layer(id, kept, text, sha256_hex(text))


def envelope(layers: Iterable[Layer]) -> Envelope:
    """Always five layers; the combined hash is over those that say something."""
    given = {layer.id: layer for layer in layers}
    five = tuple(given.get(id) or layer(id, ()) for id in LAYERS)
    return Envelope(five, sha256_hex("\n\n".join(layer.text for layer in five if layer.text)))


def enclose(built: Built, messages: Sequence[JsonObject]) -> Envelope:
    """The envelope of a built request; `messages` are its messages in wire form, system message left out."""
    place = current_place(built, messages)
    history = [message for n, message in enumerate(messages) if n != place]
    return envelope(
        [
            layer("L1_SYSTEM", [segment("system", built.prompt.l1, tools=list(built.prompt.tools))]),
            layer(
                "L2_PREVIOUS", [segment(block.id, block.text, sha256=block.sha256) for block in built.blocks]
            ),
            layer("L3_TURN", _turn_segments(built)),
            layer("L4_STRIP", [_message_segment(n, message) for n, message in enumerate(history)]),
            layer("L5_USER", [segment("query", built.query, stable=False, **_whole(messages, place))]),
        ]
    )


def rebuild(sealed: Envelope) -> tuple[list[JsonObject], list[JsonObject]]:
    """The messages and tools that an envelope was made of, byte for byte."""
    system, library, _, strip, query = sealed.layers
    top = Prompt(system.text, library.text, (), ()).system
    messages = [msgspec.json.decode(segment.content) for segment in strip.segments]
    for segment in query.segments:
        if "message" in segment.metadata:
            messages.insert(segment.metadata["place"], segment.metadata["message"])
    tools = [tool for segment in system.segments for tool in segment.metadata.get("tools", ())]
    return [{"role": "system", "content": top}, *messages] if top else messages, tools


def _whole(messages: Sequence[JsonObject], place: int) -> JsonObject:
    """The current user's message with its place, from which the request can be put together again."""
    return {"place": place, "message": messages[place]} if place >= 0 else {}


def current_place(built: Built, messages: Sequence[JsonObject]) -> int:
    """Which of the messages is the current user's: the last that begins with those words, or the last of a user."""
    said = built.prompt.messages[built.user].parts if built.user is not None else ()
    text = next((part.text for part in said if isinstance(part, Text)), "")
    last = -1
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            last = max(last, place)
            if text and _text(messages[place]).startswith(text):
                return place
    return last


def _text(message: JsonObject) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return next((str(part["text"]) for part in parts if part.get("text")), "")


def _message_segment(index: int, message: JsonObject) -> Segment:
    return segment(f"message-{index + 1}", canonical(message).decode(), role=message.get("role"))


def _turn_segments(built: Built) -> list[Segment]:
    """This turn's context: what was recalled, what tools gave, what is referred to and what is new."""
    said = built.said
    if said is None:
        return []
    named = [
        segment(f"reference:{name}", f"- {name}", stable=False, reference=True) for name in said.references
    ]
    texts = [segment(f"item-{n + 1}", text, stable=False) for n, text in enumerate(said.texts)]
    fixed = [segment("recalled", said.recalled, False), segment("tools", said.tools, False)]
    return [segment for segment in fixed if segment.content] + named + texts


def layer_tokens(built: Built) -> dict[str, int]:
    """Tokens by layer (and of the tools); the sum is the whole request."""
    prompt = built.prompt
    system = text_tokens(prompt.system) if prompt.system else 0
    l1 = text_tokens(prompt.l1) if prompt.l1 else 0
    current = built.sizes[built.user] if built.user is not None else 0
    # The message's framing goes with the context where there is any, else with the query.
    l5 = min(current, counter().count(built.query)) if _turn_segments(built) else current
    return {
        "L1": l1,
        "L2": system - l1,
        "L3": current - l5,
        "L4": sum(built.sizes) - current,
        "L5": l5,
        "tools": tools_tokens(prompt.tools),
    }


def check_shares(built: Built, policy: Policy) -> None:
    """Refuse a request whose uncuttable layers outgrow the shares they were given."""
    if policy.shares.keys().isdisjoint({"L1", "L3", "L5"}):
        return
    sizes = layer_tokens(built)
    for name in ("L1", "L3", "L5"):
        if sizes[name] > policy.ceiling(name):
            raise BudgetError(
                f"{name} holds {sizes[name]} tokens but its share of the budget is {policy.ceiling(name)}",
                hint=f"Raise shares[{name!r}] or the budget, or put less into {name}.",
            )


def system_text(
    base: str,
    memory: str | None = None,
    project_prompt: str | None = None,
    project_context: str | None = None,
    tool_text: str | None = None,
) -> str:
    """L1: user memory, the base prompt, the project's prompt and context, tool descriptions; absent ones leave no trace."""
    text = f"{memory}\n{base}" if memory else base
    if project_prompt is not None:
        text += f"\n\n<project_system_prompt>\n{project_prompt}\n</project_system_prompt>"
    if project_context:
        text += f"\n\n<project_context>\n{project_context}\n</project_context>"
    return f"{text}\n\n{tool_text}" if tool_text else text


def messages_of(
    l1: str, l2: Sequence[Segment], l3: Sequence[Segment], l5: str, promote: Promote = "each-turn"
) -> list[JsonObject]:
    """System and user message of plain layers: what stands in L2 with the same content is referred to by id."""
    known = {item.id: item.sha256 for item in l2}
    named = [item.id for item in l3 if known.get(item.id) == item.sha256]
    texts = [normal(item.content) for item in l3 if known.get(item.id) != item.sha256]
    system = Prompt(normal(l1), "\n\n".join(normal(item.content) for item in l2), (), ()).system
    user = {"role": "user", "content": user_text([references(named, promote), *texts], l5)}
    return [{"role": "system", "content": system}, user] if system else [user]
