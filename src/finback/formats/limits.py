"""Every limit a model file is held to, in one place.

Owns the numbers; the readers own the checks. Each is far above what a real model needs and low enough that a
file made to hurt costs under 200 MB and 5 s (docs/architecture.md, section 7). Refuses to be configured: a
limit that can be switched off protects nobody.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20

# GGUF header: metadata and tensor list. The largest vocabularies (262k tokens, 514k merges) take about 17 MB,
# an embedded tokenizer.json about as much again.
GGUF_HEADER_BYTES: Final = 64 * MIB
GGUF_KEYS: Final = 1 << 16
GGUF_TENSORS: Final = 1 << 17  # experts are stacked in GGUF: V4-Flash holds 1,328
GGUF_KEY_BYTES: Final = 65535  # of the format itself
GGUF_ARRAY_DEPTH: Final = 2  # an array of arrays is the deepest we walk; the format sets no limit
GGUF_STRINGS: Final = 1 << 22  # in arrays, over all keys
GGUF_INNER_ARRAYS: Final = 1 << 16  # arrays inside arrays, over all keys
GGUF_DIMENSIONS: Final = 4
GGUF_ALIGNMENT: Final = (8, 1 << 16)  # powers of two between these; the format asks for a multiple of 8
GGUF_PARTS: Final = 4096

# safetensors: the format allows a header of 100 MB, but JSON grows about tenfold in memory. A shard of
# V4-Flash holds 1,500 tensors in 0.2 MB and 12,000 marks; the index of V4-Pro has 12 MB and 145,000.
JSON_BYTES: Final = 16 * MIB  # as Python holds it: text that is not ASCII counts four times
JSON_MARKS: Final = 600_000  # of , [ and {: each costs an object while parsing
SAFETENSORS_DIMENSIONS: Final = 8
SAFETENSORS_SHARDS: Final = 4096

TENSOR_NAME_BYTES: Final = 256  # in both containers; the longest official name has 60
TENSOR_ELEMENTS: Final = (1 << 63) - 1  # element and byte counts must fit a signed 64-bit integer
