// Sixteen f32 lanes for the AVX-512 level: one 512-bit register, a truth value per lane in a mask register.
// Same names, same bits as vec_scalar.h; only code compiled with AVX-512 F, BW, VL, DQ and VNNI may include
// it. Refuses approximations (rcp14, rsqrt14, exp2), embedded rounding, and every instruction whose result
// depends on anything but its operands and round-to-nearest-even.
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

// Tiles of attention.inl. Two fma pipes of four cycles want eight sums at least. Value sums: sixteen heads,
// one key row, broadcasts that come from memory with the fma. Dot products: 4 heads * 4 keys are sixteen
// chains, with the keys and a query 21 registers of 32, and 8 loads feed 16 fma.
constexpr int kValueHeads = 16, kDotHeads = 4, kDotKeys = 4;

struct m32x16 {  // a truth value per lane: one bit
    __mmask16 v;
};
struct i32x16 {
    __m512i v;
};
struct f32x16 {
    __m512 v;
};

// The lanes as kParts registers of kPartLanes, for loops that need many sums at once.
using Part = __m512;
constexpr int kParts = 1, kPartLanes = 16;

FINBACK_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FINBACK_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// ---- memory. n counts lanes, 0 <= n <= 16; lanes from n on are +0 when loaded and left alone when stored.

FINBACK_INLINE __mmask16 first_bits(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
FINBACK_INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
FINBACK_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

FINBACK_INLINE f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
FINBACK_INLINE i32x16 broadcast(int32_t x) { return {_mm512_set1_epi32(x)}; }
FINBACK_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
// Masked lanes are not touched in memory: a tail at the end of a page is safe.
FINBACK_INLINE f32x16 load_tail(const float* p, int64_t n) {
    return {_mm512_maskz_loadu_ps(first_bits(n), p)};
}
FINBACK_INLINE void store(float* p, f32x16 x) { _mm512_storeu_ps(p, x.v); }
FINBACK_INLINE void store_tail(float* p, f32x16 x, int64_t n) {
    _mm512_mask_storeu_ps(p, first_bits(n), x.v);
}

// Sixteen bytes as integers 0..255, and back (the low byte of each lane).
FINBACK_INLINE i32x16 load_bytes(const uint8_t* p) { return {_mm512_cvtepu8_epi32(load128(p))}; }
FINBACK_INLINE void store_bytes(uint8_t* p, i32x16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm512_cvtepi32_epi8(x.v));
}

// Sixteen bf16 values as f32 (exact), and the low halves of sixteen lanes. No alignment is needed.
FINBACK_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(p)); }
FINBACK_INLINE f32x16 load_bf16(const uint8_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16))};
}
FINBACK_INLINE void store_halves(uint8_t* p, i32x16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), _mm512_cvtepi32_epi16(x.v));
}

// Sixteen E4M3 codes as f32, exact; the two NaN codes never occur in what we store. The code, moved to the
// top of the f16 mantissa and exponent, is an f16 of 2^-8 times the value: the conversion is exact, subnormal
// or not.
FINBACK_INLINE f32x16 load_e4m3(const uint8_t* p) {
    const __m256i code = _mm256_cvtepu8_epi16(load128(p));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7F)), 7);
    return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, magnitude)), _mm512_set1_ps(256.0f))};
}

// 2 * pairs interleaved values (a0 b0 a1 b1 ...) of sixteen pairs, apart and together. Indices from 16 on
// mean the second register.
alignas(64) constexpr int32_t kEvenPlaces[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
alignas(64) constexpr int32_t kOddPlaces[16] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
alignas(64) constexpr int32_t kLowPairs[16] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
alignas(64) constexpr int32_t kHighPairs[16] = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
FINBACK_INLINE __m512 pick(__m512 x, const int32_t* places, __m512 y) {
    return _mm512_permutex2var_ps(x, load512(places), y);
}
FINBACK_INLINE void load_pairs(const float* p, f32x16& a, f32x16& b) {
    const __m512 x = _mm512_loadu_ps(p), y = _mm512_loadu_ps(p + 16);
    a = {pick(x, kEvenPlaces, y)};
    b = {pick(x, kOddPlaces, y)};
}
FINBACK_INLINE void store_pairs(float* p, f32x16 a, f32x16 b) {
    _mm512_storeu_ps(p, pick(a.v, kLowPairs, b.v));
    _mm512_storeu_ps(p + 16, pick(a.v, kHighPairs, b.v));
}

// ---- arithmetic, one rounding each

FINBACK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
FINBACK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FINBACK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FINBACK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
FINBACK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FINBACK_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
// maxps and minps return the second operand unless the comparison holds: exactly `a > b ? a : b` and `a < b ?
// a : b`.
FINBACK_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
FINBACK_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }

FINBACK_INLINE Part part_zero() { return _mm512_setzero_ps(); }
FINBACK_INLINE Part part_load(const float* p) { return _mm512_loadu_ps(p); }
FINBACK_INLINE Part part_fma(Part a, Part b, Part c) { return _mm512_fmadd_ps(a, b, c); }
FINBACK_INLINE void part_store(float* p, Part x) { _mm512_storeu_ps(p, x); }

// ---- bits and integers

FINBACK_INLINE i32x16 as_bits(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
FINBACK_INLINE f32x16 as_floats(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
FINBACK_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
FINBACK_INLINE i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
FINBACK_INLINE i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
FINBACK_INLINE i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
FINBACK_INLINE i32x16 shift_left(i32x16 a) {
    return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
FINBACK_INLINE i32x16 shift_right(i32x16 a) {  // zeros come in from the left
    return {_mm512_srli_epi32(a.v, N)};
}
FINBACK_INLINE f32x16 to_floats(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// Nearest even integer for |x| < 2^22; any value beyond.
FINBACK_INLINE i32x16 rint_to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }

// ---- choices

FINBACK_INLINE m32x16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FINBACK_INLINE m32x16 less(i32x16 a, i32x16 b) { return {_mm512_cmpgt_epi32_mask(b.v, a.v)}; }
FINBACK_INLINE m32x16 first_lanes(int64_t n) { return {first_bits(n)}; }
FINBACK_INLINE f32x16 select(m32x16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
FINBACK_INLINE i32x16 select(m32x16 m, i32x16 a, i32x16 b) {
    return {_mm512_mask_blend_epi32(m.v, b.v, a.v)};
}
FINBACK_INLINE bool any(m32x16 m) { return m.v != 0; }

// ---- across lanes

// Lane i receives lane i ^ H, for H = 1, 2, 4, 8.
template <int H>
FINBACK_INLINE f32x16 swap(f32x16 a) {
    if constexpr (H == 1) return {_mm512_permute_ps(a.v, 0xB1)};
    if constexpr (H == 2) return {_mm512_permute_ps(a.v, 0x4E)};
    if constexpr (H == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xB1)};
    return {_mm512_shuffle_f32x4(a.v, a.v, 0x4E)};
}
// The sign of the lanes whose index has bit H set is turned.
template <int H>
FINBACK_INLINE f32x16 flip(f32x16 a) {
    constexpr __mmask16 kTurned = H == 1 ? 0xAAAA : H == 2 ? 0xCCCC : H == 4 ? 0xF0F0 : 0xFF00;
    const __m512i bits = _mm512_castps_si512(a.v);
    return {_mm512_castsi512_ps(_mm512_mask_xor_epi32(bits, kTurned, bits, _mm512_set1_epi32(INT32_MIN)))};
}

// The tree of docs/exactness.md section 2.
FINBACK_INLINE float tree16(f32x16 l) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(l.v), _mm512_extractf32x8_ps(l.v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
// Greatest lane. Which zero wins between +0 and -0 is not said.
FINBACK_INLINE float max16(f32x16 l) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(l.v), _mm512_extractf32x8_ps(l.v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

// ---- FP4 codes as bytes, for the indexer. A quad group is [16 lanes][4 bytes].

// words: 16 lanes of 4 code bytes (8 channels). Even channels (low nibbles) and odd ones each become a quad
// group of doubled values: value * 2 + 12 = 0 .. 24, so that the group is unsigned.
FINBACK_INLINE void quads_of_codes(const uint8_t* words, uint8_t* even, uint8_t* odd) {
    const __m512i value =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15), x = load512(words);
    const __m512i low = _mm512_and_si512(x, nibble);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble);
    _mm512_storeu_si512(even, _mm512_shuffle_epi8(value, low));
    _mm512_storeu_si512(odd, _mm512_shuffle_epi8(value, high));
}

// sum over `groups` (at most 8) quad groups: lane i gets sum of quads[g][i][b] * q[g][b], b < 4. Exact.
FINBACK_INLINE i32x16 quad_dot(const uint8_t* quads, const int8_t* q, int groups) {
    __m512i sum = _mm512_setzero_si512();
    for (int g = 0; g < groups; ++g) {
        int32_t four;
        memcpy(&four, q + 4 * g, 4);
        sum = _mm512_dpbusd_epi32(sum, load512(quads + 64 * g), _mm512_set1_epi32(four));
    }
    return {sum};
}

}  // namespace
}  // namespace finback
