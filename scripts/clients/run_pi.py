"""pi: a coding agent; one process a turn, the session carried on."""

import os

from turns import PROMPTS, arguments, run, write_json

wire, model, url = arguments()
APIS = {
    "anthropic": ("anthropic-messages", ""),
    "openai": ("openai-responses", "/v1"),
    "openai-chat": ("openai-completions", "/v1"),
    "gemini": ("google-generative-ai", "/v1beta"),
}
api, base = APIS[wire]
own = {"id": model, "reasoning": wire != "openai-chat", "contextWindow": 200000, "maxTokens": 32000}
provider = {"baseUrl": url + base, "api": api, "apiKey": "key", "models": [own]}
os.environ |= {"PI_CODING_AGENT_DIR": os.path.abspath("pi"), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
write_json("pi/models.json", {"providers": {"emulated": provider}})
for number, prompt in enumerate(PROMPTS):
    carry_on = ["--continue"] if number else []
    run("pi", "--provider", "emulated", "--model", model, "--thinking", "low", *carry_on, "-p", prompt)
