// Sixteen f32 lanes for the scalar level: arrays and plain loops, which the compiler may vectorise at the
// baseline because lanes never meet except where a name says so. Owns the lane type and the few operations
// the shared kernels (math.inl, float_ops.inl, ...) are written in; vec_avx2.h offers the same names and the
// same bits. Refuses arithmetic of its own: every function here is one IEEE operation a lane, an exact
// integer, or a movement of bits.
//
// Everything is in an anonymous namespace, so this unit shares no symbol with a unit of another instruction
// set.
#pragma once
#include <cstdint>
#include <cstring>

#define FINBACK_INLINE [[gnu::always_inline]] inline

namespace finback {
namespace {

// Tiles of attention.inl: accumulators live in memory here, so small ones are best.
constexpr int kValueHeads = 2, kDotHeads = 2, kDotKeys = 2;

struct m32x16 {  // a truth value per lane: all ones or all zeros
    uint32_t v[16];
};
struct i32x16 {
    int32_t v[16];
};
struct f32x16 {
    float v[16];
};

// The lanes as kParts pieces of kPartLanes, for loops that need many sums at once.
using Part = f32x16;
constexpr int kParts = 1, kPartLanes = 16;

// Applies `expression` (in terms of i) to each lane of a fresh value of type T.
#define FINBACK_LANES(T, expression)                         \
    T result;                                                \
    for (int i = 0; i < 16; ++i) result.v[i] = (expression); \
    return result

FINBACK_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FINBACK_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// ---- memory. n counts lanes, 0 <= n <= 16; lanes from n on are +0 when loaded and left alone when stored.

FINBACK_INLINE f32x16 broadcast(float x) { FINBACK_LANES(f32x16, x); }
FINBACK_INLINE i32x16 broadcast(int32_t x) { FINBACK_LANES(i32x16, x); }
FINBACK_INLINE f32x16 load(const float* p) { FINBACK_LANES(f32x16, p[i]); }
FINBACK_INLINE f32x16 load_tail(const float* p, int64_t n) { FINBACK_LANES(f32x16, i < n ? p[i] : 0.0f); }
FINBACK_INLINE void store(float* p, f32x16 x) {
    for (int i = 0; i < 16; ++i) p[i] = x.v[i];
}
FINBACK_INLINE void store_tail(float* p, f32x16 x, int64_t n) {
    for (int i = 0; i < n; ++i) p[i] = x.v[i];
}

// Sixteen bytes as integers 0..255, and back (the low byte of each lane).
FINBACK_INLINE i32x16 load_bytes(const uint8_t* p) { FINBACK_LANES(i32x16, p[i]); }
FINBACK_INLINE void store_bytes(uint8_t* p, i32x16 x) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(x.v[i]);
}

// Sixteen bf16 values as f32 (exact), and the low halves of sixteen lanes. No alignment is needed.
FINBACK_INLINE f32x16 load_bf16(const uint8_t* p) {
    uint16_t half[16];
    memcpy(half, p, sizeof(half));
    FINBACK_LANES(f32x16, float_of(static_cast<uint32_t>(half[i]) << 16));
}
FINBACK_INLINE void store_halves(uint8_t* p, i32x16 x) {
    uint16_t half[16];
    for (int i = 0; i < 16; ++i) half[i] = static_cast<uint16_t>(x.v[i]);
    memcpy(p, half, sizeof(half));
}

// Sixteen E4M3 codes as f32, exact; the two NaN codes never occur in what we store.
FINBACK_INLINE f32x16 load_e4m3(const uint8_t* p) {
    f32x16 x;
    for (int i = 0; i < 16; ++i) {
        const uint32_t code = p[i] & 127u;
        const float magnitude =
            code < 8 ? static_cast<float>(code) * 0x1p-9f : float_of((code << 20) + (120u << 23));
        x.v[i] = float_of(bits_of(magnitude) | (p[i] & 128u) << 24);
    }
    return x;
}

// 2 * pairs interleaved values (a0 b0 a1 b1 ...) of sixteen pairs, apart and together.
FINBACK_INLINE void load_pairs(const float* p, f32x16& a, f32x16& b) {
    for (int i = 0; i < 16; ++i) a.v[i] = p[2 * i], b.v[i] = p[2 * i + 1];
}
FINBACK_INLINE void store_pairs(float* p, f32x16 a, f32x16 b) {
    for (int i = 0; i < 16; ++i) p[2 * i] = a.v[i], p[2 * i + 1] = b.v[i];
}

// ---- arithmetic, one rounding each

FINBACK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] + b.v[i]); }
FINBACK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] - b.v[i]); }
FINBACK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] * b.v[i]); }
FINBACK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] / b.v[i]); }
FINBACK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    FINBACK_LANES(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
FINBACK_INLINE f32x16 sqrt(f32x16 a) { FINBACK_LANES(f32x16, __builtin_sqrtf(a.v[i])); }
FINBACK_INLINE f32x16 max(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
FINBACK_INLINE f32x16 min(f32x16 a, f32x16 b) { FINBACK_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }

FINBACK_INLINE Part part_zero() { return broadcast(0.0f); }
FINBACK_INLINE Part part_load(const float* p) { return load(p); }
FINBACK_INLINE Part part_fma(Part a, Part b, Part c) { return fma(a, b, c); }
FINBACK_INLINE void part_store(float* p, Part x) { store(p, x); }

// ---- bits and integers

FINBACK_INLINE i32x16 as_bits(f32x16 a) { FINBACK_LANES(i32x16, static_cast<int32_t>(bits_of(a.v[i]))); }
FINBACK_INLINE f32x16 as_floats(i32x16 a) { FINBACK_LANES(f32x16, float_of(static_cast<uint32_t>(a.v[i]))); }
FINBACK_INLINE int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }
FINBACK_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    FINBACK_LANES(i32x16, wrapped(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])));
}
FINBACK_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
    FINBACK_LANES(i32x16, wrapped(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])));
}
FINBACK_INLINE i32x16 operator&(i32x16 a, i32x16 b) { FINBACK_LANES(i32x16, a.v[i] & b.v[i]); }
FINBACK_INLINE i32x16 operator|(i32x16 a, i32x16 b) { FINBACK_LANES(i32x16, a.v[i] | b.v[i]); }
template <int N>
FINBACK_INLINE i32x16 shift_left(i32x16 a) {
    FINBACK_LANES(i32x16, wrapped(static_cast<uint32_t>(a.v[i]) << N));
}
template <int N>
FINBACK_INLINE i32x16 shift_right(i32x16 a) {  // zeros come in from the left
    FINBACK_LANES(i32x16, wrapped(static_cast<uint32_t>(a.v[i]) >> N));
}
FINBACK_INLINE f32x16 to_floats(i32x16 a) { FINBACK_LANES(f32x16, static_cast<float>(a.v[i])); }

// Nearest even integer for |x| < 2^22; any value beyond. Adding 1.5 * 2^23 leaves the integer in the low
// bits.
FINBACK_INLINE i32x16 rint_to_int(f32x16 a) {
    FINBACK_LANES(i32x16, wrapped(bits_of(a.v[i] + 0x1.8p23f) - 0x4B400000u));
}

// ---- choices

FINBACK_INLINE m32x16 less(f32x16 a, f32x16 b) { FINBACK_LANES(m32x16, a.v[i] < b.v[i] ? ~0u : 0u); }
FINBACK_INLINE m32x16 less(i32x16 a, i32x16 b) { FINBACK_LANES(m32x16, a.v[i] < b.v[i] ? ~0u : 0u); }
FINBACK_INLINE m32x16 first_lanes(int64_t n) { FINBACK_LANES(m32x16, i < n ? ~0u : 0u); }
FINBACK_INLINE f32x16 select(m32x16 m, f32x16 a, f32x16 b) {
    FINBACK_LANES(f32x16, m.v[i] ? a.v[i] : b.v[i]);
}
FINBACK_INLINE i32x16 select(m32x16 m, i32x16 a, i32x16 b) {
    FINBACK_LANES(i32x16, m.v[i] ? a.v[i] : b.v[i]);
}
FINBACK_INLINE bool any(m32x16 m) {
    uint32_t all = 0;
    for (int i = 0; i < 16; ++i) all |= m.v[i];
    return all != 0;
}

// ---- across lanes

// Lane i receives lane i ^ H, for H = 1, 2, 4, 8.
template <int H>
FINBACK_INLINE f32x16 swap(f32x16 a) {
    FINBACK_LANES(f32x16, a.v[i ^ H]);
}
// The sign of the lanes whose index has bit H set is turned.
template <int H>
FINBACK_INLINE f32x16 flip(f32x16 a) {
    FINBACK_LANES(f32x16, float_of(bits_of(a.v[i]) ^ (i & H ? 0x80000000u : 0u)));
}

// The tree of docs/exactness.md section 2.
FINBACK_INLINE float tree16(f32x16 l) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) l.v[i] = l.v[i] + l.v[i + width];
    return l.v[0];
}
// Greatest lane. Which zero wins between +0 and -0 is not said.
FINBACK_INLINE float max16(f32x16 l) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) l.v[i] = l.v[i] > l.v[i + width] ? l.v[i] : l.v[i + width];
    return l.v[0];
}

// ---- FP4 codes as bytes, for the indexer. A quad group is [16 lanes][4 bytes].

// words: 16 lanes of 4 code bytes (8 channels). Even channels (low nibbles) and odd ones each become a quad
// group of doubled values: value * 2 + 12 = 0 .. 24, so that the group is unsigned.
FINBACK_INLINE void quads_of_codes(const uint8_t* words, uint8_t* even, uint8_t* odd) {
    constexpr uint8_t kValue[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    for (int i = 0; i < 64; ++i) even[i] = kValue[words[i] & 15], odd[i] = kValue[words[i] >> 4];
}

// sum over `groups` (at most 8) quad groups: lane i gets sum of quads[g][i][b] * q[g][b], b < 4. Exact.
FINBACK_INLINE i32x16 quad_dot(const uint8_t* quads, const int8_t* q, int groups) {
    i32x16 sum = broadcast(0);
    for (int g = 0; g < groups; ++g)
        for (int i = 0; i < 16; ++i)
            for (int b = 0; b < 4; ++b) sum.v[i] += quads[64 * g + 4 * i + b] * q[4 * g + b];
    return sum;
}

}  // namespace
}  // namespace finback
