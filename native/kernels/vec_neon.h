// Sixteen f32 lanes for the NEON level: four 128-bit registers of an aarch64 processor with the dot product
// instructions. Same names, same bits as vec_scalar.h. Refuses estimates (frecpe, frsqrte), the fmax and fmin
// instructions, which order zeros and NaN in their own way, and every instruction whose result depends on
// anything but its operands and round-to-nearest-even.
//
// Everything is in an anonymous namespace, so this unit shares no symbol with a unit of another instruction
// set.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define FINBACK_INLINE [[gnu::always_inline]] inline

namespace finback {
namespace {

// Tiles of attention.inl. Value sums: 4 heads of four registers, four of the key row and a broadcast. Dot
// products run over one part (register) of the lanes at a time: 4 heads * 4 keys are sixteen independent fma
// chains, with the keys and a query 21 registers of 32, and 8 loads feed 16 fma.
constexpr int kValueHeads = 4, kDotHeads = 4, kDotKeys = 4;

struct m32x16 {  // a truth value per lane: all ones or all zeros
    uint32x4_t v[4];
};
struct i32x16 {
    int32x4_t v[4];
};
struct f32x16 {
    float32x4_t v[4];
};

// The lanes as kParts registers of kPartLanes, for loops that need many sums at once.
using Part = float32x4_t;
constexpr int kParts = 4, kPartLanes = 4;

// The value of type T whose register i is `expression` (in terms of i).
#define FINBACK_REGISTERS(T, expression)                    \
    T result;                                               \
    for (int i = 0; i < 4; ++i) result.v[i] = (expression); \
    return result

FINBACK_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FINBACK_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// ---- memory. n counts lanes, 0 <= n <= 16; lanes from n on are +0 when loaded and left alone when stored.

FINBACK_INLINE f32x16 broadcast(float x) { FINBACK_REGISTERS(f32x16, vdupq_n_f32(x)); }
FINBACK_INLINE i32x16 broadcast(int32_t x) { FINBACK_REGISTERS(i32x16, vdupq_n_s32(x)); }
FINBACK_INLINE f32x16 load(const float* p) { FINBACK_REGISTERS(f32x16, vld1q_f32(p + 4 * i)); }
FINBACK_INLINE void store(float* p, f32x16 x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
// Through memory of our own: a tail at the end of a page is safe.
FINBACK_INLINE f32x16 load_tail(const float* p, int64_t n) {
    float some[16] = {};
    memcpy(some, p, static_cast<size_t>(n) * sizeof(float));
    return load(some);
}
FINBACK_INLINE void store_tail(float* p, f32x16 x, int64_t n) {
    float some[16];
    store(some, x);
    memcpy(p, some, static_cast<size_t>(n) * sizeof(float));
}

// Sixteen bytes as integers 0..255, and back (the low byte of each lane).
FINBACK_INLINE i32x16 load_bytes(const uint8_t* p) {
    const uint8x16_t x = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_high_u16(low)),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
             vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}
// Low halves of eight lanes.
FINBACK_INLINE uint16x8_t halves(int32x4_t a, int32x4_t b) {
    return vmovn_high_u32(vmovn_u32(vreinterpretq_u32_s32(a)), vreinterpretq_u32_s32(b));
}
FINBACK_INLINE void store_bytes(uint8_t* p, i32x16 x) {
    vst1q_u8(p, vmovn_high_u16(vmovn_u16(halves(x.v[0], x.v[1])), halves(x.v[2], x.v[3])));
}

// Sixteen bf16 values as f32 (exact), and the low halves of sixteen lanes. No alignment is needed.
FINBACK_INLINE f32x16 load_bf16(const uint8_t* p) {
    const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(p));
    const uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(p + 16));
    return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)),
             vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)),
             vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)),
             vreinterpretq_f32_u32(vshll_high_n_u16(high, 16))}};
}
FINBACK_INLINE void store_halves(uint8_t* p, i32x16 x) {
    vst1q_u8(p, vreinterpretq_u8_u16(halves(x.v[0], x.v[1])));
    vst1q_u8(p + 16, vreinterpretq_u8_u16(halves(x.v[2], x.v[3])));
}

// Eight E4M3 codes as f16 of 2^-8 times the value: the code, moved to the top of mantissa and exponent.
FINBACK_INLINE float16x8_t e4m3_halves(uint8x8_t code) {
    const uint16x8_t wide = vmovl_u8(code);
    const uint16x8_t sign = vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x80)), 8);
    const uint16x8_t magnitude = vshlq_n_u16(vandq_u16(wide, vdupq_n_u16(0x7F)), 7);
    return vreinterpretq_f16_u16(vorrq_u16(sign, magnitude));
}
// Sixteen E4M3 codes as f32, exact, subnormal or not; the two NaN codes never occur in what we store.
FINBACK_INLINE f32x16 load_e4m3(const uint8_t* p) {
    const uint8x16_t code = vld1q_u8(p);
    const float16x8_t low = e4m3_halves(vget_low_u8(code)), high = e4m3_halves(vget_high_u8(code));
    const float32x4_t up = vdupq_n_f32(256.0f);
    return {{vmulq_f32(vcvt_f32_f16(vget_low_f16(low)), up), vmulq_f32(vcvt_high_f32_f16(low), up),
             vmulq_f32(vcvt_f32_f16(vget_low_f16(high)), up), vmulq_f32(vcvt_high_f32_f16(high), up)}};
}

// 2 * pairs interleaved values (a0 b0 a1 b1 ...) of sixteen pairs, apart and together.
FINBACK_INLINE void load_pairs(const float* p, f32x16& a, f32x16& b) {
    for (int i = 0; i < 4; ++i) {
        const float32x4x2_t pair = vld2q_f32(p + 8 * i);
        a.v[i] = pair.val[0];
        b.v[i] = pair.val[1];
    }
}
FINBACK_INLINE void store_pairs(float* p, f32x16 a, f32x16 b) {
    for (int i = 0; i < 4; ++i) vst2q_f32(p + 8 * i, {{a.v[i], b.v[i]}});
}

// ---- arithmetic, one rounding each

FINBACK_INLINE f32x16 operator+(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, vaddq_f32(a.v[i], b.v[i])); }
FINBACK_INLINE f32x16 operator-(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, vsubq_f32(a.v[i], b.v[i])); }
FINBACK_INLINE f32x16 operator*(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, vmulq_f32(a.v[i], b.v[i])); }
FINBACK_INLINE f32x16 operator/(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, vdivq_f32(a.v[i], b.v[i])); }
FINBACK_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
    FINBACK_REGISTERS(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
FINBACK_INLINE f32x16 sqrt(f32x16 a) { FINBACK_REGISTERS(f32x16, vsqrtq_f32(a.v[i])); }
// `a > b ? a : b` and `a < b ? a : b`, also for zeros of both signs and NaN.
FINBACK_INLINE float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
FINBACK_INLINE float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
FINBACK_INLINE f32x16 max(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, max(a.v[i], b.v[i])); }
FINBACK_INLINE f32x16 min(f32x16 a, f32x16 b) { FINBACK_REGISTERS(f32x16, min(a.v[i], b.v[i])); }

FINBACK_INLINE Part part_zero() { return vdupq_n_f32(0.0f); }
FINBACK_INLINE Part part_load(const float* p) { return vld1q_f32(p); }
FINBACK_INLINE Part part_fma(Part a, Part b, Part c) { return vfmaq_f32(c, a, b); }
FINBACK_INLINE void part_store(float* p, Part x) { vst1q_f32(p, x); }

// ---- bits and integers

FINBACK_INLINE i32x16 as_bits(f32x16 a) { FINBACK_REGISTERS(i32x16, vreinterpretq_s32_f32(a.v[i])); }
FINBACK_INLINE f32x16 as_floats(i32x16 a) { FINBACK_REGISTERS(f32x16, vreinterpretq_f32_s32(a.v[i])); }
FINBACK_INLINE i32x16 operator+(i32x16 a, i32x16 b) { FINBACK_REGISTERS(i32x16, vaddq_s32(a.v[i], b.v[i])); }
FINBACK_INLINE i32x16 operator-(i32x16 a, i32x16 b) { FINBACK_REGISTERS(i32x16, vsubq_s32(a.v[i], b.v[i])); }
FINBACK_INLINE i32x16 operator&(i32x16 a, i32x16 b) { FINBACK_REGISTERS(i32x16, vandq_s32(a.v[i], b.v[i])); }
FINBACK_INLINE i32x16 operator|(i32x16 a, i32x16 b) { FINBACK_REGISTERS(i32x16, vorrq_s32(a.v[i], b.v[i])); }
template <int N>
FINBACK_INLINE i32x16 shift_left(i32x16 a) {
    FINBACK_REGISTERS(i32x16, vshlq_n_s32(a.v[i], N));
}
template <int N>
FINBACK_INLINE i32x16 shift_right(i32x16 a) {  // zeros come in from the left
    FINBACK_REGISTERS(i32x16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), N)));
}
FINBACK_INLINE f32x16 to_floats(i32x16 a) { FINBACK_REGISTERS(f32x16, vcvtq_f32_s32(a.v[i])); }

// Nearest even integer for |x| < 2^22; any value beyond.
FINBACK_INLINE i32x16 rint_to_int(f32x16 a) { FINBACK_REGISTERS(i32x16, vcvtnq_s32_f32(a.v[i])); }

// ---- choices

FINBACK_INLINE m32x16 less(f32x16 a, f32x16 b) { FINBACK_REGISTERS(m32x16, vcltq_f32(a.v[i], b.v[i])); }
FINBACK_INLINE m32x16 less(i32x16 a, i32x16 b) { FINBACK_REGISTERS(m32x16, vcltq_s32(a.v[i], b.v[i])); }
alignas(64) constexpr int32_t kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
FINBACK_INLINE m32x16 first_lanes(int64_t n) {
    const int32x4_t end = vdupq_n_s32(static_cast<int32_t>(n));
    FINBACK_REGISTERS(m32x16, vcltq_s32(vld1q_s32(kIndex + 4 * i), end));
}
FINBACK_INLINE f32x16 select(m32x16 m, f32x16 a, f32x16 b) {
    FINBACK_REGISTERS(f32x16, vbslq_f32(m.v[i], a.v[i], b.v[i]));
}
FINBACK_INLINE i32x16 select(m32x16 m, i32x16 a, i32x16 b) {
    FINBACK_REGISTERS(i32x16, vbslq_s32(m.v[i], a.v[i], b.v[i]));
}
FINBACK_INLINE bool any(m32x16 m) {
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.v[0], m.v[1]), vorrq_u32(m.v[2], m.v[3]))) != 0;
}

// ---- across lanes

// Lane i receives lane i ^ H, for H = 1, 2, 4, 8.
template <int H>
FINBACK_INLINE f32x16 swap(f32x16 a) {
    if constexpr (H == 1) {
        FINBACK_REGISTERS(f32x16, vrev64q_f32(a.v[i]));
    } else if constexpr (H == 2) {
        FINBACK_REGISTERS(f32x16, vextq_f32(a.v[i], a.v[i], 2));
    } else {
        FINBACK_REGISTERS(f32x16, a.v[i ^ H / 4]);
    }
}
// The sign of the lanes whose index has bit H set is turned.
template <int H>
FINBACK_INLINE f32x16 flip(f32x16 a) {
    f32x16 result;
    for (int i = 0; i < 4; ++i) {
        const int32x4_t index = vld1q_s32(kIndex + 4 * i);
        const uint32x4_t set = vtstq_s32(index, vdupq_n_s32(H));
        const uint32x4_t sign = vshlq_n_u32(set, 31);
        result.v[i] = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a.v[i]), sign));
    }
    return result;
}

// The tree of docs/exactness.md section 2.
FINBACK_INLINE float tree16(f32x16 l) {
    const float32x4_t b = vaddq_f32(vaddq_f32(l.v[0], l.v[2]), vaddq_f32(l.v[1], l.v[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
// Greatest lane. Which zero wins between +0 and -0 is not said.
FINBACK_INLINE float max16(f32x16 l) {
    const float32x4_t b = max(max(l.v[0], l.v[2]), max(l.v[1], l.v[3]));
    const float32x4_t c = max(b, vextq_f32(b, b, 2));
    return vgetq_lane_f32(max(c, vdupq_laneq_f32(c, 1)), 0);
}

// ---- FP4 codes as bytes, for the indexer. A quad group is [16 lanes][4 bytes].

// words: 16 lanes of 4 code bytes (8 channels). Even channels (low nibbles) and odd ones each become a quad
// group of doubled values: value * 2 + 12 = 0 .. 24, so that the group is unsigned.
FINBACK_INLINE void quads_of_codes(const uint8_t* words, uint8_t* even, uint8_t* odd) {
    constexpr uint8_t kValue[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const uint8x16_t value = vld1q_u8(kValue), nibble = vdupq_n_u8(15);
    for (int at = 0; at < 64; at += 16) {
        const uint8x16_t x = vld1q_u8(words + at);
        vst1q_u8(even + at, vqtbl1q_u8(value, vandq_u8(x, nibble)));
        vst1q_u8(odd + at, vqtbl1q_u8(value, vshrq_n_u8(x, 4)));
    }
}

// sum over `groups` (at most 8) quad groups: lane i gets sum of quads[g][i][b] * q[g][b], b < 4. Exact. The
// codes are at most 24, so they are as good signed as unsigned.
FINBACK_INLINE i32x16 quad_dot(const uint8_t* quads, const int8_t* q, int groups) {
    i32x16 sum = broadcast(0);
    for (int g = 0; g < groups; ++g) {
        int32_t four;
        memcpy(&four, q + 4 * g, 4);
        const int8x16_t factor = vreinterpretq_s8_s32(vdupq_n_s32(four));
        for (int i = 0; i < 4; ++i)
            sum.v[i] = vdotq_s32(sum.v[i], vreinterpretq_s8_u8(vld1q_u8(quads + 64 * g + 16 * i)), factor);
    }
    return sum;
}

#undef FINBACK_REGISTERS

}  // namespace
}  // namespace finback
