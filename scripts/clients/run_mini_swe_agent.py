"""mini-swe-agent: one task, a step a turn; it does not stream."""

import os

from turns import PROMPTS, arguments, run

wire, model, url = arguments()
PREFIXES = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai", "gemini": "gemini"}
BASES = {"anthropic": url, "openai": f"{url}/v1", "openai-chat": f"{url}/v1", "gemini": f"{url}/v1beta"}
os.environ |= {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": os.path.abspath("mini"),
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
kind = "litellm_response" if wire == "openai" else "litellm"
settings = ["mini.yaml", f"model.model_kwargs.api_base={BASES[wire]}", "model.model_kwargs.api_key=key"]
options = [word for setting in settings for word in ("-c", setting)]
model = f"{PREFIXES[wire]}/{model}"
run("mini", "-m", model, "--model-class", kind, *options, "-y", "--exit-immediately", "-t", " ".join(PROMPTS))
