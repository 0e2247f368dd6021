"""What clients are told of the model: its size, its kind, what it can do.

Owns the description, made once from the files. Refuses to load weights for it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from finback.server.dialects.ollama_models import ServedModel
from finback.weights.checkpoint import OpenedCheckpoint

FAMILY = "deepseek4"
"""The architecture, by the name that GGUF files give it."""


@dataclass(frozen=True, slots=True)
class Described:
    """A model. digest: of its files' identity, in hex. size: bytes of its files. quantization: the format that most of
    its numbers have. modified: seconds since 1970."""

    name: str
    digest: str
    size: int
    parameters: int
    quantization: str
    format: str
    family: str
    context: int
    width: int
    modified: float

    def for_ollama(self, name: str) -> ServedModel:
        """As Ollama's endpoints tell of it."""
        return ServedModel(
            name=name,
            digest=self.digest,
            size=self.size,
            parameters=self.parameters,
            quantization=self.quantization,
            format=self.format,
            family=self.family,
            context_length=self.context,
            embedding_length=self.width,
            modified=self.modified,
            capabilities=("completion", "tools", "thinking", "insert"),
        )


def describe(checkpoint: OpenedCheckpoint, name: str, context: int) -> Described:
    """What there is to say of a model of `context` tokens."""
    sizes: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()
    parameters = 0
    for tensor in checkpoint.stored():
        if (tensor.file, tensor.offset) not in seen:
            seen.add((tensor.file, tensor.offset))
            sizes[tensor.dtype] += tensor.nbytes
            parameters += math.prod(tensor.shape)
    files = [path.stat() for path in checkpoint.paths]
    architecture = checkpoint.config
    return Described(
        name=name,
        digest=checkpoint.identity,
        size=sum(file.st_size for file in files),
        parameters=parameters,
        quantization=max(sizes, key=lambda format: sizes[format]),
        format="gguf" if checkpoint.kind in ("gguf", "embedded") else "safetensors",
        family=FAMILY,
        context=context,
        width=architecture.hidden_size,
        modified=max(file.st_mtime for file in files),
    )
