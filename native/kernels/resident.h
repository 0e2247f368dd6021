// The resident layout of integer block formats: sixteen rows side by side, so that a register of codes
// belongs to sixteen rows and nothing is ever summed across lanes. Owns the sizes; what the bytes mean is
// written by tiles.inl and read by the kernels of every level, which share this one layout. Refuses nothing.
// Plain data, like format.h.
//
// A matrix is a list of tiles of sixteen rows (the last one padded with rows of zeros). A tile of `width`
// blocks is
//
//     heads   width x head bytes: scales of each block, padded to a multiple of 64
//     codes   width x codes bytes: per 32 columns, eight registers of [16 rows][4 columns] whose bytes are
//     split
//             into planes of 4, 2 or 1 bits
//
// Both parts are read in order, as two streams. Formats with codes in a table too large for registers (IQ1,
// IQ2, IQ3) are kept as three- or four-bit codes of their values: lossless, wider than the file.
#pragma once
#include "kernels/format.h"

namespace finback {

static constexpr int kTileRows = 16;

// Of one block of sixteen rows. columns 0: the format stays in rows.
struct TileShape {
    int64_t columns, head, codes;
};

static constexpr TileShape tile_shape(Format f) {
    constexpr int64_t kHalves = 2 * kTileRows;  // an f16 for each row
    constexpr int64_t kWord = 4 * kTileRows;    // four bytes for each row
    switch (f) {
        case Format::MXFP4:
        case Format::MXFP4_PAIRS:
            return {32, kTileRows, 256};
        case Format::Q8_0:
            return {32, kHalves, 512};
        case Format::Q4_0:
        case Format::IQ4_NL:
            return {32, kHalves, 256};
        case Format::Q2_K:
            return {256, 2 * kHalves + 4 * kWord, 1024};
        case Format::Q3_K:
            return {256, kHalves + 3 * kWord, 1536};
        case Format::Q4_K:
            return {256, 2 * kHalves + 3 * kWord, 2048};
        case Format::Q5_K:
            return {256, 2 * kHalves + 3 * kWord, 2560};
        case Format::Q6_K:
            return {256, kHalves + 4 * kWord, 3072};
        case Format::IQ1_S:
        case Format::IQ2_XXS:
            return {256, kHalves + kWord, 1536};
        case Format::IQ1_M:
        case Format::IQ2_XS:
        case Format::IQ2_S:
            return {256, kHalves + 2 * kWord, 1536};
        case Format::IQ3_XXS:
        case Format::IQ3_S:
            return {256, kHalves + kWord, 2048};
        case Format::IQ4_XS:
            return {256, kHalves + 2 * kWord, 2048};
        case Format::F32:
        case Format::F16:
        case Format::BF16:
        case Format::FP8_E4M3:
        case Format::COUNT:
            break;
    }
    return {0, 0, 0};
}

// Where a tile's codes start, and where it ends.
static constexpr int64_t tile_codes(TileShape s, int64_t cols) { return pad64(cols / s.columns * s.head); }
static constexpr int64_t tile_bytes(TileShape s, int64_t cols) {
    return tile_codes(s, cols) + cols / s.columns * s.codes;
}

}  // namespace finback
