// Activation packing and matrix products with AVX2, FMA and F16C: the bits of linear_scalar.inl and
// linear_plain.inl, fast. Included inside the anonymous namespace of isa_avx2.cc. Owns packing and the table
// entries; the products are in the files included below: codes and kquants (integer block formats), floats
// (F32, F16, BF16), fp8. Refuses nothing except rows that hold a NaN or an infinity, which pack to zeros.
//
// Both kinds of product walk the same way. A pass takes a group of inputs small enough to stay in the
// second-level cache; for each tile of rows the columns go by in chunks; a chunk of weights is decoded once
// onto the stack (or read in place) and used by all inputs of the group. Each (row, input) has its own
// accumulator, touched in the order of the columns, so tiles, groups and chunks change nothing in the result.

namespace products {

// Packed inputs of one pass: half of the smallest second-level cache we meet.
constexpr int64_t kPassBytes = 256 * 1024;

// Inputs of one pass: as many as fit kPassBytes, at least `least`, at most `most`.
inline int64_t inputs_per_pass(int64_t bytes_per_input, int64_t least, int64_t most) {
    const int64_t fit = kPassBytes / (bytes_per_input + 1);
    return fit < least ? least : fit > most ? most : fit;
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The same value, of which the compiler knows nothing. Costs no instruction; where its rearranging costs
// many.
inline __m256i opaque(__m256i v) {
    asm("" : "+x"(v));
    return v;
}

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
// Sixteen bytes from each of two places, a in the low half. Broadcasts cost loads only, an insert a shuffle.
inline __m256i load_pair(const void* a, const void* b) {
    return _mm256_blend_epi32(_mm256_broadcastsi128_si256(load128(a)),
                              _mm256_broadcastsi128_si256(load128(b)), 0xf0);
}

// Into the second-level cache; an address outside of the matrix does nothing.
inline void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

// ---- packing

// Largest magnitude of eight values a step, compared as integers: for finite values the order of the bits is
// the order of the magnitudes, and a NaN or an infinity is at least 0x7f800000.
inline __m256i magnitude_bits(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

inline uint32_t greatest(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

bool all_below(const float* x, int64_t k, uint32_t bound) {
    __m256i most = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) most = _mm256_max_epi32(most, magnitude_bits(_mm256_loadu_ps(x + i)));
    bool ok = greatest(most) < bound;
    for (; i < k; i++) ok &= blocks::is_below(x[i], bound);
    return ok;
}

bool pack_f32(const float* x, int64_t k, uint8_t* dst) {
    __builtin_memset(dst, 0, static_cast<size_t>(pad64(4 * k)));
    if (!all_below(x, k, blocks::kNotFinite)) return false;
    __builtin_memcpy(dst, x, static_cast<size_t>(4 * k));
    return true;
}

// Eight bf16 codes as 32-bit integers: nearest even on the upper half, magnitudes below 2^-100 to +0.
inline __m256i bf16_codes(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i least = _mm256_castps_si256(_mm256_set1_ps(0x1p-100f));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(least, magnitude_bits(x)), rounded);
}

bool pack_bf16(const float* x, int64_t k, uint8_t* dst) {
    __builtin_memset(dst, 0, static_cast<size_t>(pad64(2 * k)));
    if (!all_below(x, k, blocks::kBf16Overflow)) return false;
    uint16_t* code = reinterpret_cast<uint16_t*>(dst);
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        const __m256i pair =
            _mm256_packus_epi32(bf16_codes(_mm256_loadu_ps(x + i)), bf16_codes(_mm256_loadu_ps(x + i + 8)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(code + i), _mm256_permute4x64_epi64(pair, 0xd8));
    }
    for (; i < k; i++) code[i] = blocks::bf16_code(x[i]);
    return true;
}

// Codes of n values (a multiple of 32); returns the scale. cvtps rounds to nearest even.
float pack_codes(const float* x, int n, int8_t* code) {
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) most = _mm256_max_epi32(most, magnitude_bits(_mm256_loadu_ps(x + i)));
    const float d = blocks::f32_of_bits(greatest(most)) / 127;
    if (d < 0x1p-126f) {
        __builtin_memset(code, 0, static_cast<size_t>(n));
        return 0;
    }
    const __m256 v = _mm256_set1_ps(1 / d);
    // packs works within each half; this puts the eight groups of four codes back into the order of x
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int i = 0; i < n; i += 32) {
        __m256i q[4];
        for (int j = 0; j < 4; j++)
            q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), v));
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        const __m256i clamped =
            _mm256_max_epi8(_mm256_permutevar8x32_epi32(bytes, order), _mm256_set1_epi8(-127));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(code + i), clamped);
    }
    return d;
}

// Sums of 32 codes as eight partial sums, each of four neighbours.
inline __m256i sums_of_four(const int8_t* code) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(code));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
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
        const __m256i s = sums_of_four(code + 32 * b);
        __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
        sum[b] = _mm_cvtsi128_si32(h);
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
    for (int64_t g = 0; g < k / 16; g += 2) {
        __m256i s = sums_of_four(code + 16 * g);
        s = _mm256_hadd_epi32(s, s);
        s = _mm256_hadd_epi32(s, s);  // each half holds the sum of its sixteen codes
        sum[g] = static_cast<int16_t>(_mm256_extract_epi32(s, 0));
        sum[g + 1] = static_cast<int16_t>(_mm256_extract_epi32(s, 4));
    }
    return true;
}

#include "kernels/linear_avx2_codes.inl"
#include "kernels/linear_avx2_floats.inl"
#include "kernels/linear_avx2_fp8.inl"
#include "kernels/linear_avx2_kquants.inl"

}  // namespace products

constexpr void fill_linear(Table& t) {
    t.pack[static_cast<int>(Encoding::F32)] = products::pack_f32;
    t.pack[static_cast<int>(Encoding::BF16)] = products::pack_bf16;
    t.pack[static_cast<int>(Encoding::A8x32)] = products::pack_a8x32;
    t.pack[static_cast<int>(Encoding::A8x256)] = products::pack_a8x256;
    plain::fill_linear(t);  // for the formats that have no kernel here
    const auto set = [&t](Format f, auto function) { t.linear[static_cast<int>(f)] = function; };
    set(Format::F32, products::linear_floats<products::LanesF32>);
    set(Format::F16, products::linear_floats<products::LanesF16>);
    set(Format::BF16, products::linear_floats<products::LanesBF16>);
    set(Format::FP8_E4M3, products::linear_fp8);
    set(Format::MXFP4, products::linear_codes<products::Tile32<products::SourceMXFP4>>);
    set(Format::MXFP4_PAIRS, products::linear_codes<products::Tile32<products::SourceMXFP4Pairs>>);
    set(Format::Q8_0, products::linear_codes<products::TileQ8_0>);
    set(Format::Q4_0, products::linear_codes<products::Tile32<products::SourceQ4_0>>);
    set(Format::Q4_K, products::linear_codes<products::TileQ4_K>);
    set(Format::Q6_K, products::linear_codes<products::TileQ6_K>);
    blocks::fill_decode_row(t);
}
