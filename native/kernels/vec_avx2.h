// Sixteen f32 lanes for the AVX2 level: two 256-bit registers. Same names, same bits as vec_scalar.h; only
// code compiled with AVX2, FMA and F16C may include it. Refuses approximations (rcp, rsqrt) and every
// instruction whose result depends on anything but its operands and round-to-nearest-even.
//
// Everything is in an anonymous namespace, so this unit shares no symbol with a unit of another instruction
// set.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define FINBACK_INLINE [[gnu::always_inline]] inline

namespace finback {
namespace {

// Tiles of attention.inl. Value sums: 2 registers a head, 2 of the key row and a broadcast. Dot products run
// over one part (register) of the lanes at a time: 4 heads * 3 keys are 12 independent fma chains, with 3
// keys and a query 16 registers, and 7 loads feed 12 fma. Two whole vectors by two would need 12 loads for 8.
constexpr int kValueHeads = 4, kDotHeads = 4, kDotKeys = 3;

struct m32x16 {  // a truth value per lane: all ones or all zeros
    __m256 lo, hi;
};
struct i32x16 {
    __m256i lo, hi;
};
struct f32x16 {
    __m256 lo, hi;
};

// The lanes as kParts registers of kPartLanes, for loops that need many sums at once.
using Part = __m256;
constexpr int kParts = 2, kPartLanes = 8;

FINBACK_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FINBACK_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// ---- memory. n counts lanes, 0 <= n <= 16; lanes from n on are +0 when loaded and left alone when stored.

// Sixteen entries from position 16 - n on: n times all ones, then zeros.
alignas(64) constexpr int32_t kFirst[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                            0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0};
FINBACK_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
FINBACK_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
FINBACK_INLINE void store128(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
FINBACK_INLINE __m128i low_half(__m256i x) { return _mm256_castsi256_si128(x); }
FINBACK_INLINE __m128i high_half(__m256i x) { return _mm256_extracti128_si256(x, 1); }

FINBACK_INLINE f32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FINBACK_INLINE i32x16 broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FINBACK_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// Masked lanes are not touched in memory: a tail at the end of a page is safe.
FINBACK_INLINE f32x16 load_tail(const float* p, int64_t n) {
    return {_mm256_maskload_ps(p, load256(kFirst + 16 - n)),
            _mm256_maskload_ps(p + 8, load256(kFirst + 24 - n))};
}
FINBACK_INLINE void store(float* p, f32x16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
FINBACK_INLINE void store_tail(float* p, f32x16 x, int64_t n) {
    _mm256_maskstore_ps(p, load256(kFirst + 16 - n), x.lo);
    _mm256_maskstore_ps(p + 8, load256(kFirst + 24 - n), x.hi);
}

// Sixteen bytes as integers 0..255, and back (the low byte of each lane).
FINBACK_INLINE i32x16 load_bytes(const uint8_t* p) {
    const __m128i x = load128(p);
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
// Low halves of sixteen lanes as sixteen 16-bit values in order.
FINBACK_INLINE __m256i halves(i32x16 x) {
    const __m256i low = _mm256_set1_epi32(0xFFFF);
    const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low));
    return _mm256_permute4x64_epi64(packed, 0xD8);  // packing works within 128 bits: 0 2 1 3
}
FINBACK_INLINE void store_bytes(uint8_t* p, i32x16 x) {
    const __m256i bytes = _mm256_and_si256(halves(x), _mm256_set1_epi16(0xFF));
    store128(p, _mm_packus_epi16(low_half(bytes), high_half(bytes)));
}

// Sixteen bf16 values as f32 (exact), and the low halves of sixteen lanes. No alignment is needed.
FINBACK_INLINE __m256 bf16_to_f32(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
FINBACK_INLINE f32x16 load_bf16(const uint8_t* p) {
    return {bf16_to_f32(load128(p)), bf16_to_f32(load128(p + 16))};
}
FINBACK_INLINE void store_halves(uint8_t* p, i32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), halves(x));
}

// Sixteen E4M3 codes as f32, exact; the two NaN codes never occur in what we store. The code, moved to the
// top of the f16 mantissa and exponent, is an f16 of 2^-8 times the value: F16C converts it exactly,
// subnormal or not.
FINBACK_INLINE f32x16 load_e4m3(const uint8_t* p) {
    const __m256i code = _mm256_cvtepu8_epi16(load128(p));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7F)), 7);
    const __m256i half = _mm256_or_si256(sign, magnitude);
    const __m256 up = _mm256_set1_ps(256.0f);
    return {_mm256_mul_ps(_mm256_cvtph_ps(low_half(half)), up),
            _mm256_mul_ps(_mm256_cvtph_ps(high_half(half)), up)};
}

// 2 * pairs interleaved values (a0 b0 a1 b1 ...) of sixteen pairs, apart and together.
FINBACK_INLINE void split_pairs(__m256 x, __m256 y, __m256& a, __m256& b) {
    const __m256 low = _mm256_permute2f128_ps(x, y, 0x20), high = _mm256_permute2f128_ps(x, y, 0x31);
    // within each 128 bits: even places of low then of high; the halves of y follow those of x
    const __m256 even = _mm256_shuffle_ps(low, high, 0x88), odd = _mm256_shuffle_ps(low, high, 0xDD);
    a = even;
    b = odd;
}
FINBACK_INLINE void load_pairs(const float* p, f32x16& a, f32x16& b) {
    split_pairs(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), a.lo, b.lo);
    split_pairs(_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24), a.hi, b.hi);
}
FINBACK_INLINE void join_pairs(float* p, __m256 a, __m256 b) {
    const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
FINBACK_INLINE void store_pairs(float* p, f32x16 a, f32x16 b) {
    join_pairs(p, a.lo, b.lo);
    join_pairs(p + 16, a.hi, b.hi);
}

// ---- arithmetic, one rounding each

FINBACK_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
FINBACK_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
FINBACK_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
FINBACK_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
FINBACK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FINBACK_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
// maxps and minps return the second operand unless the comparison holds: exactly `a > b ? a : b` and `a < b ?
// a : b`.
FINBACK_INLINE f32x16 max(f32x16 a, f32x16 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
FINBACK_INLINE f32x16 min(f32x16 a, f32x16 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

FINBACK_INLINE Part part_zero() { return _mm256_setzero_ps(); }
FINBACK_INLINE Part part_load(const float* p) { return _mm256_loadu_ps(p); }
FINBACK_INLINE Part part_fma(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
FINBACK_INLINE void part_store(float* p, Part x) { _mm256_storeu_ps(p, x); }

// ---- bits and integers

FINBACK_INLINE i32x16 as_bits(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
FINBACK_INLINE f32x16 as_floats(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
FINBACK_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
FINBACK_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
FINBACK_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
FINBACK_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int N>
FINBACK_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
FINBACK_INLINE i32x16 shift_right(i32x16 a) {  // zeros come in from the left
    return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
FINBACK_INLINE f32x16 to_floats(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

// Nearest even integer for |x| < 2^22; any value beyond.
FINBACK_INLINE i32x16 rint_to_int(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

// ---- choices

FINBACK_INLINE m32x16 less(f32x16 a, f32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
FINBACK_INLINE m32x16 less(i32x16 a, i32x16 b) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.lo, a.lo)),
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.hi, a.hi))};
}
FINBACK_INLINE m32x16 first_lanes(int64_t n) {
    return {_mm256_castsi256_ps(load256(kFirst + 16 - n)), _mm256_castsi256_ps(load256(kFirst + 24 - n))};
}
FINBACK_INLINE f32x16 select(m32x16 m, f32x16 a, f32x16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
FINBACK_INLINE i32x16 select(m32x16 m, i32x16 a, i32x16 b) {
    return as_bits(select(m, as_floats(a), as_floats(b)));
}
FINBACK_INLINE bool any(m32x16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }

// ---- across lanes

// Lane i receives lane i ^ H, for H = 1, 2, 4, 8.
template <int H>
FINBACK_INLINE f32x16 swap(f32x16 a) {
    if constexpr (H == 1) return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
    if constexpr (H == 2) return {_mm256_permute_ps(a.lo, 0x4E), _mm256_permute_ps(a.hi, 0x4E)};
    if constexpr (H == 4)
        return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
    return {a.hi, a.lo};
}
// The sign of the lanes whose index has bit H set is turned.
template <int H>
FINBACK_INLINE f32x16 flip(f32x16 a) {
    constexpr int s = INT32_MIN;
    if constexpr (H == 8) return {a.lo, _mm256_xor_ps(a.hi, _mm256_set1_ps(-0.0f))};
    const __m256 sign =
        _mm256_castsi256_ps(_mm256_setr_epi32(0, H & 1 ? s : 0, H & 2 ? s : 0, H & 3 ? s : 0, H & 4 ? s : 0,
                                              H & 5 ? s : 0, H & 6 ? s : 0, H & 7 ? s : 0));
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}

// The tree of docs/exactness.md section 2.
FINBACK_INLINE float tree16(f32x16 l) {
    const __m256 a = _mm256_add_ps(l.lo, l.hi);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
// Greatest lane. Which zero wins between +0 and -0 is not said.
FINBACK_INLINE float max16(f32x16 l) {
    const __m256 a = _mm256_max_ps(l.lo, l.hi);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

// ---- FP4 codes as bytes, for the indexer. A quad group is [16 lanes][4 bytes].

// words: 16 lanes of 4 code bytes (8 channels). Even channels (low nibbles) and odd ones each become a quad
// group of doubled values: value * 2 + 12 = 0 .. 24, so that the group is unsigned.
FINBACK_INLINE void quads_of_codes(const uint8_t* words, uint8_t* even, uint8_t* odd) {
    const __m256i value = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                           12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int half = 0; half < 64; half += 32) {
        const __m256i x = load256(words + half);
        const __m256i low = _mm256_and_si256(x, nibble),
                      high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(even + half), _mm256_shuffle_epi8(value, low));
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(odd + half), _mm256_shuffle_epi8(value, high));
    }
}

// sum over `groups` (at most 8) quad groups: lane i gets sum of quads[g][i][b] * q[g][b], b < 4. Exact: a
// pair of products is at most 2 * 24 * 12, eight of them 4608, far inside 16 bits.
FINBACK_INLINE i32x16 quad_dot(const uint8_t* quads, const int8_t* q, int groups) {
    __m256i lo = _mm256_setzero_si256(), hi = lo;
    for (int g = 0; g < groups; ++g) {
        int32_t four;
        memcpy(&four, q + 4 * g, 4);
        const __m256i factor = _mm256_set1_epi32(four);
        lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(load256(quads + 64 * g), factor));
        hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(load256(quads + 64 * g + 32), factor));
    }
    const __m256i one = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(lo, one), _mm256_madd_epi16(hi, one)};
}

}  // namespace
}  // namespace finback
