"""finback runs DeepSeek-V4-class mixture-of-experts models on the machine you have, with the same bits every time.

    import finback

    with finback.load() as engine:                       # the embedded model; or a GGUF file, or a model folder
        answer = engine.generate([{"role": "user", "content": "Tell me a story about a fox."}])
        print(answer.text)

The public names are those of `__all__`; they are imported when first used, so `import finback` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from finback.config import ARITHMETIC_VERSION
    from finback.engine.engine import Engine
    from finback.engine.load import load
    from finback.engine.request import Request
    from finback.engine.result import Completion, Event, Timings, TokenLogprob, Usage
    from finback.engine.sampling import Sampling
    from finback.engine.session import Session
    from finback.errors import (
        ContextLengthError,
        DownloadError,
        EngineStateError,
        FinbackError,
        MemoryBudgetError,
        ModelFileError,
        NumericError,
        PlatformError,
        RequestError,
        UnsupportedModelError,
    )

_HOMES = {
    "ARITHMETIC_VERSION": "finback.config",
    "Engine": "finback.engine.engine",
    "load": "finback.engine.load",
    "Completion": "finback.engine.result",
    "Event": "finback.engine.result",
    "Request": "finback.engine.request",
    "Timings": "finback.engine.result",
    "TokenLogprob": "finback.engine.result",
    "Usage": "finback.engine.result",
    "Sampling": "finback.engine.sampling",
    "Session": "finback.engine.session",
    "ContextLengthError": "finback.errors",
    "DownloadError": "finback.errors",
    "EngineStateError": "finback.errors",
    "FinbackError": "finback.errors",
    "MemoryBudgetError": "finback.errors",
    "ModelFileError": "finback.errors",
    "NumericError": "finback.errors",
    "PlatformError": "finback.errors",
    "RequestError": "finback.errors",
    "UnsupportedModelError": "finback.errors",
}

__all__ = [
    "ARITHMETIC_VERSION",
    "Completion",
    "ContextLengthError",
    "DownloadError",
    "Engine",
    "EngineStateError",
    "Event",
    "FinbackError",
    "MemoryBudgetError",
    "ModelFileError",
    "NumericError",
    "PlatformError",
    "Request",
    "RequestError",
    "Sampling",
    "Session",
    "Timings",
    "TokenLogprob",
    "UnsupportedModelError",
    "Usage",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'finback' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
