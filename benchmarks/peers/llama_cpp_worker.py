"""llama.cpp through llama-cpp-python, spoken to as wire.py says. Runs in an environment that has that package.

Owns the parameters: same threads for prompts and steps, prompts in one batch cut into micro-batches of 512 (the
default), logits after the last token only. Uses the C interface, because the layout of weights (`repack`: rows interleaved
at load, which llama.cpp does by default where it has kernels for it) is no argument of the package's own class.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
from typing import Any

import llama_cpp
from wire import serve

MICRO_BATCH = 512


class LlamaCpp:
    """A model and a context of it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        model.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP if asked["mmap"] else llama_cpp.LLAMA_LOAD_MODE_NONE
        model.use_extra_bufts = asked["repack"]
        self._model = llama_cpp.llama_model_load_from_file(asked["model"].encode(), model)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {asked['model']}")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = asked["context"]
        context.n_ubatch = min(MICRO_BATCH, asked["context"])
        context.n_threads = context.n_threads_batch = asked["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no room for a context of {asked['context']} tokens")

    def read(self, ids: list[int]) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._decode(ids)

    def step(self, token: int) -> None:
        self._decode([token])

    def _decode(self, ids: list[int]) -> None:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        failed = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(ids)))
        if failed:
            raise RuntimeError(f"llama_decode of {len(ids)} tokens returned {failed}")
        llama_cpp.llama_get_logits_ith(self._context, -1)  # waits for them


def load(asked: dict[str, Any]) -> tuple[LlamaCpp, dict[str, Any]]:
    """A runner, the package's version, and the instruction sets that llama.cpp was built for."""
    runner = LlamaCpp(asked)
    system = llama_cpp.llama_print_system_info().decode().strip()
    versions = {"llama-cpp-python": importlib.metadata.version("llama-cpp-python")}
    return runner, {"versions": versions, "built_for": system, "micro_batch": MICRO_BATCH}


if __name__ == "__main__":
    serve(load)
