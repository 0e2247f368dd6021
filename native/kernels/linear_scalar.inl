// Activation packing and matrix products in plain C++: docs/exactness.md sections 4 and 5 as they are
// written, one row, one block and one column after the other. Included inside the anonymous namespace of
// isa_scalar.cc. Owns the truth that every other level must reproduce bit for bit; is in no hurry beyond
// decoding a block once for all inputs that share it. Refuses nothing except rows that hold a NaN or an
// infinity, which pack to zeros.

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

// ---- block formats: the chain of output r lives in out[t][r - row0] itself

int dot(const int8_t* w, const int8_t* a, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * a[i];
    return sum;
}
int dot(const uint8_t* w, const int8_t* a, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * a[i];
    return sum;
}

template <class Unpack>
void linear_codes32(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                    float* const* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x32(w.cols);
    blocks::Codes32 c;
    for (int64_t r = row0; r < row1; r++) {
        for (int64_t t = 0; t < n; t++) out[t][r - row0] = 0;
        for (int64_t b = 0; b < w.cols / 32; b++) {
            Unpack::block(w, r, b, c);
            for (int64_t t = 0; t < n; t++) {
                const int8_t* a = reinterpret_cast<const int8_t*>(x[t]) + 32 * b;
                const float da = reinterpret_cast<const float*>(x[t] + layout.d)[b];
                float& acc = out[t][r - row0];
                acc = __builtin_fmaf(static_cast<float>(dot(c.code, a, 32)), c.d * da, acc);
            }
        }
    }
}

void linear_q4_k(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                 float* const* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x256(w.cols);
    blocks::CodesQ4_K c;
    for (int64_t r = row0; r < row1; r++) {
        for (int64_t t = 0; t < n; t++) out[t][r - row0] = 0;
        for (int64_t b = 0; b < w.cols / 256; b++) {
            blocks::unpack(w, r, b, c);
            for (int64_t t = 0; t < n; t++) {
                const int8_t* a = reinterpret_cast<const int8_t*>(x[t]) + 256 * b;
                const int16_t* sum = reinterpret_cast<const int16_t*>(x[t] + layout.sum) + 16 * b;
                const float da = reinterpret_cast<const float*>(x[t] + layout.d)[b];
                int products = 0, minimums = 0;
                for (int j = 0; j < 8; j++) {
                    products += c.sc[j] * dot(c.code + 32 * j, a + 32 * j, 32);
                    minimums += c.m[j] * (sum[2 * j] + sum[2 * j + 1]);
                }
                float& acc = out[t][r - row0];
                acc = __builtin_fmaf(static_cast<float>(products), c.d * da, acc);
                acc = __builtin_fmaf(static_cast<float>(minimums), -(c.dmin * da), acc);
            }
        }
    }
}

void linear_q6_k(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                 float* const* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x256(w.cols);
    blocks::CodesQ6_K c;
    for (int64_t r = row0; r < row1; r++) {
        for (int64_t t = 0; t < n; t++) out[t][r - row0] = 0;
        for (int64_t b = 0; b < w.cols / 256; b++) {
            blocks::unpack(w, r, b, c);
            for (int64_t t = 0; t < n; t++) {
                const int8_t* a = reinterpret_cast<const int8_t*>(x[t]) + 256 * b;
                const float da = reinterpret_cast<const float*>(x[t] + layout.d)[b];
                int products = 0;
                for (int j = 0; j < 16; j++) products += c.sc[j] * dot(c.code + 16 * j, a + 16 * j, 16);
                float& acc = out[t][r - row0];
                acc = __builtin_fmaf(static_cast<float>(products), c.d * da, acc);
            }
        }
    }
}

// ---- float formats: sixteen lanes and one tree

float tree16(const float* l) {
    float a[8], b[4];
    for (int i = 0; i < 8; i++) a[i] = l[i] + l[i + 8];
    for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

template <class Load>
void linear_floats(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                   float* const* out) {
    for (int64_t r = row0; r < row1; r++) {
        const uint8_t* row = blocks::row_of(w, r);
        for (int64_t t = 0; t < n; t++) {
            const float* a = reinterpret_cast<const float*>(x[t]);
            float lane[kLanes] = {};
            for (int64_t i = 0; i < w.cols; i++) {
                lane[i % kLanes] = __builtin_fmaf(Load::at(row, i), a[i], lane[i % kLanes]);
            }
            out[t][r - row0] = tree16(lane);
        }
    }
}

// One scale block of one row: its columns [c0, c1), pairs of columns in order, the odd one of a pair first.
void add_fp8_block(const uint8_t* row, const uint16_t* a, int64_t c0, int64_t c1, float scale, float* total) {
    float lane[kLanes] = {};
    for (int64_t k = c0; k < c1; k += 2) {
        float& l = lane[(k - c0) / 2 % kLanes];
        if (k + 1 < c1) l = __builtin_fmaf(blocks::kE4M3.value[row[k + 1]], blocks::f32_of_bf16(a[k + 1]), l);
        l = __builtin_fmaf(blocks::kE4M3.value[row[k]], blocks::f32_of_bf16(a[k]), l);
    }
    for (int i = 0; i < kLanes; i++) total[i] = __builtin_fmaf(lane[i], scale, total[i]);
}

void linear_fp8(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                float* const* out) {
    for (int64_t r = row0; r < row1; r++) {
        const uint8_t* row = blocks::row_of(w, r);
        const blocks::ScaleRow scales(w, r);
        for (int64_t t = 0; t < n; t++) {
            const uint16_t* a = reinterpret_cast<const uint16_t*>(x[t]);
            float total[kLanes] = {};
            for (int64_t c0 = 0, c = 0; c0 < w.cols; c0 += w.block_cols, c++) {
                const int64_t c1 = c0 + w.block_cols < w.cols ? c0 + w.block_cols : w.cols;
                add_fp8_block(row, a, c0, c1, scales[c], total);
            }
            out[t][r - row0] = tree16(total);
        }
    }
}

}  // namespace products

constexpr void fill_linear(Table& t) {
    t.pack[static_cast<int>(Encoding::F32)] = products::pack_f32;
    t.pack[static_cast<int>(Encoding::BF16)] = products::pack_bf16;
    t.pack[static_cast<int>(Encoding::A8x32)] = products::pack_a8x32;
    t.pack[static_cast<int>(Encoding::A8x256)] = products::pack_a8x256;
    const auto set = [&t](Format f, auto function) { t.linear[static_cast<int>(f)] = function; };
    set(Format::F32, products::linear_floats<blocks::LoadF32>);
    set(Format::F16, products::linear_floats<blocks::LoadF16>);
    set(Format::BF16, products::linear_floats<blocks::LoadBF16>);
    set(Format::FP8_E4M3, products::linear_fp8);
    set(Format::MXFP4, products::linear_codes32<blocks::UnpackMXFP4>);
    set(Format::MXFP4_PAIRS, products::linear_codes32<blocks::UnpackMXFP4Pairs>);
    set(Format::Q8_0, products::linear_codes32<blocks::UnpackQ8_0>);
    set(Format::Q4_0, products::linear_codes32<blocks::UnpackQ4_0>);
    set(Format::Q4_K, products::linear_q4_k);
    set(Format::Q6_K, products::linear_q6_k);
    blocks::fill_decode_row(t);
}
