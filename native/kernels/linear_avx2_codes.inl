// Products of the integer block formats with AVX2. Owns the tiles: one block of eight rows, decoded so that
// row r sits in 32-bit lane r of every register. Column order inside a block is free, since integer sums are
// exact.
//
// Codes are made unsigned by a bias and multiplied by the signed activation codes with maddubs, which adds
// two neighbouring products in 16 bits; the bias is taken out with the activation sums. What keeps every
// 16-bit sum exact (|a| <= 127):
//
//   codes 0..15  (Q4_0, Q4_K, half bytes of Q8_0)   eight registers: 16 products * 15 * 127 = 30480
//   codes 0..24  (MXFP4 + 12)                       four registers:   8 products * 24 * 127 = 24384
//   codes 0..63  (Q6_K)                             two registers:    4 products * 63 * 127 = 32004 limit
//   32767
//
// A register of eight rows x four columns meets a broadcast of four activations, so nothing is ever summed
// across lanes and the chain over blocks is one fma on eight rows at once.

constexpr int kTileRows = 8;

// Rows of a tile. A tile that sticks out of the range repeats its last row, whose results are then not
// stored.
struct TileRows {
    const uint8_t* at[kTileRows];
    int64_t index[kTileRows];

    TileRows(const Matrix& w, int64_t r, int64_t row1) {
        for (int i = 0; i < kTileRows; i++) {
            index[i] = smaller(r + i, row1 - 1);
            at[i] = blocks::row_of(w, index[i]);
        }
    }
};

// Dword j of sixteen bytes of each of eight rows: v[j], lane = row.
struct Quad {
    __m256i v[4];
};
inline Quad transpose(__m256i r04, __m256i r15, __m256i r26, __m256i r37) {
    const __m256i a = _mm256_unpacklo_epi32(r04, r15), b = _mm256_unpackhi_epi32(r04, r15);
    const __m256i c = _mm256_unpacklo_epi32(r26, r37), d = _mm256_unpackhi_epi32(r26, r37);
    return {{_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
             _mm256_unpackhi_epi64(b, d)}};
}
inline Quad quad_at(const TileRows& rows, int64_t offset) {
    return transpose(load_pair(rows.at[0] + offset, rows.at[4] + offset),
                     load_pair(rows.at[1] + offset, rows.at[5] + offset),
                     load_pair(rows.at[2] + offset, rows.at[6] + offset),
                     load_pair(rows.at[3] + offset, rows.at[7] + offset));
}

inline __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i v) {
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

// The f16 at the same offset of each row, as f32.
inline __m256 halves_at(const TileRows& rows, int64_t offset) {
    const auto at = [&](int i) { return blocks::load<int16_t>(rows.at[i] + offset); };
    return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

// half_of_e8m0 of eight bytes. 2^(b-127) by shifting, then halved; b = 0 becomes 2^-127 by the max, b = 255 a
// NaN by the or.
inline __m256 halves_of_e8m0(__m128i bytes) {
    const __m256i b = _mm256_cvtepu8_epi32(bytes);
    const __m256i power = _mm256_max_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)), 1);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(power, nan)), _mm256_set1_ps(0.5f));
}

inline __m256i four_activations(const int8_t* a) {
    return _mm256_set1_epi32(blocks::load<int32_t>(reinterpret_cast<const uint8_t*>(a)));
}
inline __m256i sum_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// Nothing at run time. The compiler may otherwise rearrange an integer sum into a tree, whose leaves do not
// fit sixteen registers: measured 1.5 times slower through spills.
inline void keep_in_order(__m256i& sum) { asm("" : "+x"(sum)); }

// h[t] = 16-bit sums over kCount registers of codes; a[t] points at their first activation.
template <int T, int kCount>
[[gnu::always_inline]] inline void dot_codes(const __m256i* u, const int8_t* const* a, int64_t first,
                                             __m256i* h) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; j++) {
        const __m256i w = _mm256_load_si256(u + j);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const __m256i p = _mm256_maddubs_epi16(w, four_activations(a[t] + first + 4 * j));
            h[t] = j == 0 ? p : _mm256_add_epi16(h[t], p);
            keep_in_order(h[t]);
        }
    }
}

// acc = fma(f32(sum), d * da, acc)
inline __m256 chain(__m256i sum, __m256 d, float da, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_set1_ps(da)), acc);
}

// T inputs that share the registers of a step.
template <int T>
struct Inputs {
    const int8_t* code[T];
    const float* d[T];
    const uint8_t* sum[T];

    Inputs(const uint8_t* const* x, blocks::Int8Layout layout) {
        for (int t = 0; t < T; t++) {
            code[t] = reinterpret_cast<const int8_t*>(x[t]);
            d[t] = reinterpret_cast<const float*>(x[t] + layout.d);
            sum[t] = x[t] + layout.sum;
        }
    }
    int sum32(int t, int64_t b) const { return reinterpret_cast<const int32_t*>(sum[t])[b]; }
    // Sums of two neighbouring groups of sixteen, as a pair of 16-bit lanes.
    __m256i sum_pair(int t, int64_t i) const {
        return _mm256_set1_epi32(blocks::load<int32_t>(sum[t] + 4 * i));
    }
};

// ---- tiles: decode() fills one block of eight rows, step() runs it for T inputs
// ---------------------------------------

struct TileQ4_0 {
    static constexpr int kBlock = 32, kChunk = 16;
    __m256i u[8];
    __m256 d;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        const int64_t at = b * static_cast<int64_t>(sizeof(BlockQ4_0));
        const Quad q = quad_at(rows, at + 2);
        for (int j = 0; j < 4; j++) {
            u[j] = low_nibbles(q.v[j]);
            u[4 + j] = high_nibbles(q.v[j]);
        }
        d = halves_at(rows, at);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i h[T];
        dot_codes<T, 8>(u, in.code, 32 * b, h);
        for (int t = 0; t < T; t++) {
            const __m256i sum = _mm256_sub_epi32(sum_pairs(h[t]), _mm256_set1_epi32(8 * in.sum32(t, b)));
            acc[t] = chain(sum, d, in.d[t][b], acc[t]);
        }
    }
};

// Doubled E2M1 values plus 12.
inline __m256i biased_e2m1(__m256i nibbles) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                           12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(table, nibbles);
}

// One block against T inputs whose 32 activations start at a[t] + first, in the order of the tile's
// registers.
template <int T>
[[gnu::always_inline]] inline void step_mxfp4(const __m256i* u, __m256 d, const int8_t* const* a,
                                              int64_t first, const Inputs<T>& in, int64_t b, __m256* acc) {
    __m256i h[T], g[T];
    dot_codes<T, 4>(u, a, first, h);
    dot_codes<T, 4>(u + 4, a, first + 16, g);
    for (int t = 0; t < T; t++) {
        const __m256i biased = _mm256_add_epi32(sum_pairs(h[t]), sum_pairs(g[t]));
        acc[t] =
            chain(_mm256_sub_epi32(biased, _mm256_set1_epi32(12 * in.sum32(t, b))), d, in.d[t][b], acc[t]);
    }
}

struct TileMXFP4 {
    static constexpr int kBlock = 32, kChunk = 16;
    __m256i u[8];
    __m256 d;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        const int64_t at = b * static_cast<int64_t>(sizeof(BlockMXFP4));
        const Quad q = quad_at(rows, at + 1);
        for (int j = 0; j < 4; j++) {
            u[j] = biased_e2m1(low_nibbles(q.v[j]));
            u[4 + j] = biased_e2m1(high_nibbles(q.v[j]));
        }
        const auto e = [&](int i) { return static_cast<char>(rows.at[i][at]); };
        d = halves_of_e8m0(
            _mm_setr_epi8(e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7), 0, 0, 0, 0, 0, 0, 0, 0));
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        step_mxfp4<T>(u, d, in.code, 32 * b, in, b, acc);
    }
};

// Dword j of a row holds the even columns of 8j .. 8j+7 in its low nibbles and the odd ones in its high
// nibbles. The registers stay that way; the activations are brought into the same order, half by half: even
// columns, odd columns.
struct TileMXFP4Pairs {
    static constexpr int kBlock = 32, kChunk = 16;
    __m256i u[8];
    __m256 d;

    void decode(const Matrix& w, const TileRows& rows, int64_t b) {
        const Quad q = quad_at(rows, 16 * b);
        for (int j = 0; j < 4; j++) {
            const int at = j / 2 * 4 + j % 2;
            u[at] = biased_e2m1(low_nibbles(q.v[j]));
            u[at + 2] = biased_e2m1(high_nibbles(q.v[j]));
        }
        const auto e = [&](int i) { return static_cast<char>(w.scales[rows.index[i] * w.scale_cols + b]); };
        d = halves_of_e8m0(
            _mm_setr_epi8(e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7), 0, 0, 0, 0, 0, 0, 0, 0));
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,  //
                                               0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        alignas(32) int8_t sorted[T][32];
        const int8_t* a[T];
        for (int t = 0; t < T; t++) {
            const __m256i v = _mm256_shuffle_epi8(load256(in.code[t] + 32 * b), order);
            _mm256_store_si256(reinterpret_cast<__m256i*>(sorted[t]), v);
            a[t] = sorted[t];
        }
        step_mxfp4<T>(u, d, a, 0, in, b, acc);
    }
};

// w + 128 = 16 * high + low: two sets of nibbles, so that the sums stay in 16 bits over the whole block.
struct TileQ8_0 {
    static constexpr int kBlock = 32, kChunk = 16;
    __m256i high[8], low[8];
    __m256 d;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        const int64_t at = b * static_cast<int64_t>(sizeof(BlockQ8_0));
        for (int half = 0; half < 2; half++) {
            const Quad q = quad_at(rows, at + 2 + 16 * half);
            for (int j = 0; j < 4; j++) {
                high[4 * half + j] = _mm256_xor_si256(high_nibbles(q.v[j]), _mm256_set1_epi8(8));
                low[4 * half + j] = low_nibbles(q.v[j]);
            }
        }
        d = halves_at(rows, at);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i h[T], l[T];
        dot_codes<T, 8>(high, in.code, 32 * b, h);
        dot_codes<T, 8>(low, in.code, 32 * b, l);
        for (int t = 0; t < T; t++) {
            const __m256i biased = _mm256_add_epi32(_mm256_slli_epi32(sum_pairs(h[t]), 4), sum_pairs(l[t]));
            const __m256i sum = _mm256_sub_epi32(biased, _mm256_set1_epi32(128 * in.sum32(t, b)));
            acc[t] = chain(sum, d, in.d[t][b], acc[t]);
        }
    }
};

// Bytes kFirst and kSecond of every dword as two unsigned 16-bit lanes.
template <int kFirst, int kSecond>
inline __m256i byte_pair(__m256i v) {
    const __m128i pick = _mm_setr_epi8(kFirst, -1, kSecond, -1, 4 + kFirst, -1, 4 + kSecond, -1,  //
                                       8 + kFirst, -1, 8 + kSecond, -1, 12 + kFirst, -1, 12 + kSecond, -1);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(pick));
}
// The same for signed bytes: through the upper half of each lane and down again.
template <int kFirst, int kSecond>
inline __m256i signed_byte_pair(__m256i v) {
    const __m128i pick = _mm_setr_epi8(-1, kFirst, -1, kSecond, -1, 4 + kFirst, -1, 4 + kSecond,  //
                                       -1, 8 + kFirst, -1, 8 + kSecond, -1, 12 + kFirst, -1, 12 + kSecond);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(pick)), 8);
}

// Four bytes of every row, each doubled into both 16-bit lanes.
inline void spread(__m256i v, __m256i* out) {
    out[0] = byte_pair<0, 0>(v);
    out[1] = byte_pair<1, 1>(v);
    out[2] = byte_pair<2, 2>(v);
    out[3] = byte_pair<3, 3>(v);
}

struct TileQ4_K {
    static constexpr int kBlock = 256, kChunk = 4;
    __m256i u[64];        // group g of 32 columns at 8g
    __m256i sc[8], m[8];  // doubled into both 16-bit lanes
    __m256 d, dmin;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        const int64_t at = b * static_cast<int64_t>(sizeof(BlockQ4_K));
        const Quad head =
            quad_at(rows, at);  // d and dmin; bytes 0..3, 4..7, 8..11 of the scales (see unpack_scales)
        const __m256i six = _mm256_set1_epi8(63), s0 = head.v[1], s1 = head.v[2], s2 = head.v[3];
        const auto top = [](__m256i v) {
            return _mm256_and_si256(_mm256_srli_epi16(v, 2), _mm256_set1_epi8(0x30));
        };
        spread(_mm256_and_si256(s0, six), sc);
        spread(_mm256_and_si256(s1, six), m);
        spread(_mm256_or_si256(low_nibbles(s2), top(s0)), sc + 4);
        spread(_mm256_or_si256(high_nibbles(s2), top(s1)), m + 4);
        d = f32_of_low_halves(head.v[0]);
        dmin = f32_of_low_halves(_mm256_srli_epi32(head.v[0], 16));
        for (int i = 0; i < 8; i++) {
            const Quad q = quad_at(rows, at + 16 + 16 * i);
            __m256i* to = u + i / 2 * 16 + i % 2 * 4;
            for (int j = 0; j < 4; j++) {
                to[j] = low_nibbles(q.v[j]);
                to[8 + j] = high_nibbles(q.v[j]);
            }
        }
    }
    static __m256 f32_of_low_halves(__m256i v) {
        const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
        return _mm256_cvtph_ps(
            _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i products[T], minimums[T];
        for (int t = 0; t < T; t++) products[t] = minimums[t] = _mm256_setzero_si256();
        for (int g = 0; g < 8; g++) {
            __m256i h[T];
            dot_codes<T, 8>(u + 8 * g, in.code, 256 * b + 32 * g, h);
            for (int t = 0; t < T; t++) {
                products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(h[t], sc[g]));
                minimums[t] =
                    _mm256_add_epi32(minimums[t], _mm256_madd_epi16(in.sum_pair(t, 8 * b + g), m[g]));
            }
        }
        for (int t = 0; t < T; t++) {
            acc[t] = chain(products[t], d, in.d[t][b], acc[t]);
            const __m256 minimum = _mm256_mul_ps(dmin, _mm256_set1_ps(in.d[t][b]));
            acc[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(minimums[t]), minimum, acc[t]);
        }
    }
};

// Codes stay 0..63; the bias of 32 is taken out with the group sums: I = sum_j sc_j sum(u a) - 32 sum_j sc_j
// sum(a).
struct TileQ6_K {
    static constexpr int kBlock = 256, kChunk = 4;
    __m256i u[64];            // group g of 16 columns at 4g
    __m256i sc[16], pair[8];  // sc of group g in both 16-bit lanes; sc of groups 2i and 2i + 1
    __m256 d;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        const int64_t at = b * static_cast<int64_t>(sizeof(BlockQ6_K));
        const __m256i bits = _mm256_set1_epi8(0x30);
        for (int i = 0; i < 4;
             i++) {  // half i / 2 of the block, columns 16 * (i % 2) .. + 15 of its four runs
            const int half = i / 2, part = i % 2;
            const Quad a = quad_at(rows, at + 64 * half + 16 * part),
                       c = quad_at(rows, at + 64 * half + 32 + 16 * part);
            const Quad h = quad_at(rows, at + 128 + 32 * half + 16 * part);
            __m256i* to = u + 32 * half + 4 * part;
            for (int j = 0; j < 4; j++) {
                const __m256i v = h.v[j];
                to[j] = _mm256_or_si256(low_nibbles(a.v[j]), _mm256_and_si256(_mm256_slli_epi16(v, 4), bits));
                to[8 + j] =
                    _mm256_or_si256(low_nibbles(c.v[j]), _mm256_and_si256(_mm256_slli_epi16(v, 2), bits));
                to[16 + j] = _mm256_or_si256(high_nibbles(a.v[j]), _mm256_and_si256(v, bits));
                to[24 + j] =
                    _mm256_or_si256(high_nibbles(c.v[j]), _mm256_and_si256(_mm256_srli_epi16(v, 2), bits));
            }
        }
        const Quad s = quad_at(rows, at + 192);
        for (int j = 0; j < 4; j++) {
            sc[4 * j] = signed_byte_pair<0, 0>(s.v[j]);
            sc[4 * j + 1] = signed_byte_pair<1, 1>(s.v[j]);
            sc[4 * j + 2] = signed_byte_pair<2, 2>(s.v[j]);
            sc[4 * j + 3] = signed_byte_pair<3, 3>(s.v[j]);
            pair[2 * j] = signed_byte_pair<0, 1>(s.v[j]);
            pair[2 * j + 1] = signed_byte_pair<2, 3>(s.v[j]);
        }
        d = halves_at(rows, at + 208);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i products[T], biases[T];
        for (int t = 0; t < T; t++) products[t] = biases[t] = _mm256_setzero_si256();
        for (int g = 0; g < 16; g++) {
            __m256i h[T], l[T];
            dot_codes<T, 2>(u + 4 * g, in.code, 256 * b + 16 * g, h);
            dot_codes<T, 2>(u + 4 * g + 2, in.code, 256 * b + 16 * g + 8, l);
            for (int t = 0; t < T; t++) {
                const __m256i scaled =
                    _mm256_add_epi32(_mm256_madd_epi16(h[t], sc[g]), _mm256_madd_epi16(l[t], sc[g]));
                products[t] = _mm256_add_epi32(products[t], scaled);
            }
        }
        for (int i = 0; i < 8; i++) {
            for (int t = 0; t < T; t++) {
                biases[t] =
                    _mm256_add_epi32(biases[t], _mm256_madd_epi16(in.sum_pair(t, 8 * b + i), pair[i]));
            }
        }
        for (int t = 0; t < T; t++) {
            acc[t] =
                chain(_mm256_sub_epi32(products[t], _mm256_slli_epi32(biases[t], 5)), d, in.d[t][b], acc[t]);
        }
    }
};

// ---- the walk
// --------------------------------------------------------------------------------------------------------

constexpr int kMostInputs = 64;  // of one pass: accumulators of a tile take 2 KB

template <int T, class Tile>
void step_chunk(const Tile* tile, int64_t first, int64_t count, const uint8_t* const* x,
                blocks::Int8Layout layout, __m256* acc) {
    const Inputs<T> in(x, layout);
    __m256 local[T];
    for (int t = 0; t < T; t++) local[t] = acc[t];
    for (int64_t i = 0; i < count; i++) tile[i].template step<T>(in, first + i, local);
    for (int t = 0; t < T; t++) acc[t] = local[t];
}

// All inputs of the pass, four at a time.
template <class Tile>
void step_inputs(const Tile* tile, int64_t first, int64_t count, const uint8_t* const* x, int64_t n,
                 blocks::Int8Layout layout, __m256* acc) {
    int64_t t = 0;
    for (; t + 4 <= n; t += 4) step_chunk<4>(tile, first, count, x + t, layout, acc + t);
    if (n - t == 3) step_chunk<3>(tile, first, count, x + t, layout, acc + t);
    if (n - t == 2) step_chunk<2>(tile, first, count, x + t, layout, acc + t);
    if (n - t == 1) step_chunk<1>(tile, first, count, x + t, layout, acc + t);
}

inline void store_rows(__m256 v, int64_t rows, float* out) {
    if (rows >= kTileRows) {
        _mm256_storeu_ps(out, v);
        return;
    }
    alignas(32) float lanes[kTileRows];
    _mm256_store_ps(lanes, v);
    for (int64_t i = 0; i < rows; i++) out[i] = lanes[i];
}

template <class Tile>
void linear_codes(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                  float* const* out) {
    const blocks::Int8Layout layout =
        Tile::kBlock == 32 ? blocks::layout_a8x32(w.cols) : blocks::layout_a8x256(w.cols);
    const int64_t group = inputs_per_pass(layout.end, 4, kMostInputs), width = w.cols / Tile::kBlock;
    for (int64_t t0 = 0; t0 < n; t0 += group) {
        const int64_t inputs = smaller(group, n - t0);
        for (int64_t r = row0; r < row1; r += kTileRows) {
            const TileRows rows(w, r, row1);
            __m256 acc[kMostInputs];
            for (int64_t t = 0; t < inputs; t++) acc[t] = _mm256_setzero_ps();
            for (int64_t b = 0; b < width; b += Tile::kChunk) {
                Tile tile[Tile::kChunk];
                const int64_t count = smaller(Tile::kChunk, width - b);
                for (int64_t i = 0; i < count; i++) tile[i].decode(w, rows, b + i);
                step_inputs(tile, b, count, x + t0, inputs, layout, acc);
            }
            for (int64_t t = 0; t < inputs; t++) store_rows(acc[t], row1 - r, out[t0 + t] + (r - row0));
        }
    }
}

// ---- Q8_0 for one input
// ----------------------------------------------------------------------------------------------

// Sums of eight registers, one per lane.
inline __m256i sum_lanes(const __m256i* p) {
    const Quad a = transpose(p[0], p[1], p[2], p[3]), b = transpose(p[4], p[5], p[6], p[7]);
    const __m256i low = _mm256_add_epi32(_mm256_add_epi32(a.v[0], a.v[1]), _mm256_add_epi32(a.v[2], a.v[3]));
    const __m256i high = _mm256_add_epi32(_mm256_add_epi32(b.v[0], b.v[1]), _mm256_add_epi32(b.v[2], b.v[3]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

// With a single input the transposition does not pay: |w| * (a with the sign of w) row by row, 128 * 127 * 2
// = 32512 a pair, then one reduction for eight rows.
void q8_0_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x32(w.cols);
    const int8_t* code = reinterpret_cast<const int8_t*>(x);
    const float* da = reinterpret_cast<const float*>(x + layout.d);
    for (int64_t r = row0; r < row1; r += kTileRows) {
        const TileRows rows(w, r, row1);
        __m256 acc = _mm256_setzero_ps();
        for (int64_t b = 0; b < w.cols / 32; b++) {
            const int64_t at = b * static_cast<int64_t>(sizeof(BlockQ8_0));
            const __m256i a = load256(code + 32 * b);
            __m256i p[kTileRows];
#pragma GCC unroll 8
            for (int i = 0; i < kTileRows; i++) {
                const __m256i q = load256(rows.at[i] + at + 2);
                p[i] = sum_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(a, q)));
            }
            acc = chain(sum_lanes(p), halves_at(rows, at), da[b], acc);
        }
        store_rows(acc, row1 - r, out + (r - row0));
    }
}

void linear_q8_0(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                 float* const* out) {
    if (n == 1) {
        q8_0_for_one(w, row0, row1, x[0], out[0]);
    } else {
        linear_codes<TileQ8_0>(w, row0, row1, x, n, out);
    }
}
