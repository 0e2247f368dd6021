// Matrix products in plain C++: docs/exactness.md section 5 as it is written, one row, one block and one
// column after the other. Included inside the anonymous namespace of every isa_*.cc, after blocks.inl. Owns
// the truth that every kernel must reproduce bit for bit, and what a level runs for the formats it has no
// kernel of its own for; is in no hurry beyond decoding a block once for all inputs that share it. Refuses
// nothing.

namespace plain {

// ---- block formats: the chain of output r lives in out[t][r - row0] itself

int dot(const int8_t* w, const int8_t* a, int n) {
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
            blocks::unpack<Unpack>(w, r, b, c);
            for (int64_t t = 0; t < n; t++) {
                const int8_t* a = reinterpret_cast<const int8_t*>(x[t]) + 32 * b;
                const float da = reinterpret_cast<const float*>(x[t] + layout.d)[b];
                float& acc = out[t][r - row0];
                acc = __builtin_fmaf(static_cast<float>(dot(c.code, a, 32)), c.d * da, acc);
            }
        }
    }
}

// Sums stay below 2^27: at most 256 * 127 * 32 * 128 for products (Q6_K), 256 * 127 * 63 for minimums.
template <class Unpack>
void linear_codes256(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                     float* const* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x256(w.cols);
    blocks::Codes256 c;
    for (int64_t r = row0; r < row1; r++) {
        for (int64_t t = 0; t < n; t++) out[t][r - row0] = 0;
        for (int64_t b = 0; b < w.cols / 256; b++) {
            blocks::unpack<Unpack>(w, r, b, c);
            for (int64_t t = 0; t < n; t++) {
                const int8_t* a = reinterpret_cast<const int8_t*>(x[t]) + 256 * b;
                const float da = reinterpret_cast<const float*>(x[t] + layout.d)[b];
                int products = 0;
                for (int j = 0; j < 16; j++) products += c.sc[j] * dot(c.code + 16 * j, a + 16 * j, 16);
                float& acc = out[t][r - row0];
                acc = __builtin_fmaf(static_cast<float>(products), c.d * da, acc);
                if constexpr (Unpack::kMinimums) {
                    const int16_t* sum = reinterpret_cast<const int16_t*>(x[t] + layout.sum) + 16 * b;
                    int minimums = 0;
                    for (int j = 0; j < 16; j++) minimums += c.m[j] * sum[j];
                    acc = __builtin_fmaf(static_cast<float>(minimums), -(c.dmin * da), acc);
                }
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

constexpr void fill_linear(Table& t) {
    const auto set = [&t](Format f, auto function) { t.linear[static_cast<int>(f)] = function; };
    set(Format::F32, linear_floats<blocks::LoadF32>);
    set(Format::F16, linear_floats<blocks::LoadF16>);
    set(Format::BF16, linear_floats<blocks::LoadBF16>);
    set(Format::FP8_E4M3, linear_fp8);
    set(Format::MXFP4, linear_codes32<blocks::UnpackMXFP4>);
    set(Format::MXFP4_PAIRS, linear_codes32<blocks::UnpackMXFP4Pairs>);
    set(Format::Q8_0, linear_codes32<blocks::UnpackQ8_0>);
    set(Format::Q4_0, linear_codes32<blocks::UnpackQ4_0>);
    set(Format::Q2_K, linear_codes256<blocks::UnpackQ2_K>);
    set(Format::Q3_K, linear_codes256<blocks::UnpackQ3_K>);
    set(Format::Q4_K, linear_codes256<blocks::UnpackQ4_K>);
    set(Format::Q5_K, linear_codes256<blocks::UnpackQ5_K>);
    set(Format::Q6_K, linear_codes256<blocks::UnpackQ6_K>);
    set(Format::IQ1_S, linear_codes256<blocks::UnpackIQ1_S>);
    set(Format::IQ1_M, linear_codes256<blocks::UnpackIQ1_M>);
    set(Format::IQ2_XXS, linear_codes256<blocks::UnpackIQ2_XXS>);
    set(Format::IQ2_XS, linear_codes256<blocks::UnpackIQ2_XS>);
    set(Format::IQ2_S, linear_codes256<blocks::UnpackIQ2_S>);
    set(Format::IQ3_XXS, linear_codes256<blocks::UnpackIQ3_XXS>);
    set(Format::IQ3_S, linear_codes256<blocks::UnpackIQ3_S>);
    set(Format::IQ4_NL, linear_codes32<blocks::UnpackIQ4_NL>);
    set(Format::IQ4_XS, linear_codes256<blocks::UnpackIQ4_XS>);
}

}  // namespace plain
