"""Strands: an agent with the conversation manager, or with its own sliding window."""

from typing import Any

import boto3
from replay import MODELS, SCHEMA, SYSTEM, read, report
from strands import Agent
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.models import BedrockModel, CacheConfig
from strands.tools import PythonAgentTool

from quire.adapters.strands import QuireConversationManager

asked, replay = read()


def tool(name: str) -> PythonAgentTool:
    def run(use: Any, **_: Any) -> Any:
        text = replay.result(name, use["input"])
        return {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": text}]}

    spec = {"name": name, "description": f"Run {name}.", "inputSchema": {"json": SCHEMA}}
    return PythonAgentTool(name, spec, run)


session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1")
model = BedrockModel(
    model_id=MODELS["bedrock"],
    boto_session=session,
    endpoint_url=asked.url,
    cache_config=None if asked.by_quire else CacheConfig(strategy="auto"),
)
manager = QuireConversationManager(asked.budget) if asked.by_quire else SlidingWindowConversationManager()
tools = [tool(name) for name in replay.tools]
agent = Agent(model, tools=tools, system_prompt=SYSTEM, conversation_manager=manager, callback_handler=None)
for text in replay.turns:
    agent(text)
report()
