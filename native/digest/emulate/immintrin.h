// AVX-512 in terms of AVX2, for kernel_digest on machines without AVX-512: found before the compiler's own
// <immintrin.h> when the AVX-512 units are built for a test (native/digest/CMakeLists.txt). Owns the names
// the kernels use. Most come from SIMDe; those it lacks are written here, lane by lane, after Intel's
// description of the instruction. Never part of the product. A name that is not listed does not compile,
// since these units are built without the AVX-512 flags.
#pragma once
#include_next <immintrin.h>
#define SIMDE_NO_INLINE  // inlined a thousand times they take minutes to compile
#include <simde/x86/avx512.h>

#define __m512 simde__m512
#define __m512i simde__m512i

namespace finback_emulate {
namespace {

template <class To, class From>
inline To same_bytes(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

template <class T>
struct Lanes {
    T v[16];
};
template <class T, class Vector>
inline Lanes<T> lanes(const Vector& v) {
    return same_bytes<Lanes<T>>(v);
}

// A vector of sixteen lanes made by f(i).
template <class Vector, class T, class F>
inline Vector each(F f) {
    Lanes<T> r;
    for (int i = 0; i < 16; i++) r.v[i] = f(i);
    return same_bytes<Vector>(r);
}

// Nearest even by the mode of the processor, as the instruction does.
[[gnu::noinline, maybe_unused]] static __m512i cvtps_epi32(__m512 a) {
    const Lanes<float> x = lanes<float>(a);
    return each<__m512i, int32_t>([&](int i) { return _mm_cvtss_si32(_mm_set_ss(x.v[i])); });
}
[[gnu::noinline, maybe_unused]] static __m512 cvtepi32_ps(__m512i a) {
    const Lanes<int32_t> x = lanes<int32_t>(a);
    return each<__m512, float>([&](int i) { return static_cast<float>(x.v[i]); });
}
[[gnu::noinline, maybe_unused]] static __m512i srai_epi32(__m512i a, int n) {
    const Lanes<int32_t> x = lanes<int32_t>(a);
    return each<__m512i, int32_t>([&](int i) { return x.v[i] >> n; });
}
[[gnu::noinline, maybe_unused]] static __m512i cvtepu8_epi32(__m128i a) {
    const Lanes<uint8_t> x = lanes<uint8_t>(a);
    return each<__m512i, int32_t>([&](int i) { return int32_t{x.v[i]}; });
}
[[gnu::noinline, maybe_unused]] static __m512i cvtepu16_epi32(__m256i a) {
    const Lanes<uint16_t> x = lanes<uint16_t>(a);
    return each<__m512i, int32_t>([&](int i) { return int32_t{x.v[i]}; });
}
[[gnu::noinline, maybe_unused]] static __m128i cvtepi32_epi8(__m512i a) {
    const Lanes<int32_t> x = lanes<int32_t>(a);
    return each<__m128i, uint8_t>([&](int i) { return static_cast<uint8_t>(x.v[i]); });
}
[[gnu::noinline, maybe_unused]] static __m256i cvtepi32_epi16(__m512i a) {
    const Lanes<int32_t> x = lanes<int32_t>(a);
    return each<__m256i, uint16_t>([&](int i) { return static_cast<uint16_t>(x.v[i]); });
}
[[gnu::noinline, maybe_unused]] static __m512 cvtph_ps(__m256i a) {
    const Lanes<uint16_t> x = lanes<uint16_t>(a);
    return each<__m512, float>([&](int i) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.v[i]))); });
}
[[gnu::noinline, maybe_unused]] static __m512 permute_ps(__m512 a, int control) {
    const Lanes<float> x = lanes<float>(a);
    return each<__m512, float>([&](int i) { return x.v[i / 4 * 4 + (control >> (2 * (i % 4)) & 3)]; });
}
[[gnu::noinline, maybe_unused]] static __m256 extractf32x8_ps(__m512 a, int half) {
    const Lanes<float> x = lanes<float>(a);
    __m256 r;
    __builtin_memcpy(&r, x.v + 8 * half, sizeof(r));
    return r;
}
[[gnu::noinline, maybe_unused]] static __m512 maskz_loadu_ps(__mmask16 k, const void* p) {
    const float* from = static_cast<const float*>(p);
    return each<__m512, float>([&](int i) { return k >> i & 1 ? from[i] : 0.0f; });
}
[[gnu::noinline, maybe_unused]] static void mask_storeu_ps(void* p, __mmask16 k, __m512 a) {
    const Lanes<float> x = lanes<float>(a);
    for (int i = 0; i < 16; i++) {
        if (k >> i & 1) static_cast<float*>(p)[i] = x.v[i];
    }
}

}  // namespace
}  // namespace finback_emulate

#define _mm512_set1_epi16 simde_mm512_set1_epi16
#define _mm512_sub_epi16 simde_mm512_sub_epi16
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_shuffle_epi8 simde_mm512_shuffle_epi8
#define _mm512_loadu_ps simde_mm512_loadu_ps
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_storeu_si512 simde_mm512_storeu_si512
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_broadcast_i32x4 simde_mm512_broadcast_i32x4
#define _mm512_srli_epi16 simde_mm512_srli_epi16
#define _mm512_slli_epi32 simde_mm512_slli_epi32
#define _mm512_shuffle_f32x4 simde_mm512_shuffle_f32x4
#define _mm512_set1_ps simde_mm512_set1_ps
#define _mm512_set1_epi8 simde_mm512_set1_epi8
#define _mm512_permute_ps finback_emulate::permute_ps
#define _mm512_or_si512 simde_mm512_or_si512
#define _mm512_xor_si512 simde_mm512_xor_si512
#define _mm512_mullo_epi32 simde_mm512_mullo_epi32
#define _mm512_mul_ps simde_mm512_mul_ps
#define _mm512_fmadd_ps simde_mm512_fmadd_ps
#define _mm512_extractf32x8_ps finback_emulate::extractf32x8_ps
#define _mm512_dpbusd_epi32 simde_mm512_dpbusd_epi32
#define _mm512_cvtph_ps finback_emulate::cvtph_ps
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castps512_ps256 simde_mm512_castps512_ps256
#define _mm512_sub_ps simde_mm512_sub_ps
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#define _mm512_srli_epi32 simde_mm512_srli_epi32
#define _mm512_srai_epi32 finback_emulate::srai_epi32
#define _mm512_srai_epi16 simde_mm512_srai_epi16
#define _mm512_sqrt_ps simde_mm512_sqrt_ps
#define _mm512_slli_epi16 simde_mm512_slli_epi16
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#define _mm512_setzero_ps simde_mm512_setzero_ps
#define _mm512_permutex2var_ps simde_mm512_permutex2var_ps
#define _mm512_min_ps simde_mm512_min_ps
#define _mm512_max_ps simde_mm512_max_ps
#define _mm512_max_epi32 simde_mm512_max_epi32
#define _mm512_maskz_loadu_ps finback_emulate::maskz_loadu_ps
#define _mm512_mask_xor_epi32 simde_mm512_mask_xor_epi32
#define _mm512_mask_storeu_ps finback_emulate::mask_storeu_ps
#define _mm512_mask_blend_ps simde_mm512_mask_blend_ps
#define _mm512_mask_blend_epi32 simde_mm512_mask_blend_epi32
#define _mm512_mask_blend_epi16 simde_mm512_mask_blend_epi16
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_dpwssd_epi32 simde_mm512_dpwssd_epi32
#define _mm512_div_ps simde_mm512_div_ps
#define _mm512_cvtps_epi32 finback_emulate::cvtps_epi32
#define _mm512_cvtepu8_epi32 finback_emulate::cvtepu8_epi32
#define _mm512_cvtepu16_epi32 finback_emulate::cvtepu16_epi32
#define _mm512_cvtepi32_ps finback_emulate::cvtepi32_ps
#define _mm512_cvtepi32_epi8 finback_emulate::cvtepi32_epi8
#define _mm512_cvtepi32_epi16 finback_emulate::cvtepi32_epi16
#define _mm512_cmpgt_epi32_mask simde_mm512_cmpgt_epi32_mask
#define _mm512_cmp_ps_mask simde_mm512_cmp_ps_mask
#define _mm512_add_ps simde_mm512_add_ps
#define _mm512_add_epi32 simde_mm512_add_epi32
