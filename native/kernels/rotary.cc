// Sine, cosine and logarithm in f64, operation by operation as docs/exactness.md section 3 writes them. Owns
// the three-part pi / 2 and the Taylor coefficients (quotients 1 / n!, computed at compile time). Refuses
// fused operations: the build turns contraction off, and the baseline of some processors has fma.
#include "kernels/rotary.h"

#include <bit>
#include <cmath>

namespace finback {
namespace {

constexpr double factorial_reciprocal(int n) {
    double product = 1;  // exact up to 18!
    for (int i = 2; i <= n; ++i) product *= i;
    return 1 / product;
}

// sum of (-1)^k z^k / (first + 2k)! for k < terms, Horner from the highest power.
template <int First, int Terms>
double alternating(double z) {
    double sum = 0;
    for (int k = Terms - 1; k >= 0; --k) {
        const double coefficient = factorial_reciprocal(First + 2 * k);
        sum = k == Terms - 1 ? (k % 2 ? -coefficient : coefficient)
                             : sum * z + (k % 2 ? -coefficient : coefficient);
    }
    return sum;
}

struct SinCos {
    double sin, cos;
};

SinCos sincos(double x) {
    const double q = std::nearbyint(x * 0x1.45f306dc9c883p-1);
    // pi / 2 in three parts; the first two have so few bits that q times them is exact for q < 2^22
    const double y = ((x - q * 0x1.921fb5p+0) - q * 0x1.110b46p-26) - q * 0x1.1a62633145c07p-54;
    const double z = y * y;
    const double s = y + (y * z) * -alternating<3, 8>(z);
    const double c = (1 - 0.5 * z) + (z * z) * alternating<4, 7>(z);
    switch (static_cast<int64_t>(q) & 3) {
        case 0:
            return {s, c};
        case 1:
            return {c, -s};
        case 2:
            return {-s, -c};
        default:
            return {-c, s};
    }
}

}  // namespace

void rotary_table(const double* freq, int32_t pairs, const int64_t* positions, int64_t n, float* cos,
                  float* sin) {
    for (int64_t t = 0; t < n; ++t)
        for (int32_t i = 0; i < pairs; ++i) {
            const SinCos value = sincos(static_cast<double>(positions[t]) * freq[i]);
            cos[t * pairs + i] = static_cast<float>(value.cos);
            sin[t * pairs + i] = static_cast<float>(value.sin);
        }
}

double exact_ln(double x) {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) puts the border at a
    // power of two.
    constexpr uint64_t kRoot = std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1);
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const int64_t e = static_cast<int64_t>(bits - kRoot) >> 52;
    const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
    const double s = (m - 1) / (m + 1);
    const double z = s * s;
    double sum = 1.0 / 25;
    for (int n = 23; n >= 1; n -= 2) sum = sum * z + 1.0 / n;
    return static_cast<double>(e) * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

}  // namespace finback
