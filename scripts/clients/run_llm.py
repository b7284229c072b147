"""llm: its command line, streamed, one process a turn; its Gemini plugin has a fixed address, so Gemini is left out."""

import os

from turns import PROMPTS, arguments, run

wire, model, url = arguments()
os.environ |= {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}
READ_NOTE = """
def read_note(number: int) -> str:
    "Read a note."
    return open(f"note-{number}.txt").read()
"""
for number, prompt in enumerate(PROMPTS):
    carry_on = ["--continue"] if number else []
    run(
        "llm",
        "--model",
        f"anthropic/{model}" if wire == "anthropic" else model,
        "--key",
        "key",
        "--functions",
        READ_NOTE,
        *carry_on,
        prompt,
    )
