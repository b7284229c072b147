"""Summaries by the model itself: the request it has cached and one instruction, not a new prompt.

A function for `Thread(summarise=...)`. Where a cut is due, a cycle asks the model first; whoever asks for a
request without a cycle gets the built-in summary.
"""

from __future__ import annotations

import msgspec

from quire import providers
from quire.assemble.summary import Leaving, Summarise, extract, truncate
from quire.errors import ProviderError
from quire.log import off_loop
from quire.send.turn import Turn, ask_aside
from quire.tokens import counter
from quire.values import Call, Message, Prompt, Request, Text, Usage

INSTRUCTION = (
    "Before we go on: summarise our conversation so far, for yourself, in at most {words} words. "
    "Keep what was asked, what was decided, and every name, path, id and amount that may be needed again. "
    "Plain sentences, no heading, no tools."
)
# What would make the model write anything but plain text.
_SHAPING = ("response_format", "json_schema", "grammar", "tool_choice")


class ByModel:
    """The model's own summary where it has been asked for one; the built-in one (`fallback`) otherwise."""

    def __init__(self, fallback: Summarise = extract) -> None:
        self._fallback = fallback
        self._known: dict[tuple[str, ...], str] = {}
        self._wanted: list[Leaving] = []
        # What each question used: cache_read says how much of it was not paid for again.
        self.used: list[Usage] = []

    def __call__(self, leaving: Leaving) -> str:
        """The summary of what leaves."""
        if text := self._known.get(_key(leaving)):
            return text
        self._wanted.append(leaving)
        return self._fallback(leaving)

    @property
    def wanted(self) -> Leaving | None:
        """What a summary was last asked for that the model has not given."""
        # Deeper cuts are tried until one fits: the last is the one that would be made.
        return self._wanted[-1] if self._wanted else None

    async def prepare(self, turn: Turn) -> None:
        """If the next request would cut, have the model say what of it to keep."""
        self._wanted.clear()
        # Reading an old thread may ask for summaries too, of cuts that were made long ago.
        built = await off_loop(turn.thread.build, turn.target)
        if built.rebase is not None and self.wanted is not None:
            await self.ask(turn, self.wanted)

    async def ask(self, turn: Turn, leaving: Leaving) -> str:
        """Have the model summarise what leaves; why the fallback stands in for it, or nothing."""
        try:
            reply = await ask_aside(turn, summary_request(turn, leaving.limit), "summary")
        except ProviderError as error:
            return f"summary failed: {error}"
        self.used.append(reply.usage)
        text = "".join(entry.text for entry in reply.entries if entry.kind == "respond").strip()
        if not text:
            return "summary was empty"
        self._known[_key(leaving)] = fitted(text, leaving.limit)
        return ""


def summary_request(turn: Turn, limit: int) -> Request:
    """The request as it stands in the provider's cache, with one instruction behind it."""
    so_far = turn.thread.so_far(turn.target)
    ask = Message("user", (Text(INSTRUCTION.format(words=max(10, limit // 2))),))
    prompt = msgspec.structs.replace(so_far, messages=(*cached_messages(so_far), ask))
    options = {name: value for name, value in turn.runner.options.items() if name not in _SHAPING}
    options["max_tokens"] = limit
    return providers.render(prompt, turn.target, cache=True, key=turn.thread.name, **options)


def cached_messages(prompt: Prompt) -> tuple[Message, ...]:
    """What the last request said, and the answer to it if it was one."""
    cached = prompt.messages[: prompt.stable]
    after = prompt.messages[prompt.stable : prompt.stable + 1]
    answered = [m for m in after if m.role == "assistant" and not any(isinstance(p, Call) for p in m.parts)]
    return (*cached, *answered)


def fitted(text: str, limit: int) -> str:
    """A text of at most so many tokens, cut at a sentence."""
    tokens = counter().count(text)
    return text if tokens <= limit else truncate(text, int(len(text) * limit / tokens))


def _key(leaving: Leaving) -> tuple[str, ...]:
    return (leaving.before, *(entry.id for entry in leaving.entries))
