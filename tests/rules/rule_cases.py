"""For every row of the rules a request that breaks it, where, and the nearest one that does not."""

from typing import Any, NamedTuple

from rule_bodies import *

BUDGET = {"type": "enabled", "budget_tokens": 2000}
FILM = {"video": {"format": "mp4", "source": {"bytes": "AAAA"}}}
NOVA = "amazon.nova-lite-v1:0"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
OBJECT_ARGUMENTS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
S3 = {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}


def film(media_type: str) -> Body:
    file = {"type": "input_file", "filename": "a", "file_data": f"data:{media_type};base64,AAAA"}
    return {"role": "user", "content": [file]}


def picture(data: str) -> Body:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def linked(url: str) -> Body:
    return {"type": "image_url", "image_url": {"url": url}}


def paper(media_type: str) -> Body:
    return {"type": "document", "source": {"type": "base64", "media_type": media_type, "data": "AAAA"}}


def gave(media_type: str) -> Body:
    """A function's response with media in it."""
    part = {"inlineData": {"mimeType": media_type, "data": "AAAA"}}
    answer = {"functionResponse": {**fr()["functionResponse"], "parts": [part]}}
    return contents(ask(), reply(fc(thoughtSignature="c2ln")), ask(answer))


def strict(**wrong: Any) -> Body:
    """A function whose schema is kept to the letter."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {
        "type": "function",
        "name": "f",
        "strict": True,
        "parameters": {**place, "additionalProperties": False, **wrong},
    }


def strict_reply(**wrong: Any) -> Body:
    schema = {"name": "f", "strict": True, "schema": strict(**wrong)["parameters"]}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


class Case(NamedTuple):
    row: str
    provider: str
    bad: Body
    path: str
    good: Body
    model: str | None = None
    headers: dict[str, str] | None = None


def marked(*ttls: Any) -> list[Body]:
    """One user message of texts, marked (or not, for None) in this order."""
    return [user(*(say("x") if ttl is None else say("x", cache_control=ttl) for ttl in ttls))]


def with_binding(**extra: Any) -> Body:
    binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    return claude(thinking=binding, **extra)


CLEAR = {"type": "clear_thinking_20251015", "keep": "all"}
TOOL_USES = {"type": "clear_tool_uses_20250919"}
SUMMARY = {"type": "compaction", "content": "summary", "signature": "s"}
PAIR = (model(use()), user(result()))

ANTHROPIC = [
    Case("B2.1", "anthropic", claude(user(), model(use(), use("toolu_2")), user(result())), "$.messages[1].content[1]",
         claude(user(), model(use(), use("toolu_2")), user(result(), result("toolu_2")))),
    Case("B2.1", "anthropic", claude(user(), model(use()), user(), model(), user(result())), "$.messages[1].content[0]",
         claude(user(), *PAIR, model(), user())),
    Case("B2.1", "anthropic", claude(user(), model(use())), "$.messages[1].content[0]", claude(user(), *PAIR)),
    Case("B2.2", "anthropic", claude(user(), model(use()), user(result(), result("toolu_9"))), "$.messages[2].content[1]",
         claude(user(), *PAIR)),
    Case("B2.2", "anthropic", claude(user(), model(use()), user(result(), result())), "$.messages[2].content[1]",
         claude(user(), *PAIR)),
    Case("B2.3", "anthropic", claude(user(), model(use()), user(say(), result())), "$.messages[2].content[1]",
         claude(user(), model(use()), user(result(), say()))),
    Case("B2.3", "anthropic", claude(user(), model(use()), user(say()), user(result())), "$.messages[3].content[0]",
         claude(user(), model(use()), user(result()), user(say()))),
    Case("B2.4", "anthropic", claude(user(say(""))), "$.messages[0].content[0]", claude(user(say(" ")))),
    Case("B2.4", "anthropic", claude({"role": "user", "content": ""}), "$.messages[0].content", claude(user())),
    Case("B2.4", "anthropic", claude({"role": "user", "content": []}, model(), user()), "$.messages[0]",
         claude(user(), model(), user())),
    Case("B2.4", "anthropic", claude(user(), model(use()), user(result(content=[say("")]))),
         "$.messages[2].content[0].content[0]", claude(user(), model(use()), user(result(content="")))),
    Case("B2.4b", "bedrock", claude(user(say(" \n"))), "$.messages[0].content[0]", claude(user(say("x"))),
         model="anthropic.claude-opus-5-5"),
    Case("B2.5", "anthropic", claude(user(say(), say("", cache_control=SHORT))), "$.messages[0].content[1]",
         claude(user(say(), say("x", cache_control=SHORT)))),
    Case("B2.6", "anthropic", claude(*marked(SHORT, SHORT, SHORT, SHORT, SHORT)), "$.messages[0].content[4]",
         claude(*marked(SHORT, SHORT, None, SHORT, SHORT))),
    Case("B2.6", "bedrock", converse(turn("user", *[{"text": "x"}, {"cachePoint": {"type": "default"}}] * 5)),
         "$.messages[0].content[9]", converse(turn("user", *[{"text": "x"}, {"cachePoint": {"type": "default"}}] * 4))),
    Case("B2.7", "anthropic", claude(*marked(LONG), tools=[tool(cache_control=SHORT)]), "$.messages[0].content[0]",
         claude(*marked(SHORT), tools=[tool(cache_control=LONG)])),
    Case("B2.7", "anthropic", claude(system=[say(cache_control=SHORT)], cache_control=LONG), "$.cache_control",
         claude(system=[say(cache_control=LONG)], cache_control=SHORT)),
    Case("B2.8", "anthropic", claude(*marked(LONG), cache_control=SHORT), "$.cache_control",
         claude(*marked(LONG), cache_control=LONG)),
    Case("B2.9", "anthropic", claude(user(), model()), "$.messages[1]", claude(user(), model(), user())),
    Case("B2.9", "anthropic", claude(user(), model()), "$.messages[1]",
         {**claude(user(), model()), "model": "claude-opus-4-5"}),
    Case("B2.9", "anthropic", {**claude(user(), model(say("I "))), "model": "claude-opus-4-5"}, "$.messages[1]",
         {**claude(user(), model(say("I"))), "model": "claude-opus-4-5"}),
    Case("B2.9", "bedrock", {**converse(turn("user"), turn("assistant", {"text": "I\n"})), "modelId": "anthropic.claude-opus-4-5"},
         "$.messages[1]",
         {**converse(turn("user"), turn("assistant", {"text": "I"})), "modelId": "anthropic.claude-opus-4-5"}),
    Case("B2.12", "anthropic", claude(user(), model({"type": "thinking", "thinking": "t"}, say()), user()),
         "$.messages[1].content[0]",
         claude(user(), model({"type": "thinking", "thinking": "t", "signature": "s"}, say()), user())),
    Case("B2.13", "anthropic", with_binding(), "$.thinking.block_binding",
         with_binding(betas=["thinking-binding-controls-2026-08-01"])),
    Case("B2.14", "anthropic", claude(late(), user()), "$.messages[0]", claude(user(), late())),
    Case("B2.14", "anthropic", claude(user(), model(use()), late(), user(result())), "$.messages[2]",
         claude(user(), *PAIR, late())),
    Case("B2.14", "anthropic", claude(user(), late(), user()), "$.messages[1]", claude(user(), late(), model(), user())),
    Case("B2.14", "anthropic", claude(user(), model(), late(), model(), user()), "$.messages[2]",
         claude(user(), model({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                              {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}),
                late(), model(), user())),
    Case("B2.14", "anthropic", {**claude(user(), late()), "model": "claude-opus-4-7"}, "$.messages[1]",
         {**claude(user(), late()), "model": "claude-opus-4-8"}),
    Case("B2.15", "anthropic", claude(tools=[tool()], tool_choice={"type": "any"}), "$.tool_choice",
         claude(tools=[tool()], tool_choice={"type": "auto"})),
    Case("B2.15", "anthropic", claude(tools=[tool()], tool_choice={"type": "tool", "name": "f"}), "$.tool_choice",
         {**claude(tools=[tool()], tool_choice={"type": "tool", "name": "f"}), "model": "claude-opus-5"}),
    Case("B2.16", "anthropic", claude(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=4000), "$.thinking",
         {**claude(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=4000), "model": "claude-opus-4-6"}),
    Case("B2.16", "anthropic", claude(thinking={"type": "disabled"}), "$.thinking",
         {**claude(thinking={"type": "disabled"}), "model": "claude-opus-5"}),
    Case("B2.16", "anthropic", {**claude(thinking={"type": "adaptive"}), "model": "claude-sonnet-4-5"}, "$.thinking",
         claude(thinking={"type": "adaptive"})),
    Case("B2.16", "anthropic",
         {**claude(thinking={"type": "enabled", "budget_tokens": 4000}, max_tokens=4000), "model": "claude-haiku-4-5"},
         "$.thinking",
         {**claude(thinking={"type": "enabled", "budget_tokens": 3999}, max_tokens=4000), "model": "claude-haiku-4-5"}),
    Case("B2.16", "anthropic",
         {**claude(thinking={"type": "enabled", "budget_tokens": 1023}, max_tokens=4000), "model": "claude-haiku-4-5"},
         "$.thinking",
         {**claude(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=4000), "model": "claude-haiku-4-5"}),
    Case("B2.17", "anthropic", claude(tools=[tool("get weather")]), "$.tools[0].name", claude(tools=[tool("get-weather")])),
    Case("B2.17", "anthropic", claude(tools=[tool("a" * 65)]), "$.tools[0].name", claude(tools=[tool("a" * 64)])),
    Case("B2.18", "anthropic", claude(context_management={"edits": [TOOL_USES, CLEAR]}), "$.context_management.edits[1]",
         claude(context_management={"edits": [CLEAR, TOOL_USES]})),
    Case("B2.18", "anthropic", claude(compaction={"type": "summarize"}, context_management={"edits": [CLEAR]}),
         "$.compaction", claude(compaction={"type": "summarize"})),
    Case("B2.19", "anthropic", claude(user(), model(SUMMARY), user()), "$.messages[1].content[0]",
         claude(model(SUMMARY), user())),
    Case("B2.19", "anthropic", claude(model(SUMMARY, {**SUMMARY, "signature": "t"}), user()), "$.messages[0].content[1]",
         claude(model(SUMMARY, {**SUMMARY, "content": None}), user())),
    Case("B2.19", "anthropic", claude(user(), model(use()), compaction={"type": "summarize"}), "$.messages[1]",
         claude(user(), model(), compaction={"type": "summarize"})),
    Case("B2.19", "anthropic", claude(model({**SUMMARY, "content": ""}), user()), "$.messages[0].content[0]",
         claude(model(SUMMARY), user())),
    Case("B2.19", "anthropic", claude({"role": "user", "content": []}, compaction={"type": "summarize"}), "$.messages",
         claude(user(), compaction={"type": "summarize"})),
    Case("B2.20", "anthropic", claude(user(say("x" * 32_000_000))), "$", claude(user(say("x" * 31_999_000)))),
    Case("A3.markable", "anthropic",
         claude(user(), model({"type": "thinking", "thinking": "t", "signature": "s", "cache_control": SHORT}, say()), user()),
         "$.messages[1].content[0]",
         claude(user(), model({"type": "thinking", "thinking": "t", "signature": "s"}, say(cache_control=SHORT)), user())),
    Case("A3.markable", "anthropic", claude(user(), {**late(), "content": [say(cache_control=SHORT)], "clear_at": "next_user_message"}),
         "$.messages[1].content[0]", claude(user(), {**late(), "content": [say(cache_control=SHORT)]})),
    Case("A3.markable", "anthropic", claude(user(), model(say(citations=[{"type": "c", "cache_control": SHORT}])), user()),
         "$.messages[1].content[0].citations[0]", claude(user(), model(say(citations=[{"type": "c"}])), user())),
    Case("A3.top-level", "anthropic", claude(*marked(SHORT, SHORT, SHORT, SHORT, None), cache_control=SHORT), "$.cache_control",
         claude(*marked(SHORT, SHORT, SHORT, SHORT), cache_control=SHORT)),
    Case("A3.top-level", "bedrock-anthropic", claude(cache_control=SHORT), "$.cache_control", claude(cache_control=SHORT),
         model="anthropic.claude-opus-4-6-v1"),
    Case("A3.mark", "anthropic", claude(*marked({"type": "ephemeral", "ttl": "2h"})), "$.messages[0].content[0].cache_control",
         claude(*marked({"type": "ephemeral", "ttl": "5m"}))),
    Case("A3.mark", "anthropic", claude(*marked({"type": "forever"})), "$.messages[0].content[0].cache_control",
         claude(*marked({"type": "ephemeral"}))),
    Case("A3.prewarm", "anthropic", claude(max_tokens=0, stream=True), "$.stream", claude(max_tokens=0)),
    Case("A3.prewarm", "anthropic", claude(max_tokens=0, output_config={"format": {}}), "$.output_config",
         claude(max_tokens=0, output_config={"effort": "low"})),
    Case("B.beta", "anthropic", claude(user(), late(clear_at="next_user_message")), "$.messages[1].clear_at",
         claude(user(), late(clear_at="next_user_message"), betas=["mid-conversation-system-clear-at-2026-08-21"]),
         headers={"anthropic-version": "2023-06-01"}),
    Case("B.sampling", "anthropic", claude(temperature=0.5), "$.temperature",
         {**claude(temperature=0.5), "model": "claude-opus-4-6"}),
    Case("B.version", "anthropic", claude(user(say(citations=[{}]))), "$.messages[0].content[0].citations", claude(user(say())),
         headers={"Anthropic-Version": "2026-10-21"}),
    Case("B.version", "anthropic", claude(user(), model(paper("application/pdf"), say()), user()), "$.messages[1].content[0]",
         claude(user(paper("application/pdf"))), headers={"Anthropic-Version": "2026-10-21"}),
    Case("B2.1b", "anthropic", claude(user(), model(use("a:b")), user(result("a:b"))), "$.messages[1].content[0].id",
         claude(user(), model(use()), user(result()))),
    Case("B2.1b", "anthropic", claude(user(), model(use(), use()), user(result(), result())), "$.messages[1].content[1].id",
         claude(user(), model(use(), use("b")), user(result(), result("b")))),
    Case("B2.12b", "anthropic", claude(user(), model(use()), user(result()), thinking=BUDGET, max_tokens=9000, model="claude-opus-4-5"),
         "$.messages[1].content[0]",
         claude(user(), model(use()), user(result()), thinking={"type": "disabled"}, model="claude-opus-4-5")),
    Case("B.model", "anthropic", claude(model="claude-sonet-4-5"), "$.model", claude(model="claude-sonnet-4-5")),
    Case("B.effort", "anthropic", claude(model="claude-opus-4-6", output_config={"effort": "xhigh"}), "$.output_config.effort",
         claude(model="claude-opus-4-6", output_config={"effort": "high"})),
    Case("B.field", "anthropic", claude(max_token=5), "$.max_token", claude()),
    *[Case("B.reasoning", "openai-chat", {"model": "o3", "messages": [user()], name: value}, f"$.{name}",
           {"model": model, "messages": [user()], name: right})
      for name, value, model, right in (
          ("temperature", 0.5, "o3", 1), ("max_tokens", 9, "gpt-4o", 9), ("stop", ["x"], "gpt-4o", ["x"]))],
    *[Case("B.strict", "openai", items(tools=[strict(**wrong)]), "$.tools[0].parameters", items(tools=[strict()]))
      for wrong in ({"required": []}, {"additionalProperties": True})],
    Case("B.strict", "openai", items(tools=[strict(properties={"city": {"anyOf": [{"type": "object"}]}})]),
         "$.tools[0].parameters.properties.city.anyOf[0]", items(tools=[strict()])),
    Case("B.strict", "openai-chat", {"model": "gpt-4o", "messages": [user()], **strict_reply(required=None)},
         "$.response_format.json_schema.schema", {"model": "gpt-4o", "messages": [user()], **strict_reply()}),
    Case("B.reasoning", "openai", items(model="gpt-4o", reasoning={"effort": "low"}), "$.reasoning",
         items(model="gpt-5", reasoning={"effort": "low"})),
    Case("B.role", "openai-chat", {"model": "o1-mini", "messages": [late(), user()]}, "$.messages[0].role",
         {"model": "o1-mini", "messages": [user()]}),
    Case("B.media", "openai-chat",
         {"model": "o3-mini", "messages": [user({"type": "image_url", "image_url": {"url": "https://e.org/a.png"}})]},
         "$.messages[0].content[0]", {"model": "o3-mini", "messages": [user(say())]}),
    Case("B.media", "openai", items(film("video/mp4"), model="gpt-5-mini"), "$.input[1].content[0]",
         items(film("application/pdf"), model="gpt-5-mini")),
    Case("B.shape", "anthropic", claude(user(paper("audio/mpeg"))), "$.messages[0].content[0].source.media_type",
         claude(user(paper("application/pdf")))),
    *[Case("B.base64", "anthropic", claude(user(picture(wrong))), "$.messages[0].content[0]", claude(user(picture("aGk=\n"))))
      for wrong in ("not base64!", "data:image/png;base64,aGk=", "aGk…")],
    Case("B.base64", "openai-chat", {"model": "gpt-4o", "messages": [user(linked("data:image/png;base64,a.b"))]},
         "$.messages[0].content[0]", {"model": "gpt-4o", "messages": [user(linked("data:image/png;base64,aGk="))]}),
    Case("B.base64", "gemini", {"contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "a b!"}}]}]},
         "$.contents[0].parts[0]", {"contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "a-_k"}}]}]}),
    Case("B.base64", "bedrock", converse(turn("user", {"image": {"format": "png", "source": {"bytes": "a.b"}}})),
         "$.messages[0].content[0].image", converse(turn("user", {"image": {"format": "png", "source": {"bytes": "AAAA"}}}))),
    Case("B.place", "bedrock", converse(turn("user", {"image": S3})), "$.messages[0].content[0].image.source.s3Location",
         converse(turn("user", {"image": {"format": "png", "source": {"bytes": "AAAA"}}}))),
    Case("B.place", "bedrock-anthropic", claude(user({"type": "image", "source": {"type": "url", "url": "https://e.org/a"}})),
         "$.messages[0].content[0].source", claude(user(paper("application/pdf")))),
    Case("B.tool-unique", "anthropic", claude(tools=[tool(), tool()]), "$.tools[1].name", claude(tools=[tool(), tool("g")])),
    Case("B.shape", "anthropic", claude(user({"type": "text"})), "$.messages[0].content[0].text", claude(user(say()))),
    Case("B.shape", "anthropic", claude(user(say(), use())), "$.messages[0].content[1]", claude(user(say()))),
    Case("B.json", "anthropic", claude(user(say("\ud800"))), "$.messages[0]", claude(user(say("ok")))),
]  # fmt: skip

QUESTION = {"role": "user", "content": "q"}
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}

OPENAI = [
    Case("B2.17", "openai-chat", chat(QUESTION, tools=[{"type": "function", "function": {"name": "a.b"}}]),
         "$.tools[0].function.name", chat(QUESTION, tools=[{"type": "function", "function": {"name": "a_b"}}])),
    Case("B2.17", "openai", items(tools=[{"type": "function", "name": "a.b"}]), "$.tools[0].name",
         items(tools=[{"type": "function", "name": "a_b"}])),
    Case("B2.21", "openai-chat", chat(QUESTION, asks("c1", "c2"), answers("c1"), QUESTION), "$.messages[1]",
         chat(QUESTION, asks("c1", "c2"), answers("c2"), answers("c1"), QUESTION)),
    Case("B2.21", "openai-chat", chat(QUESTION, asks("c1"), QUESTION, answers("c1")), "$.messages[1]",
         chat(QUESTION, asks("c1"), answers("c1"), QUESTION)),
    Case("B2.22", "openai-chat", chat(QUESTION, answers("c1")), "$.messages[1]", chat(QUESTION, asks("c1"), answers("c1"))),
    Case("B2.22", "openai-chat", chat(QUESTION, asks("c1"), answers("c1"), answers("c2")), "$.messages[3]",
         chat(QUESTION, asks("c1", "c2"), answers("c1"), answers("c2"))),
    Case("B2.23", "openai", items(function_call(id="fc_1"), output()), "$.input[1]",
         items(thought(), function_call(id="fc_1"), output())),
    Case("B2.23", "openai", items(function_call(id="fc_1"), output()), "$.input[1]", items(function_call(), output())),
    Case("B2.24", "openai", items(thought()), "$.input[1]", items(thought(), spoken())),
    Case("B2.24", "openai", items(thought(), {"role": "user", "content": "q"}), "$.input[1]",
         items(thought(), spoken(), {"role": "user", "content": "q"})),
    Case("B2.25", "openrouter-responses", items(function_call(), spoken(), output()), "$.input[2]",
         items(function_call(), output(), spoken()), "deepseek/deepseek-v4-pro"),
    Case("B2.25", "openai", items(thought(), function_call()), "$.input[2]", items(thought(), function_call(), output())),
    Case("B2.25b", "openai", items(output()), "$.input[1]", items(output(), previous_response_id="resp_1")),
    Case("B2.26", "openai", items(spoken(**MARK)), "$.input[1].content[0]",
         items({"role": "user", "content": [{"type": "input_text", "text": "x", **MARK}]})),
    Case("B2.26", "openai", items(thought(), {**function_call(), **MARK}, output()), "$.input[2]",
         items(thought(), function_call(), output(value=[{"type": "input_text", "text": "x", **MARK}]))),
    Case("B2.26", "openai-chat", chat(QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "a", **MARK}]}),
         "$.messages[1].content[0]", chat({"role": "user", "content": [{"type": "text", "text": "a", **MARK}]})),
    Case("B2.26", "openai-chat", chat(QUESTION, tools=[{"type": "function", "function": {"name": "f"}, **MARK}]), "$.tools[0]",
         chat(QUESTION, tools=[{"type": "function", "function": {"name": "f"}}])),
    Case("B2.27", "openai", items(previous_response_id="resp_1", conversation="conv_1"), "$.conversation",
         items(previous_response_id="resp_1")),
    Case("B2.27", "openai", items({"type": "compaction_trigger"}, {"role": "user", "content": "q"}), "$.input[1]",
         items({"role": "user", "content": "q"}, {"type": "compaction_trigger"})),
    Case("A4.model", "openai", {**items(prompt_cache_options={"mode": "explicit"}), "model": "gpt-5.5"},
         "$.prompt_cache_options", items(prompt_cache_options={"mode": "explicit"})),
    Case("A4.model", "openai-chat", {**chat({"role": "user", "content": [{"type": "text", "text": "a", **MARK}]}), "model": "gpt-4o"},
         "$.messages[0].content[0].prompt_cache_breakpoint", chat({"role": "user", "content": [{"type": "text", "text": "a", **MARK}]})),
    Case("A4.options", "openai-chat", chat(QUESTION, prompt_cache_options={"ttl": "12h"}), "$.prompt_cache_options.ttl",
         chat(QUESTION, prompt_cache_options={"ttl": "30m"})),
    Case("A4.options", "openai", items(prompt_cache_options={"ttl": "1h"}), "$.prompt_cache_options.ttl",
         items(prompt_cache_options={"ttl": "12h"})),
    Case("A4.options", "openai", items({"role": "user", "content": [{"type": "input_text", "text": "x",
                                                                      "prompt_cache_breakpoint": {"mode": "auto"}}]}),
         "$.input[1].content[0].prompt_cache_breakpoint.mode",
         items({"role": "user", "content": [{"type": "input_text", "text": "x", **MARK}]})),
    Case("A4.retention", "openai", {**items(prompt_cache_retention="in_memory"), "model": "gpt-5.5"}, "$.prompt_cache_retention",
         {**items(prompt_cache_retention="in_memory"), "model": "gpt-5.4"}),
    Case("B.shape", "openai-chat", chat({"role": "assistant"}), "$.messages[0].content", chat({"role": "assistant", "content": "a"})),
    Case("B.shape", "openai-chat", chat(asks("c"), answers("c"), tools=[{"function": {"name": "f"}}]), "$.tools[0].type",
         chat(asks("c"), answers("c"), tools=[{"type": "function", "function": {"name": "f"}}])),
    Case("B.shape", "openai-chat", chat(OBJECT_ARGUMENTS, answers("c")), "$.messages[0].tool_calls[0].function.arguments",
         chat(asks("c"), answers("c"))),
    Case("B.shape", "openai", items({"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}), "$.input[1].content[0].type",
         items(spoken())),
    Case("B.shape", "openai", {"model": "gpt-6-sol"}, "$.input", {"model": "gpt-6-sol", "input": "q"}),
]  # fmt: skip

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}

GEMINI = [
    Case("B2.28", "gemini", contents(reply(), ask()), "$.contents[0]", contents(ask(), reply(), ask())),
    Case("B2.28", "gemini", contents(reply(fc(**SIGNED)), ask(fr())), "$.contents[0]",
         contents(ask(), reply(), reply(fc(**SIGNED)), ask(fr()))),
    Case("B2.29", "gemini", contents(ask(), reply(fc(**SIGNED), fc()), ask(fr())), "$.contents[2]",
         contents(ask(), reply(fc(**SIGNED), fc()), ask(fr(), fr()))),
    Case("B2.29", "gemini", contents(ask(), reply(fc(**SIGNED), fc()), ask(fr()), ask(fr())), "$.contents[3]",
         contents(ask(), reply(fc(**SIGNED), fc()), ask(fr(), fr()))),
    Case("B2.29", "gemini", contents(ask(), reply(fc(**SIGNED), fc()), ask(fr()), ask(), ask(fr())), "$.contents[2]",
         contents(ask(), reply(fc(**SIGNED), fc()), ask(fr(), fr()), ask())),
    Case("B2.29", "gemini", contents(ask(), reply(fc(**SIGNED))), "$.contents[1]", contents(ask(), reply(fc(**SIGNED)), ask(fr()))),
    Case("B2.29", "gemini", contents(ask(), reply(fc(**SIGNED)), reply(), ask()), "$.contents[1]",
         contents(ask(), reply(fc(**SIGNED)), ask(fr()), reply(), ask())),
    Case("B2.30", "gemini", contents(ask(), reply(fc(), fc(**SIGNED)), ask(fr(), fr())), "$.contents[1].parts[0]",
         contents(ask(), reply(fc(**SIGNED), fc()), ask(fr(), fr()))),
    Case("B2.30", "gemini", contents(ask(), reply({"text": "", **SIGNED}, fc()), ask(fr())), "$.contents[1].parts[1]",
         contents(ask(), reply(fc()), ask(fr()), reply(), ask())),
    Case("B2.30", "gemini", contents(ask(), reply(fc()), ask(fr())), "$.contents[1].parts[0]",
         contents(ask(), reply(fc(thoughtSignature="skip_thought_signature_validator")), ask(fr()))),
    Case("B2.31", "gemini", contents(ask(), reply(fc(thoughtSignature="not a signature")), ask(fr())), "$.contents[1].parts[0]",
         contents(ask(), reply(fc(**SIGNED)), ask(fr()))),
    Case("B.place", "gemini", gave("video/mp4"), "$.contents[2].parts[0].functionResponse.parts[0]", gave("image/png")),
    Case("B2.32", "gemini", contents(ask(), cachedContent="cachedContents/a", systemInstruction={"parts": [{"text": "S"}]}),
         "$.systemInstruction", contents(ask(), cachedContent="cachedContents/a")),
    Case("B2.32", "gemini", {"contents": "q", "config": {"cached_content": "cachedContents/a", "tools": [{}]}}, "$.config.tools",
         {"contents": "q", "config": {"cached_content": "cachedContents/a"}}),
    Case("B2.33", "gemini", contents(ask({"text": "short"}), ttl="300s"), "$.contents", contents(ask({"text": "word " * 6000}), ttl="300s")),
    Case("B2.34", "gemini", contents(ask(), **declares({**OBJECT, "additionalProperties": False})),
         "$.tools[0].functionDeclarations[0].parameters.additionalProperties", contents(ask(), **declares(OBJECT))),
    Case("B2.34", "gemini", contents(ask(), **declares({"type": "object", "properties": {"a": {"$ref": "#/x"}}})),
         "$.tools[0].functionDeclarations[0].parameters.properties.a['$ref']",
         contents(ask(), tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"$ref": "#/x"}}]}])),
    Case("B2.34", "gemini", contents(ask(), **declares({"type": ["object", "null"]})),
         "$.tools[0].functionDeclarations[0].parameters.type", contents(ask(), **declares({"type": "object", "nullable": True}))),
    Case("B.gemini-name", "gemini", contents(ask(), tools=[{"functionDeclarations": [{"name": "1f"}]}]),
         "$.tools[0].functionDeclarations[0].name", contents(ask(), tools=[{"functionDeclarations": [{"name": "f.1:a"}]}])),
    Case("B.shape", "gemini", contents({"role": "user"}), "$.contents[0].parts", contents(ask())),
    Case("B.effort", "gemini", contents(ask(), model="gemini-2.5-pro", generationConfig={"thinkingConfig": {"thinkingLevel": "LOW"}}),
         "$.generationConfig.thinkingConfig.thinkingLevel",
         contents(ask(), model="gemini-2.5-pro", generationConfig={"thinkingConfig": {"thinkingBudget": 900}})),
    Case("B.shape", "gemini", contents({"role": "assistant", "parts": []}, ask()), "$.contents[0].role", contents(ask(), reply(), ask())),
]  # fmt: skip

BEDROCK = [
    Case("B2.35", "bedrock", converse(turn("user", {"text": " "})), "$.messages[0].content[0]", converse(turn("user", {"text": "x"}))),
    Case("B2.35", "bedrock", converse(turn("user"), system=[{"text": ""}]), "$.system[0]", converse(turn("user"), system=[{"text": "s"}])),
    Case("B2.36", "bedrock", converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result(content=[], status="error")), **defined()),
         "$.messages[2].content[0]",
         converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result(content=[], status="success")), **defined())),
    Case("B2.9", "bedrock", converse(turn("user"), turn("assistant")), "$.messages[1]",
         {**converse(turn("user"), turn("assistant")), "modelId": "amazon.nova-lite-v1:0"}),
    Case("B2.15", "bedrock", converse(turn("user"), **defined(toolChoice={"any": {}})), "$.toolConfig.toolChoice",
         converse(turn("user"), **defined(toolChoice={"auto": {}}))),
    Case("B2.16", "bedrock", converse(turn("user"), additionalModelRequestFields={"thinking": {"type": "disabled"}}),
         "$.additionalModelRequestFields.thinking",
         converse(turn("user"), additionalModelRequestFields={"thinking": {"type": "adaptive"}})),
    Case("B2.17", "bedrock", converse(turn("user"), **defined("a b")),
         "$.toolConfig.tools[0].toolSpec.name",
         converse(turn("user"), **defined("a_b"))),
    Case("A3.mark", "bedrock", converse(turn("user", {"text": "x"}, {"cachePoint": {"type": "default", "ttl": "2h"}})),
         "$.messages[0].content[1].cachePoint",
         converse(turn("user", {"text": "x"}, {"cachePoint": {"type": "default", "ttl": "1h"}}))),
    Case("A3.mark", "bedrock", converse(turn("user", {"text": "x"}, {"cachePoint": {}})), "$.messages[0].content[1].cachePoint",
         converse(turn("user", {"text": "x"}, {"cachePoint": {"type": "default"}}))),
    Case("B.converse", "bedrock", converse(turn("user"), turn("user")), "$.messages[1]", converse(turn("user"))),
    Case("B.converse", "bedrock", converse(turn("assistant"), turn("user")), "$.messages[0]", converse(turn("user"))),
    Case("B.converse", "bedrock", converse(turn("user"), turn("assistant", tool_use()), turn("user"), **defined()), "$.messages[1].content[0]",
         converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result()), **defined())),
    Case("B.converse", "bedrock", converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result())),
         "$.messages[1].content[0]",
         converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result()), **defined())),
    Case("B.shape", "bedrock", converse({"role": "user", "content": []}), "$.messages[0].content", converse(turn("user"))),
    Case("B.place", "bedrock",
         {**converse(turn("user"), turn("assistant", tool_use()), turn("user", tool_result(content=[FILM])), **defined()), "modelId": NOVA},
         "$.messages[2].content[0].toolResult.content[0].video", {**converse(turn("user", FILM)), "modelId": NOVA}),
    Case("B.shape", "bedrock", converse(turn("user", tool_use())), "$.messages[0].content[0]", converse(turn("user"))),
    Case("B.shape", "bedrock", converse(turn("user", {"text": "x", "image": {}})), "$.messages[0].content[0]",
         converse(turn("user", {"text": "x"}))),
]  # fmt: skip

THINKING = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": asks("c1")["tool_calls"]}
SYSTEM = {"role": "system", "content": "S"}
ANSWER = {"role": "assistant", "content": "a"}

COMPATIBLE = [
    Case("B2.37", "mistral", chat(QUESTION, asks("c1"), answers("c1"), QUESTION), "$.messages[3]",
         chat(QUESTION, asks("c1"), answers("c1"), ANSWER, QUESTION), model="mistral-large-latest"),
    Case("B2.38", "mistral", chat(QUESTION, ANSWER), "$.messages[1]", chat(QUESTION, {**ANSWER, "prefix": True}),
         model="mistral-large-latest"),
    Case("B2.39", "deepseek", chat(QUESTION, asks("c1"), answers("c1")), "$.messages[1]", chat(QUESTION, THINKING, answers("c1")),
         model="deepseek-v4-pro"),
    Case("B2.39", "deepseek", chat(QUESTION, asks("c1"), answers("c1")), "$.messages[1]",
         chat(QUESTION, asks("c1"), answers("c1"), thinking={"type": "disabled"}), model="deepseek-v4-flash"),
    Case("B2.40", "vllm", chat(SYSTEM, QUESTION, QUESTION), "$.messages[2]", chat(SYSTEM, QUESTION, ANSWER, QUESTION),
         model="google/gemma-3-27b-it"),
    Case("B2.40", "ollama", chat(ANSWER, QUESTION), "$.messages[0]", chat(QUESTION, asks("c1"), answers("c1"), ANSWER, QUESTION),
         model="mistral:7b"),
]  # fmt: skip

CASES = [*ANTHROPIC, *OPENAI, *GEMINI, *BEDROCK, *COMPATIBLE]
# Rows that only a server's memory can tell; tests/rules/test_rule_memory.py breaks them.
BY_MEMORY = ("B2.10", "B2.11")
DEFAULT_MODEL = {"gemini": "gemini-3.8-flash", "anthropic": OPUS}
