"""A loop of tools with pydantic-ai: ADDRESS API TASK. API is chat, responses or anthropic."""

from __future__ import annotations

import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tools import ALL

address, api, task = sys.argv[1:]
if api == "anthropic":
    model = AnthropicModel("scripted", provider=AnthropicProvider(base_url=address, api_key="none"))
else:
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    model = kind("scripted", provider=OpenAIProvider(base_url=f"{address}/v1", api_key="none"))
print(Agent(model, tools=[*ALL.values()]).run_sync(task).output)
