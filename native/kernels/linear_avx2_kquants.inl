// The tiles of Q4_K and Q6_K with AVX2: blocks of 256 columns with scales per group. Owns the decoding of
// their registers and sub-scales and the sums over groups; the layout of a tile and the walk are those of
// linear_avx2_codes.inl, included before.

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

// The lower f16 of every dword as f32.
inline __m256 f32_of_low_halves(__m256i v) {
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

// ---- Q4_K

struct ScalesQ4_K {
    __m256i sc[8], m[8];  // doubled into both 16-bit lanes
    __m256 d, dmin;

    ScalesQ4_K() = default;
    ScalesQ4_K(const TileRows& rows, int64_t at) {
        const Quad head = quad_at(rows, at);  // d and dmin; bytes 0..3, 4..7, 8..11 of blocks::unpack_scales
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
    }

    // The two steps of the chain, from the scaled products of block b.
    template <int T>
    __m256 close(__m256i products, const Inputs<T>& in, int t, int64_t b, __m256 acc) const {
        __m256i minimums = _mm256_madd_epi16(in.sum_pair(t, 8 * b), m[0]);
        for (int g = 1; g < 8; g++) {
            minimums = _mm256_add_epi32(minimums, _mm256_madd_epi16(in.sum_pair(t, 8 * b + g), m[g]));
        }
        acc = chain(products, d, in.d[t][b], acc);
        const __m256 scale = _mm256_mul_ps(dmin, _mm256_set1_ps(in.d[t][b]));
        return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(minimums), scale, acc);  // fma(M, -(dmin * da), acc)
    }
};

struct TileQ4_K {
    static constexpr int kBlock = 256, kChunk = 4;
    static constexpr int64_t kBytes = sizeof(BlockQ4_K);
    __m256i u[64];  // codes of columns 4i .. 4i+3
    ScalesQ4_K scales;

    // use(i, codes of columns 4i .. 4i+3), of one pair of groups after the other.
    template <class Use>
    [[gnu::always_inline]] static inline void visit(const TileRows& rows, int64_t at, Use use) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const Quad q = quad_at(rows, at + 16 + 16 * i);
            const int first = i / 2 * 16 + i % 2 * 4;
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                use(first + j, low_nibbles(q.v[j]));
                use(first + 8 + j, high_nibbles(q.v[j]));
            }
        }
    }

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        visit(rows, b * kBytes, [&](int i, __m256i v) { u[i] = v; });
        scales = ScalesQ4_K(rows, b * kBytes);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i products[T];
        for (int t = 0; t < T; t++) products[t] = _mm256_setzero_si256();
        for (int g = 0; g < 8; g++) {
            __m256i h[T];
            dot_codes<T, 8>(u + 8 * g, in.code, 256 * b + 32 * g, h);
            for (int t = 0; t < T; t++) {
                products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(h[t], scales.sc[g]));
            }
        }
        for (int t = 0; t < T; t++) acc[t] = scales.close(products[t], in, t, b, acc[t]);
    }

    static __m256 one(const Matrix&, const TileRows& rows, const Inputs<1>& in, int64_t b, __m256 acc) {
        const ScalesQ4_K s(rows, b * kBytes);
        const int8_t* a = in.code[0] + 256 * b;
        __m256i h[8], products = _mm256_setzero_si256();
        visit(rows, b * kBytes, [&](int i, __m256i v) {
            const __m256i p = _mm256_maddubs_epi16(v, four(a + 4 * i));
            h[i / 8] = i % 8 == 0 ? p : opaque(_mm256_add_epi16(h[i / 8], p));
            if (i % 8 == 7) products = _mm256_add_epi32(products, _mm256_madd_epi16(h[i / 8], s.sc[i / 8]));
        });
        return s.close(products, in, 0, b, acc);
    }
};

// ---- Q6_K

// Codes stay 0..63; the bias of 32 is taken out with the group sums: I = sum_j sc_j sum(u a) - 32 sum_j sc_j
// sum(a).
struct ScalesQ6_K {
    __m256i sc[16], pair[8];  // sc of group g in both 16-bit lanes; sc of groups 2i and 2i + 1
    __m256 d;

    ScalesQ6_K() = default;
    ScalesQ6_K(const TileRows& rows, int64_t at) {
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
    __m256 close(__m256i products, const Inputs<T>& in, int t, int64_t b, __m256 acc) const {
        __m256i bias = _mm256_madd_epi16(in.sum_pair(t, 8 * b), pair[0]);
        for (int i = 1; i < 8; i++) {
            bias = _mm256_add_epi32(bias, _mm256_madd_epi16(in.sum_pair(t, 8 * b + i), pair[i]));
        }
        return chain(_mm256_sub_epi32(products, _mm256_slli_epi32(bias, 5)), d, in.d[t][b], acc);
    }
};

struct TileQ6_K {
    static constexpr int kBlock = 256, kChunk = 4;
    static constexpr int64_t kBytes = sizeof(BlockQ6_K);
    __m256i u[64];  // codes of columns 4i .. 4i+3
    ScalesQ6_K scales;

    // use(i, codes of columns 4i .. 4i+3). Columns 16 * part .. + 15 of the four runs of each half at a time;
    // i % 2 goes 0, 1 for every run.
    template <class Use>
    [[gnu::always_inline]] static inline void visit(const TileRows& rows, int64_t at, Use use) {
        const __m256i bits = _mm256_set1_epi8(0x30);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int half = i / 2, part = i % 2, first = 32 * half + 4 * part;
            const Quad a = quad_at(rows, at + 64 * half + 16 * part);
            const Quad c = quad_at(rows, at + 64 * half + 32 + 16 * part);
            const Quad h = quad_at(rows, at + 128 + 32 * half + 16 * part);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const __m256i v = h.v[j];
                const auto with = [&](__m256i low, __m256i high) {
                    return _mm256_or_si256(low, _mm256_and_si256(high, bits));
                };
                use(first + j, with(low_nibbles(a.v[j]), _mm256_slli_epi16(v, 4)));
                use(first + 8 + j, with(low_nibbles(c.v[j]), _mm256_slli_epi16(v, 2)));
                use(first + 16 + j, with(high_nibbles(a.v[j]), v));
                use(first + 24 + j, with(high_nibbles(c.v[j]), _mm256_srli_epi16(v, 2)));
            }
        }
    }

    void decode(const Matrix&, const TileRows& rows, int64_t b) {
        visit(rows, b * kBytes, [&](int i, __m256i v) { u[i] = v; });
        scales = ScalesQ6_K(rows, b * kBytes);
    }

    template <int T>
    void step(const Inputs<T>& in, int64_t b, __m256* acc) const {
        __m256i products[T];
        for (int t = 0; t < T; t++) products[t] = _mm256_setzero_si256();
        for (int g = 0; g < 16; g++) {
            __m256i h[T], l[T];
            dot_codes<T, 2>(u + 4 * g, in.code, 256 * b + 16 * g, h);
            dot_codes<T, 2>(u + 4 * g + 2, in.code, 256 * b + 16 * g + 8, l);
            for (int t = 0; t < T; t++) {
                products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(h[t], scales.sc[g]));
                products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(l[t], scales.sc[g]));
            }
        }
        for (int t = 0; t < T; t++) acc[t] = scales.close(products[t], in, t, b, acc[t]);
    }

    static __m256 one(const Matrix&, const TileRows& rows, const Inputs<1>& in, int64_t b, __m256 acc) {
        const ScalesQ6_K s(rows, b * kBytes);
        const int8_t* a = in.code[0] + 256 * b;
        __m256i pending[4], products = _mm256_setzero_si256();
        visit(rows, b * kBytes, [&](int i, __m256i v) {
            const __m256i p = _mm256_maddubs_epi16(v, four(a + 4 * i));
            __m256i& before = pending[i / 8 % 4];
            if (i % 2 == 1) {
                const __m256i scaled = _mm256_madd_epi16(_mm256_add_epi16(before, p), s.sc[i / 4]);
                products = opaque(_mm256_add_epi32(products, scaled));
            }
            before = p;
        });
        return s.close(products, in, 0, b, acc);
    }
};
