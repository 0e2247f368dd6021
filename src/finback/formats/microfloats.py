"""The 8- and 4-bit floats of DeepSeek checkpoints: E4M3, E2M1 and the E8M0 scale, and matrices made of them.

Owns the value of every code, the rounding rules, FP8 matrices with block scales, MXFP4 rows, and the
permutation between the two MXFP4 layouts. All of it is exact or correctly rounded, in NumPy, for clarity:
the kernels are tested against it. Refuses to encode values that are not finite: they are a fault upstream.
Source: architecture spec, sections 2.2 and 2.3; OCP 8-bit floating point and microscaling (MX) formats.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from finback.errors import NumericError, RequestError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

E4M3_MAX: Final = 448.0
E2M1_MAX: Final = 6.0
MX_BLOCK: Final = 32  # columns under one scale of an MXFP4 row
FP8_AMAX_FLOOR: Final = 1e-4  # a block's maximum counts as at least this: keeps the scale normal
FP4_AMAX_FLOOR: Final = 6 * 2.0**-126  # the same for FP4: the scale is at least 2^-126


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[code & 127 == 127] = np.nan  # the "fn" variant: no infinity, one NaN per sign
    return np.copysign(magnitude, np.where(code < 128, 1.0, -1.0)).astype(np.float32)


def _e8m0_table() -> Floats:
    scale = np.ldexp(np.float64(1), np.arange(256) - 127)
    scale[255] = np.nan
    return scale.astype(np.float32)  # exact: 2^-127, code 0, is a float32 subnormal


E4M3_VALUES: Final = _e4m3_table()  # float32 [256]: value of each code
E8M0_VALUES: Final = _e8m0_table()  # float32 [256]: 2^(code - 127), 255 is NaN
E2M1_VALUES: Final = np.array(  # float32 [16]: bit 3 is the sign, code 8 is minus zero
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)


def encode_e4m3(x: Floats) -> Bytes:
    """E4M3 codes of x (any shape): nearest, ties to the even code, beyond +-448 saturated; -0 is 0x80."""
    return _encode_minifloat(x, mantissa_bits=3, lowest_exponent=-6, highest_code=126, sign_bit=128)


def encode_e2m1(x: Floats) -> Bytes:
    """E2M1 codes 0..15 of x (any shape): nearest, ties to the even code, beyond +-6 saturated."""
    return _encode_minifloat(x, mantissa_bits=1, lowest_exponent=0, highest_code=7, sign_bit=8)


def _encode_minifloat(
    x: Floats, *, mantissa_bits: int, lowest_exponent: int, highest_code: int, sign_bit: int
) -> Bytes:
    """Rounds to a small float whose positive codes count up through its values, as IEEE-like formats do.

    With e = max(floor(log2 |x|), lowest) the spacing is 2^(e - mantissa_bits); the multiple of it nearest to
    |x|, added to the codes below exponent e, is the code. A carry into the next exponent comes out right.
    """
    require_finite(x, "a small float")
    magnitude = np.abs(x).astype(np.float64)
    exponent = np.where(magnitude == 0, lowest_exponent, np.frexp(magnitude)[1] - 1)
    exponent = np.maximum(exponent, lowest_exponent)
    steps = np.rint(np.ldexp(magnitude, mantissa_bits - exponent)).astype(np.int32)  # rint: ties to even
    code = ((exponent - lowest_exponent) << mantissa_bits) + steps
    signed: Bytes = (np.minimum(code, highest_code) | np.where(np.signbit(x), sign_bit, 0)).astype(np.uint8)
    return signed


def ceil_scale(amax: Floats, largest: float) -> Bytes:
    """E8M0 code of the smallest power of two s with amax / s <= `largest`; exact powers are kept.

    Computed in float64, where no float32 maximum divided by `largest` lands on the wrong side of a power.
    """
    mantissa, exponent = np.frexp(amax.astype(np.float64) / largest)
    code: Bytes = np.clip(np.where(mantissa == 0.5, exponent - 1, exponent) + 127, 0, 254).astype(np.uint8)
    return code


def decode_fp8(codes: Bytes, scales: Bytes | Floats, block: tuple[int, int]) -> Floats:
    """An FP8 matrix: E4M3 codes uint8 [rows, cols] times one scale per block -> float32 [rows, cols].

    `scales` is [ceil(rows / block[0]), ceil(cols / block[1])], E8M0 codes (uint8) or float32 values. Blocks
    at the right and lower edge may be partial. Raises RequestError when the shapes do not belong together.
    """
    rows, cols = codes.shape
    expected = (-(-rows // block[0]), -(-cols // block[1]))
    if scales.shape != expected:
        raise RequestError(
            f"FP8 scales have shape {list(scales.shape)}; a matrix of {rows} x {cols} in blocks of "
            f"{block[0]} x {block[1]} needs {list(expected)}"
        )
    factor = E8M0_VALUES[scales] if scales.dtype == np.uint8 else scales.astype(np.float32)
    across = np.repeat(np.repeat(factor, block[0], axis=0)[:rows], block[1], axis=1)[:, :cols]
    with np.errstate(over="ignore", invalid="ignore"):  # a stored scale may be infinite or NaN
        values: Floats = E4M3_VALUES[codes] * across
    return values


def encode_fp8(x: Floats, block: tuple[int, int]) -> tuple[Bytes, Bytes]:
    """Rounds float32 [rows, cols] to E4M3 codes and E8M0 block scales; the inverse of `decode_fp8`.

    Scale = power-of-two ceiling of max(|x|, 1e-4) / 448 in the block, so no value saturates. Returns (codes
    uint8 [rows, cols], scales uint8 [ceil(rows / block[0]), ceil(cols / block[1])]). Raises NumericError on
    values that are not finite.
    """
    require_finite(x, "FP8_E4M3")
    rows, cols = x.shape
    padded = np.pad(np.abs(x), ((0, -rows % block[0]), (0, -cols % block[1])))
    tiles = padded.reshape(padded.shape[0] // block[0], block[0], padded.shape[1] // block[1], block[1])
    amax = np.maximum(tiles.max(axis=(1, 3)), np.float32(FP8_AMAX_FLOOR))
    scales = ceil_scale(amax, E4M3_MAX)
    across = np.repeat(np.repeat(E8M0_VALUES[scales], block[0], axis=0)[:rows], block[1], axis=1)[:, :cols]
    return encode_e4m3(x / across), scales


def decode_mxfp4_pairs(packed: Bytes, scales: Bytes) -> Floats:
    """MXFP4 as safetensors hold it -> float32 [rows, cols].

    `packed` is uint8 [rows, cols / 2], low nibble = even column; `scales` is E8M0 [rows, cols / 32].
    """
    codes = _unpack_pairs(packed, scales)
    with np.errstate(over="ignore", invalid="ignore"):
        values = E2M1_VALUES[codes] * E8M0_VALUES[scales][..., None]
    return values.reshape(len(packed), -1)


def encode_mxfp4_pairs(x: Floats) -> tuple[Bytes, Bytes]:
    """Rounds float32 [rows, cols] to MXFP4; the inverse of `decode_mxfp4_pairs`, cols a multiple of 32.

    Scale = power-of-two ceiling of max(|x|, 6 * 2^-126) / 6 per 32 columns, so no value saturates. Returns
    (packed uint8 [rows, cols / 2], scales uint8 [rows, cols / 32]). `mxfp4_to_halves` turns the pair into
    GGML blocks of the same values. Raises NumericError on values that are not finite.
    """
    require_finite(x, "MXFP4")
    rows, cols = x.shape
    if cols % MX_BLOCK:
        raise RequestError(f"MXFP4 needs rows of a multiple of {MX_BLOCK} values, not {cols}")
    groups = x.reshape(rows, cols // MX_BLOCK, MX_BLOCK)
    amax = np.maximum(np.abs(groups).max(axis=2), np.float32(FP4_AMAX_FLOOR))
    scales = ceil_scale(amax, E2M1_MAX)
    codes = encode_e2m1((groups / E8M0_VALUES[scales][..., None]).astype(np.float32))
    return _pack_pairs(codes), scales


def mxfp4_to_halves(packed: Bytes, scales: Bytes) -> Bytes:
    """Safetensors planes -> GGML blocks uint8 [rows, cols / 32 * 17]: a pure permutation, no value changes.

    A GGML block is the scale byte, then 16 bytes of which byte i holds element i (low) and i + 16 (high).
    """
    codes = _unpack_pairs(packed, scales)
    halves = codes[..., :16] | codes[..., 16:] << np.uint8(4)
    return np.concatenate([scales[..., None], halves], axis=2).reshape(len(packed), -1)


def mxfp4_to_pairs(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """GGML blocks uint8 [rows, cols / 32 * 17] -> (packed, scales) of `decode_mxfp4_pairs`, the way back."""
    rows, width = blocks.shape
    if width % 17:
        raise RequestError(f"rows of {width} bytes are no whole number of 17-byte MXFP4 blocks")
    split = blocks.reshape(rows, width // 17, 17)
    codes = np.concatenate([split[..., 1:] & np.uint8(15), split[..., 1:] >> np.uint8(4)], axis=2)
    return _pack_pairs(codes), split[..., 0].copy()


def _unpack_pairs(packed: Bytes, scales: Bytes) -> Bytes:
    """E2M1 codes uint8 [rows, cols / 32, 32] of a packed plane, after checking it against its scales."""
    rows, width = packed.shape
    if scales.shape != (rows, width // 16) or width % 16:
        raise RequestError(
            f"MXFP4 scales have shape {list(scales.shape)}; packed codes of {rows} x {width} bytes need "
            f"{[rows, width // 16]} and a row of a multiple of 16 bytes"
        )
    pairs = packed.reshape(rows, width // 16, 16)
    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=3).reshape(rows, width // 16, MX_BLOCK)


def _pack_pairs(codes: Bytes) -> Bytes:
    """Codes uint8 [rows, blocks, 32] -> packed uint8 [rows, blocks * 16], low nibble = even column."""
    return (codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)).reshape(len(codes), -1)


def require_finite(x: Floats, target: str) -> None:
    """Raises NumericError naming the first value that cannot be rounded to `target`."""
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise NumericError(f"cannot encode as {target}: the value at {list(where)} is {x[where]}")
