// Rows of block formats with AVX2, 32 columns of one row in a register: how files are unpacked fast, for
// making tiles and for many inputs, and the products of one input with rows of formats that have no walk over
// eight rows (linear_avx2_codes.inl). Included after blocks.inl. Owns `codes_at` of every format: the signed
// numbers of columns 32 g .. 32 g + 31 of the block at p. The meaning is that of the structs in
// blocks_kquants.inl and blocks_grids.inl, whose scales are used as they are.

namespace rows {

FINBACK_INLINE __m256i bytes_of(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
FINBACK_INLINE __m256i bits_at(const uint8_t* p, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(load256(p), shift), bytes_of(mask));
}
// Sixteen bytes of nibbles: the low ones, then the high ones.
FINBACK_INLINE __m256i nibbles_of(const uint8_t* p) {
    const __m128i v = load128(p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), bytes_of(15));
}
FINBACK_INLINE __m256i picked(const int8_t* table, __m256i index) {
    const __m128i t = load128(table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), index);
}

// ---- grids as bytes

template <int n>
struct Eights {
    uint64_t at[n];
};
template <int n>
struct Fours {
    uint32_t at[n];
};
template <int n, class Point>
constexpr Eights<n> eights(const Point* point, const int8_t* levels) {
    Eights<n> e{};
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 8; i++) {
            e.at[k] |= static_cast<uint64_t>(static_cast<uint8_t>(levels[point[k] >> 2 * i & 3])) << 8 * i;
        }
    }
    return e;
}
template <int n, class Point>
constexpr Fours<n> fours(const Point* point, const int8_t* levels) {
    Fours<n> f{};
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 4; i++) {
            f.at[k] |= static_cast<uint32_t>(levels[point[k] >> 3 * i & 7]) << 8 * i;
        }
    }
    return f;
}
// Eight bytes of 1, or -1 where a bit is set.
constexpr Eights<256> make_signs() {
    Eights<256> e{};
    for (int k = 0; k < 256; k++) {
        for (int i = 0; i < 8; i++) e.at[k] |= uint64_t{k >> i & 1 ? 0xffu : 1u} << 8 * i;
    }
    return e;
}
constexpr Eights<128> make_even_signs(
    const Eights<256>& all) {  // the eighth makes the number of minuses even
    Eights<128> e{};
    for (int k = 0; k < 128; k++) e.at[k] = all.at[k | __builtin_parity(static_cast<unsigned>(k)) << 7];
    return e;
}
constexpr int8_t kShiftedLevels[4] = {-8, 0, 8, 0};  // 8 g of IQ1
constexpr Eights<256> kSigns = make_signs();
constexpr Eights<128> kEvenSigns = make_even_signs(kSigns);
constexpr auto kEights2XXS = eights<256>(grids::kIQ2_XXS.point, blocks::kLevels3);
constexpr auto kEights2XS = eights<512>(grids::kIQ2_XS.point, blocks::kLevels3);
constexpr auto kEights2S = eights<1024>(grids::kIQ2_S.point, blocks::kLevels3);
constexpr auto kEights1 = eights<2048>(grids::kIQ1.point, kShiftedLevels);
constexpr auto kFours3XXS = fours<256>(grids::kIQ3_XXS.point, blocks::kLevels8);
constexpr auto kFours3S = fours<512>(grids::kIQ3_S.point, blocks::kOdd8);

FINBACK_INLINE __m256i four_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_set_epi64x(static_cast<int64_t>(d), static_cast<int64_t>(c), static_cast<int64_t>(b),
                             static_cast<int64_t>(a));
}
// The signs of four times seven bits.
FINBACK_INLINE __m256i even_signs(uint32_t bits) {
    return four_of(kEvenSigns.at[bits & 127], kEvenSigns.at[bits >> 7 & 127], kEvenSigns.at[bits >> 14 & 127],
                   kEvenSigns.at[bits >> 21 & 127]);
}
FINBACK_INLINE __m256i signs_of(const uint8_t* p) {
    return four_of(kSigns.at[p[0]], kSigns.at[p[1]], kSigns.at[p[2]], kSigns.at[p[3]]);
}
// Eight points of four numbers.
template <class At>
FINBACK_INLINE __m256i eight_fours(const uint32_t* points, At at) {
    const auto v = [&](int i) { return static_cast<int>(points[at(i)]); };
    return _mm256_setr_epi32(v(0), v(1), v(2), v(3), v(4), v(5), v(6), v(7));
}

// ---- formats

struct Q2_K : blocks::UnpackQ2_K {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        return bits_at(p + 16 + g / 4 * 32, g % 4 * 2, 3);
    }
};
struct Q3_K : blocks::UnpackQ3_K {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const __m256i high = _mm256_slli_epi16(bits_at(p, g, 1), 2);
        return _mm256_sub_epi8(_mm256_or_si256(bits_at(p + 32 + g / 4 * 32, g % 4 * 2, 3), high),
                               bytes_of(4));
    }
};
struct Q4_K : blocks::UnpackQ4_K {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        return bits_at(p + 16 + g / 2 * 32, g % 2 * 4, 15);
    }
};
struct Q5_K : blocks::UnpackQ5_K {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const __m256i high = _mm256_slli_epi16(bits_at(p + 16, g, 1), 4);
        return _mm256_or_si256(bits_at(p + 48 + g / 2 * 32, g % 2 * 4, 15), high);
    }
};
struct Q6_K : blocks::UnpackQ6_K {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const int half = g / 4, run = g % 4;
        const __m256i low = bits_at(p + 64 * half + 32 * (run & 1), run < 2 ? 0 : 4, 15);
        const __m256i high = _mm256_slli_epi16(bits_at(p + 128 + 32 * half, 2 * run, 3), 4);
        return _mm256_sub_epi8(_mm256_or_si256(low, high), bytes_of(32));
    }
};
struct IQ4_XS : blocks::UnpackIQ4_XS {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        return picked(blocks::kTable16, nibbles_of(p + 8 + 16 * g));
    }
};
struct IQ2_XXS : blocks::UnpackIQ2_XXS {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const uint8_t* q = p + 2 + 8 * g;
        const auto& e = kEights2XXS.at;
        return _mm256_sign_epi8(four_of(e[q[0]], e[q[1]], e[q[2]], e[q[3]]),
                                even_signs(blocks::load<uint32_t>(q + 4)));
    }
};
struct IQ2_XS : blocks::UnpackIQ2_XS {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const auto q = [&](int i) { return blocks::load<uint16_t>(p + 2 + 8 * g + 2 * i); };
        const auto e = [&](int i) { return kEights2XS.at[q(i) & 511]; };
        const auto s = [&](int i) { return kEvenSigns.at[q(i) >> 9]; };
        return _mm256_sign_epi8(four_of(e(0), e(1), e(2), e(3)), four_of(s(0), s(1), s(2), s(3)));
    }
};
struct IQ2_S : blocks::UnpackIQ2_S {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const auto e = [&](int i) { return kEights2S.at[p[2 + 4 * g + i] | (p[66 + g] >> 2 * i & 3) << 8]; };
        return _mm256_sign_epi8(four_of(e(0), e(1), e(2), e(3)), signs_of(p + 34 + 4 * g));
    }
};
struct IQ3_XXS : blocks::UnpackIQ3_XXS {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const __m256i v = eight_fours(kFours3XXS.at, [&](int i) { return p[2 + 8 * g + i]; });
        return _mm256_sign_epi8(v, even_signs(blocks::load<uint32_t>(p + 66 + 4 * g)));
    }
};
struct IQ3_S : blocks::UnpackIQ3_S {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const int high = p[66 + g];
        const __m256i v =
            eight_fours(kFours3S.at, [&](int i) { return p[2 + 8 * g + i] | (high >> i & 1) << 8; });
        return _mm256_sign_epi8(v, signs_of(p + 74 + 4 * g));
    }
};
struct IQ1_S : blocks::UnpackIQ1_S {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const int high = blocks::load<uint16_t>(p + 34 + 2 * g);
        const auto e = [&](int i) { return kEights1.at[p[2 + 4 * g + i] | (high >> 3 * i & 7) << 8]; };
        return _mm256_add_epi8(four_of(e(0), e(1), e(2), e(3)), bytes_of(high >> 15 ? -1 : 1));
    }
};
struct IQ1_M : blocks::UnpackIQ1_M {
    FINBACK_INLINE static __m256i codes_at(const uint8_t* p, int g) {
        const int high = blocks::load<uint16_t>(p + 32 + 2 * g);
        const auto e = [&](int i) { return kEights1.at[p[4 * g + i] | (high >> 4 * i & 7) << 8]; };
        const auto s = [&](int i) { return high >> 4 * i & 8 ? ~uint64_t{0} : 0x0101010101010101u; };
        return _mm256_add_epi8(four_of(e(0), e(1), e(2), e(3)), four_of(s(0), s(1), s(2), s(3)));
    }
};

// The unpacked form by way of codes_at.
template <class Row>
struct Unpack : Row {
    static void codes(const uint8_t* p, int8_t* code) {
        for (int g = 0; g < 8; g++) {
            _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(code + 32 * g), Row::codes_at(p, g));
        }
    }
};

// ---- blocks of 32: through the codes of one register

FINBACK_INLINE void put_codes(__m256i v, blocks::Codes32& out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out.code), v);
}
struct Q4_0 {
    static void block(const Matrix& w, int64_t r, int64_t b, blocks::Codes32& out) {
        const uint8_t* p = blocks::row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockQ4_0));
        out.d = blocks::f32_of_f16(blocks::load<uint16_t>(p));
        put_codes(_mm256_sub_epi8(nibbles_of(p + 2), bytes_of(8)), out);
    }
};
struct IQ4_NL {
    static void block(const Matrix& w, int64_t r, int64_t b, blocks::Codes32& out) {
        const uint8_t* p = blocks::row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockIQ4_NL));
        out.d = blocks::f32_of_f16(blocks::load<uint16_t>(p));
        put_codes(picked(blocks::kTable16, nibbles_of(p + 2)), out);
    }
};
struct MXFP4 {
    static void block(const Matrix& w, int64_t r, int64_t b, blocks::Codes32& out) {
        const uint8_t* p = blocks::row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockMXFP4));
        out.d = blocks::half_of_e8m0(p[0]);
        put_codes(picked(blocks::kDoubledE2M1, nibbles_of(p + 1)), out);
    }
};
struct MXFP4Pairs {
    static void block(const Matrix& w, int64_t r, int64_t b, blocks::Codes32& out) {
        const __m256i v = nibbles_of(blocks::row_of(w, r) + 16 * b);  // even columns, then odd ones
        out.d = blocks::half_of_e8m0(w.scales[r * w.scale_cols + b]);
        const __m128i even = low_half(v), odd = high_half(v);
        const __m256i turned = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
        put_codes(picked(blocks::kDoubledE2M1, turned), out);
    }
};

// ---- one input

// The eight sums of 32 products as one lane each: sum(|v| * (a with the sign of v)).
FINBACK_INLINE __m256i products(__m256i v, const int8_t* a, __m256i factors) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(a));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(x, v)), factors);
}
FINBACK_INLINE int32_t total_of(__m256i v) {
    __m128i h = _mm_add_epi32(low_half(v), high_half(v));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtsi128_si32(h);
}

// Rows that advance together, a block each in turn, as in tiles.
constexpr int64_t kStreams = 4;

template <class Row>
float add_block(const uint8_t* p, const int8_t* a, const int16_t* sums, float da, float acc) {
    blocks::Codes256 c;
    Row::scales(p, c);
    __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const __m256i factors = _mm256_set_m128i(_mm_set1_epi16(static_cast<int16_t>(c.sc[2 * g + 1])),
                                                 _mm_set1_epi16(static_cast<int16_t>(c.sc[2 * g])));
        total = _mm256_add_epi32(total, products(Row::codes_at(p, g), a + 32 * g, factors));
    }
    acc = __builtin_fmaf(static_cast<float>(total_of(total)), c.d * da, acc);
    if constexpr (Row::kMinimums) {
        int minimums = 0;
        for (int j = 0; j < 16; j++) minimums += c.m[j] * sums[j];
        acc = __builtin_fmaf(static_cast<float>(minimums), -(c.dmin * da), acc);
    }
    return acc;
}

template <class Row>
void rows_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x256(w.cols);
    const float* factors = reinterpret_cast<const float*>(x + layout.d);
    for (int64_t r = row0; r < row1; r += kStreams) {
        const int64_t n = row1 - r < kStreams ? row1 - r : kStreams;
        float acc[kStreams] = {};
        for (int64_t b = 0; b < w.cols / 256; b++) {
            const int8_t* a = reinterpret_cast<const int8_t*>(x) + 256 * b;
            const int16_t* sums = reinterpret_cast<const int16_t*>(x + layout.sum) + 16 * b;
            for (int64_t i = 0; i < n; i++) {
                acc[i] =
                    add_block<Row>(blocks::row_of(w, r + i) + b * Row::kBytes, a, sums, factors[b], acc[i]);
            }
        }
        for (int64_t i = 0; i < n; i++) out[r - row0 + i] = acc[i];
    }
}

// IQ4_NL, the one format with blocks of 32 that has no other walk.
template <>
inline void rows_for_one<IQ4_NL>(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const blocks::Int8Layout layout = blocks::layout_a8x32(w.cols);
    const float* factors = reinterpret_cast<const float*>(x + layout.d);
    for (int64_t r = row0; r < row1; r++) {
        float acc = 0;
        for (int64_t b = 0; b < w.cols / 32; b++) {
            const uint8_t* p = blocks::row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockIQ4_NL));
            const __m256i v = picked(blocks::kTable16, nibbles_of(p + 2));
            const int8_t* a = reinterpret_cast<const int8_t*>(x) + 32 * b;
            const float d = blocks::f32_of_f16(blocks::load<uint16_t>(p));
            const int32_t total = total_of(products(v, a, _mm256_set1_epi16(1)));
            acc = __builtin_fmaf(static_cast<float>(total), d * factors[b], acc);
        }
        out[r - row0] = acc;
    }
}

template <class Row>
struct Walk {
    static void walk(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
        rows_for_one<Row>(w, row0, row1, x, out);
    }
};

}  // namespace rows

namespace blocks {
#define FINBACK_FASTEST(plain, fast) \
    template <>                      \
    struct Fastest<plain> {          \
        using type = fast;           \
    }
FINBACK_FASTEST(UnpackQ4_0, rows::Q4_0);
FINBACK_FASTEST(UnpackIQ4_NL, rows::IQ4_NL);
FINBACK_FASTEST(UnpackMXFP4, rows::MXFP4);
FINBACK_FASTEST(UnpackMXFP4Pairs, rows::MXFP4Pairs);
FINBACK_FASTEST(UnpackQ2_K, rows::Unpack<rows::Q2_K>);
FINBACK_FASTEST(UnpackQ3_K, rows::Unpack<rows::Q3_K>);
FINBACK_FASTEST(UnpackQ4_K, rows::Unpack<rows::Q4_K>);
FINBACK_FASTEST(UnpackQ5_K, rows::Unpack<rows::Q5_K>);
FINBACK_FASTEST(UnpackQ6_K, rows::Unpack<rows::Q6_K>);
FINBACK_FASTEST(UnpackIQ1_S, rows::Unpack<rows::IQ1_S>);
FINBACK_FASTEST(UnpackIQ1_M, rows::Unpack<rows::IQ1_M>);
FINBACK_FASTEST(UnpackIQ2_XXS, rows::Unpack<rows::IQ2_XXS>);
FINBACK_FASTEST(UnpackIQ2_XS, rows::Unpack<rows::IQ2_XS>);
FINBACK_FASTEST(UnpackIQ2_S, rows::Unpack<rows::IQ2_S>);
FINBACK_FASTEST(UnpackIQ3_XXS, rows::Unpack<rows::IQ3_XXS>);
FINBACK_FASTEST(UnpackIQ3_S, rows::Unpack<rows::IQ3_S>);
FINBACK_FASTEST(UnpackIQ4_XS, rows::Unpack<rows::IQ4_XS>);
#undef FINBACK_FASTEST

#define FINBACK_ONE_INPUT(format)              \
    template <>                                \
    struct OneInput<Unpack##format> {          \
        using type = rows::Walk<rows::format>; \
    }
FINBACK_ONE_INPUT(Q2_K);
FINBACK_ONE_INPUT(Q3_K);
FINBACK_ONE_INPUT(Q5_K);
FINBACK_ONE_INPUT(IQ1_S);
FINBACK_ONE_INPUT(IQ1_M);
FINBACK_ONE_INPUT(IQ2_XXS);
FINBACK_ONE_INPUT(IQ2_XS);
FINBACK_ONE_INPUT(IQ2_S);
FINBACK_ONE_INPUT(IQ3_XXS);
FINBACK_ONE_INPUT(IQ3_S);
FINBACK_ONE_INPUT(IQ4_NL);
FINBACK_ONE_INPUT(IQ4_XS);
#undef FINBACK_ONE_INPUT
}  // namespace blocks
