// Products of the float formats with AVX2: sixteen lanes in two registers, each lane an fma chain of its own.
// Owns the walks for F32, F16 and BF16 weights, and what FP8 shares with them: the lanes, their tree, the
// shape of a tile and the order of rows for one input. Refuses nothing. Weights are read where they lie.
//
// One input goes at the speed of memory. Rows are read as a few streams far apart, each from its first row to
// its last without a gap: the hardware follows those without losing its place at the end of every row, as it
// does when neighbouring rows are read side by side. Prefetching by hand gains nothing over that.
//
// For many inputs, a step works on half of the lanes (one register) of four rows and up to three inputs:
// twelve accumulators, four weights and three inputs, so an fma needs about half a load. The two halves never
// meet before the tree at the end of a row.

constexpr int kFloatRows = 4;     // rows of a tile
constexpr int kFloatShare = 3;    // inputs that share a step
constexpr int kFloatInputs = 24;  // of one pass: accumulators of a tile take 6 KB
constexpr int kFloatChunk = 512;  // columns: a tile of f32 weights takes 8 KB of the first-level cache

// The sixteen lanes of one (row, input).
struct Lanes {
    __m256 half[2];
};

// docs/exactness.md section 2.
inline float tree16(Lanes l) {
    const __m256 a = _mm256_add_ps(l.half[0], l.half[1]);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

// Rows [row0, row1) as kStreams ranges of neighbouring rows; step j takes row j of every range. The last
// ranges may be shorter: there the last row is repeated and not stored.
template <int kStreams>
struct Streams {
    int64_t row0, row1, length;

    Streams(int64_t first, int64_t end)
        : row0(first), row1(end), length((end - first + kStreams - 1) / kStreams) {}
    int64_t row(int64_t j, int stream) const { return smaller(row0 + j + stream * length, row1 - 1); }
    bool stored(int64_t j, int stream) const { return row0 + j + stream * length < row1; }
};

// ---- F32, F16, BF16

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

// Columns [k0, k1) of four rows for T inputs, k1 - k0 a multiple of 16, in one half of the lanes. lanes[t * 4
// + i] belongs to row i and input t.
template <class Format, int T>
void add_floats(const uint8_t* const* row, const uint8_t* const* x, int64_t k0, int64_t k1, int half,
                Lanes* lanes) {
    __m256 acc[T][kFloatRows];
    const auto each = [&](auto use) {
        for (int t = 0; t < T; t++) {
            for (int i = 0; i < kFloatRows; i++) use(acc[t][i], lanes[t * kFloatRows + i].half[half]);
        }
    };
    each([](__m256& a, const __m256& l) { a = l; });
    for (int64_t k = k0 + 8 * half; k < k1; k += kLanes) {
        __m256 a[T];
        for (int t = 0; t < T; t++) a[t] = _mm256_load_ps(reinterpret_cast<const float*>(x[t]) + k);
        for (int i = 0; i < kFloatRows; i++) {
            const __m256 w = Format::at(row[i] + k * Format::Load::kBytes);
            for (int t = 0; t < T; t++) acc[t][i] = _mm256_fmadd_ps(w, a[t], acc[t][i]);
        }
    }
    each([](const __m256& a, __m256& l) { l = a; });
}

// All inputs of the pass, three at a time.
template <class Format>
void add_inputs(const uint8_t* const* row, const uint8_t* const* x, int64_t n, int64_t k0, int64_t k1,
                Lanes* lanes) {
    int64_t t = 0;
    for (; t + 2 <= n; t += t + 3 <= n ? 3 : 2) {
        for (int half = 0; half < 2; half++) {
            if (t + 3 <= n)
                add_floats<Format, 3>(row, x + t, k0, k1, half, lanes + t * kFloatRows);
            else
                add_floats<Format, 2>(row, x + t, k0, k1, half, lanes + t * kFloatRows);
        }
    }
    for (int half = 0; half < 2 && t < n; half++)
        add_floats<Format, 1>(row, x + t, k0, k1, half, lanes + t * kFloatRows);
}

// The last columns of a row, fewer than sixteen: lanes without a column keep their bits.
template <class Format>
void add_tail(const uint8_t* row, const float* x, int64_t k0, int64_t k1, Lanes& lanes) {
    if (k0 == k1) return;
    alignas(32) float lane[kLanes];
    _mm256_store_ps(lane, lanes.half[0]);
    _mm256_store_ps(lane + 8, lanes.half[1]);
    for (int64_t k = k0; k < k1; k++)
        lane[k - k0] = __builtin_fmaf(Format::Load::at(row, k), x[k], lane[k - k0]);
    lanes.half[0] = _mm256_load_ps(lane);
    lanes.half[1] = _mm256_load_ps(lane + 8);
}

constexpr int kFloatStreams = 4;

template <class Format>
void floats_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* packed, float* out) {
    const Streams<kFloatStreams> streams(row0, row1);
    const float* x = reinterpret_cast<const float*>(packed);
    const int64_t even = w.cols / kLanes * kLanes;
    for (int64_t j = 0; j < streams.length; j++) {
        const uint8_t* row[kFloatStreams];
        for (int i = 0; i < kFloatStreams; i++) row[i] = blocks::row_of(w, streams.row(j, i));
        Lanes lanes[kFloatStreams] = {};
        for (int64_t k = 0; k < even; k += kLanes) {
            for (int i = 0; i < kFloatStreams; i++) {
                for (int h = 0; h < 2; h++) {
                    const __m256 v = Format::at(row[i] + (k + 8 * h) * Format::Load::kBytes);
                    lanes[i].half[h] = _mm256_fmadd_ps(v, _mm256_load_ps(x + k + 8 * h), lanes[i].half[h]);
                }
            }
        }
        for (int i = 0; i < kFloatStreams; i++) {
            if (!streams.stored(j, i)) continue;
            add_tail<Format>(row[i], x, even, w.cols, lanes[i]);
            out[streams.row(j, i) - row0] = tree16(lanes[i]);
        }
    }
}

template <class Format>
void floats_for_many(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
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
                add_inputs<Format>(row, x + t0, inputs, k, end, lanes);
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

template <class Format>
void linear_floats(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                   float* const* out) {
    if (n == 1)
        floats_for_one<Format>(w, row0, row1, x[0], out[0]);
    else
        floats_for_many<Format>(w, row0, row1, x, n, out);
}
