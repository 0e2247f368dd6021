// Sixteen rows of four codes each, for the AVX2 level: two 256-bit registers, rows 0..7 and 8..15. Same names
// and same results as codes_scalar.h, on top of vec_avx2.h. Owns how a register of codes meets four
// activations; what the codes mean is in tiles.inl.
//
// Codes are unsigned bytes, activations signed ones of at most 127: maddubs adds two neighbouring products in
// 16 bits. dots_in_sum() says how many of those sums may be added up before they must be widened. Codes too
// large for any (`wide`) are split into magnitude and sign, and the sign goes to the activation.
#pragma once
#include "kernels/vec_avx2.h"

// What the products over codes are compiled with: everything in registers.
#define FINBACK_HOT [[gnu::always_inline]] inline
#define FINBACK_HOT_LAMBDA __attribute__((always_inline))

namespace finback {
namespace {

struct codes {
    __m256i lo, hi;
};

FINBACK_INLINE codes load_codes(const uint8_t* p) { return {load256(p), load256(p + 32)}; }
FINBACK_INLINE void store_codes(uint8_t* p, codes v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), v.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p + 32), v.hi);
}
FINBACK_INLINE codes fill_codes(uint8_t b) {
    const __m256i v = _mm256_set1_epi8(static_cast<char>(b));
    return {v, v};
}
FINBACK_INLINE codes operator|(codes a, codes b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

// (byte >> kRight) & kMask; to the left where kRight is negative. The mask keeps the neighbour's bits out.
template <int kRight>
FINBACK_INLINE __m256i shift_bytes(__m256i v) {
    if constexpr (kRight > 0) return _mm256_srli_epi16(v, kRight);
    if constexpr (kRight < 0) return _mm256_slli_epi16(v, -kRight);
    return v;
}
template <int kRight, int kMask>
FINBACK_INLINE codes bits(codes v) {
    static_assert(kRight >= 0 ? kMask < 1 << (8 - kRight) : kMask % (1 << -kRight) == 0 && kMask < 256);
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(kMask));
    return {_mm256_and_si256(shift_bytes<kRight>(v.lo), mask),
            _mm256_and_si256(shift_bytes<kRight>(v.hi), mask)};
}

// Sixteen bytes by index; indices are 0..15.
struct code_table {
    __m256i v;
};
FINBACK_INLINE code_table table_of(const uint8_t* entries) {
    return {_mm256_broadcastsi128_si256(load128(entries))};
}
FINBACK_INLINE codes lookup(code_table t, codes index) {
    return {_mm256_shuffle_epi8(t.v, index.lo), _mm256_shuffle_epi8(t.v, index.hi)};
}

// Four activations, for all rows.
struct four {
    __m256i v;
};
FINBACK_INLINE four four_of(const int8_t* a) {
    int32_t word;
    memcpy(&word, a, 4);
    return {_mm256_set1_epi32(word)};
}

// ---- sums of dots: 16 bits a pair of columns

struct sum {
    __m256i lo, hi;
};
constexpr int dots_in_sum(int max_code) {
    const int fit = 32767 / (2 * 127 * max_code);
    return fit > 8 ? 8 : fit;
}
FINBACK_INLINE sum dot(codes w, four a) {
    return {_mm256_maddubs_epi16(w.lo, a.v), _mm256_maddubs_epi16(w.hi, a.v)};
}
FINBACK_INLINE sum dot(sum s, codes w, four a) {
    s.lo = _mm256_add_epi16(s.lo, _mm256_maddubs_epi16(w.lo, a.v));
    s.hi = _mm256_add_epi16(s.hi, _mm256_maddubs_epi16(w.hi, a.v));
    asm("" : "+x"(s.lo), "+x"(s.hi));  // else the sum becomes a tree, whose leaves do not fit the registers
    return s;
}
FINBACK_INLINE i32x16 add_sum(i32x16 total, sum s) {
    const __m256i one = _mm256_set1_epi16(1);
    return total + i32x16{_mm256_madd_epi16(s.lo, one), _mm256_madd_epi16(s.hi, one)};
}

// ---- a small integer per row: below 2^15 in magnitude, in both halves of its 32-bit lane

struct scales {
    __m256i lo, hi;
};
FINBACK_INLINE i32x16 lanes_of(codes v) { return {v.lo, v.hi}; }
// Byte kByte of each lane, as an unsigned or a signed number.
template <int kByte>
FINBACK_INLINE __m256i double_byte(__m256i v, bool upper) {
    const char b = static_cast<char>(kByte), x = -1;
    const __m128i pick =
        upper ? _mm_setr_epi8(x, b, x, b, x, 4 + b, x, 4 + b, x, 8 + b, x, 8 + b, x, 12 + b, x, 12 + b)
              : _mm_setr_epi8(b, x, b, x, 4 + b, x, 4 + b, x, 8 + b, x, 8 + b, x, 12 + b, x, 12 + b, x);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(pick));
}
template <int kByte>
FINBACK_INLINE scales unsigned_scales(i32x16 v) {
    return {double_byte<kByte>(v.lo, false), double_byte<kByte>(v.hi, false)};
}
template <int kByte>
FINBACK_INLINE scales signed_scales(i32x16 v) {
    return {_mm256_srai_epi16(double_byte<kByte>(v.lo, true), 8),
            _mm256_srai_epi16(double_byte<kByte>(v.hi, true), 8)};
}

FINBACK_INLINE scales minus(scales f, int16_t b) {
    const __m256i v = _mm256_set1_epi16(b);
    return {_mm256_sub_epi16(f.lo, v), _mm256_sub_epi16(f.hi, v)};
}

// total + scale * s
FINBACK_INLINE i32x16 add_scaled(i32x16 total, sum s, scales f) {
    return total + i32x16{_mm256_madd_epi16(s.lo, f.lo), _mm256_madd_epi16(s.hi, f.hi)};
}
FINBACK_INLINE i32x16 add_scaled(i32x16 total, i32x16 s, scales f) {
    return total + i32x16{_mm256_mullo_epi32(s.lo, _mm256_srai_epi32(f.lo, 16)),
                          _mm256_mullo_epi32(s.hi, _mm256_srai_epi32(f.hi, 16))};
}
// total + first * (lower half of pair) + second * (upper half), the halves being 16-bit numbers
FINBACK_INLINE i32x16 add_pair(i32x16 total, scales first, scales second, int32_t pair) {
    const __m256i both = _mm256_set1_epi32(pair);
    return total + i32x16{_mm256_madd_epi16(_mm256_blend_epi16(first.lo, second.lo, 0xaa), both),
                          _mm256_madd_epi16(_mm256_blend_epi16(first.hi, second.hi, 0xaa), both)};
}
FINBACK_INLINE i32x16 multiply(i32x16 a, int32_t b) {
    const __m256i factor = _mm256_set1_epi32(b);
    return {_mm256_mullo_epi32(a.lo, factor), _mm256_mullo_epi32(a.hi, factor)};
}

// ---- codes of a full byte: signed numbers

constexpr int kWideBias = 0;  // what the dot adds to each number: nothing
struct wide {
    __m256i lo, hi, magnitude_lo, magnitude_hi;
};
FINBACK_INLINE wide wide_of(codes w) { return {w.lo, w.hi, _mm256_abs_epi8(w.lo), _mm256_abs_epi8(w.hi)}; }
FINBACK_INLINE i32x16 dot(i32x16 total, wide w, four a) {
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i lo = _mm256_maddubs_epi16(w.magnitude_lo, _mm256_sign_epi8(a.v, w.lo));
    const __m256i hi = _mm256_maddubs_epi16(w.magnitude_hi, _mm256_sign_epi8(a.v, w.hi));
    return total + i32x16{_mm256_madd_epi16(lo, one), _mm256_madd_epi16(hi, one)};
}

FINBACK_INLINE f32x16 load_f16(const uint8_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}
// 2^(b-128) of sixteen E8M0 bytes: 2^(b-127) by its exponent field, then halved, which is exact down to
// 2^-128.
FINBACK_INLINE f32x16 load_e8m0_halves(const uint8_t* p) {
    const __m256i least = _mm256_set1_epi32(0x00400000);
    const i32x16 field = shift_left<23>(load_bytes(p));
    return as_floats(i32x16{_mm256_max_epi32(field.lo, least), _mm256_max_epi32(field.hi, least)}) *
           broadcast(0.5f);
}

// Inputs that may share a register of codes in the many-input walk, descending to 1.
constexpr int kShares[] = {4, 2, 1};

}  // namespace
}  // namespace finback
