// Products of the integer block formats with AVX2. Owns the tiles: one block of eight rows, decoded so that
// row r sits in 32-bit lane r of every register; the formats with blocks of 32; and the walk over a matrix.
// The formats with blocks of 256 are in linear_avx2_kquants.inl. Column order inside a block is free, since
// integer sums are exact.
//
// Codes are made unsigned by a bias and multiplied by the signed activation codes with maddubs, which adds
// two neighbouring products in 16 bits; the bias is taken out with the activation sums. What keeps every
// 16-bit sum exact (|a| <= 127):
//
//   limit                                                                              32767
//   codes 0..15  (Q4_K, half bytes of Q8_0)   eight registers: 16 products * 15 * 127 = 30480
//   codes 0..24  (MXFP4 + 12, Q4_0)           four registers:   8 products * 24 * 127 = 24384
//   codes 0..63  (Q6_K)                       two registers:    4 products * 63 * 127 = 32004
//
// A register of eight rows x four columns meets a broadcast of four activations, so nothing is ever summed
// across lanes and the chain over blocks is one fma on eight rows at once.

constexpr int kTileRows = 8;

// Rows of a tile. A tile that sticks out of the range repeats its last row, whose results are not stored.
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
    const auto both = [&](int i) { return load_pair(rows.at[i] + offset, rows.at[i + 4] + offset); };
    return transpose(both(0), both(1), both(2), both(3));
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

// half_of_e8m0 of byte(i) in lane i. 2^(b-127) by shifting, then halved; the max makes 2^-127 of b = 0, the
// or a NaN of b = 255.
template <class Byte>
inline __m256 halves_of_e8m0(Byte byte) {
    const auto e = [&](int i) { return static_cast<char>(byte(i)); };
    const __m128i bytes =
        _mm_setr_epi8(e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7), 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i b = _mm256_cvtepu8_epi32(bytes);
    const __m256i power = _mm256_max_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_srli_epi32(_mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)), 1);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(power, nan)), _mm256_set1_ps(0.5f));
}

// Four activations, for all rows.
inline __m256i four(const int8_t* a) {
    return _mm256_set1_epi32(blocks::load<int32_t>(reinterpret_cast<const uint8_t*>(a)));
}
inline __m256i sum_pairs(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

// h[t] = 16-bit sums over kCount registers of codes for T inputs, whose activations start at a[t] + first.
template <int T, int kCount>
[[gnu::always_inline]] inline void dot_codes(const __m256i* u, const int8_t* const* a, int64_t first,
                                             __m256i* h) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; j++) {
        const __m256i w = _mm256_load_si256(u + j);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const __m256i p = _mm256_maddubs_epi16(w, four(a[t] + first + 4 * j));
            // opaque: else the sum becomes a tree, whose leaves do not fit the registers
            h[t] = j == 0 ? p : opaque(_mm256_add_epi16(h[t], p));
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
    // A8x32: the sum of block b.
    __m256i sum32(int t, int64_t b) const { return _mm256_set1_epi32(blocks::load<int32_t>(sum[t] + 4 * b)); }
    // A8x256: the sums of the neighbouring groups 2i and 2i + 1, as a pair of 16-bit lanes.
    __m256i sum_pair(int t, int64_t i) const {
        return _mm256_set1_epi32(blocks::load<int32_t>(sum[t] + 4 * i));
    }
};

// ---- blocks of 32 with four-bit codes
//
// A source gives the eight registers of a block of eight rows: use(i, codes), codes of columns 4i .. 4i+3 in
// the order of activations(), biased by kBias. It also gives the scales.

struct SourceQ4_0 {
    static constexpr int kBias = 8;
    static constexpr int64_t kBytes = sizeof(BlockQ4_0);

    template <class Use>
    [[gnu::always_inline]] static inline void visit(const TileRows& rows, int64_t b, Use use) {
        const Quad q = quad_at(rows, b * kBytes + 2);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            use(j, low_nibbles(q.v[j]));
            use(4 + j, high_nibbles(q.v[j]));
        }
    }
    static __m256 scales(const Matrix&, const TileRows& rows, int64_t b) {
        return halves_at(rows, b * kBytes);
    }
    static const int8_t* activations(const int8_t* a, int8_t*) { return a; }
};

// Doubled E2M1 values plus 12.
inline __m256i biased_e2m1(__m256i nibbles) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                           12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(table, nibbles);
}

struct SourceMXFP4 {
    static constexpr int kBias = 12;
    static constexpr int64_t kBytes = sizeof(BlockMXFP4);

    template <class Use>
    [[gnu::always_inline]] static inline void visit(const TileRows& rows, int64_t b, Use use) {
        const Quad q = quad_at(rows, b * kBytes + 1);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            use(j, biased_e2m1(low_nibbles(q.v[j])));
            use(4 + j, biased_e2m1(high_nibbles(q.v[j])));
        }
    }
    static __m256 scales(const Matrix&, const TileRows& rows, int64_t b) {
        return halves_of_e8m0([&](int i) { return rows.at[i][b * kBytes]; });
    }
    static const int8_t* activations(const int8_t* a, int8_t*) { return a; }
};

// Dword j of a row holds the even columns of 8j .. 8j+7 in its low nibbles and the odd ones in its high
// nibbles. The registers stay that way; the activations are brought into the same order, sixteen by sixteen:
// even columns, odd columns.
struct SourceMXFP4Pairs {
    static constexpr int kBias = 12;
    static constexpr int64_t kBytes = 16;

    template <class Use>
    [[gnu::always_inline]] static inline void visit(const TileRows& rows, int64_t b, Use use) {
        const Quad q = quad_at(rows, b * kBytes);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const int i = j / 2 * 4 + j % 2;
            use(i, biased_e2m1(low_nibbles(q.v[j])));
            use(i + 2, biased_e2m1(high_nibbles(q.v[j])));
        }
    }
    static __m256 scales(const Matrix& w, const TileRows& rows, int64_t b) {
        return halves_of_e8m0([&](int i) { return w.scales[rows.index[i] * w.scale_cols + b]; });
    }
    static const int8_t* activations(const int8_t* a, int8_t* room) {
        const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        const __m256i sorted = _mm256_shuffle_epi8(load256(a), _mm256_broadcastsi128_si256(order));
        _mm256_store_si256(reinterpret_cast<__m256i*>(room), sorted);
        return room;
    }
};

// A tile: decode() fills it with one block of eight rows, step() runs it for T inputs. one() does both for a
// single input without the tile.
template <class Source>
struct Tile32 {
    static constexpr int kBlock = 32, kChunk = 16;
    static constexpr int64_t kBytes = Source::kBytes;
    __m256i u[8];
    __m256 d;

    void decode(const Matrix& w, const TileRows& rows, int64_t b) {
        Source::visit(rows, b, [&](int i, __m256i v) { u[i] = v; });
        d = Source::scales(w, rows, b);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        alignas(32) int8_t room[T][32];
        const int8_t* a[T];
        __m256i h[T], g[T];
        for (int t = 0; t < T; t++) a[t] = Source::activations(in.code[t] + 32 * b, room[t]);
        dot_codes<T, 4>(u, a, 0, h);
        dot_codes<T, 4>(u + 4, a, 16, g);
        for (int t = 0; t < T; t++) acc[t] = close(h[t], g[t], d, in, t, b, acc[t]);
    }

    static __m256 one(const Matrix& w, const TileRows& rows, const Inputs<1>& in, int64_t b, __m256 acc) {
        alignas(32) int8_t room[32];
        const int8_t* a = Source::activations(in.code[0] + 32 * b, room);
        __m256i h[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        Source::visit(rows, b, [&](int i, __m256i v) {
            h[i / 4] = opaque(_mm256_add_epi16(h[i / 4], _mm256_maddubs_epi16(v, four(a + 4 * i))));
        });
        return close(h[0], h[1], Source::scales(w, rows, b), in, 0, b, acc);
    }

    // The sums of activations fit 16 bits, so that madd multiplies them by the bias.
    template <int T>
    static __m256 close(__m256i h, __m256i g, __m256 d, const Inputs<T>& in, int t, int64_t b, __m256 acc) {
        const __m256i bias = _mm256_madd_epi16(in.sum32(t, b), _mm256_set1_epi32(Source::kBias));
        const __m256i sum = _mm256_sub_epi32(_mm256_add_epi32(sum_pairs(h), sum_pairs(g)), bias);
        return chain(sum, d, in.d[t][b], acc);
    }
};

// ---- Q8_0

// Sums of the eight lanes of each of eight registers, one per lane.
inline __m256i sum_lanes(const __m256i* p) {
    const auto halve = [](__m256i a, __m256i b) {
        return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    const auto quarter = [](__m256i a, __m256i b) {
        return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    };
    const __m256i low = quarter(halve(p[0], p[1]), halve(p[2], p[3]));
    const __m256i high = quarter(halve(p[4], p[5]), halve(p[6], p[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

// w + 128 = 16 * high + low: two sets of nibbles, so that the sums stay in 16 bits over the whole block.
struct TileQ8_0 {
    static constexpr int kBlock = 32, kChunk = 16;
    static constexpr int64_t kBytes = sizeof(BlockQ8_0);
    __m256i high[8], low[8];
    __m256 d;

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        for (int half = 0; half < 2; half++) {
            const Quad q = quad_at(rows, b * kBytes + 2 + 16 * half);
            for (int j = 0; j < 4; j++) {
                high[4 * half + j] = _mm256_xor_si256(high_nibbles(q.v[j]), _mm256_set1_epi8(8));
                low[4 * half + j] = low_nibbles(q.v[j]);
            }
        }
        d = halves_at(rows, b * kBytes);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i h[T], l[T];
        dot_codes<T, 8>(high, in.code, 32 * b, h);
        dot_codes<T, 8>(low, in.code, 32 * b, l);
        for (int t = 0; t < T; t++) {
            const __m256i biased = _mm256_add_epi32(_mm256_slli_epi32(sum_pairs(h[t]), 4), sum_pairs(l[t]));
            const __m256i sum = _mm256_sub_epi32(biased, _mm256_slli_epi32(in.sum32(t, b), 7));
            acc[t] = chain(sum, d, in.d[t][b], acc[t]);
        }
    }

    // For a single input the transposition does not pay: |w| * (a with the sign of w) row by row, a pair of
    // products at most 2 * 128 * 127 = 32512, then one reduction for eight rows.
    static __m256 one(const Matrix&, const TileRows& rows, const Inputs<1>& in, int64_t b, __m256 acc) {
        const __m256i a = load256(in.code[0] + 32 * b);
        __m256i p[kTileRows];
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; i++) {
            const __m256i q = load256(rows.at[i] + b * kBytes + 2);
            p[i] = sum_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(a, q)));
        }
        return chain(sum_lanes(p), halves_at(rows, b * kBytes), in.d[0][b], acc);
    }
};

// ---- the walk

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

// Asks for block b of the rows of the next tile: with a single input, decoding keeps pace with memory only if
// the lines are there. Spread over the blocks, since a burst of requests stalls the loads behind it
// (measured: all of a chunk at once is slower than none, a block at a time 1.2 to 2 times faster). Several
// small blocks share a line.
template <class Tile>
inline void prefetch_block(const Matrix& w, const TileRows& rows, int64_t b) {
    constexpr int64_t kEvery = Tile::kBytes < 64 ? 64 / Tile::kBytes : 1;
    if (b % kEvery != 0) return;
    for (int i = 0; i < kTileRows; i++) {
        const uint8_t* next = rows.at[i] + kTileRows * w.row_bytes + b * Tile::kBytes;
        for (int64_t j = 0; j < Tile::kBytes; j += 64) prefetch(next + j);
    }
}

template <class Tile>
void codes_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, blocks::Int8Layout layout,
                   float* out) {
    const Inputs<1> in(&x, layout);
    const int64_t width = w.cols / Tile::kBlock;
    for (int64_t r = row0; r < row1; r += kTileRows) {
        const TileRows rows(w, r, row1);
        __m256 acc = _mm256_setzero_ps();
        for (int64_t b = 0; b < width; b += Tile::kChunk) {
            const int64_t end = smaller(b + Tile::kChunk, width);
            for (int64_t i = b; i < end; i++) {
                prefetch_block<Tile>(w, rows, i);
                acc = Tile::one(w, rows, in, i, acc);
            }
        }
        store_rows(acc, row1 - r, out + (r - row0));
    }
}

template <class Tile>
void codes_for_many(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                    blocks::Int8Layout layout, float* const* out) {
    const int64_t group = inputs_per_pass(layout.end, 4, kMostInputs), width = w.cols / Tile::kBlock;
    for (int64_t t0 = 0; t0 < n; t0 += group) {
        const int64_t inputs = smaller(group, n - t0);
        for (int64_t r = row0; r < row1; r += kTileRows) {
            const TileRows rows(w, r, row1);
            __m256 acc[kMostInputs];
            for (int64_t t = 0; t < inputs; t++) acc[t] = _mm256_setzero_ps();
            for (int64_t b = 0; b < width; b += Tile::kChunk) {
                Tile tile[Tile::kChunk];
                const int64_t end = smaller(b + Tile::kChunk, width);
                for (int64_t i = b; i < end; i++) {
                    prefetch_block<Tile>(w, rows, i);
                    tile[i - b].decode(w, rows, i);
                }
                step_inputs(tile, b, end - b, x + t0, inputs, layout, acc);
            }
            for (int64_t t = 0; t < inputs; t++) store_rows(acc[t], row1 - r, out[t0 + t] + (r - row0));
        }
    }
}

template <class Tile>
void linear_codes(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                  float* const* out) {
    const blocks::Int8Layout layout =
        Tile::kBlock == 32 ? blocks::layout_a8x32(w.cols) : blocks::layout_a8x256(w.cols);
    if (n == 1) {
        codes_for_one<Tile>(w, row0, row1, x[0], layout, out[0]);
    } else {
        codes_for_many<Tile>(w, row0, row1, x, n, layout, out);
    }
}
