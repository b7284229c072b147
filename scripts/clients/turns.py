"""What every client is asked, with nothing but the standard library: the runners import it in their own environments."""

import json
import subprocess
import sys
from pathlib import Path

NOTES = {1: "the river is wide", 2: "the bridge is old", 3: "the harbour is calm"}
# So that a conversation is long enough to be cached.
FILLING = "\n".join(f"Line {number}: nothing else is said here of what was seen." for number in range(150))
PROMPTS = [f"Turn {number}: read note {number} and say what it says." for number in NOTES]
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5.4",
    "openai-chat": "gpt-4.1",
    "openai-code": "gpt-5.6-sol",  # codex lets it write programs that call its tools
    "gemini": "gemini-3.5-flash",
}


def note_file(number: int) -> str:
    return f"note-{number}.txt"


def read_note(number: int) -> str:
    """Read a note."""
    return Path(note_file(number)).read_text()


def arguments() -> tuple[str, str, str]:
    """The wire a runner speaks, the model's name, the emulator's address."""
    wire, url = sys.argv[1:]
    return wire, MODELS[wire], url


def write_json(file: str, value: object) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps(value))


def run(*command: str) -> None:
    """One turn of a command-line client; its words go to our own output, its failure ends us."""
    if code := subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        sys.exit(code)
