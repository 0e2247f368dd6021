// Drawing a token from a row of logits, and log-probabilities of given tokens (docs/exactness.md section 14).
// Runs after a program, because grammar masks arrive in between. Owns its scratch, so a draw allocates
// nothing; one Sampler per thread. Refuses rows that hold a value that is not finite.
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
    struct Row;  // a row of logits and how it becomes z

    bool find_greatest(const float* logits, float* top);
    int32_t first_greatest(const float* logits, float top) const;
    double weigh(const Row& row);
    int32_t pick_of_all(double wanted) const;

    // Filters, each on what the one before left in keys_.
    void gather(const Row& row, int64_t wanted);
    void keep_top_k(int32_t top_k);
    bool keep_top_p(double wanted, int64_t some);
    void gather_top_p(const Row& row, double wanted);
    void gather_min_p(float min_p);
    void drop_min_p(float min_p);
    double sum_kept() const;
    int32_t pick(double u) const;

    double weight(uint64_t key) const;

    const Table* table_;
    std::vector<float> best_;             // greatest logit of each block of ids
    std::vector<float> e_;                // exp(z - max z) by id; where only some ids were gathered, theirs
    std::vector<double> marks_;           // running sum of e_ before each stretch of ids
    std::vector<uint64_t> keys_, order_;  // ranks (ops/top.h) of the ids still in, ids ascending; sorted
    std::vector<float> few_;              // scratch of gather()
};

}  // namespace finback
