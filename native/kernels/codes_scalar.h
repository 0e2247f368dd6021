// Sixteen rows of four codes each, for the scalar level: the meaning of codes_avx2.h in plain loops. Owns
// what every other level must reproduce; refuses tricks.
#pragma once
#include "kernels/vec_scalar.h"

// Arrays do not live in registers: calls keep the unit small.
#define FINBACK_HOT inline
#define FINBACK_HOT_LAMBDA

namespace finback {
namespace {

struct codes {
    uint8_t v[64];  // row r, column i of four: 4 * r + i
};

FINBACK_HOT codes load_codes(const uint8_t* p) {
    codes c;
    memcpy(c.v, p, 64);
    return c;
}
FINBACK_HOT void store_codes(uint8_t* p, codes c) { memcpy(p, c.v, 64); }
FINBACK_HOT codes fill_codes(uint8_t b) {
    codes c;
    memset(c.v, b, 64);
    return c;
}
FINBACK_HOT codes operator|(codes a, codes b) {
    for (int i = 0; i < 64; i++) a.v[i] = static_cast<uint8_t>(a.v[i] | b.v[i]);
    return a;
}

// (byte >> kRight) & kMask; to the left where kRight is negative.
template <int kRight, int kMask>
FINBACK_HOT codes bits(codes c) {
    for (int i = 0; i < 64; i++) {
        const int moved =
            kRight >= 0 ? c.v[i] >> (kRight >= 0 ? kRight : 0) : c.v[i] << (kRight < 0 ? -kRight : 0);
        c.v[i] = static_cast<uint8_t>(moved & kMask);
    }
    return c;
}

// Sixteen bytes by index; indices are 0..15.
struct code_table {
    uint8_t v[16];
};
FINBACK_HOT code_table table_of(const uint8_t* entries) {
    code_table t;
    memcpy(t.v, entries, 16);
    return t;
}
FINBACK_HOT codes lookup(code_table t, codes index) {
    for (int i = 0; i < 64; i++) index.v[i] = t.v[index.v[i]];
    return index;
}

// Four activations, for all rows.
struct four {
    int8_t v[4];
};
FINBACK_HOT four four_of(const int8_t* a) { return {{a[0], a[1], a[2], a[3]}}; }

// ---- sums of dots

using sum = i32x16;
constexpr int dots_in_sum(int) { return 8; }
FINBACK_HOT i32x16 dot(i32x16 total, codes w, four a) {
    for (int r = 0; r < 16; r++) {
        for (int i = 0; i < 4; i++) total.v[r] += w.v[4 * r + i] * a.v[i];
    }
    return total;
}
FINBACK_HOT sum dot(codes w, four a) { return dot(i32x16{}, w, a); }
FINBACK_HOT i32x16 add_sum(i32x16 total, sum s) { return total + s; }

// ---- a small integer per row

using scales = i32x16;
FINBACK_HOT i32x16 lanes_of(codes c) {
    i32x16 x;
    memcpy(x.v, c.v, 64);
    return x;
}
template <int kByte>
FINBACK_HOT scales unsigned_scales(i32x16 v) {
    FINBACK_LANES(i32x16, v.v[i] >> (8 * kByte) & 255);
}
template <int kByte>
FINBACK_HOT scales signed_scales(i32x16 v) {
    FINBACK_LANES(i32x16, static_cast<int8_t>(v.v[i] >> (8 * kByte) & 255));
}
FINBACK_HOT scales minus(scales f, int16_t b) { FINBACK_LANES(i32x16, f.v[i] - b); }
FINBACK_HOT i32x16 multiply(i32x16 a, int32_t b) { FINBACK_LANES(i32x16, a.v[i] * b); }
FINBACK_HOT i32x16 add_scaled(i32x16 total, sum s, scales f) {
    FINBACK_LANES(i32x16, total.v[i] + s.v[i] * f.v[i]);
}
// total + first * (lower half of pair) + second * (upper half), the halves being 16-bit numbers
FINBACK_HOT i32x16 add_pair(i32x16 total, scales first, scales second, int32_t pair) {
    const int32_t low = static_cast<int16_t>(pair & 0xffff), high = pair >> 16;
    FINBACK_LANES(i32x16, total.v[i] + first.v[i] * low + second.v[i] * high);
}

// ---- codes of a full byte: signed numbers, made unsigned here

constexpr int kWideBias = 128;  // what the dot adds to each number
using wide = codes;
FINBACK_HOT wide wide_of(codes w) {
    for (int i = 0; i < 64; i++) w.v[i] = static_cast<uint8_t>(w.v[i] ^ 128);
    return w;
}

FINBACK_HOT f32x16 load_f16(const uint8_t* p) {
    uint16_t half[16];
    memcpy(half, p, sizeof(half));
    f32x16 x;
    for (int i = 0; i < 16; i++) {
        const uint32_t sign = (half[i] & 0x8000u) << 16, magnitude = half[i] & 0x7fffu;
        const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f
                                              : float_of((magnitude << 13) + (112u << 23));
        x.v[i] = float_of(bits_of(value) | sign);  // finite: make_resident has looked
    }
    return x;
}
// 2^(b-128) of sixteen E8M0 bytes.
FINBACK_HOT f32x16 load_e8m0_halves(const uint8_t* p) {
    FINBACK_LANES(f32x16, float_of(p[i] < 2 ? 0x00200000u << p[i] : static_cast<uint32_t>(p[i] - 1) << 23));
}

constexpr int kShares[] = {1};  // sharing is for registers

}  // namespace
}  // namespace finback
