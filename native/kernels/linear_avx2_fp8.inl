// Products of FP8_E4M3 weights and bf16 inputs with AVX2. Owns the decoding of codes to f32 lanes and the
// walk over scale blocks. Included after linear_avx2_floats.inl, whose tile shape and lanes it shares.
//
// An E4M3 code, its exponent and fraction moved up by seven bits and its sign to the top, is the f16 of 2^-8
// times the number, subnormals included: F16C converts it exactly. The factor 2^8 goes to the weights when
// they are decoded for many inputs. A single input takes it itself, which is cheaper and the same: the
// product inside fma(w / 256, 256 * x, lane) is exactly that of fma(w, x, lane). That needs 256 * x to be
// finite. NaN codes are watched for and make the row's result NaN.
//
// A 16-bit lane holds a pair of columns, the even one in its low byte; so does a 32-bit lane of bf16 inputs.

constexpr int kPairs = 32;  // columns of a step: sixteen lanes of two columns

inline __m256 low_bf16(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 high_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// The odd and even columns of 32 codes as f16 of 2^-8 times their value, in memory: from there the conversion
// of eight takes one operation, from a register two.
struct Fp8Step {
    alignas(32) uint16_t odd[16];
    alignas(32) uint16_t even[16];

    // `magnitude` collects the greatest code without its sign (0x7f: a NaN was among them).
    [[gnu::always_inline]] void decode(__m256i code, __m256i& magnitude) {
        const __m256i keep = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));  // sign; exponent and fraction
        const __m256i high = _mm256_and_si256(_mm256_srai_epi16(code, 1), keep);
        const __m256i low = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(code, 8), 1), keep);
        _mm256_store_si256(reinterpret_cast<__m256i*>(odd), high);
        _mm256_store_si256(reinterpret_cast<__m256i*>(even), low);
        asm("" : "+m"(odd), "+m"(even));  // keeps the compiler from taking the registers after all
        magnitude = _mm256_max_epu8(magnitude, _mm256_and_si256(code, _mm256_set1_epi8(0x7f)));
    }
    __m256 odd_half(int half) const { return _mm256_cvtph_ps(load128(odd + 8 * half)); }
    __m256 even_half(int half) const { return _mm256_cvtph_ps(load128(even + 8 * half)); }
};

// Which rows of a tile hold a NaN code, given the greatest code of the whole tile. Rows are looked through
// only if there is one.
inline bool row_has_nan(const uint8_t* row, int64_t cols, __m256i magnitude) {
    const __m256i hit = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    if (__builtin_expect(_mm256_testz_si256(hit, hit), 1)) return false;
    for (int64_t i = 0; i < cols; i++) {
        if ((row[i] & 0x7f) == 0x7f) return true;
    }
    return false;
}

// The last codes of a row, fewer than 32. Columns beyond the end read as +0, which leaves every lane as it is
// (a lane is never -0: it starts from +0 and its sums cannot underflow, section 4). Packed inputs are padded
// with zeros to match. Not inlined: what it does to the registers stays out of the loops.
[[gnu::noinline]] __m256i last_fp8_codes(const uint8_t* row, int64_t k, int64_t cols) {
    alignas(32) uint8_t rest[kPairs] = {};
    for (int64_t i = k; i < cols; i++) rest[i - k] = row[i];
    return load256(rest);
}
inline __m256i fp8_codes(const uint8_t* row, int64_t k, int64_t cols) {
    return __builtin_expect(k + kPairs <= cols, 1) ? load256(row + k) : last_fp8_codes(row, k, cols);
}

// total = fma(lane, scale, total), at the end of a scale block.
inline void close_block(__m256 lane, float scale, __m256& total) {
    total = _mm256_fmadd_ps(lane, _mm256_set1_ps(scale), total);
}

// Rows of a tile and the scales of their blocks. A tile that sticks out of the range repeats its last row.
struct Fp8Rows {
    const uint8_t* at[kFloatRows];
    blocks::ScaleRow scales[kFloatRows];

    Fp8Rows(const Matrix& w, int64_t r, int64_t row1) {
        for (int i = 0; i < kFloatRows; i++) {
            const int64_t index = smaller(r + i, row1 - 1);
            at[i] = blocks::row_of(w, index);
            scales[i] = blocks::ScaleRow(w, index);
        }
    }
};

// One input: codes go from memory to the lanes of four rows.
void fp8_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const __m256 factor = _mm256_set1_ps(256);
    for (int64_t r = row0; r < row1; r += kFloatRows) {
        const Fp8Rows rows(w, r, row1);
        __m256i magnitude = _mm256_setzero_si256();
        Lanes total[kFloatRows] = {};
        for (int64_t c0 = 0, c = 0; c0 < w.cols; c0 += w.block_cols, c++) {
            Lanes lane[kFloatRows] = {};
            for (int64_t k = c0; k < smaller(c0 + w.block_cols, w.cols); k += kPairs) {
                const __m256i a = load256(x + 2 * k), b = load256(x + 2 * k + 32);
                const __m256 odd_a = _mm256_mul_ps(high_bf16(a), factor);
                const __m256 odd_b = _mm256_mul_ps(high_bf16(b), factor);
                const __m256 even_a = _mm256_mul_ps(low_bf16(a), factor);
                const __m256 even_b = _mm256_mul_ps(low_bf16(b), factor);
                for (int i = 0; i < kFloatRows; i++) {
                    if (k % 64 == 0) prefetch(rows.at[i] + kFloatRows * w.row_bytes + k);
                    Fp8Step s;
                    s.decode(fp8_codes(rows.at[i], k, w.cols), magnitude);
                    lane[i].half[0] = _mm256_fmadd_ps(s.odd_half(0), odd_a, lane[i].half[0]);
                    lane[i].half[1] = _mm256_fmadd_ps(s.odd_half(1), odd_b, lane[i].half[1]);
                    lane[i].half[0] = _mm256_fmadd_ps(s.even_half(0), even_a, lane[i].half[0]);
                    lane[i].half[1] = _mm256_fmadd_ps(s.even_half(1), even_b, lane[i].half[1]);
                }
            }
            for (int i = 0; i < kFloatRows; i++) {
                for (int h = 0; h < 2; h++) close_block(lane[i].half[h], rows.scales[i][c], total[i].half[h]);
            }
        }
        for (int64_t i = 0; i < smaller(kFloatRows, row1 - r); i++) {
            const bool nan = row_has_nan(rows.at[i], w.cols, magnitude);
            out[r - row0 + i] = nan ? blocks::kNan : tree16(total[i]);
        }
    }
}

// Four rows of up to kFloatChunk columns as f32; of every 32 columns the odd ones, then the even ones.
struct Fp8Tile {
    alignas(32) float value[kFloatRows][kFloatChunk];
};

// Columns [k0, k1) of a row into the tile.
void decode_fp8_row(const uint8_t* row, int64_t k0, int64_t k1, int64_t cols, float* to, __m256i& magnitude) {
    __m256i most = magnitude;
    for (int64_t k = k0; k < k1; k += kPairs, to += kPairs) {
        Fp8Step s;
        s.decode(fp8_codes(row, k, cols), most);
        for (int half = 0; half < 2; half++) {
            _mm256_store_ps(to + 8 * half, _mm256_mul_ps(s.odd_half(half), _mm256_set1_ps(256)));
            _mm256_store_ps(to + 16 + 8 * half, _mm256_mul_ps(s.even_half(half), _mm256_set1_ps(256)));
        }
    }
    magnitude = most;
}

// One scale block, columns [c0, c1) of the tile's rows, for T inputs. The tile begins at column k0.
template <int T>
void add_fp8_block(const Fp8Tile& tile, int64_t k0, int64_t c0, int64_t c1, const float* scale,
                   const uint8_t* const* x, Lanes* total) {
    for (int half = 0; half < 2; half++) {
        __m256 acc[T][kFloatRows] = {};
        for (int64_t k = c0; k < c1; k += kPairs) {
            __m256 a[T];
            for (int t = 0; t < T; t++) a[t] = high_bf16(load256(x[t] + 2 * k + 32 * half));
            for (int i = 0; i < kFloatRows; i++) {
                const __m256 w = _mm256_load_ps(tile.value[i] + (k - k0) + 8 * half);
                for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w, a[t], acc[t][i]);
            }
            for (int t = 0; t < T; t++) a[t] = low_bf16(load256(x[t] + 2 * k + 32 * half));
            for (int i = 0; i < kFloatRows; i++) {
                const __m256 w = _mm256_load_ps(tile.value[i] + (k - k0) + 16 + 8 * half);
                for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w, a[t], acc[t][i]);
            }
        }
        for (int t = 0; t < T; t++) {
            Lanes* to = total + t * kFloatRows;
            for (int i = 0; i < kFloatRows; i++) close_block(acc[t][i], scale[i], to[i].half[half]);
        }
    }
}

// All inputs of the pass, three at a time.
void add_fp8_inputs(const Fp8Tile& tile, int64_t k0, int64_t c0, int64_t c1, const float* scale,
                    const uint8_t* const* x, int64_t n, Lanes* total) {
    int64_t t = 0;
    for (; t + 3 <= n; t += 3) add_fp8_block<3>(tile, k0, c0, c1, scale, x + t, total + t * kFloatRows);
    if (n - t == 2) add_fp8_block<2>(tile, k0, c0, c1, scale, x + t, total + t * kFloatRows);
    if (n - t == 1) add_fp8_block<1>(tile, k0, c0, c1, scale, x + t, total + t * kFloatRows);
}

void fp8_for_many(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                  float* const* out) {
    const int64_t group = inputs_per_pass(2 * w.cols, kFloatShare, kFloatInputs);
    for (int64_t t0 = 0; t0 < n; t0 += group) {
        const int64_t inputs = smaller(group, n - t0);
        for (int64_t r = row0; r < row1; r += kFloatRows) {
            const Fp8Rows rows(w, r, row1);
            __m256i magnitude = _mm256_setzero_si256();
            Lanes total[kFloatInputs * kFloatRows];
            for (int64_t i = 0; i < inputs * kFloatRows; i++) total[i] = {};
            Fp8Tile tile;
            for (int64_t k0 = 0; k0 < w.cols; k0 += kFloatChunk) {
                const int64_t k1 = smaller(k0 + kFloatChunk, w.cols);
                for (int i = 0; i < kFloatRows; i++) {
                    decode_fp8_row(rows.at[i], k0, k1, w.cols, tile.value[i], magnitude);
                }
                for (int64_t c0 = k0; c0 < k1; c0 += w.block_cols) {
                    float scale[kFloatRows];
                    for (int i = 0; i < kFloatRows; i++) scale[i] = rows.scales[i][c0 / w.block_cols];
                    const int64_t c1 = smaller(c0 + w.block_cols, k1);
                    add_fp8_inputs(tile, k0, c0, c1, scale, x + t0, inputs, total);
                }
            }
            for (int64_t i = 0; i < smaller(kFloatRows, row1 - r); i++) {
                const bool nan = row_has_nan(rows.at[i], w.cols, magnitude);
                for (int64_t t = 0; t < inputs; t++) {
                    out[t0 + t][r - row0 + i] = nan ? blocks::kNan : tree16(total[t * kFloatRows + i]);
                }
            }
        }
    }
}

// Whether 256 * x is finite for all of x.
bool can_scale(const uint8_t* x, int64_t k) {
    const __m256i most = _mm256_set1_epi16(static_cast<int16_t>(blocks::bf16_code(0x1p120f) - 1));
    __m256i beyond = _mm256_setzero_si256();
    for (int64_t i = 0; i < k; i += 16) {
        const __m256i magnitude = _mm256_and_si256(load256(x + 2 * i), _mm256_set1_epi16(0x7fff));
        beyond = _mm256_or_si256(beyond, _mm256_cmpgt_epi16(magnitude, most));
    }
    return _mm256_testz_si256(beyond, beyond) != 0;
}

void linear_fp8(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                float* const* out) {
    if (n == 1 && can_scale(x[0], w.cols)) {
        fp8_for_one(w, row0, row1, x[0], out[0]);
    } else {
        fp8_for_many(w, row0, row1, x, n, out);
    }
}
