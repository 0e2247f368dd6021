// The f64 functions of docs/exactness.md section 3: sine and cosine for rotary tables, the logarithm for
// log-probabilities. Owns their bits: compiled once at the baseline with plain + - * / only, never per
// instruction set, so there is nothing to compare. Refuses the C library's versions, which differ between
// systems.
#pragma once
#include <cstdint>

namespace finback {

// cos, sin: f32 [n, pairs] of positions[t] * freq[i] radians. The product must stay below 2^22: checked by
// the caller, who knows the longest context.
void rotary_table(const double* freq, int32_t pairs, const int64_t* positions, int64_t n, float* cos,
                  float* sin);

// Natural logarithm of a normal x > 0.
double exact_ln(double x);

}  // namespace finback
