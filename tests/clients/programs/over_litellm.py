"""A loop of tools with LiteLLM: ADDRESS MODEL TASK."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import; else it asks the net for prices

import litellm

from tools import ALL

address, model, task = sys.argv[1:]
kinds = {"path": "string", "content": "string", "command": "string", "seconds": "integer"}


def declared(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": kinds[parameter]} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}


tools = [declared("read", "path"), declared("write", "path", "content"), declared("run", "command", "seconds")]
messages: list[Any] = [{"role": "user", "content": task}]
streams = not model.startswith("ollama")  # LiteLLM makes one call of two that come as lines of Ollama's API
while True:
    answer = litellm.completion(model, messages, api_base=address, api_key="none", tools=tools, stream=streams)
    if streams:
        answer = litellm.stream_chunk_builder([*answer], messages=messages)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = ALL[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
assert answer.usage.total_tokens > 100, answer.usage
print(message.content)
