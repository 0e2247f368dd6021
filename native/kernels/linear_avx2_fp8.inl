// Products of FP8_E4M3 weights and bf16 inputs with AVX2. Owns the decoding of codes to f32 lanes and the
// walk over scale blocks. Included after linear_avx2_floats.inl, whose tile shape, lanes and streams it
// shares.
//
// Two decodings. For many inputs a chunk of weights becomes f32 once: an E4M3 code, its exponent and fraction
// moved up by seven bits and its sign to the top, is the f16 of 2^-8 times the number, subnormals included;
// F16C converts it exactly, and a product with 2^8 makes it the number.
//
// For one input the weights only pass by, and their bits are put where f32 has them: sign at the top,
// exponent and fraction from bit 26 down. That is the f32 of 2^-120 times the number, subnormals included,
// without any conversion. The input takes 2^100 of the missing factor, the scales of the blocks the other
// 2^20, and nothing is rounded differently:
//
//   - 2^100 * x is finite if |x| < 2^28, and 2^20 * scale if |scale| < 2^108: both are looked at before, and
//   any
//     other input or scale goes the way of many. Both products are exact, scales being made greater.
//   - a lane holds 2^-20 times its value. Inputs are zero or at least 2^-100 with eight bits, so a value is a
//     multiple of 2^-116 (2^-9 of the code, 2^-107 of the input) and the lane one of 2^-136: where the lane
//     is subnormal it is still exact, and so is the value, which has ten bits there. Elsewhere both round
//     alike.
//   - at the end of a block the product inside fma(lane, scale, total) is that of the rule exactly.
//
// NaN codes are watched for and make the row's result NaN.
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

// ---- one input

// 2^-120 times the value of 32 codes: lanes 0, 2 .. 14 and lanes 1, 3 .. 15, which is how codes lie in a
// dword (two pairs of columns). A product with a power of two moves a code up with its sign spread above; the
// mask leaves one sign.
struct Fp8Lanes {
    __m256 odd[2], even[2];

    explicit Fp8Lanes(__m256i code) {
        const __m256i high = _mm256_maddubs_epi16(_mm256_set1_epi16(0x1000), code);
        const __m256i low = _mm256_maddubs_epi16(_mm256_set1_epi16(0x0010), code);
        odd[0] = upper(_mm256_slli_epi32(high, 16));
        odd[1] = upper(high);
        even[0] = upper(_mm256_slli_epi32(low, 16));
        even[1] = upper(low);
    }

  private:
    static __m256 upper(__m256i v) {
        return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0x87f00000u))));
    }
};

constexpr int kFp8Streams = 3;
constexpr int64_t kFp8Panel = 16384;  // columns of the widest row; 64 KB of stack
constexpr float kInputFactor = 0x1p100f, kScaleFactor = 0x1p20f;
constexpr float kInputLimit = 0x1p28f, kScaleLimit = 0x1p108f;  // times its factor, the first to be infinite

// The input as f32, times kInputFactor, in the order of Fp8Lanes: of every 32 columns odd[0], even[0],
// odd[1], even[1]. Packed inputs are padded with zeros to whole steps.
struct Fp8Panel {
    alignas(32) float value[kFp8Panel];

    Fp8Panel(const uint8_t* x, int64_t cols) {
        float* to = value;
        const auto put = [&](__m256 v) {
            _mm256_store_ps(to, _mm256_mul_ps(v, _mm256_set1_ps(kInputFactor)));
            to += 8;
        };
        // shuffling works within 128 bits; this brings the second half of the pairs behind the first
        const auto in_order = [](__m256 v) { return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xd8); };
        for (int64_t k = 0; k < cols; k += kPairs) {
            const __m256 a = _mm256_castsi256_ps(load256(x + 2 * k));
            const __m256 b = _mm256_castsi256_ps(load256(x + 2 * k + 32));
            const __m256i pairs[2] = {in_order(_mm256_shuffle_ps(a, b, 0x88)),
                                      in_order(_mm256_shuffle_ps(a, b, 0xdd))};
            for (const __m256i p : pairs) {
                put(high_bf16(p));
                put(low_bf16(p));
            }
        }
    }
};

// One step of one row. x: its 32 values in the panel.
[[gnu::always_inline]] inline void add_fp8_step(__m256i code, const float* x, Lanes& lanes,
                                                __m256i& magnitude) {
    const Fp8Lanes w(code);
    for (int h = 0; h < 2; h++) {
        lanes.half[h] = _mm256_fmadd_ps(w.odd[h], _mm256_load_ps(x + 16 * h), lanes.half[h]);
        lanes.half[h] = _mm256_fmadd_ps(w.even[h], _mm256_load_ps(x + 16 * h + 8), lanes.half[h]);
    }
    magnitude = _mm256_max_epu8(magnitude, _mm256_and_si256(code, _mm256_set1_epi8(0x7f)));
}

// tree16 of lanes 0, 2 .. 14 and 1, 3 .. 15.
inline float tree16_apart(Lanes l) {
    const auto sum = [](__m256 v) {
        const __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
        return _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    };
    return _mm_cvtss_f32(_mm_add_ss(sum(l.half[0]), sum(l.half[1])));
}

// Whether one input can take this way: see above.
bool fits_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x) {
    if (w.cols > kFp8Panel) return false;
    const __m256i most = _mm256_set1_epi16(static_cast<int16_t>(blocks::bf16_code(kInputLimit) - 1));
    __m256i beyond = _mm256_setzero_si256();
    for (int64_t k = 0; k < w.cols; k += 16) {
        const __m256i magnitude = _mm256_and_si256(load256(x + 2 * k), _mm256_set1_epi16(0x7fff));
        beyond = _mm256_or_si256(beyond, _mm256_cmpgt_epi16(magnitude, most));
    }
    bool fits = _mm256_testz_si256(beyond, beyond) != 0;
    for (int64_t r = row0; r < row1; r = (r / w.block_rows + 1) * w.block_rows) {
        const blocks::ScaleRow scales(w, r);
        for (int64_t c = 0; c < w.scale_cols; c++) fits &= !(__builtin_fabsf(scales[c]) >= kScaleLimit);
    }
    return fits;
}

// Rows of one step of the streams and their scales times kScaleFactor, which are read anew where a block
// begins.
struct Fp8StreamRows {
    const uint8_t* at[kFp8Streams];
    float scales[kFp8Streams][kFp8Panel / kPairs];

    void move(const Matrix& w, const Streams<kFp8Streams>& streams, int64_t j) {
        for (int i = 0; i < kFp8Streams; i++) {
            const int64_t r = streams.row(j, i);
            at[i] = blocks::row_of(w, r);
            if (j > 0 && r % w.block_rows != 0) continue;
            const blocks::ScaleRow row(w, r);
            for (int64_t c = 0; c < w.scale_cols; c++) scales[i][c] = row[c] * kScaleFactor;
        }
    }
};

void fp8_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const Fp8Panel panel(x, w.cols);
    const Streams<kFp8Streams> streams(row0, row1);
    const int64_t whole = w.cols / kPairs * kPairs;
    Fp8StreamRows rows;
    for (int64_t j = 0; j < streams.length; j++) {
        rows.move(w, streams, j);
        __m256i magnitude = _mm256_setzero_si256();
        Lanes total[kFp8Streams] = {};
        for (int64_t k = 0, c = 0; k < w.cols; c++) {
            Lanes lanes[kFp8Streams] = {};
            const int64_t end = smaller(k + w.block_cols, whole);
            for (; k < end; k += kPairs) {
                for (int i = 0; i < kFp8Streams; i++)
                    add_fp8_step(load256(rows.at[i] + k), panel.value + k, lanes[i], magnitude);
            }
            if (k == whole && k < w.cols && k < (c + 1) * w.block_cols) {
                for (int i = 0; i < kFp8Streams; i++)
                    add_fp8_step(last_fp8_codes(rows.at[i], k, w.cols), panel.value + k, lanes[i], magnitude);
                k = w.cols;
            }
            for (int i = 0; i < kFp8Streams; i++) {
                for (int h = 0; h < 2; h++)
                    close_block(lanes[i].half[h], rows.scales[i][c], total[i].half[h]);
            }
        }
        for (int i = 0; i < kFp8Streams; i++) {
            if (!streams.stored(j, i)) continue;
            const bool nan = row_has_nan(rows.at[i], w.cols, magnitude);
            out[streams.row(j, i) - row0] = nan ? blocks::kNan : tree16_apart(total[i]);
        }
    }
}

// ---- many inputs

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

void linear_fp8(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                float* const* out) {
    if (n == 1 && fits_for_one(w, row0, row1, x[0]))
        fp8_for_one(w, row0, row1, x[0], out[0]);
    else
        fp8_for_many(w, row0, row1, x, n, out);
}
