"""Where each provider is reached, and what its key is called; nothing here reads the environment."""

from __future__ import annotations

import msgspec

from quire.providers.facts import resolve, split_target


class Endpoint(msgspec.Struct, frozen=True):
    """A provider's address and the environment variables its key is usually kept in, first one first."""

    base_url: str
    keys: tuple[str, ...] = ()
    # A server of one's own usually asks for no key.
    needs_key: bool = True


ENDPOINTS: dict[str, Endpoint] = {
    "anthropic": Endpoint("https://api.anthropic.com", ("ANTHROPIC_API_KEY",)),
    "openai": Endpoint("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "azure": Endpoint("", ("AZURE_OPENAI_API_KEY",)),
    "gemini": Endpoint("https://generativelanguage.googleapis.com", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    # boto3 finds credentials and region by its own rules.
    "bedrock": Endpoint("", ("AWS_BEARER_TOKEN_BEDROCK",), needs_key=False),
    "deepseek": Endpoint("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "xai": Endpoint("https://api.x.ai/v1", ("XAI_API_KEY",)),
    "groq": Endpoint("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "mistral": Endpoint("https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
    "openrouter": Endpoint("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "vllm": Endpoint("http://127.0.0.1:8000/v1", ("VLLM_API_KEY",), needs_key=False),
    "sglang": Endpoint("http://127.0.0.1:30000/v1", ("SGLANG_API_KEY",), needs_key=False),
    "llamacpp": Endpoint("http://127.0.0.1:8080/v1", ("LLAMA_API_KEY",), needs_key=False),
    "ollama": Endpoint("http://127.0.0.1:11434/v1", ("OLLAMA_API_KEY",), needs_key=False),
}


def endpoint_for(target: str) -> Endpoint:
    """The endpoint of "provider:model"."""
    return ENDPOINTS[resolve(split_target(target)[0])[0]]
