// The packed layouts the kernels read and write: weight blocks as the files store them, activation encodings,
// cache rows. Owns sizes and nothing else: no arithmetic, no allocation. Everything here is plain data, so
// that it can be included by the instruction-set units, which may not share a single inline function with the
// rest of the program (a weak symbol compiled with AVX2 could be the one the linker keeps for a machine
// without it).
#pragma once
#include <cstddef>
#include <cstdint>

namespace finback {

// Weight formats that have kernels. The values are part of the binding; names are those of
// finback.formats.blocks.
enum class Format : int32_t {
    F32,
    F16,
    BF16,
    FP8_E4M3,
    MXFP4,
    MXFP4_PAIRS,
    Q8_0,
    Q4_0,
    Q4_K,
    Q6_K,
    Q2_K,
    Q3_K,
    Q5_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    COUNT
};

// Activation encodings (docs/exactness.md section 4).
enum class Encoding : int32_t { F32, BF16, A8x32, A8x256, COUNT };

// ---- weight blocks, little-endian, as GGUF stores them
// -------------------------------------------------------------

struct BlockQ8_0 {  // 32 weights: d * q
    uint16_t d;     // f16
    int8_t q[32];
};
struct BlockQ4_0 {  // 32 weights: d * (nibble - 8); byte i holds i (low) and i + 16 (high)
    uint16_t d;
    uint8_t q[16];
};
struct BlockMXFP4 {  // 32 weights: 2^(e-128) * doubled E2M1; byte i holds i (low) and i + 16 (high)
    uint8_t e;
    uint8_t q[16];
};
struct BlockQ4_K {  // 256 weights in 8 groups of 32: (d * sc) * q - dmin * m
    uint16_t d, dmin;
    uint8_t scales[12];  // eight 6-bit sc and eight 6-bit m, packed as GGML does
    uint8_t q[128];      // 64 weights per 32 bytes: low nibbles first
};
struct BlockQ6_K {  // 256 weights in 16 groups of 16: d * sc * (q - 32)
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
};
struct BlockQ2_K {       // 256 weights in 16 groups of 16: (d * sc) * q - dmin * m
    uint8_t scales[16];  // sc (low nibble) and m (high) of each group
    uint8_t q[64];       // 128 weights per 32 bytes, run of 32 at bits 2 * run
    uint16_t d, dmin;
};
struct BlockQ3_K {       // 256 weights in 16 groups of 16: d * (sc - 32) * (q - 4)
    uint8_t high[32];    // bit 2 of q: weight i at bit i / 32 of byte i % 32
    uint8_t q[64];       // bits 0 and 1, as in Q2_K
    uint8_t scales[12];  // sixteen 6-bit sc: nibbles of bytes 0..7, then bit pairs of bytes 8..11
    uint16_t d;
};
struct BlockQ5_K {  // 256 weights in 8 groups of 32: (d * sc) * q - dmin * m
    uint16_t d, dmin;
    uint8_t scales[12];  // as in Q4_K
    uint8_t high[32];    // bit 4 of q: weight i at bit i / 32 of byte i % 32
    uint8_t q[128];      // low nibbles, as in Q4_K
};
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

// The IQ formats: eight (IQ3: four) weights are a point of a grid (grids.h), with a sign for each weight in
// IQ2 and IQ3 and a common shift in IQ1; IQ4 weights are picked from a table of sixteen. "Seven signs" stand
// for eight: the number of minuses is even.
struct BlockIQ1_S {  // d * (2 s + 1) * (g +- 1/8), s and the sign of the shift for 32 weights
    uint16_t d;
    uint8_t q[32];     // low eight bits of the points
    uint16_t high[8];  // four times the high three bits, s in bits 12..14, shift in bit 15
};
struct BlockIQ1_M {  // the same with s for 16 weights and the shift for 8
    uint8_t q[32];
    uint8_t high[16];   // nibble for each point: high three bits, shift in bit 3
    uint8_t scales[8];  // four 16-bit words: four times s in bits 0..11, a nibble of d on top
};
struct BlockIQ2_XXS {  // d/8 * (2 s + 1) * +-g, s for 32 weights
    uint16_t d;
    uint8_t q[64];  // per 32 weights: four points, then four times seven signs and s in 32 bits
};
struct BlockIQ2_XS {  // the same with s for 16 weights
    uint16_t d;
    uint16_t q[32];  // nine bits of point, seven signs
    uint8_t scales[8];
};
struct BlockIQ2_S {  // the same with ten bits of point and all signs
    uint16_t d;
    uint8_t q[32], signs[32], high[8], scales[8];
};
struct BlockIQ3_XXS {  // d/4 * (2 s + 1) * +-g, s for 32 weights
    uint16_t d;
    uint8_t q[64];
    uint8_t tail[32];  // per 32 weights: four times seven signs and s in 32 bits
};
struct BlockIQ3_S {  // d * (2 s + 1) * +-g, s for 32 weights; nine bits of point and all signs
    uint16_t d;
    uint8_t q[64], high[8], signs[32], scales[4];
};
struct BlockIQ4_NL {  // 32 weights: d * table[nibble]; byte i holds i (low) and i + 16 (high)
    uint16_t d;
    uint8_t q[16];
};
struct BlockIQ4_XS {  // d * (sc - 32) * table[nibble], sc for 32 weights; nibbles of each 32 as in IQ4_NL
    uint16_t d, scales_high;
    uint8_t scales_low[4], q[128];
};
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56 && sizeof(BlockIQ2_XXS) == 66);
static_assert(sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82 && sizeof(BlockIQ3_XXS) == 98);
static_assert(sizeof(BlockIQ3_S) == 110 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);

// How the scale plane of FP8_E4M3 and MXFP4_PAIRS is stored.
enum class ScaleKind : int32_t { NONE, E8M0, F32 };

// How a matrix lies in memory. ROWS: row after row, as files store it. TILES: sixteen rows side by side, made
// by Table::make_resident (resident.h); only for formats with integer blocks, the others are fast as rows.
enum class Layout : int32_t { ROWS, TILES };

// One matrix [rows, cols] where it lies: in a mapped file or in our own buffer. Borrowed, never owned.
struct Matrix {
    Format format;
    Layout layout;
    ScaleKind scale_kind;
    int64_t rows, cols;
    const uint8_t* data;  // ROWS: row r at data + r * row_bytes; TILES: the tiles
    int64_t row_bytes;    // of a row as the file stores it, whatever the layout: what work is measured by
    const uint8_t*
        scales;  // plane [ceil(rows / block_rows), scale_cols], E8M0 bytes or f32; null for block formats
    int64_t scale_cols;              // scales per row of blocks
    int32_t block_rows, block_cols;  // 128x128 or 32x32 for FP8_E4M3; 1x32 for MXFP4_PAIRS
};

// ---- activation encodings
// -------------------------------------------------------------------------------------------

// Bytes of one packed row of k values, a multiple of 64:
//   F32     float[k]
//   BF16    uint16_t[k]
//   A8x32   int8_t q[k], float d[k/32], int32_t sum[k/32]
//   A8x256  int8_t q[k], float d[k/256], int16_t sum[k/16]
// each array starts at a multiple of 64 bytes (pad64); the padding is zero.
static constexpr int64_t pad64(int64_t n) { return (n + 63) / 64 * 64; }

static constexpr int kLanes = 16;

// ---- stored cache rows (docs/exactness.md section 9; table.h says what lies in them)
// -------------------------------

static constexpr int64_t kFp8Block = 64, kFp4Block = 32;  // channels under one E8M0 scale
static constexpr int64_t kMaxIndexWidth = 1024;           // widest indexer row that can be scored as codes

// Where the bf16 channels of a main row begin: after `front` FP8 codes and their scales.
static constexpr int64_t main_rotary_offset(int64_t front) {
    return front + ((front + kFp8Block - 1) / kFp8Block + 7) / 8 * 8;
}

}  // namespace finback
