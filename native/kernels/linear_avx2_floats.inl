// Products of the float formats with AVX2: sixteen lanes in two registers, each lane an fma chain of its own.
// Owns the walk for F32, F16 and BF16 weights and the one for FP8.
//
// A step works on half of the lanes (one register) of four rows and up to three inputs: twelve accumulators,
// four weights and three inputs, so an fma needs about half a load. The two halves never meet before the tree
// at the end of a row.

constexpr int kFloatRows = 4;     // rows of a tile
constexpr int kFloatShare = 3;    // inputs that share a step
constexpr int kFloatInputs = 24;  // of one pass: accumulators of a tile take 6 KB
constexpr int kFloatChunk = 256;  // columns: a tile of f32 weights takes 4 KB of the first-level cache

// The sixteen lanes of one (row, input).
struct Lanes {
    __m256 half[2];
};

// tree16 of docs/exactness.md section 2, from the eight sums l_i + l_{i+8} brought to four: b_i = a_i +
// a_{i+4}.
inline float tree4(__m128 b) {
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float tree16(Lanes l) {
    const __m256 a = _mm256_add_ps(l.half[0], l.half[1]);
    return tree4(_mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
}

// ---- F32, F16, BF16
// ----------------------------------------------------------------------------------------------------

struct LanesF32 {
    using Load = blocks::LoadF32;
    static __m256 at(const uint8_t* p) { return _mm256_castsi256_ps(load256(p)); }
};
struct LanesF16 {
    using Load = blocks::LoadF16;
    static __m256 at(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
};
struct LanesBF16 {
    using Load = blocks::LoadBF16;
    static __m256 at(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
};

// Columns [k0, k1) of four rows for T inputs, k1 - k0 a multiple of 16. lanes[t * 4 + i] belongs to row i and
// input t.
template <class Format, int T>
void add_floats(const uint8_t* const* row, const uint8_t* const* x, int64_t k0, int64_t k1, Lanes* lanes) {
    for (int half = 0; half < 2; half++) {
        __m256 acc[T][kFloatRows];
        for (int t = 0; t < T; t++) {
            for (int i = 0; i < kFloatRows; i++) acc[t][i] = lanes[t * kFloatRows + i].half[half];
        }
        for (int64_t k = k0 + 8 * half; k < k1; k += kLanes) {
            __m256 a[T];
            for (int t = 0; t < T; t++) a[t] = _mm256_load_ps(reinterpret_cast<const float*>(x[t]) + k);
            for (int i = 0; i < kFloatRows; i++) {
                const __m256 w = Format::at(row[i] + k * Format::Load::kBytes);
                for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w, a[t], acc[t][i]);
            }
        }
        for (int t = 0; t < T; t++) {
            for (int i = 0; i < kFloatRows; i++) lanes[t * kFloatRows + i].half[half] = acc[t][i];
        }
    }
}

// The last columns of a row, fewer than sixteen: lanes without a column keep their bits.
template <class Format>
void add_tail(const uint8_t* row, const float* x, int64_t k0, int64_t k1, Lanes& lanes) {
    alignas(32) float lane[kLanes];
    _mm256_store_ps(lane, lanes.half[0]);
    _mm256_store_ps(lane + 8, lanes.half[1]);
    for (int64_t k = k0; k < k1; k++)
        lane[k - k0] = __builtin_fmaf(Format::Load::at(row, k), x[k], lane[k - k0]);
    lanes.half[0] = _mm256_load_ps(lane);
    lanes.half[1] = _mm256_load_ps(lane + 8);
}

template <class Format>
void linear_floats(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                   float* const* out) {
    const int64_t group = inputs_per_pass(4 * w.cols, kFloatShare, kFloatInputs),
                  even = w.cols / kLanes * kLanes;
    for (int64_t t0 = 0; t0 < n; t0 += group) {
        const int64_t inputs = smaller(group, n - t0);
        for (int64_t r = row0; r < row1; r += kFloatRows) {
            const uint8_t* row[kFloatRows];
            for (int i = 0; i < kFloatRows; i++) row[i] = blocks::row_of(w, smaller(r + i, row1 - 1));
            Lanes lanes[kFloatInputs * kFloatRows];
            for (int64_t i = 0; i < inputs * kFloatRows; i++) lanes[i] = {};
            for (int64_t k = 0; k < even; k += kFloatChunk) {
                const int64_t end = smaller(k + kFloatChunk, even);
                int64_t t = 0;
                for (; t + 3 <= inputs; t += 3)
                    add_floats<Format, 3>(row, x + t0 + t, k, end, lanes + t * kFloatRows);
                if (inputs - t == 2) add_floats<Format, 2>(row, x + t0 + t, k, end, lanes + t * kFloatRows);
                if (inputs - t == 1) add_floats<Format, 1>(row, x + t0 + t, k, end, lanes + t * kFloatRows);
            }
            for (int64_t t = 0; t < inputs; t++) {
                for (int64_t i = 0; i < smaller(kFloatRows, row1 - r); i++) {
                    Lanes& l = lanes[t * kFloatRows + i];
                    add_tail<Format>(row[i], reinterpret_cast<const float*>(x[t0 + t]), even, w.cols, l);
                    out[t0 + t][r - row0 + i] = tree16(l);
                }
            }
        }
    }
}

// ---- FP8
// ---------------------------------------------------------------------------------------------------------------
//
// An E4M3 code s eeee mmm is the bf16 number with sign s, exponent e + 120 and fraction mmm0000. Since 120 is
// even, its low byte is the low nibble of the code moved up by four, and its high byte depends on the high
// nibble alone: one shuffle. Codes with e = 0 are m * 2^-9 instead; they take a correction of both bytes,
// looked up by m and zero for all other codes. NaN codes are watched for and make the row's result NaN.
//
// Pairs of columns become lanes: of 32 columns, register A takes lanes 0-3 and 8-11, register B lanes 4-7 and
// 12-15 (what the unpack instructions give), once for the even and once for the odd columns. The inputs, bf16
// pairs, are loaded to match.

constexpr int kPairs = 32;  // columns of a step: sixteen lanes of two columns

struct Fp8Step {
    __m256 odd[2], even[2];  // [0]: A, [1]: B
};

inline __m256 low_bf16(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 high_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 32 codes; `magnitude` collects the greatest code without its sign (0x7f: a NaN was among them).
inline Fp8Step decode_fp8_step(__m256i code, __m256i& magnitude) {
    const auto table = [](__m128i t) { return _mm256_broadcastsi128_si256(t); };
    // high byte by s eee: s, then 60 + eee
    const __m256i high_table =
        table(_mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61));
    // corrections for m * 2^-9 at index 8 + m: 0, 2^-9, 2^-8, 1.5 * 2^-8, 2^-7, 1.25 * 2^-7, ...
    const __m256i high_fix = table(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, -60, -1, -1, -1, 0, 0, 0, 0));
    const __m256i low_fix =
        table(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, -16, 96, -112, -64, -48, -32, -16));
    const __m256i plain = _mm256_and_si256(code, _mm256_set1_epi8(0x7f));
    magnitude = _mm256_max_epu8(magnitude, plain);
    // 0x78 + code: bit 7 (no correction) for all codes with e > 0, else 8 + m in the low nibble
    const __m256i fix = _mm256_add_epi8(plain, _mm256_set1_epi8(0x78));
    const __m256i top = _mm256_shuffle_epi8(high_table, high_nibbles(code));
    const __m256i high = _mm256_add_epi8(top, _mm256_shuffle_epi8(high_fix, fix));
    const __m256i bottom =
        _mm256_and_si256(_mm256_slli_epi16(code, 4), _mm256_set1_epi8(static_cast<char>(0xf0)));
    const __m256i low = _mm256_add_epi8(bottom, _mm256_shuffle_epi8(low_fix, fix));
    const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    return {{high_bf16(a), high_bf16(b)}, {low_bf16(a), low_bf16(b)}};
}

// The last codes of a row, fewer than 32; columns beyond the end read as +0, which leaves every lane as it is
// (a lane is never -0: it starts from +0 and its sums cannot underflow, section 4).
inline __m256i fp8_rest(const uint8_t* row, int64_t k, int64_t cols) {
    alignas(32) uint8_t rest[kPairs] = {};
    for (int64_t i = k; i < cols; i++) rest[i - k] = row[i];
    return load256(rest);
}

// Input pairs of register A (half 0) or B (half 1) from column k on. Packed rows are padded with zeros to 32
// columns.
inline __m256i fp8_input(const uint8_t* x, int64_t k, int half) {
    const uint8_t* p = x + 2 * k + 16 * half;
    return load_pair(p, p + 32);
}

// tree16 of lanes held as A and B: (l_i + l_{i+8}) is the sum of the halves of A (i < 4) or B.
inline float tree16_ab(Lanes l) {
    const auto halves = [](__m256 v) {
        return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    };
    return tree4(_mm_add_ps(halves(l.half[0]), halves(l.half[1])));
}

inline bool has_nan_code(__m256i magnitude) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f))) != 0;
}

// 32 columns of one row added to its lanes; `a` and `b` are the input pairs of the registers A and B.
[[gnu::always_inline]] inline void add_fp8_step(__m256i code, __m256i a, __m256i b, __m256i& magnitude,
                                                Lanes& lane) {
    const Fp8Step s = decode_fp8_step(code, magnitude);
    lane.half[0] = _mm256_fmadd_ps(s.odd[0], high_bf16(a), lane.half[0]);
    lane.half[1] = _mm256_fmadd_ps(s.odd[1], high_bf16(b), lane.half[1]);
    lane.half[0] = _mm256_fmadd_ps(s.even[0], low_bf16(a), lane.half[0]);
    lane.half[1] = _mm256_fmadd_ps(s.even[1], low_bf16(b), lane.half[1]);
}

// One input: codes go straight from memory to the lanes, two rows side by side.
void fp8_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    for (int64_t r = row0; r < row1; r += 2) {
        const int64_t index[2] = {r, smaller(r + 1, row1 - 1)};
        const uint8_t* const row[2] = {blocks::row_of(w, index[0]), blocks::row_of(w, index[1])};
        __m256i nan0 = _mm256_setzero_si256(), nan1 = nan0;
        Lanes total[2] = {};
        for (int64_t c0 = 0; c0 < w.cols; c0 += w.block_cols) {
            const int64_t c1 = smaller(c0 + w.block_cols, w.cols);
            Lanes lane0 = {}, lane1 = {};
            int64_t k = c0;
            for (; k + kPairs <= c1; k += kPairs) {
                const __m256i a = fp8_input(x, k, 0), b = fp8_input(x, k, 1);
                add_fp8_step(load256(row[0] + k), a, b, nan0, lane0);
                add_fp8_step(load256(row[1] + k), a, b, nan1, lane1);
            }
            if (k < c1) {
                const __m256i a = fp8_input(x, k, 0), b = fp8_input(x, k, 1);
                add_fp8_step(fp8_rest(row[0], k, c1), a, b, nan0, lane0);
                add_fp8_step(fp8_rest(row[1], k, c1), a, b, nan1, lane1);
            }
            const __m256 scale0 = _mm256_set1_ps(blocks::plane_scale(w, index[0], c0 / w.block_cols));
            const __m256 scale1 = _mm256_set1_ps(blocks::plane_scale(w, index[1], c0 / w.block_cols));
            for (int h = 0; h < 2; h++) {
                total[0].half[h] = _mm256_fmadd_ps(lane0.half[h], scale0, total[0].half[h]);
                total[1].half[h] = _mm256_fmadd_ps(lane1.half[h], scale1, total[1].half[h]);
            }
        }
        out[r - row0] = has_nan_code(nan0) ? blocks::kNan : tree16_ab(total[0]);
        if (r + 1 < row1) out[r - row0 + 1] = has_nan_code(nan1) ? blocks::kNan : tree16_ab(total[1]);
    }
}

// Four rows of up to kFloatChunk columns as f32, 32 columns after the other: odd A, odd B, even A, even B.
struct Fp8Tile {
    alignas(32) float value[kFloatRows][kFloatChunk];
};

// One scale block, columns [c0, c1) of the tile's rows, for T inputs. tile column 0 is column k0 of the
// matrix.
template <int T>
void add_fp8_block(const Fp8Tile& tile, int64_t k0, int64_t c0, int64_t c1, const float* scale,
                   const uint8_t* const* x, Lanes* total) {
    for (int half = 0; half < 2; half++) {
        __m256 acc[T][kFloatRows];
        for (int t = 0; t < T; t++) {
            for (int i = 0; i < kFloatRows; i++) acc[t][i] = _mm256_setzero_ps();
        }
        for (int64_t k = c0; k < c1; k += kPairs) {
            __m256 odd[T], even[T];
            for (int t = 0; t < T; t++) {
                const __m256i pairs = fp8_input(x[t], k, half);
                odd[t] = high_bf16(pairs);
                even[t] = low_bf16(pairs);
            }
            for (int i = 0; i < kFloatRows; i++) {
                const float* w = tile.value[i] + (k - k0) + 8 * half;
                const __m256 w1 = _mm256_load_ps(w), w0 = _mm256_load_ps(w + 16);
                for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w1, odd[t], acc[t][i]);
                for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w0, even[t], acc[t][i]);
            }
        }
        for (int t = 0; t < T; t++) {
            for (int i = 0; i < kFloatRows; i++) {
                __m256& to = total[t * kFloatRows + i].half[half];
                to = _mm256_fmadd_ps(acc[t][i], _mm256_set1_ps(scale[i]), to);
            }
        }
    }
}

void linear_fp8(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                float* const* out) {
    if (n == 1) {
        fp8_for_one(w, row0, row1, x[0], out[0]);
        return;
    }
    const int64_t group = inputs_per_pass(2 * w.cols, kFloatShare, kFloatInputs);
    for (int64_t t0 = 0; t0 < n; t0 += group) {
        const int64_t inputs = smaller(group, n - t0);
        for (int64_t r = row0; r < row1; r += kFloatRows) {
            int64_t index[kFloatRows];
            __m256i magnitude[kFloatRows];
            for (int i = 0; i < kFloatRows; i++) {
                index[i] = smaller(r + i, row1 - 1);
                magnitude[i] = _mm256_setzero_si256();
            }
            Lanes total[kFloatInputs * kFloatRows];
            for (int64_t i = 0; i < inputs * kFloatRows; i++) total[i] = {};
            Fp8Tile tile;
            for (int64_t k0 = 0; k0 < w.cols; k0 += kFloatChunk) {
                const int64_t k1 = smaller(k0 + kFloatChunk, w.cols);
                for (int i = 0; i < kFloatRows; i++) {
                    for (int64_t k = k0; k < k1; k += kPairs) {
                        const uint8_t* row = blocks::row_of(w, index[i]);
                        const __m256i code =
                            k + kPairs <= w.cols ? load256(row + k) : fp8_rest(row, k, w.cols);
                        const Fp8Step s = decode_fp8_step(code, magnitude[i]);
                        float* to = tile.value[i] + (k - k0);
                        _mm256_store_ps(to, s.odd[0]);
                        _mm256_store_ps(to + 8, s.odd[1]);
                        _mm256_store_ps(to + 16, s.even[0]);
                        _mm256_store_ps(to + 24, s.even[1]);
                    }
                }
                for (int64_t c0 = k0; c0 < k1; c0 += w.block_cols) {
                    const int64_t c1 = smaller(c0 + w.block_cols, k1);
                    float scale[kFloatRows];
                    for (int i = 0; i < kFloatRows; i++)
                        scale[i] = blocks::plane_scale(w, index[i], c0 / w.block_cols);
                    int64_t t = 0;
                    const uint8_t* const* in = x + t0;
                    for (; t + 3 <= inputs; t += 3) {
                        add_fp8_block<3>(tile, k0, c0, c1, scale, in + t, total + t * kFloatRows);
                    }
                    if (inputs - t == 2)
                        add_fp8_block<2>(tile, k0, c0, c1, scale, in + t, total + t * kFloatRows);
                    if (inputs - t == 1)
                        add_fp8_block<1>(tile, k0, c0, c1, scale, in + t, total + t * kFloatRows);
                }
            }
            for (int64_t t = 0; t < inputs; t++) {
                for (int64_t i = 0; i < smaller(kFloatRows, row1 - r); i++) {
                    out[t0 + t][r - row0 + i] =
                        has_nan_code(magnitude[i]) ? blocks::kNan : tree16_ab(total[t * kFloatRows + i]);
                }
            }
        }
    }
}
