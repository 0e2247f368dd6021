// Sixteen rows of four codes each, for the NEON level: four registers of four rows. Same names and same
// results as codes_scalar.h, on top of vec_neon.h. Owns how a register of codes meets four activations; what
// the codes mean is in tiles.inl.
//
// The dot product instruction multiplies signed bytes by signed ones and adds four products in 32 bits. Codes
// up to 127 are as good signed as unsigned; codes of a full byte are signed numbers already (`wide`).
#pragma once
#include "kernels/vec_neon.h"

// What the products over codes are compiled with: everything in registers.
#define FINBACK_HOT [[gnu::always_inline]] inline
#define FINBACK_HOT_LAMBDA __attribute__((always_inline))

namespace finback {
namespace {

struct codes {
    uint8x16_t v[4];
};

#define FINBACK_REGISTERS(T, expression)                    \
    T result;                                               \
    for (int i = 0; i < 4; ++i) result.v[i] = (expression); \
    return result

FINBACK_INLINE codes load_codes(const uint8_t* p) { FINBACK_REGISTERS(codes, vld1q_u8(p + 16 * i)); }
FINBACK_INLINE void store_codes(uint8_t* p, codes c) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, c.v[i]);
}
FINBACK_INLINE codes fill_codes(uint8_t b) { FINBACK_REGISTERS(codes, vdupq_n_u8(b)); }
FINBACK_INLINE codes operator|(codes a, codes b) { FINBACK_REGISTERS(codes, vorrq_u8(a.v[i], b.v[i])); }

// (byte >> kRight) & kMask; to the left where kRight is negative.
template <int kRight>
FINBACK_INLINE uint8x16_t shift_bytes(uint8x16_t v) {
    if constexpr (kRight > 0) return vshrq_n_u8(v, kRight);
    if constexpr (kRight < 0) return vshlq_n_u8(v, -kRight);
    return v;
}
template <int kRight, int kMask>
FINBACK_INLINE codes bits(codes c) {
    FINBACK_REGISTERS(codes, vandq_u8(shift_bytes<kRight>(c.v[i]), vdupq_n_u8(kMask)));
}

// Sixteen bytes by index; indices are 0..15.
struct code_table {
    uint8x16_t v;
};
FINBACK_INLINE code_table table_of(const uint8_t* entries) { return {vld1q_u8(entries)}; }
FINBACK_INLINE codes lookup(code_table t, codes index) {
    FINBACK_REGISTERS(codes, vqtbl1q_u8(t.v, index.v[i]));
}

// Four activations, for all rows.
struct four {
    int8x16_t v;
};
FINBACK_INLINE four four_of(const int8_t* a) {
    int32_t word;
    memcpy(&word, a, 4);
    return {vreinterpretq_s8_s32(vdupq_n_s32(word))};
}

// ---- sums of dots

using sum = i32x16;
// A code above 127 would be taken for a negative number: no format may ask for that.
constexpr int dots_in_sum(int max_code) {
    if (max_code > 127) __builtin_unreachable();  // in a constant expression: an error
    return 8;
}
FINBACK_INLINE i32x16 dot(i32x16 total, codes w, four a) {
    FINBACK_REGISTERS(i32x16, vdotq_s32(total.v[i], vreinterpretq_s8_u8(w.v[i]), a.v));
}
FINBACK_INLINE sum dot(codes w, four a) { return dot(broadcast(0), w, a); }
FINBACK_INLINE i32x16 add_sum(i32x16 total, sum s) { return total + s; }

// ---- a small integer per row

using scales = i32x16;
FINBACK_INLINE i32x16 lanes_of(codes c) { FINBACK_REGISTERS(i32x16, vreinterpretq_s32_u8(c.v[i])); }
template <int kByte>
FINBACK_INLINE scales unsigned_scales(i32x16 v) {
    return shift_right<8 * kByte>(v) & broadcast(255);
}
template <int kByte>
FINBACK_INLINE scales signed_scales(i32x16 v) {
    FINBACK_REGISTERS(i32x16, vshrq_n_s32(vshlq_n_s32(v.v[i], 24 - 8 * kByte), 24));
}
FINBACK_INLINE scales minus(scales f, int16_t b) { return f - broadcast(int32_t{b}); }
FINBACK_INLINE i32x16 multiply(i32x16 a, int32_t b) { FINBACK_REGISTERS(i32x16, vmulq_n_s32(a.v[i], b)); }
FINBACK_INLINE i32x16 add_scaled(i32x16 total, sum s, scales f) {
    FINBACK_REGISTERS(i32x16, vmlaq_s32(total.v[i], s.v[i], f.v[i]));
}
// total + first * (lower half of pair) + second * (upper half), the halves being 16-bit numbers
FINBACK_INLINE i32x16 add_pair(i32x16 total, scales first, scales second, int32_t pair) {
    const int32_t low = static_cast<int16_t>(pair & 0xffff), high = pair >> 16;
    FINBACK_REGISTERS(i32x16, vmlaq_n_s32(vmlaq_n_s32(total.v[i], first.v[i], low), second.v[i], high));
}

// ---- codes of a full byte: signed numbers

constexpr int kWideBias = 0;  // what the dot adds to each number: nothing
struct wide {
    int8x16_t v[4];
};
FINBACK_INLINE wide wide_of(codes w) { FINBACK_REGISTERS(wide, vreinterpretq_s8_u8(w.v[i])); }
FINBACK_INLINE i32x16 dot(i32x16 total, wide w, four a) {
    FINBACK_REGISTERS(i32x16, vdotq_s32(total.v[i], w.v[i], a.v));
}

FINBACK_INLINE f32x16 load_f16(const uint8_t* p) {
    const float16x8_t low = vreinterpretq_f16_u8(vld1q_u8(p)), high = vreinterpretq_f16_u8(vld1q_u8(p + 16));
    return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
             vcvt_high_f32_f16(high)}};
}
// 2^(b-128) of sixteen E8M0 bytes: 2^(b-127) by its exponent field, then halved, which is exact down to
// 2^-128.
FINBACK_INLINE f32x16 load_e8m0_halves(const uint8_t* p) {
    const i32x16 field = shift_left<23>(load_bytes(p));
    FINBACK_REGISTERS(
        f32x16, vmulq_n_f32(vreinterpretq_f32_s32(vmaxq_s32(field.v[i], vdupq_n_s32(0x00400000))), 0.5f));
}

#undef FINBACK_REGISTERS

// Inputs that may share a register of codes in the many-input walk, descending to 1: with four registers of
// rows each, four are sixteen sums.
constexpr int kShares[] = {4, 2, 1};

}  // namespace
}  // namespace finback
