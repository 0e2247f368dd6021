"""transformers, eager, spoken to as wire.py says. Runs in an environment that has torch and transformers.

Owns the parameters: float32, eager attention and experts, the library's own cache.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from transformers import DeepseekV4ForCausalLM
from wire import serve


class Transformers:
    """A model and the cache of one sequence."""

    def __init__(self, folder: str) -> None:
        self._model = DeepseekV4ForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        self._cache: Any = None

    def read(self, ids: list[int]) -> None:
        self._cache = None
        self._run(ids)

    def step(self, token: int) -> None:
        self._run([token])

    def _run(self, ids: list[int]) -> None:
        with torch.no_grad():
            out = self._model(torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values


def load(asked: dict[str, Any]) -> tuple[Transformers, dict[str, Any]]:
    """A runner and the versions of the libraries."""
    torch.set_num_threads(asked["threads"])
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return Transformers(asked["model"]), {"versions": versions}


if __name__ == "__main__":
    serve(load)
