"""gemini-cli: a coding agent in one process, driven as an editor does (ACP).

Not by --resume: a resumed session holds every tool result twice, which Gemini refuses.
"""

import json
import os
import subprocess
from typing import Any

from turns import PROMPTS, arguments, write_json

wire, model, url = arguments()
os.environ |= {"GEMINI_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_TELEMETRY_ENABLED": "false"}
settings = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"disableAutoUpdate": True},
}
write_json(f"{os.environ['HOME']}/.gemini/settings.json", settings)
command = ["gemini", "--acp", "--model", model, "--yolo", "--skip-trust"]
agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(method: str, **params: Any) -> Any:
    """Send a request; print what the agent says until the answer comes."""
    assert agent.stdin
    assert agent.stdout
    agent.stdin.write(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}) + "\n")
    agent.stdin.flush()
    for line in agent.stdout:
        message = json.loads(line)
        update = message.get("params", {}).get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            print(update["content"]["text"], end="")
        if message.get("id") == method:
            if "error" in message:
                raise SystemExit(message["error"])
            return message["result"]
    raise SystemExit("gemini-cli ended")


ask("initialize", protocolVersion=1, clientCapabilities={})
session = ask("session/new", cwd=os.getcwd(), mcpServers=[])["sessionId"]
for prompt in PROMPTS:
    ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": prompt}])
    print()
agent.terminate()
