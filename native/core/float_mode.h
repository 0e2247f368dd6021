// The floating-point control word that docs/exactness.md section 1 asks for: round to nearest even,
// subnormals kept, no traps. Owns setting it for a scope and giving the caller's back. Other libraries of the
// process (a -ffast-math shared object sets flush-to-zero when it is loaded) may have left any mode behind.
#pragma once
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "finback runs on x86-64 and aarch64"
#endif

namespace finback {

class FloatMode {
  public:
#if defined(__aarch64__)
    FloatMode() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        const uint64_t mode = 0;  // nearest, no flush to zero, traps off
        __asm__ volatile("msr fpcr, %0" : : "r"(mode));
    }
    ~FloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
    FloatMode() : saved_(_mm_getcsr()) {
        _mm_setcsr(0x1F80);
    }  // nearest, no FTZ, no DAZ, all exceptions masked
    ~FloatMode() { _mm_setcsr(saved_); }
#endif
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

  private:
#if defined(__aarch64__)
    uint64_t saved_ = 0;
#else
    uint32_t saved_;
#endif
};

}  // namespace finback
