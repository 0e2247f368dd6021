"""The codec table: every element type a model file may hold, and the NumPy truth of those we compute on.

Owns sizes, names and GGML numbers of all types, which activation encoding a matrix of each type wants, and
`decode` / `encode` for the types with a codec. This is the definition the native kernels are tested against,
written to be read, not to be fast. Refuses, by name, types it can only list (architecture, section 3).
Sources: architecture spec, sections 2.2, 2.3 and 7; the layouts of GGML files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from finback.errors import NumericError, RequestError, shown
from finback.formats import iquants, kquants
from finback.formats.microfloats import (
    E2M1_VALUES,
    E4M3_VALUES,
    MX_BLOCK,
    decode_fp8,
    decode_mxfp4_pairs,
    encode_e2m1,
    encode_e4m3,
    encode_fp8,
    encode_mxfp4_pairs,
    mxfp4_to_halves,
    mxfp4_to_pairs,
    require_finite,
)

__all__ = [
    "FORMATS",
    "GGML_FORMATS",
    "Activation",
    "BlockFormat",
    "decode",
    "decode_fp8",
    "decode_mxfp4_pairs",
    "encode",
    "encode_fp8",
    "encode_mxfp4_pairs",
    "format_of",
    "has_codec",
    "mxfp4_to_halves",
    "mxfp4_to_pairs",
    "row_bytes",
]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Activation = Literal["A8x32", "A8x256", "BF16", "F32"]

CHUNK_VALUES: Final = 1 << 20  # values coded at a time: keeps the temporaries of a large matrix small


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One element type. A row of `cols` values is `cols / block` blocks of `block_bytes` bytes."""

    name: str
    ggml_type: int | None  # its number in a GGUF tensor list; None: not storable there
    block: int  # values per block; 1 for plain types
    block_bytes: int
    activation: Activation | None  # what the other operand of a product is packed to; None: no product


def _table() -> Mapping[str, BlockFormat]:
    rows: list[tuple[str, int | None, int, int, Activation | None]] = [
        ("F32", 0, 1, 4, "F32"),
        ("F16", 1, 1, 2, "F32"),
        ("BF16", 30, 1, 2, "F32"),
        ("FP8_E4M3", None, 1, 1, "BF16"),  # scales in a plane of their own
        ("MXFP4", 39, 32, 17, "A8x32"),  # scale byte, then halves: byte i holds values i and i + 16
        ("MXFP4_PAIRS", None, 32, 16, "A8x32"),  # scales in a plane of their own; byte i: values 2i, 2i + 1
        ("Q8_0", 8, 32, 34, "A8x32"),
        ("Q4_0", 2, 32, 18, "A8x32"),
        ("Q2_K", 10, 256, 84, "A8x256"),
        ("Q3_K", 11, 256, 110, "A8x256"),
        ("Q4_K", 12, 256, 144, "A8x256"),
        ("Q5_K", 13, 256, 176, "A8x256"),
        ("Q6_K", 14, 256, 210, "A8x256"),
        ("IQ1_S", 19, 256, 50, "A8x256"),
        ("IQ1_M", 29, 256, 56, "A8x256"),
        ("IQ2_XXS", 16, 256, 66, "A8x256"),
        ("IQ2_XS", 17, 256, 74, "A8x256"),
        ("IQ2_S", 22, 256, 82, "A8x256"),
        ("IQ3_XXS", 18, 256, 98, "A8x256"),
        ("IQ3_S", 21, 256, 110, "A8x256"),
        ("IQ4_NL", 20, 32, 18, "A8x32"),
        ("IQ4_XS", 23, 256, 136, "A8x256"),
        # Plain types: indices, packed codes and scale planes.
        ("E8M0", None, 1, 1, None),
        ("BOOL", None, 1, 1, None),
        ("U8", None, 1, 1, None),
        ("I8", 24, 1, 1, None),
        ("U16", None, 1, 2, None),
        ("I16", 25, 1, 2, None),
        ("U32", None, 1, 4, None),
        ("I32", 26, 1, 4, None),
        ("U64", None, 1, 8, None),
        ("I64", 27, 1, 8, None),
        ("F64", 28, 1, 8, None),
        # Known by size alone, so that files holding them can be listed and refused by name.
        ("Q4_1", 3, 32, 20, None),
        ("Q5_0", 6, 32, 22, None),
        ("Q5_1", 7, 32, 24, None),
        ("Q8_1", 9, 32, 36, None),
        ("Q8_K", 15, 256, 292, None),
        ("TQ1_0", 34, 256, 54, None),
        ("TQ2_0", 35, 256, 66, None),
        ("NVFP4", 40, 64, 36, None),
        ("Q1_0", 41, 128, 18, None),
    ]
    return MappingProxyType({row[0]: BlockFormat(*row) for row in rows})


FORMATS: Final = _table()
GGML_FORMATS: Final[Mapping[int, BlockFormat]] = MappingProxyType(
    {entry.ggml_type: entry for entry in FORMATS.values() if entry.ggml_type is not None}
)


def format_of(name: str) -> BlockFormat:
    """The table row called `name`. Raises RequestError for a name that is not in the table."""
    try:
        return FORMATS[name]
    except KeyError:
        raise RequestError(f"format {shown(name)} is unknown; known are {', '.join(FORMATS)}") from None


def row_bytes(format: str, cols: int) -> int:
    """Bytes of one row of `cols` values; RequestError unless cols is a positive multiple of the block."""
    entry = format_of(format)
    if cols < 1 or cols % entry.block:
        raise RequestError(f"a row of {cols} values is no multiple of {entry.block}, the block of {format}")
    return cols // entry.block * entry.block_bytes


def has_codec(format: str) -> bool:
    """Whether `decode` knows this type; the others can be listed and copied only."""
    return format_of(format).name in _CODECS


def decode(format: str, data: Bytes, rows: int, cols: int) -> Floats:
    """The values of a matrix stored row after row in `format` -> float32 [rows, cols].

    `data` is uint8 of any shape with rows * row_bytes(format, cols) bytes. Of FP8_E4M3 and MXFP4_PAIRS, whose
    scales lie elsewhere, it gives the unscaled values; `decode_fp8` and `decode_mxfp4_pairs` apply them.
    Exact for every type (each value is one rounding of the real product). Raises RequestError for types
    without a codec and for sizes that do not fit.
    """
    codec, entry = _codec_of(format), format_of(format)
    width = row_bytes(format, cols)
    if data.dtype != np.uint8 or data.size != rows * width:
        raise RequestError(
            f"{rows} rows of {cols} {format} values take {rows * width} bytes of uint8; "
            f"got {data.size} of {data.dtype}"
        )
    blocks = np.ascontiguousarray(data).reshape(-1, entry.block_bytes)
    out = np.empty((len(blocks), entry.block), np.float32)
    step = CHUNK_VALUES // entry.block
    with np.errstate(over="ignore", invalid="ignore"):  # a stored scale may be infinite or NaN
        for start in range(0, len(blocks), step):
            out[start : start + step] = codec.decode(blocks[start : start + step])
    return out.reshape(rows, cols)


def encode(format: str, x: Floats) -> Bytes:
    """Rounds float32 [rows, cols] to `format`; returns uint8 [rows, row_bytes(format, cols)].

    F16 and BF16 round to nearest, ties to even; Q8_0 rounds ties away from zero and Q4_0 as GGML does, so
    both give GGML's bytes; MXFP4 and FP8 follow the checkpoint rules of `microfloats`; K-quants and IQ4 search
    (`fitting`). FP8_E4M3 and MXFP4_PAIRS round the values as they are, without a scale. Raises NumericError
    for values that are not finite or that the format cannot hold, RequestError for sizes that do not fit and for
    the grid formats (IQ1, IQ2, IQ3), which are only read.
    """
    codec, entry = _codec_of(format), format_of(format)
    if codec.encode is None:
        writable = ", ".join(name for name, known in _CODECS.items() if known.encode is not None)
        raise RequestError(f"format {format} can be read but not encoded; those that can are {writable}")
    if x.ndim != 2 or x.dtype != np.float32:
        raise RequestError(f"encode wants float32 [rows, cols]; got {x.dtype} {list(x.shape)}")
    rows, cols = x.shape
    width = row_bytes(format, cols)
    require_finite(x, format)
    values = np.ascontiguousarray(x).reshape(-1, entry.block)
    out = np.empty((len(values), entry.block_bytes), np.uint8)
    step = CHUNK_VALUES // entry.block
    for start in range(0, len(values), step):
        out[start : start + step] = codec.encode(values[start : start + step])
    return out.reshape(rows, width)


class _Codec(NamedTuple):
    decode: Callable[[Bytes], Floats]  # uint8 [n, block_bytes] -> float32 [n, block]
    encode: Callable[[Floats], Bytes] | None = None  # the way back


def _codec_of(format: str) -> _Codec:
    try:
        return _CODECS[format_of(format).name]
    except KeyError:
        raise RequestError(
            f"format {format} can be listed but not computed on; those with a codec are {', '.join(_CODECS)}"
        ) from None


def _decode_f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def _encode_f32(x: Floats) -> Bytes:
    return x.view(np.uint8)


def _decode_f16(blocks: Bytes) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _encode_f16(x: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return _require_no_overflow(x.astype(np.float16), x, "F16").view(np.uint8)


def _decode_bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _encode_bf16(x: Floats) -> Bytes:
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16  # adds half, less one when the kept part is even
    codes = rounded.astype(np.uint16)
    _require_no_overflow((codes.astype(np.uint32) << 16).view(np.float32), x, "BF16")
    return codes.view(np.uint8)


def _decode_fp8_codes(blocks: Bytes) -> Floats:
    return E4M3_VALUES[blocks]


def _decode_pair_codes(blocks: Bytes) -> Floats:
    return E2M1_VALUES[np.stack([blocks & 15, blocks >> 4], axis=2).reshape(-1, MX_BLOCK)]


def _encode_pair_codes(x: Floats) -> Bytes:
    codes = encode_e2m1(x)
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _decode_mxfp4(blocks: Bytes) -> Floats:
    packed, scales = mxfp4_to_pairs(blocks)
    return decode_mxfp4_pairs(packed, scales)


def _encode_mxfp4(x: Floats) -> Bytes:
    return mxfp4_to_halves(*encode_mxfp4_pairs(x))


def _decode_q8_0(blocks: Bytes) -> Floats:
    """Block: scale (half), 32 int8; value = scale * code."""
    return _half_scale(blocks) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _encode_q8_0(x: Floats) -> Bytes:
    """Scale = max|x| / 127 in float32, code = x * (1 / scale) rounded half away from zero."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    ratio = x * _reciprocal(scale)
    magnitude = np.abs(ratio)
    whole = np.floor(magnitude)
    codes = np.copysign(whole + (magnitude - whole >= 0.5), ratio).astype(np.int8)
    return np.concatenate([_store_half(scale, "Q8_0"), codes.view(np.uint8)], axis=1)


def _decode_q4_0(blocks: Bytes) -> Floats:
    """Block: scale (half), 16 bytes; byte i holds values i (low) and i + 16; value = scale * (code - 8)."""
    codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return _half_scale(blocks) * (codes.astype(np.float32) - np.float32(8))


def _encode_q4_0(x: Floats) -> Bytes:
    """Scale = the value of largest magnitude / -8, so it gets code 0; code = floor(x / scale + 8.5) <= 15."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    scale = peak / np.float32(-8)
    codes = np.minimum(np.trunc(x * _reciprocal(scale) + np.float32(8.5)), np.float32(15)).astype(np.uint8)
    return np.concatenate([_store_half(scale, "Q4_0"), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _half_scale(blocks: Bytes) -> Floats:
    """The half-precision scale in the first two bytes of each block, float32 [n, 1]."""
    return blocks[:, :2].copy().view(np.float16).astype(np.float32)


def _store_half(scale: Floats, name: str) -> Bytes:
    """float32 [n, 1] as two bytes each."""
    with np.errstate(over="ignore"):
        return _require_no_overflow(scale.astype(np.float16), scale, name).view(np.uint8)


def _reciprocal(scale: Floats) -> Floats:
    """1 / scale; 0 where the scale is 0 or so small (stored as 0, too) that the reciprocal is infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _require_no_overflow(rounded: npt.NDArray[Any], x: Floats, name: str) -> npt.NDArray[Any]:
    """`rounded`, the image of the finite x; raises NumericError if some value became infinite."""
    if np.isinf(rounded).any():
        raise NumericError(f"cannot encode as {name}: {float(np.abs(x).max()):.3g} is beyond its range")
    return rounded


_CODECS: Final[Mapping[str, _Codec]] = MappingProxyType(
    {
        "F32": _Codec(_decode_f32, _encode_f32),
        "F16": _Codec(_decode_f16, _encode_f16),
        "BF16": _Codec(_decode_bf16, _encode_bf16),
        "FP8_E4M3": _Codec(_decode_fp8_codes, encode_e4m3),
        "MXFP4": _Codec(_decode_mxfp4, _encode_mxfp4),
        "MXFP4_PAIRS": _Codec(_decode_pair_codes, _encode_pair_codes),
        "Q8_0": _Codec(_decode_q8_0, _encode_q8_0),
        "Q4_0": _Codec(_decode_q4_0, _encode_q4_0),
        "Q2_K": _Codec(kquants.decode_q2_k, kquants.encode_q2_k),
        "Q3_K": _Codec(kquants.decode_q3_k, kquants.encode_q3_k),
        "Q4_K": _Codec(kquants.decode_q4_k, kquants.encode_q4_k),
        "Q5_K": _Codec(kquants.decode_q5_k, kquants.encode_q5_k),
        "Q6_K": _Codec(kquants.decode_q6_k, kquants.encode_q6_k),
        "IQ1_S": _Codec(iquants.decode_iq1_s),
        "IQ1_M": _Codec(iquants.decode_iq1_m),
        "IQ2_XXS": _Codec(iquants.decode_iq2_xxs),
        "IQ2_XS": _Codec(iquants.decode_iq2_xs),
        "IQ2_S": _Codec(iquants.decode_iq2_s),
        "IQ3_XXS": _Codec(iquants.decode_iq3_xxs),
        "IQ3_S": _Codec(iquants.decode_iq3_s),
        "IQ4_NL": _Codec(iquants.decode_iq4_nl, iquants.encode_iq4_nl),
        "IQ4_XS": _Codec(iquants.decode_iq4_xs, iquants.encode_iq4_xs),
    }
)
