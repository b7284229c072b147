"""The embedded model: a real engine answers, streams, reports its cache, and survives its clients."""

import contextlib
import ctypes
import http.client
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from send_parts import new_thread, tool

from quire import Policy, Thread, open_store, values
from quire.errors import CallError, FormatError, ProviderError
from quire.send.local import TARGET, Front, LocalServer, announce, local_target, retract, serving_url
from quire.send.runners import ByModel, planned
from quire.send.text_protocol import Completion
from quire.send.tools import tool as make_tool
from quire.send.transport import server_window
from quire.send.weights import chat_template
from toolbox import Runner, carry_out, no_web_server, run

pytestmark = pytest.mark.xdist_group("llama")


@pytest.fixture(scope="module")
def noise(tiny: Path) -> Iterator[LocalServer]:
    with LocalServer(tiny, ctx=4096) as server:
        yield server


def short(**options: object) -> Runner:
    return Runner(system="You are a helpful assistant.", options={"max_tokens": 12, "temperature": 0, **options})


def test_a_real_answer_streams_in_and_the_second_turn_reads_the_cache(engine: LocalServer, tmp_path: Path) -> None:
    thread, pieces = new_thread(tmp_path / "t.db"), list[str]()
    about = {"source": "note", "path": "a.md"}
    note = {"id": "a.md", "content": "The lighthouse was built by Ana Ruiz.", "metadata": about}
    thread.user("Who built the lighthouse?", [note])
    how = {"on_event": lambda event: pieces.append(event.text) if event.kind == "respond" else None}
    first = carry_out(thread, TARGET, engine.url, short(), **how)  # type: ignore[arg-type]
    assert "Ana Ruiz" in first.text
    assert "".join(pieces) == first.text
    assert len([piece for piece in pieces if piece]) > 3
    thread.user("And who else?")
    second = carry_out(thread, TARGET, engine.url, short())
    # Everything that was sent before is read, and what the model said, but for the last token or two.
    assert second.usage.cache_read >= first.usage.input_total + first.usage.output - 3


def test_an_engine_that_takes_text_continues_the_log(engine: LocalServer, thread: Thread) -> None:
    thread.append(values.user("What is the capital of France?"), values.respond("Paris."))
    thread.user("And of Italy?")
    runner = Runner(speech=Completion(), options={"max_tokens": 12, "temperature": 0})
    outcome = carry_out(thread, TARGET, engine.url, runner)
    assert outcome.text
    assert outcome.usage.input_total > 50


def test_tools_calls_and_results_are_in_the_engines_prompt(engine: LocalServer, thread: Thread) -> None:
    """The model's own template would leave them out without a word."""
    thread.append(values.tools([tool("append")]), values.user("Write."), values.call("c1", "append", {"line": 3}))
    thread.append(values.result("c1", "line 3 is written"), values.respond("Done."), values.user("Thanks."))
    body = thread.request(TARGET).body
    asked = {name: body[name] for name in ("messages", "tools")}
    prompt = engine.post("/apply-template", asked)["prompt"]
    assert '"name": "append"' in prompt
    assert '<tool_call>\n{"name": "append", "arguments": {"line": 3}}\n</tool_call>' in prompt
    assert "<tool_response>\nline 3 is written\n</tool_response>" in prompt


def test_planned_is_held_to_the_tools_schemas(thread: Thread, engine: LocalServer) -> None:
    @make_tool
    def mood(word: Literal["happy", "sad"]) -> str:
        """Note the user's mood."""
        return f"noted: {word}"

    thread.user("I am happy today!")
    done = carry_out(thread, TARGET, engine.url, planned([mood], max_tokens=16, temperature=0))
    assert done.stop == "answered"
    calls = [one for one in done.entries if one.kind == "call"]
    # Whether it plans anything is the small model's affair; what it plans can be run.
    assert all(one.name == "mood" and one.args["word"] in ("happy", "sad") for one in calls)
    assert all(not one.body.get("error") for one in done.entries if one.kind == "result")
    assert done.entries[0].meta == {"aside": "plan"}


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_summary_reads_the_cache_instead_of_writing_a_new_prompt(noise: LocalServer, tmp_path: Path) -> None:
    summarise = ByModel()
    policy = Policy(budget=1200, floor=0.4, when="full", summary=0.1)
    thread = new_thread(tmp_path / "t.db", policy=policy, summarise=summarise)
    for turn in range(7):
        thread.user(f"Question {turn}. " + "The harbor lies east of the old town and its market. " * 12)
        carry_out(thread, "llamacpp:tiny", noise.url, short(max_tokens=30))
    assert summarise.usages
    for used in summarise.usages:
        # Only the instruction and the last answer are new.
        assert used.cache_read > 0.75 * used.input_total
        assert used.input_total - used.cache_read < 160


def test_a_server_that_runs_is_found_and_one_that_ended_is_not(
    noise: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quire.send.local.cache_folder", lambda: tmp_path)
    # No proxy of the environment leads to this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)
    assert serving_url() == ""
    announce(noise.url)
    assert serving_url() == noise.url
    assert noise.window == 4096
    announce("http://127.0.0.1:9")
    assert serving_url() == ""
    with no_web_server() as address:
        announce(address)
        assert serving_url() == ""
    retract()
    assert serving_url() == ""


def test_ctrl_c_in_a_terminal_is_not_for_the_engine(noise: LocalServer) -> None:
    """A terminal sends it to the whole group of the program that runs in it."""
    assert os.getpgid(noise.pid) != os.getpgrp()


def test_an_engine_that_died_is_started_again(tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("quire.send.local.faster", lambda file, say: tiny)
    monkeypatch.setattr("quire.send.local.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("quire.send.local._running", running := list[LocalServer]())
    first = local_target().base_url
    assert local_target().base_url == first
    assert [model["id"] for model in httpx.get(f"{first}/v1/models").json()["data"]] == ["smollm2"]
    os.kill(running[0].pid, signal.SIGKILL)
    gone(running[0].pid)
    second = local_target().base_url
    with urllib.request.urlopen(f"{second}/health", timeout=600) as reply:
        assert reply.status == 200
    running[0].stop()


def quire(*words: str, **how: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "quire", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
    )  # type: ignore[call-overload]


@contextlib.contextmanager
def serving(folder: Path, gguf: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`quire local serve` on a port of its own, and its address."""
    folders = {name: str(folder) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME")}
    command = ["local", "serve", "--port", "0", "--gguf", str(gguf), *words]
    with quire(*command, env={**os.environ, **folders, "PYTHONUNBUFFERED": "1"}) as process:
        yield process, process.stdout.readline().decode().split()[3]


def test_ctrl_c_stops_the_answer_and_keeps_what_came(engine: LocalServer, tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    words = ["run", "t", "Tell me a long story about a harbor.", "--db", str(database)]
    with quire(*words, "--model", "llamacpp:any", "--base-url", engine.url) as process:
        began = process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert b"stopped; what was acknowledged is stored" in said
    with open_store(database) as store:
        *_, kept, sent = store.read("t")
        assert (kept.kind, kept.meta["stopped"], sent.meta["stopped"]) == ("respond", True, True)
        # What the user saw is what was stored.
        assert kept.text.encode() == (began + rest).rstrip(b"\n") or kept.text.startswith(began.decode())
        assert store.verify().entries == 4


@pytest.mark.parametrize(
    ("ended_by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_quire_model_serve_serves_until_it_is_stopped_and_leaves_no_process(
    ended_by: signal.Signals, code: int, tiny: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, tiny, "--ctx", "512") as (process, url):
        with urllib.request.urlopen(f"{url}/health", timeout=600) as reply:
            assert reply.status == 200
        assert (tmp_path / "quire" / "serving.json").exists()
        (engine,) = children(process.pid)
        # The system may choose any OS thread of a process for a signal; here the one that serves, which does not end.
        other_thread = min({*map(int, os.listdir(f"/proc/{process.pid}/task"))} - {process.pid})
        assert ctypes.CDLL(None).tgkill(process.pid, other_thread, ended_by) == 0
        process.communicate(timeout=600)
    assert process.returncode == code
    gone(engine)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health", timeout=600)
    if ended_by != signal.SIGKILL:
        assert not (tmp_path / "quire" / "serving.json").exists()


def test_quire_model_serve_says_when_the_window_is_smaller_and_tells_no_path(tiny: Path, tmp_path: Path) -> None:
    with serving(tmp_path, tiny, "--ctx", "40000", "--slots", "2", "--threads", "2") as (process, url):
        assert [model["id"] for model in httpx.get(f"{url}/v1/models", timeout=600).json()["data"]] == ["tiny"]
        assert httpx.get(f"{url}/props", timeout=600).json()["total_slots"] == 2
        (engine,) = children(process.pid)
        given = json.loads(Path(f"/proc/{engine}/cmdline").read_text().split("\0")[-2])
        assert (given["slots"], given["threads"]) == (2, 2)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=600)
    assert b"--ctx 40000 is lowered to 32768" in said


def test_the_engine_tells_its_window_and_a_thread_keeps_to_it(tiny: Path, home: Path) -> None:
    # What answers is noise, and goes on until the window is full: a small one is full soon.
    with LocalServer(tiny, ctx=256) as engine, Front(engine.url) as front:
        assert server_window(front.url, "any") == server_window(f"{engine.url}/v1", "any") == engine.window == 256
        run("run", "t", "Hi", "--model", "llamacpp:any", "--base-url", front.url)
    with open_store(home / "quire.db") as store:
        assert [entry.meta["window"] for entry in store.read("t") if entry.kind == "sent"] == [256, 256]


def test_a_body_that_comes_in_chunks_is_served_and_one_without_a_length_refused(noise: LocalServer) -> None:
    asked = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
    with Front(noise.url) as front:
        url = f"{front.url}/v1/chat/completions"
        chunked = httpx.post(url, content=iter([asked[:20], asked[20:]]), timeout=600)
        assert chunked.json()["usage"]["completion_tokens"] == 2
        # A page would be told how much of its guess stands in the cache of what was asked before.
        assert httpx.post(url, content=asked, headers={"origin": "https://evil.example"}).status_code == 403
        for odd in ({"content-length": "many"}, {"transfer-encoding": "chunked"}):
            with contextlib.closing(http.client.HTTPConnection(front.url.removeprefix("http://"))) as client:
                client.request("POST", "/v1/chat/completions", b"many\r\n", odd)
                assert client.getresponse().status == 400


ASKED = [{"role": "user", "content": "What is the weather?"}]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 8}}, "required": ["q"]}
NAMES = ("weather", "search", "read")


@pytest.mark.parametrize("choice", ["none", "any", "search"])
def test_the_served_model_calls_the_tool_it_has_to_call(noise: LocalServer, choice: str) -> None:
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    named = choice == "search"
    with (
        Front(noise.url) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="any") as client,
        anthropic.Anthropic(base_url=front.url, api_key="any") as claude,
    ):
        functions = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
        own = {"type": "function", "name": choice} if named else {"any": "required"}.get(choice, choice)
        response = client.responses.create(
            model="m", input="What is the weather?", tools=functions, tool_choice=own, max_output_tokens=60
        )
        nested = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
        chosen = {"type": "function", "function": {"name": choice}} if named else own
        events = client.chat.completions.create(
            model="m", messages=ASKED, tools=nested, tool_choice=chosen, max_tokens=60, stream=True
        )
        deltas = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
        schemas = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
        picked = {"type": "tool", "name": choice} if named else {"type": choice}
        message = claude.messages.create(model="m", messages=ASKED, tools=schemas, tool_choice=picked, max_tokens=60)
    called = [
        [item.name for item in response.output if item.type == "function_call"],
        [call.function.name for call in deltas if call.function.name],
        [block.name for block in message.content if block.type == "tool_use"],
    ]
    for names in called:
        # Several calls may be made; none but those that may.
        assert set(names) <= ({choice} if named else set(NAMES))
        assert bool(names) == (choice != "none")


def test_the_small_model_does_not_say_one_thing_for_ever(engine: LocalServer) -> None:
    asked = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
    body = {"messages": asked, "max_tokens": 200, "temperature": 0}

    def most_repeated(**more: int) -> int:
        words = engine.post("/v1/chat/completions", {**body, **more})["choices"][0]["message"]["content"].split()
        runs = [tuple(words[start : start + 6]) for start in range(len(words) - 5)]
        return max(runs.count(run) for run in runs)

    assert most_repeated() <= 2 < most_repeated(dry_multiplier=0, max_tokens=80)


def test_a_port_in_use_is_named_with_a_way_out(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the local engine is not installed")
    model = tmp_path / "any.gguf"
    model.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CallError, match=f"^port {port} cannot be used: Address already in use$") as error:
            LocalServer(model, port=port).start()
    assert error.value.hint == "Use --port 0 for a free one."


def test_an_engine_that_does_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the local engine is not installed")
    model = tmp_path / "any.gguf"
    model.write_bytes(b"no model")
    with pytest.raises(ProviderError, match=r"^the local engine did not start: [^\n]+$"):
        LocalServer(model).start()


def test_a_template_is_found_by_its_whole_name_in_the_head_of_a_file(tmp_path: Path) -> None:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    model, name = tmp_path / "any.gguf", "tokenizer.chat_template"
    for names in ([], [name], [f"{name}.tool_use"], [f"{name}s", f"{name}.tool_use", name, "general.name"]):
        pairs = [string(one) + struct.pack("<I", 8) + string(f"ä {one}") for one in names]
        model.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(pairs))
        assert chat_template(model) == (f"ä {name}" if name in names else "")
    for content in (b"", b"GGUF", struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)):
        model.write_bytes(content)
        with pytest.raises(FormatError, match=r"^any\.gguf is not a GGUF file of version 3$"):
            chat_template(model)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int, timeout_s: float = 10.0) -> None:
    """Wait for a process that is nobody's child any more to end."""
    handle = os.pidfd_open(pid) if Path(f"/proc/{pid}").exists() else None
    if handle is not None:
        assert select.select([handle], [], [], timeout_s)[0], "the engine outlived its server"
        os.close(handle)
