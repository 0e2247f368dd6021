"""What Ollama's endpoints say of models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

Owns the shapes. Source: the API's reference and what clients were seen to read. Refuses to look for models; the caller
describes those that are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from finback.server.fields import Fields

API_VERSION = "0.12.11"
"""The version of Ollama whose API this is: clients compare it with the first version that had what they need."""

_NEVER = "2300-01-01T00:00:00Z"  # clients read a date; one so far away is shown as "Forever"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients are told of it.

    digest: SHA-256 in hex. size: bytes on disk. parameters: how many numbers. format: of its files, such as
    safetensors. family: the name of its architecture. modified, expires: seconds since 1970; expires None is never.
    memory: bytes of memory that it takes; on_gpu: of these, those on a GPU.
    """

    name: str
    digest: str
    size: int
    parameters: int
    quantization: str
    format: str
    family: str
    context_length: int
    embedding_length: int
    modified: float
    capabilities: tuple[str, ...] = ("completion", "tools", "thinking")
    memory: int = 0
    on_gpu: int = 0
    expires: float | None = None


def tags(models: Sequence[ServedModel]) -> dict[str, Any]:
    """/api/tags: the models there are."""
    return {"models": [{**_named(m), "modified_at": date(m.modified), "size": m.size, **_made(m)} for m in models]}


def ps(models: Sequence[ServedModel]) -> dict[str, Any]:
    """/api/ps: the models in memory."""
    return {
        "models": [
            {
                **_named(model),
                "size": model.memory,
                **_made(model),
                "expires_at": _NEVER if model.expires is None else date(model.expires),
                "size_vram": model.on_gpu,
                "context_length": model.context_length,
            }
            for model in models
        ]
    }


def read_show(body: object) -> str:
    """The model that a body of /api/show asks for; `name` is its old word."""
    fields = Fields(body)
    return fields.string("model") or fields.string("name") or fields.needed("model")


def show(model: ServedModel) -> dict[str, Any]:
    """/api/show: one model. Clients look for `.Suffix` in the template to know that text can be filled in."""
    infill = "{{ .Suffix }}" if "insert" in model.capabilities else ""
    return {
        "modelfile": f"FROM {model.name}\n",
        "parameters": f"{'num_ctx':<30} {model.context_length}",
        "template": "{{ .System }}{{ .Prompt }}" + infill,
        "details": _details(model),
        "model_info": {
            "general.architecture": model.family,
            "general.basename": model.name,
            "general.parameter_count": model.parameters,
            f"{model.family}.context_length": model.context_length,
            f"{model.family}.embedding_length": model.embedding_length,
        },
        "capabilities": list(model.capabilities),
        "modified_at": date(model.modified),
    }


def version(own: str) -> dict[str, Any]:
    """/api/version. own: the server's."""
    return {"version": API_VERSION, "server": f"finback {own}"}


def date(seconds: float) -> str:
    """A time, seconds since 1970, in RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _named(model: ServedModel) -> dict[str, Any]:
    return {"name": model.name, "model": model.name}


def _made(model: ServedModel) -> dict[str, Any]:
    return {"digest": model.digest, "details": _details(model)}


def _details(model: ServedModel) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": model.format,
        "family": model.family,
        "families": [model.family],
        "parameter_size": _count(model.parameters),
        "quantization_level": model.quantization,
    }


def _count(number: int) -> str:
    """A number of parameters for people: "284.9B"."""
    for power, unit in ((9, "B"), (6, "M"), (3, "K")):
        if number >= 10**power:
            return f"{number / 10**power:.1f}{unit}"
    return str(number)
