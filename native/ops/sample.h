// Drawing a token from a row of logits, and log-probabilities of given tokens (docs/exactness.md section 14).
// Runs after a program, because grammar masks arrive in between. Owns its scratch, so a draw allocates
// nothing; one Sampler per thread.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace finback {

struct SampleParams {
    float temperature;  // 0: greedy
    int32_t top_k;      // 0: off
    float top_p;        // 1: off
    float min_p;        // 0: off
    uint64_t seed, choice, position;
};

// The counter generator: the same number for the same (seed, choice, position), whatever happened before.
uint64_t counter_random(uint64_t seed, uint64_t choice, uint64_t position);

class Sampler {
  public:
    Sampler(const Table* table, int64_t vocab);
    int64_t vocab() const { return static_cast<int64_t>(e_.size()); }

    // The drawn id, or -1 if the row holds a value that is not finite.
    int32_t draw(const float* logits, const SampleParams& p);

    // log-probabilities of `n` ids under the row before temperature and filters; false if the row is not
    // finite.
    bool log_probs(const float* logits, const int32_t* ids, int64_t n, float* out);

  private:
    // Leaves in kept_ the ids that top_k and top_p keep, unordered.
    void filter(const SampleParams& p);

    const Table* table_;
    std::vector<float> z_, e_;   // scaled logits, exp(z - max)
    std::vector<int32_t> kept_;  // capacity vocab
};

}  // namespace finback
