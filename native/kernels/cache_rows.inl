// Cache rows: what a key row keeps and what it decodes to (docs/exactness.md section 9). Owns the two small
// float formats, E4M3 and E2M1, their power-of-two block scales, the layout of a stored row, and the Hadamard
// transform that comes before FP4. Included by float_ops.inl. Refuses values that are not finite: rows were
// checked before.
//
// - Main row (rotary > 0): FP8 codes [front], E8M0 [ceil(front / 64)] padded with zeros to a multiple of 8,
//   bf16 [rotary].
// - Indexer row (rotary = 0): FP4 codes [ceil(width / 2)], even channel in the low nibble, E8M0
//   [ceil(width / 32)].
// - Not rounded: f32 [width].

// ---- small floats: `Mantissa` bits, exponent bias `Bias`; values below 2^(1 - Bias) are multiples of a step

// Codes of finite x, |x| at most the largest value: nearest, ties to the even code, the sign at bit `Sign`.
template <int Mantissa, int Bias, int Sign>
FINBACK_INLINE i32x16 small_codes(f32x16 x) {
    constexpr int kDrop = 23 - Mantissa;
    constexpr float kSteps = static_cast<float>(1 << (Bias - 1 + Mantissa));  // steps in one unit
    constexpr float kFirstNormal = static_cast<float>(1 << Mantissa) / kSteps;
    const f32x16 size = magnitude(x);
    // Above: round the mantissa by adding just under half of the last kept bit, and one more if that bit is
    // set; a carry moves to the next exponent, which is the next code. Below: a small integer, whose carry is
    // the first normal code.
    const i32x16 bits = as_bits(size);
    const i32x16 last = shift_right<kDrop>(bits) & broadcast(1);
    const i32x16 rounded = shift_right<kDrop>(bits + broadcast((1 << (kDrop - 1)) - 1) + last);
    const i32x16 normal = rounded - broadcast((127 - Bias) << Mantissa);
    const i32x16 below = rint_to_int(size * broadcast(kSteps));
    const i32x16 code = select(less(size, broadcast(kFirstNormal)), below, normal);
    return code | (shift_right<31 - Sign>(as_bits(x)) & broadcast(1 << Sign));
}

// The values of codes, exact.
template <int Mantissa, int Bias, int Sign>
FINBACK_INLINE f32x16 small_values(i32x16 code) {
    constexpr float kStep = 1.0f / static_cast<float>(1 << (Bias - 1 + Mantissa));
    const i32x16 size = code & broadcast((1 << Sign) - 1);
    const f32x16 normal = as_floats(shift_left<23 - Mantissa>(size + broadcast((127 - Bias) << Mantissa)));
    const f32x16 below = to_floats(size) * broadcast(kStep);
    const f32x16 value = select(less(size, broadcast(1 << Mantissa)), below, normal);
    return as_floats(as_bits(value) | shift_left<31 - Sign>(code & broadcast(1 << Sign)));
}

// ---- block scales

// 2^(b - 127); 0 gives the subnormal 2^-127.
FINBACK_INLINE float e8m0(uint8_t b) {
    return float_of(b == 0 ? 0x00400000u : static_cast<uint32_t>(b) << 23);
}

// E8M0 of pow2ceil(t) for a normal t > 0: the exponent field, one up unless t is a power of two.
FINBACK_INLINE uint8_t scale_code(float t) {
    const uint32_t bits = bits_of(t);
    return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7FFFFF) != 0));
}

FINBACK_INLINE float largest(const float* x, int64_t n) {
    f32x16 top = broadcast(0.0f);
    FINBACK_FOR_LANES (i, lanes, n) top = max(magnitude(load_some(x + i, lanes)), top);
    return max16(top);
}

FINBACK_INLINE f32x16 clamped(f32x16 x, float limit) {
    return max(min(x, broadcast(limit)), broadcast(-limit));
}

FINBACK_INLINE void store_some_bytes(uint8_t* p, i32x16 x, int64_t lanes) {
    uint8_t some[16];
    store_bytes(some, x);
    memcpy(p, some, static_cast<size_t>(lanes));
}

// n <= 64 values -> codes; returns the E8M0 scale.
FINBACK_INLINE uint8_t encode_fp8(const float* x, int64_t n, uint8_t* code) {
    const float amax = largest(x, n);
    const uint8_t scale = scale_code((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
    const f32x16 inverse = broadcast(1.0f / e8m0(scale));
    FINBACK_FOR_LANES (i, lanes, n)
        store_some_bytes(code + i, small_codes<3, 7, 7>(clamped(load_some(x + i, lanes) * inverse, 448.0f)),
                         lanes);
    return scale;
}

// n <= 32 values -> nibbles; returns the E8M0 scale.
FINBACK_INLINE uint8_t encode_fp4(const float* x, int64_t n, uint8_t* code) {
    const float amax = largest(x, n), least = 6 * 0x1p-126f;
    const uint8_t scale = scale_code((amax > least ? amax : least) * (1.0f / 6.0f));
    const f32x16 inverse = broadcast(1.0f / e8m0(scale));
    FINBACK_FOR_LANES (i, lanes, n) {
        uint8_t nibble[16];
        store_bytes(nibble, small_codes<1, 1, 3>(clamped(load_some(x + i, lanes) * inverse, 6.0f)));
        for (int64_t k = 0; k < lanes; k += 2)  // lanes past the row are +0: code 0
            code[(i + k) / 2] = static_cast<uint8_t>(nibble[k] | nibble[k + 1] << 4);
    }
    return scale;
}

// ---- bf16, nearest even

FINBACK_INLINE void encode_bf16(const float* x, int64_t n, uint8_t* to) {
    FINBACK_FOR_LANES (i, lanes, n) {
        const i32x16 bits = as_bits(load_some(x + i, lanes));
        const i32x16 last = shift_right<16>(bits) & broadcast(1);
        uint8_t some[32];
        store_halves(some, shift_right<16>(bits + broadcast(0x7FFF) + last));
        memcpy(to + 2 * i, some, static_cast<size_t>(lanes) * 2);
    }
}

FINBACK_INLINE void decode_bf16(const uint8_t* from, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, load_bf16(from + 2 * i));
    for (; i < n; ++i) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof(half));
        out[i] = float_of(static_cast<uint32_t>(half) << 16);
    }
}

// ---- rows

void encode_main(const float* x, RowShape shape, uint8_t* dst) {
    const int64_t front = shape.width - shape.rotary, rotary_at = main_rotary_offset(front);
    memset(dst + front, 0, static_cast<size_t>(rotary_at - front));
    for (int64_t at = 0; at < front; at += kFp8Block) {
        const int64_t n = front - at < kFp8Block ? front - at : kFp8Block;
        dst[front + at / kFp8Block] = encode_fp8(x + at, n, dst + at);
    }
    encode_bf16(x + front, shape.rotary, dst + rotary_at);
}

void decode_main(const uint8_t* src, RowShape shape, float* out) {
    const int64_t front = shape.width - shape.rotary;
    for (int64_t begin = 0; begin < front; begin += kFp8Block) {
        const f32x16 scale = broadcast(e8m0(src[front + begin / kFp8Block]));
        const int64_t end = begin + kFp8Block < front ? begin + kFp8Block : front;
        int64_t i = begin;
        for (; i + 16 <= end; i += 16) store(out + i, load_e4m3(src + i) * scale);
        if (i < end) {
            uint8_t some[16] = {};
            memcpy(some, src + i, static_cast<size_t>(end - i));
            store_tail(out + i, load_e4m3(some) * scale, end - i);
        }
    }
    decode_bf16(src + main_rotary_offset(front), shape.rotary, out + front);
}

void encode_indexer(const float* x, int64_t width, uint8_t* dst) {
    uint8_t* scales = dst + (width + 1) / 2;
    for (int64_t b = 0; b * kFp4Block < width; ++b) {
        const int64_t at = b * kFp4Block, n = width - at < kFp4Block ? width - at : kFp4Block;
        scales[b] = encode_fp4(x + at, n, dst + at / 2);
    }
}

void decode_indexer(const uint8_t* src, int64_t width, float* out) {
    const uint8_t* scales = src + (width + 1) / 2;
    FINBACK_FOR_LANES (i, lanes, width) {
        uint8_t nibble[16] = {};
        for (int64_t k = 0; k < lanes; ++k)
            nibble[k] = static_cast<uint8_t>(k % 2 ? src[(i + k) / 2] >> 4 : src[(i + k) / 2] & 15);
        const f32x16 value = small_values<1, 1, 3>(load_bytes(nibble));
        store_some(out + i, value * broadcast(e8m0(scales[i / kFp4Block])), lanes);
    }
}

void encode_row(const float* x, RowShape shape, uint8_t* dst) {
    if (!shape.rounded)
        memcpy(dst, x, static_cast<size_t>(shape.width) * sizeof(float));
    else if (shape.rotary > 0)
        encode_main(x, shape, dst);
    else
        encode_indexer(x, shape.width, dst);
}

void decode_cache_row(const uint8_t* src, RowShape shape, float* out) {
    if (!shape.rounded)
        memcpy(out, src, static_cast<size_t>(shape.width) * sizeof(float));
    else if (shape.rotary > 0)
        decode_main(src, shape, out);
    else
        decode_indexer(src, shape.width, out);
}

// ---- Hadamard

// Distance H inside a vector. Where bit H of the lane is clear the result is other + own = a + b, else it is
// other - own = a - b.
template <int H>
FINBACK_INLINE f32x16 butterfly(f32x16 x) {
    return swap<H>(x) + flip<H>(x);
}

void hadamard(float* x, int64_t n) {
    FINBACK_FOR_LANES (i, lanes, n) {
        f32x16 v = load_some(x + i, lanes);
        if (n > 1) v = butterfly<1>(v);
        if (n > 2) v = butterfly<2>(v);
        if (n > 4) v = butterfly<4>(v);
        if (n > 8) v = butterfly<8>(v);
        store_some(x + i, v, lanes);
    }
    for (int64_t h = 16; h < n; h *= 2)
        for (int64_t base = 0; base < n; base += 2 * h)
            for (int64_t i = base; i < base + h; i += 16) {
                const f32x16 a = load(x + i), b = load(x + i + h);
                store(x + i, a + b);
                store(x + i + h, a - b);
            }
    const f32x16 factor = broadcast(static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(n))));
    FINBACK_FOR_LANES (i, lanes, n) store_some(x + i, load_some(x + i, lanes) * factor, lanes);
}
