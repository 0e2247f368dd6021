// Sixteen rows of four codes each, for the AVX-512 level: one register. Same names and same results as
// codes_scalar.h, on top of vec_avx512.h. Owns how a register of codes meets four activations; what the codes
// mean is in tiles.inl.
//
// VNNI multiplies unsigned bytes, up to 255, by signed ones and adds four products in 32 bits without
// saturation: no code is too large, no sum has to be widened, and the four activations are an operand in
// memory that the instruction itself broadcasts.
#pragma once
#include "kernels/vec_avx512.h"

// What the products over codes are compiled with: everything in registers.
#define FINBACK_HOT [[gnu::always_inline]] inline
#define FINBACK_HOT_LAMBDA __attribute__((always_inline))

namespace finback {
namespace {

struct codes {
    __m512i v;
};

FINBACK_INLINE codes load_codes(const uint8_t* p) { return {load512(p)}; }
FINBACK_INLINE void store_codes(uint8_t* p, codes c) { _mm512_storeu_si512(p, c.v); }
FINBACK_INLINE codes fill_codes(uint8_t b) { return {_mm512_set1_epi8(static_cast<char>(b))}; }
FINBACK_INLINE codes operator|(codes a, codes b) { return {_mm512_or_si512(a.v, b.v)}; }

// (byte >> kRight) & kMask; to the left where kRight is negative. The mask keeps the neighbour's bits out.
template <int kRight>
FINBACK_INLINE __m512i shift_bytes(__m512i v) {
    if constexpr (kRight > 0) return _mm512_srli_epi16(v, kRight);
    if constexpr (kRight < 0) return _mm512_slli_epi16(v, -kRight);
    return v;
}
template <int kRight, int kMask>
FINBACK_INLINE codes bits(codes c) {
    static_assert(kRight >= 0 ? kMask < 1 << (8 - kRight) : kMask % (1 << -kRight) == 0 && kMask < 256);
    return {_mm512_and_si512(shift_bytes<kRight>(c.v), _mm512_set1_epi8(static_cast<char>(kMask)))};
}

// Sixteen bytes by index; indices are 0..15.
struct code_table {
    __m512i v;
};
FINBACK_INLINE code_table table_of(const uint8_t* entries) {
    return {_mm512_broadcast_i32x4(load128(entries))};
}
FINBACK_INLINE codes lookup(code_table t, codes index) { return {_mm512_shuffle_epi8(t.v, index.v)}; }

// Four activations, for all rows.
struct four {
    __m512i v;
};
FINBACK_INLINE four four_of(const int8_t* a) {
    int32_t word;
    memcpy(&word, a, 4);
    return {_mm512_set1_epi32(word)};
}

// ---- sums of dots

using sum = i32x16;
constexpr int dots_in_sum(int) { return 8; }
FINBACK_INLINE i32x16 dot(i32x16 total, codes w, four a) { return {_mm512_dpbusd_epi32(total.v, w.v, a.v)}; }
FINBACK_INLINE sum dot(codes w, four a) { return dot(broadcast(0), w, a); }
FINBACK_INLINE i32x16 add_sum(i32x16 total, sum s) { return total + s; }

// ---- a small integer per row: below 2^15 in magnitude, in both halves of its 32-bit lane

struct scales {
    __m512i v;
};
FINBACK_INLINE i32x16 lanes_of(codes c) { return {c.v}; }
// Byte kByte of each lane, as an unsigned or a signed number.
template <int kByte>
FINBACK_INLINE __m512i double_byte(__m512i v, bool upper) {
    const char b = static_cast<char>(kByte), x = -1;
    const __m128i pick =
        upper ? _mm_setr_epi8(x, b, x, b, x, 4 + b, x, 4 + b, x, 8 + b, x, 8 + b, x, 12 + b, x, 12 + b)
              : _mm_setr_epi8(b, x, b, x, 4 + b, x, 4 + b, x, 8 + b, x, 8 + b, x, 12 + b, x, 12 + b, x);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(pick));
}
template <int kByte>
FINBACK_INLINE scales unsigned_scales(i32x16 v) {
    return {double_byte<kByte>(v.v, false)};
}
template <int kByte>
FINBACK_INLINE scales signed_scales(i32x16 v) {
    return {_mm512_srai_epi16(double_byte<kByte>(v.v, true), 8)};
}

FINBACK_INLINE scales minus(scales f, int16_t b) { return {_mm512_sub_epi16(f.v, _mm512_set1_epi16(b))}; }
FINBACK_INLINE i32x16 multiply(i32x16 a, int32_t b) {
    return {_mm512_mullo_epi32(a.v, _mm512_set1_epi32(b))};
}
// total + scale * s
FINBACK_INLINE i32x16 add_scaled(i32x16 total, sum s, scales f) {
    return total + i32x16{_mm512_mullo_epi32(s.v, _mm512_srai_epi32(f.v, 16))};
}
// total + first * (lower half of pair) + second * (upper half), the halves being 16-bit numbers
FINBACK_INLINE i32x16 add_pair(i32x16 total, scales first, scales second, int32_t pair) {
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, first.v, second.v);
    return {_mm512_dpwssd_epi32(total.v, both, _mm512_set1_epi32(pair))};
}

// ---- codes of a full byte: signed numbers, made unsigned here

constexpr int kWideBias = 128;  // what the dot adds to each number
using wide = codes;
FINBACK_INLINE wide wide_of(codes w) { return {_mm512_xor_si512(w.v, _mm512_set1_epi8(-128))}; }

FINBACK_INLINE f32x16 load_f16(const uint8_t* p) { return {_mm512_cvtph_ps(load256(p))}; }
// 2^(b-128) of sixteen E8M0 bytes: 2^(b-127) by its exponent field, then halved, which is exact down to
// 2^-128.
FINBACK_INLINE f32x16 load_e8m0_halves(const uint8_t* p) {
    const i32x16 field = shift_left<23>(load_bytes(p));
    return as_floats(i32x16{_mm512_max_epi32(field.v, _mm512_set1_epi32(0x00400000))}) * broadcast(0.5f);
}

// Inputs that may share a register of codes in the many-input walk, descending to 1: two VNNI pipes of four
// or five cycles want eight sums at least.
constexpr int kShares[] = {12, 8, 4, 2, 1};

}  // namespace
}  // namespace finback
