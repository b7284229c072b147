"""opencode: a coding agent; one process a turn, the session carried on."""

import os

from turns import PROMPTS, arguments, run, write_json

wire, model, url = arguments()
PACKAGES = {
    "anthropic": ("anthropic", "@ai-sdk/anthropic", "/v1"),
    "openai": ("openai", "@ai-sdk/openai", "/v1"),
    "openai-chat": ("emulated", "@ai-sdk/openai-compatible", "/v1"),
    "gemini": ("google", "@ai-sdk/google", "/v1beta"),
}
name, package, base = PACKAGES[wire]
own = {"name": model, "tool_call": True, "limit": {"context": 200000, "output": 32000}}
options = {"baseURL": url + base, "apiKey": "key"}
config = {
    "provider": {name: {"npm": package, "options": options, "models": {model: own}}},
    "small_model": f"{name}/{model}",
    "autoupdate": False,
    "share": "disabled",
    "permission": "allow",
}
write_json("opencode.json", config)
os.environ |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
for number, prompt in enumerate(PROMPTS):
    carry_on = ["--continue"] if number else []
    run("opencode", "run", "--model", f"{name}/{model}", *carry_on, prompt)
