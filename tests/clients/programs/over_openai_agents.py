"""A loop of tools with OpenAI's Agents SDK: ADDRESS API TASK. API is chat or responses."""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from tools import ALL

address, api, task = sys.argv[1:]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel


async def main() -> None:
    tools = [function_tool(function) for function in ALL.values()]
    run = Runner.run_streamed(Agent("reader", model=kind("scripted", client), tools=tools), task)
    async for _ in run.stream_events():
        pass
    print(run.final_output)


asyncio.run(main())
