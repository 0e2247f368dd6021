// The contract between the operations and the instruction sets: one struct of function pointers per level,
// filled by isa_scalar.cc, isa_avx2.cc, ... Every function computes exactly what docs/exactness.md says, so
// any two tables give the same bits. Functions are called by one thread on the range it was given; they
// allocate nothing, keep no state, read no environment and never fail: what could fail was checked before.
//
// Rows are given as arrays of pointers where callers gather rows from different places (rows of one expert,
// cache rows of several sequences). Outputs are written, never accumulated, unless the name says add.
#pragma once
#include "kernels/format.h"

namespace finback {

// Rotation of the last 2 * pairs values of a row: cos and sin per pair.
struct Rotation {
    const float* cos;  // [pairs]
    const float* sin;  // [pairs]
};

// Shape of a cache row (docs/exactness.md section 9).
struct RowShape {
    int32_t width;    // values in the row
    int32_t rotary;   // of which the last `rotary` are rotary channels (main rows); 0 for indexer rows
    int32_t rounded;  // 1: FP8/bf16 or FP4 codes; 0: f32
};

struct Table {
    const char* level;  // "scalar", "avx2", ...

    // ---- activations -> encodings. x: f32 [k]; dst: packed row (format.h). Returns false if x holds a NaN
    // or an infinity (dst is then all zero codes and scales). A8x32 needs k % 32 == 0, A8x256 k % 256 == 0.
    bool (*pack[static_cast<int>(Encoding::COUNT)])(const float* x, int64_t k, uint8_t* dst);

    // ---- matrix products (section 5): out[t][r - row0] for rows row0 <= r < row1, t < n. x[t]: packed row
    // in the encoding of w.format.
    void (*linear[static_cast<int>(Format::COUNT)])(const Matrix& w, int64_t row0, int64_t row1,
                                                    const uint8_t* const* x, int64_t n, float* const* out);

    // The same for a matrix in tiles; null where resident_layout(format) is ROWS. Any range of rows.
    void (*linear_tiles[static_cast<int>(Format::COUNT)])(const Matrix& w, int64_t row0, int64_t row1,
                                                          const uint8_t* const* x, int64_t n,
                                                          float* const* out);

    // Rows [row0, row1) of w, which lies in ROWS, into their place in the resident copy that starts at `to`
    // (resident_bytes long): tiles, or plain rows. row0 is a multiple of 16; so is row1, or it is w.rows.
    // Returns whether every weight is finite, scales included; the scale plane of FP8_E4M3 stays where it is.
    bool (*make_resident[static_cast<int>(Format::COUNT)])(const Matrix& w, int64_t row0, int64_t row1,
                                                           uint8_t* to);

    // ---- weights as numbers (section 6), from ROWS: row r of w to f32 [cols].
    void (*decode_row[static_cast<int>(Format::COUNT)])(const Matrix& w, int64_t r, float* out);

    // ---- norms and hyper-connections (section 7)
    float (*rms)(const float* x, int64_t n, float eps);  // the factor inv
    void (*scale_rows)(const float* x, float inv, const float* w, int64_t n,
                       float* out);  // (x*inv)*w; w null: x*inv
    // m [2N + N*N] raw dot products, inv: rms of the flattened streams -> pre [N], post [N], comb [N*N]. 1 <=
    // N <= 8.
    void (*hyper_mix)(const float* m, float inv, const float* scale, const float* base, int32_t n_streams,
                      int32_t iters, float hc_eps, float* pre, float* post, float* comb);
    void (*hyper_pre)(const float* m, float inv, const float* scale, const float* base, int32_t n_streams,
                      float hc_eps,
                      float* pre);  // the head's: only pre
    void (*collapse)(const float* streams, const float* pre, int32_t n_streams, int64_t d,
                     float* out);  // [D]
    void (*expand)(const float* streams, const float* y, const float* post, const float* comb,
                   int32_t n_streams, int64_t d, float* out);            // [N, D]; out must not alias streams
    void (*add)(const float* a, const float* b, int64_t n, float* out);  // out = a + b; may alias

    // ---- rotary (section 8), in place on the last 2 * pairs of x [width]. inverse: sin -> -sin.
    void (*rotate)(float* x, int64_t width, Rotation rot, int64_t pairs, bool inverse);

    // ---- cache rows (section 9). encode: f32 [width] -> stored row; decode: stored row -> f32 [width].
    // Main rows (rotary > 0): FP8 codes [front], E8M0 [ceil(front/64)] padded to a multiple of 8, bf16
    // [rotary]. Indexer rows (rotary == 0): FP4 codes [ceil(width/2)] (low nibble = even channel), E8M0
    // [ceil(width/32)]. Not rounded: f32. Padding is written as zeros, so equal rows are equal bytes. Rows to
    // be encoded as indexer rows have already been through `hadamard` when rounded.
    void (*encode_row)(const float* x, RowShape shape, uint8_t* dst);
    void (*decode_cache_row)(const uint8_t* src, RowShape shape, float* out);
    void (*hadamard)(float* x, int64_t n);  // in place, n a power of two

    // ---- pooling (section 10) over channels [0, n) of one open accumulator m, l, a (each [n]).
    void (*pool_add)(float* m, float* l, float* a, const float* kv, const float* gate, const float* ape,
                     int64_t n);
    void (*pool_close)(const float* l, const float* a, int64_t n, float* row);

    // ---- indexer (section 11). q: `heads` rows, stored like cache rows of `shape` at stride q_stride bytes;
    // w: f32 [heads]; rows: stored keys. score[i] for i < n. Rounded rows have at most kMaxIndexWidth
    // channels; f32 rows and their stride are multiples of 4 bytes.
    void (*index_scores)(const uint8_t* q, int64_t q_stride, const float* w, int32_t heads, RowShape shape,
                         const uint8_t* const* rows, int64_t n, float* score);

    // ---- attention (section 12) for heads [0, heads) of one query. q, out: f32 [heads, d]; keys: n decoded
    // rows f32 [d]; scores: scratch f32 [heads, stride], stride >= n: every key row is read once for all
    // heads, so each needs its own list. Output before the inverse rotary.
    void (*attend)(const float* q, int32_t heads, int64_t d, float scale, const float* const* keys, int64_t n,
                   const float* sink, float* scores, int64_t stride, float* out);

    // ---- router and experts (section 13)
    void (*router_scores)(const float* logits, int64_t n, float* s);  // sqrt(softplus(x))
    float (*sum16)(const float* x, int64_t n);
    // u = (silu(min(gate, limit)) * clamp(up)) * weight; no weight factor when weight is null; limit 0: no
    // clamp
    void (*swiglu)(const float* gate, const float* up, int64_t n, float limit, const float* weight,
                   float* out);

    // ---- sampling (section 14)
    // e = exp(z - shift); returns sum + e_0 + e_1 + .. in f64, one after the other.
    double (*exp_shifted)(const float* z, float shift, int64_t n, float* e, double sum);
    float (*max_value)(const float* x, int64_t n,
                       bool* finite);  // exact maximum, +0 for any zero; finite: all of x is
};

// The table of a level, or null if this build has no such unit. `cpu` may still lack it: see core/cpu.h.
const Table* table_scalar();
const Table* table_avx2();
const Table* table_avx512();
const Table* table_neon();

// Bytes of one packed activation row / one stored cache row.
int64_t packed_bytes(Encoding e, int64_t k);
int64_t cache_row_bytes(RowShape shape);
Encoding encoding_of(Format f);
const char* format_name(Format f);
// Weights of one block of a row and the bytes they take; {0, 0} for a number that is no format.
struct BlockSize {
    int64_t weights, bytes;
};
BlockSize block_size(Format f);
const char* encoding_name(Encoding e);

// ---- resident copies (resident.h)
Layout resident_layout(Format f);
int64_t resident_bytes(Format f, int64_t rows, int64_t cols);  // of the copy of a whole matrix

}  // namespace finback
