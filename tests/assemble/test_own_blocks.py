"""What goes out as a provider wrote it is counted, cut and made a handle like any other result."""

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire import Assembly, Policy, Reply, Thread, Usage, open_store, providers, values
from quire.assemble.user_message import whole_text
from quire.recall import Recall
from quire.recall.placement import recall_tool
from quire.tokens import IMAGE_TOKENS
from quire.values import JsonObject
from toolbox import chain, closed_later, counter, fewer, run

CLAUDE, GPT = "anthropic:claude-opus-4-6", "openai:gpt-5.2"
GEMINI, NOVA = "gemini:gemini-3-pro", "bedrock:amazon.nova-pro-v1:0"
HOSTILE_KEYS = """type id name source data text content input tool_use_id toolUse toolResult document image format bytes
inlineData mimeType file_data input_audio encrypted_content message parts output server_tool_use web_search_tool_result""".split()
DIALOG = "alpha beta gamma delta cache prefix token model page line".split()


def prose(words: int, seed: int) -> str:
    rng = random.Random(seed)
    return "\n".join(" ".join(rng.choices(DIALOG, k=12)) for _ in range(words // 12))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


PDF = b"%PDF-1.7\n" + b"".join(b"%d 0 obj <</Type /Page /Parent 1 0 R>> endobj\n" % n for n in range(7)) + b"%%EOF"
WAV = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + (8000).to_bytes(4, "little") * 2 + b"\0" * 80_000


def claude_fetch(n: int, text: str) -> list[JsonObject]:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, "title": "T"}
    result = {"type": "web_fetch_result", "url": "https://e.test", "content": document, "retrieved_at": "2026-01-01"}
    return [
        {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_fetch", "input": {"url": "https://e.test"}},
        {"type": "web_fetch_tool_result", "tool_use_id": f"srvtoolu_{n}", "content": result},
        {"type": "text", "text": f"Read {n}.", "citations": []},
    ]


def claude(n: int, text: str) -> JsonObject:
    return {"role": "assistant", "content": claude_fetch(n, text)}


def gpt_search(n: int, text: str) -> JsonObject:
    return {
        "type": "file_search_call", "id": f"fs_{n}", "status": "completed", "queries": ["q"],
        "results": [{"file_id": "f", "filename": "a.md", "score": 0.9, "text": text, "attributes": {}}],
    }  # fmt: skip


def gemini_code(n: int, text: str) -> JsonObject:
    code = {"executableCode": {"language": "PYTHON", "code": f"print({n})"}}
    return {"role": "model", "parts": [code, {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": text}}]}


def asked(format: str, words: str) -> JsonObject:
    if format == "gemini":
        return {"role": "user", "parts": [{"text": words}]}
    return {"role": "user", "content": words}


FIELD = {"anthropic": "messages", "openai-responses": "input", "gemini": "contents"}
Own = Callable[[int, str], JsonObject]
OWN = [("anthropic", CLAUDE, claude), ("openai-responses", GPT, gpt_search), ("gemini", GEMINI, gemini_code)]


def thread_of(
    format: str, target: str, messages: list[JsonObject], budget: int = 400_000, floor: float = 0.3
) -> Thread:
    policy = Policy(budget=budget, model=target, image_tokens=1500, floor=floor, handles=0.2)
    thread = Thread(closed_later(open_store(":memory:")), "t", policy)
    body = {"model": target.partition(":")[2], FIELD.get(format, "messages"): messages}
    thread.append(*providers.import_(format, body))
    return thread


def turns(format: str, own: Own, count: int = 5) -> list[JsonObject]:
    said = [[asked(format, f"Question {n}?"), own(n, prose(12_000, n))] for n in range(count)]
    return [message for pair in said for message in pair] + [asked(format, "And now?")]


@pytest.mark.parametrize(("format", "target", "own"), OWN, ids=[row[0] for row in OWN])
def test_results_of_a_providers_own_tools_are_counted_where_they_go(format: str, target: str, own: Own) -> None:
    thread = thread_of(format, target, turns(format, own))
    wire = counter().count(json.dumps(thread.request(target).body, ensure_ascii=False))
    assert 0.9 * wire < thread.build(target).tokens < 1.05 * wire
    assert thread.build("mistral:mistral-large").tokens < 500, "there they do not go"


@pytest.mark.parametrize(("format", "target", "own"), OWN, ids=[row[0] for row in OWN])
def test_at_a_rebase_they_become_handles_that_recall_answers(format: str, target: str, own: Own) -> None:
    thread = thread_of(format, target, turns(format, own), budget=50_000)
    text = json.dumps(thread.request(target, check=True).body, ensure_ascii=False)
    assert counter().count(text) <= 50_000
    handle = text.split("recall with handle ")[1][:12]
    recall = recall_tool(Recall(thread.store), "t")
    found = recall(handle=handle)
    assert any(found.count(prose(12_000, n)[:2000]) for n in range(5))
    assert recall(handle=handle, start=101) != found


@pytest.mark.parametrize(("format", "target", "own"), OWN, ids=[row[0] for row in OWN])
def test_one_larger_than_the_budget_is_cut(format: str, target: str, own: Own) -> None:
    call = {"anthropic": {"type": "tool_use", "id": "t1", "name": "read", "input": {}}}.get(format)
    message = own(1, prose(40_000, 1))
    if call:
        message["content"].append(call)
    thread = thread_of(format, target, [asked(format, "Read all of it."), message], budget=20_000)
    text = json.dumps(thread.request(target, check=True).body, ensure_ascii=False)
    assert 2000 < counter().count(text) <= 20_000
    assert "recall with handle" in text


SOURCE = {"type": "base64", "media_type": "application/pdf", "data": base64_of(PDF)}
TEXT = prose(3000, 9)
WORDS = counter().count(TEXT)
DOCUMENTS: list[tuple[str, str, JsonObject, int]] = [
    ("anthropic", CLAUDE, {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": TEXT}}, WORDS),
    ("anthropic", CLAUDE, {"type": "document", "source": SOURCE}, 7 * 3000),
    ("anthropic", CLAUDE, {"type": "document", "source": {"type": "file", "file_id": "f"}}, IMAGE_TOKENS),
    ("openai-responses", GPT,
     {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{SOURCE['data']}"}, 7 * 1000),
    ("openai-responses", GPT,
     {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{base64_of(TEXT.encode())}"}, WORDS),
    ("openai-chat", "openai-chat:gpt-audio",
     {"type": "input_audio", "input_audio": {"format": "wav", "data": base64_of(WAV)}}, 100),
    ("gemini", GEMINI, {"inlineData": {"mimeType": "application/pdf", "data": SOURCE["data"]}}, 7 * 258),
    ("gemini", GEMINI, {"inlineData": {"mimeType": "audio/wav", "data": base64_of(WAV)}}, 320),
    ("bedrock", NOVA, {"document": {"format": "pdf", "name": "a", "source": {"bytes": SOURCE["data"]}}}, 7 * 3000),
    ("bedrock", NOVA, {"document": {"format": "txt", "name": "a", "source": {"bytes": base64_of(TEXT.encode())}}}, WORDS),
]  # fmt: skip


def with_document(format: str, block: JsonObject, words: str) -> JsonObject:
    text = {"text": words} if format in ("gemini", "bedrock") else {"type": "text", "text": words}
    if format == "openai-responses":
        text["type"] = "input_text"
    return {"role": "user", ("parts" if format == "gemini" else "content"): [block, text]}


@pytest.mark.parametrize(("format", "target", "block", "tokens"), DOCUMENTS)
def test_a_document_counts_by_its_text_its_pages_or_its_seconds(
    format: str, target: str, block: JsonObject, tokens: int
) -> None:
    thread = thread_of(format, target, [with_document(format, block, "What is it?")])
    counted = thread.build(target).tokens
    assert tokens <= counted < 1.05 * tokens + 40
    assert thread.build("mistral:mistral-large").tokens < 40


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (CLAUDE, '{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"'),
        (GPT, '"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,%s"'),
        (GEMINI, '{"inlineData": {"mimeType": "image/png", "data": "%s"'),
    ],
)
def test_an_image_that_is_given_as_a_data_url_is_no_text(target: str, shown: str) -> None:
    data = base64_of(bytes(30_000))
    thread = Thread(closed_later(open_store(":memory:")), "t")
    thread.user("What is it?", images=[f"data:image/png;base64,{data}"])
    assert thread.build(target).tokens < IMAGE_TOKENS + 20
    sent = json.dumps(thread.request(target).body)
    assert shown % data in sent
    assert sent.count(data) == 1


def test_a_document_becomes_a_handle_or_is_cut_and_the_words_stay() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": prose(30_000, 1)}
    first = with_document("anthropic", {"type": "document", "source": source}, "Mind this document.")
    thread = thread_of("anthropic", CLAUDE, [first], budget=30_000)
    cut = thread.request(CLAUDE, check=True)
    assert counter().count(json.dumps(cut.body)) <= 30_000
    assert "Mind this document." in str(cut.body)
    assert "cut here" in str(cut.body)

    source["data"] = prose(10_000, 1)
    thread = thread_of("anthropic", CLAUDE, [first], budget=30_000, floor=0.5)
    thread.append(values.respond("Noted."))
    for n in range(27):
        thread.append(values.user(f"More {n}: {prose(480, n)}"), values.respond("Yes."))
    thread.append(values.user("And?"))
    body = str(thread.request(CLAUDE, check=True).body)
    assert "Mind this document." in body
    handle = body.split("recall with handle ")[1][:12]
    assert prose(10_000, 1)[:3000] in recall_tool(Recall(thread.store), "t")(handle=handle)


def _brought(kind: str, text: str) -> list[values.Entry]:
    """A text of any size, as a document, as a provider's own result, or as a tool's."""
    if kind == "result":
        return [values.user("Mind it."), values.call("c1", "read", {}), values.result("c1", content=text)]
    block = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    said = [with_document("anthropic", block, "Mind it.")]
    if kind == "native":
        said = [asked("anthropic", "Mind it."), claude(1, text)]
    return providers.import_("anthropic", {"model": "claude-opus-4-6", "messages": said})


@pytest.mark.parametrize("kind", ["document", "native", "result"])
@pytest.mark.parametrize("words", [8_000, 16_000])
@pytest.mark.parametrize("turns", [True, False], ids=["turns", "calls"])
def test_what_is_too_large_becomes_a_handle_and_does_not_go_with_its_turn(kind: str, words: int, turns: bool) -> None:
    whole = prose(words, 77)
    thread = thread_of("anthropic", CLAUDE, [asked("anthropic", "Hello.")], budget=12_000)
    thread.append(values.respond("Hi."), *_brought(kind, whole), *([values.respond("Noted.")] if turns else []))
    for n in range(12):
        if turns:
            thread.append(values.user(f"More {n}: {prose(240, n)}"))
        else:
            thread.append(values.call(f"d{n}", "look", {"n": n}), values.result(f"d{n}", content=prose(360, n)))
        request = thread.request(CLAUDE, check=True)
        assert Thread(thread.store, "t", thread.policy).request(CLAUDE).body == request.body
        thread.append(values.respond("Yes.")) if turns else None
    body = json.dumps(request.body, ensure_ascii=False)
    assert "Mind it." in body
    assert whole[5000:5200] not in body.replace("\\n", "\n")
    found = [recall_tool(Recall(thread.store), "t")(handle=at[:12]) for at in body.split("recall with handle ")[1:]]
    assert any(whole[:3000] in text for text in found)


def test_a_report_that_shows_a_wrong_count_is_believed_and_told() -> None:
    told: list[object] = []
    thread = Thread(closed_later(open_store(":memory:")), "t", Policy(budget=20_000, model=GPT), clock=lambda: 0)
    thread.on_warning = told.append
    for n in range(6):
        thread.user(f"Question {n}? {prose(600, n)}")
        request = thread.request(GPT)
        size = thread.build(GPT).tokens
        # The model counts ten times as much as is counted here.
        thread.record(Reply((values.respond("Yes."),), Usage(input_total=10 * size, output=1)), request)
    thread.user("And now?")
    assert 10 * thread.build(GPT).tokens <= 2 * 20_000, "what can be cut was cut"
    assert any("counted" in str(one) and "expected" in str(one) for one in told)


def test_the_shell_shows_them_by_name_and_prints_what_stands_behind_a_handle(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps({"messages": turns("anthropic", claude, 1)}))
    db = ("--db", tmp_path / "t.db")
    run("import", tmp_path / "talk.json", "--from", "anthropic", "--thread", "t", *db)
    assert "[web_fetch_tool_result]" in run("log", "show", "t", *db)
    assert prose(12_000, 0) in run("show", 3, "--in", "t", *db)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(HOSTILE_KEYS) | st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.sampled_from(["anthropic", "openai-responses", "gemini", "bedrock", "openai-chat", "x", None]),
)
@example([{"inlineData": 0}], "gemini")
@fewer(2)
def test_whatever_a_log_holds_as_a_block_can_be_counted_and_cut(block: object, format: str | None) -> None:
    wire = {"format": format, "block": block, "message": block, "content": block, "encloses": ["x"]}
    log = [values.user("q", wire=wire), values.respond("", wire=wire), values.call("c", "f", {})]
    log += [values.result("c", content="r", wire=wire), values.user("and?")]
    for target in ("", CLAUDE, GPT, GEMINI, NOVA):
        assert Assembly(Policy(budget=600, model=target)).extend(chain(log)).request().tokens <= 600 * 2
    assert all(isinstance(whole_text(entry), str) for entry in log)


def test_what_takes_no_words_stays_whole_or_goes_with_its_turn() -> None:
    shot = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{base64_of(bytes(90_000))}"}
    messages = []
    for n in range(12):
        messages += [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Look {n}."}]},
            {"type": "computer_call", "id": f"cu_{n}", "call_id": f"c{n}", "status": "completed",
             "action": {"type": "screenshot"}, "pending_safety_checks": []},
            {"type": "computer_call_output", "call_id": f"c{n}", "output": shot},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
        ]  # fmt: skip
    messages.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And?"}]})
    thread = thread_of("openai-responses", GPT, messages)
    assert 12 * IMAGE_TOKENS < thread.build(GPT).tokens < 12 * IMAGE_TOKENS + 800
    small = thread_of("openai-responses", GPT, messages, budget=8000)
    sent = small.request(GPT, check=True).body["input"]
    outputs = [item for item in sent if item["type"] == "computer_call_output"]
    assert 0 < len(outputs) < 12
    assert all(item["output"] == shot for item in outputs)


@pytest.mark.parametrize("tokens", [IMAGE_TOKENS, 7 * 3000])
def test_media_in_a_tools_result_count_and_go_with_its_handle(tokens: int) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(bytes(3000))}}
    media = image if tokens == IMAGE_TOKENS else {"type": "document", "source": SOURCE}
    said = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Here."}, media]}]
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    talk = [{"role": "assistant", "content": [call]}, {"role": "user", "content": said}]
    thread = thread_of("anthropic", CLAUDE, [asked("anthropic", "Read."), *talk])
    assert tokens < thread.build(CLAUDE).tokens < tokens + 40
    for n in range(8):
        thread.append(values.respond("Yes."), values.user(f"{n} {prose(60 + tokens // 2, n)}"))
    thread.policy = Policy(budget=4 * tokens, model=CLAUDE)
    body = thread.request(CLAUDE, check=True).body
    assert str(media["source"]) not in str(body)


def test_what_else_an_imported_message_says_is_counted_where_it_goes_back() -> None:
    ran = {"role": "assistant", "content": "Done.", "executed_tools": [{"index": 0, "output": prose(6_000, 1)}]}
    told = {"role": "user", "content": "Go."}
    entries = providers.import_("openai-chat", {"model": "compound-beta", "messages": [told, ran, told]})
    sizes = []
    for target in ("groq:compound-beta", "groq:llama-3.3-70b"):
        thread = Thread(open_store(":memory:"), "t", Policy(budget=100_000))
        thread.append(*entries)
        assert ("executed_tools" in str(thread.request(target).body)) == (not sizes)
        sizes.append(thread.build(target).tokens)
    assert sizes[0] > 5_000
    assert sizes[1] < 100
