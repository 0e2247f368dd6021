"""A loop of tools with LangChain's OpenAI package: ADDRESS API TASK. API is chat or responses."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tools import ALL

address, api, task = sys.argv[1:]
tools = {name: tool(function) for name, function in ALL.items()}
model = ChatOpenAI(
    model="scripted", base_url=f"{address}/v1", api_key="none", use_responses_api=api == "responses", stream_usage=True
).bind_tools([*tools.values()])
messages = [HumanMessage(task)]
while True:
    whole = AIMessageChunk("")
    for piece in model.stream(messages):
        whole += piece
    messages.append(whole)
    if not whole.tool_calls:
        break
    messages += [tools[call["name"]].invoke(call) for call in whole.tool_calls]
assert whole.usage_metadata["total_tokens"] > 100, whole.usage_metadata
print(whole.text)
