"""Cut what was picked to a number of tokens, counted over the rendered text; everything left out has its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quire.errors import BudgetError
from quire.formats import clean
from quire.formats.clean import Clean, Detail, Tool
from quire.records.shape import Shape
from quire.tokens import count
from quire.values import JsonObject


class Part(msgspec.Struct, frozen=True):
    """One record's shape, how much it matters, and the group it stays or goes with; a pinned one never goes."""

    id: str
    shape: Shape
    weight: float
    group: str
    pinned: bool = False


class Fitted(msgspec.Struct, frozen=True):
    value: Clean
    shown: tuple[str, ...]
    tokens: int
    left_out: tuple[JsonObject, ...] = ()


def tokens_of(value: Clean) -> int:
    """The o200k tokens of everything rendered, the request included."""
    return count(clean.render(value)).tokens


def fit(parts: Sequence[Part], request: str, budget: int | None, detail: Detail = "full") -> Fitted:
    """All parts if they fit; else tools in at most half the budget, and of the rest what matters most."""
    everything = assembled(parts, request, detail)
    if budget is None or tokens_of(everything) <= budget:
        return Fitted(everything, tuple(part.id for part in parts), tokens_of(everything))
    pinned = [part for part in parts if part.pinned]
    least = tokens_of(assembled(pinned, request, "full"))
    if least > budget:
        what = "the request and its trigger need" if pinned else "the request alone needs"
        raise BudgetError(f"{what} {least:,} tokens, but max_tokens is {budget:,}")
    tools, detail, dropped = _fit_tools(parts, max(budget - least, 0) // 2, detail)
    kept = _fit_groups(
        [part for part in parts if part.shape.section != "tools"], tools, request, budget, detail
    )
    value = assembled(kept, request, detail, tools)
    shown = tuple(part.id for part in parts if part in kept or (part.shape.section == "tools" and tools))
    left_out = [{"record": part.id, "reason": _reason(budget)} for part in parts if part.id not in shown]
    return Fitted(value, shown, tokens_of(value), (*dropped, *left_out))


def _reason(budget: int) -> str:
    return f"over the budget of {budget:,} tokens"


def assembled(
    parts: Sequence[Part], request: str, detail: Detail, tools: Sequence[Tool] | None = None
) -> Clean:
    """The clean value of some parts, in their order; a tool's name counts once, its last word wins."""
    shown = listed(parts) if tools is None else tuple(tools)
    if detail == "short":
        shown = tuple(Tool(tool.name, tool.description) for tool in shown)
    return Clean(
        tools=shown,
        conversation=tuple(
            part.shape.message for part in parts if part.shape.message and part.shape.message.content
        ),
        tool_results=tuple(part.shape.result for part in parts if part.shape.result),
        request=request,
        detail=detail if shown else "full",
    )


def listed(parts: Sequence[Part]) -> tuple[Tool, ...]:
    return tuple({tool.name: tool for part in parts for tool in part.shape.tools}.values())


def _fit_tools(
    parts: Sequence[Part], share: int, detail: Detail
) -> tuple[tuple[Tool, ...], Detail, list[JsonObject]]:
    """The tools within a share of the budget: in full, else short, else as many of them as fit."""
    tools = listed(parts)

    def fits(number: int, detail: Detail) -> bool:
        return tokens_of(assembled((), "", detail, tools[:number])) <= share

    if fits(len(tools), detail):
        return tools, detail, []
    kept = _most(len(tools), lambda number: fits(number, "short"))
    reason = "more tools than half the budget holds"
    return tools[:kept], "short", [{"tool": tool.name, "reason": reason} for tool in tools[kept:]]


def _fit_groups(
    parts: Sequence[Part], tools: tuple[Tool, ...], request: str, budget: int, detail: Detail
) -> list[Part]:
    """The groups that matter most, as many as fit, in the order they had; pinned parts first of all."""
    weights: dict[str, float] = {}
    for part in parts:
        weights[part.group] = max(weights.get(part.group, 0.0), part.weight)
    places = {part.group: at for at, part in enumerate(parts)}
    ranked = sorted(weights, key=lambda group: (-weights[group], -places[group]))

    def kept(number: int) -> list[Part]:
        chosen = set(ranked[:number])
        return [part for part in parts if part.pinned or part.group in chosen]

    def fits(number: int) -> bool:
        return tokens_of(assembled(kept(number), request, detail, tools)) <= budget

    return kept(_most(len(ranked), fits))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The greatest number up to `limit` that fits; 0 is taken to fit."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
