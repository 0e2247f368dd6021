// Activation packing in plain C++: docs/exactness.md section 4 as it is written. Included inside the
// anonymous namespace of isa_scalar.cc. Owns the truth of packing that every other level must reproduce bit
// for bit, and the table entries of a level whose products are all plain (linear_plain.inl). Refuses nothing
// except rows that hold a NaN or an infinity, which pack to zeros.

namespace products {

// ---- packing

bool all_below(const float* x, int64_t k, uint32_t bound) {
    bool ok = true;
    for (int64_t i = 0; i < k; i++) ok &= blocks::is_below(x[i], bound);
    return ok;
}

bool pack_f32(const float* x, int64_t k, uint8_t* dst) {
    __builtin_memset(dst, 0, static_cast<size_t>(pad64(4 * k)));
    if (!all_below(x, k, blocks::kNotFinite)) return false;
    __builtin_memcpy(dst, x, static_cast<size_t>(4 * k));
    return true;
}

bool pack_bf16(const float* x, int64_t k, uint8_t* dst) {
    __builtin_memset(dst, 0, static_cast<size_t>(pad64(2 * k)));
    if (!all_below(x, k, blocks::kBf16Overflow)) return false;
    uint16_t* code = reinterpret_cast<uint16_t*>(dst);
    for (int64_t i = 0; i < k; i++) code[i] = blocks::bf16_code(x[i]);
    return true;
}

// Codes of one block; returns its scale.
float pack_codes(const float* x, int n, int8_t* code) {
    float amax = 0;
    for (int i = 0; i < n; i++) {
        const float magnitude = __builtin_fabsf(x[i]);
        amax = magnitude > amax ? magnitude : amax;
    }
    const float d = amax / 127;
    if (d < 0x1p-126f) {
        __builtin_memset(code, 0, static_cast<size_t>(n));
        return 0;
    }
    const float v = 1 / d;
    for (int i = 0; i < n; i++) {
        const long q = __builtin_lrintf(x[i] * v);
        code[i] = static_cast<int8_t>(q < -127 ? -127 : q > 127 ? 127 : q);
    }
    return d;
}

int sum_codes(const int8_t* code, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += code[i];
    return sum;
}

bool pack_a8x32(const float* x, int64_t k, uint8_t* dst) {
    const blocks::Int8Layout layout = blocks::layout_a8x32(k);
    __builtin_memset(dst, 0, static_cast<size_t>(layout.end));
    if (!all_below(x, k, blocks::kNotFinite)) return false;
    int8_t* code = reinterpret_cast<int8_t*>(dst);
    float* d = reinterpret_cast<float*>(dst + layout.d);
    int32_t* sum = reinterpret_cast<int32_t*>(dst + layout.sum);
    for (int64_t b = 0; b < k / 32; b++) {
        d[b] = pack_codes(x + 32 * b, 32, code + 32 * b);
        sum[b] = sum_codes(code + 32 * b, 32);
    }
    return true;
}

bool pack_a8x256(const float* x, int64_t k, uint8_t* dst) {
    const blocks::Int8Layout layout = blocks::layout_a8x256(k);
    __builtin_memset(dst, 0, static_cast<size_t>(layout.end));
    if (!all_below(x, k, blocks::kNotFinite)) return false;
    int8_t* code = reinterpret_cast<int8_t*>(dst);
    float* d = reinterpret_cast<float*>(dst + layout.d);
    int16_t* sum = reinterpret_cast<int16_t*>(dst + layout.sum);
    for (int64_t b = 0; b < k / 256; b++) d[b] = pack_codes(x + 256 * b, 256, code + 256 * b);
    for (int64_t g = 0; g < k / 16; g++) sum[g] = static_cast<int16_t>(sum_codes(code + 16 * g, 16));
    return true;
}

}  // namespace products

constexpr void fill_linear(Table& t) {
    t.pack[static_cast<int>(Encoding::F32)] = products::pack_f32;
    t.pack[static_cast<int>(Encoding::BF16)] = products::pack_bf16;
    t.pack[static_cast<int>(Encoding::A8x32)] = products::pack_a8x32;
    t.pack[static_cast<int>(Encoding::A8x256)] = products::pack_a8x256;
    plain::fill_linear(t);
    blocks::fill_decode_row(t);
}
