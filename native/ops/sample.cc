#include "ops/sample.h"

#include <algorithm>
#include <cmath>

#include "kernels/rotary.h"

namespace finback {

static uint64_t mix(uint64_t x) {  // splitmix64's output function of x plus its increment
    uint64_t z = x + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

uint64_t counter_random(uint64_t seed, uint64_t choice, uint64_t position) {
    return mix(mix(mix(seed) ^ choice) ^ position);
}

Sampler::Sampler(const Table* table, int64_t vocab)
    : table_(table), z_(static_cast<size_t>(vocab)), e_(static_cast<size_t>(vocab)) {
    kept_.reserve(static_cast<size_t>(vocab));
}

// The order of section 14 is (z descending, id ascending). A heap gives its first items without sorting all
// 129,280 of them: top_p usually stops after a few hundred.
void Sampler::filter(const SampleParams& p) {
    const float* z = z_.data();
    const auto before = [z](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; };
    const auto after = [before](int32_t a, int32_t b) {
        return before(b, a);
    };  // heaps keep the greatest on top
    if (p.top_k > 0 && static_cast<size_t>(p.top_k) < kept_.size()) {
        std::nth_element(kept_.begin(), kept_.begin() + p.top_k, kept_.end(), before);
        kept_.resize(static_cast<size_t>(p.top_k));
    }
    if (p.top_p >= 1.0f) return;
    std::sort(kept_.begin(), kept_.end());
    double total = 0;
    for (int32_t id : kept_) total += static_cast<double>(e_[static_cast<size_t>(id)]);
    const double wanted = static_cast<double>(p.top_p) * total;
    std::make_heap(kept_.begin(), kept_.end(), after);
    double sum = 0;
    auto last = kept_.end();
    while (last != kept_.begin()) {
        std::pop_heap(kept_.begin(), last, after);
        --last;  // the popped id now stands at *last: the prefix grows from the back
        sum += static_cast<double>(e_[static_cast<size_t>(*last)]);
        if (sum >= wanted) break;
    }
    kept_.erase(kept_.begin(), last);
}

int32_t Sampler::draw(const float* logits, const SampleParams& p) {
    const int64_t n = vocab();
    bool finite = false;
    const float top = table_->max_value(logits, n, &finite);
    if (!finite) return -1;
    if (p.temperature == 0.0f) {
        const float* found = std::find(logits, logits + n, top);
        return static_cast<int32_t>(found - logits);
    }
    for (int64_t i = 0; i < n; i++) z_[static_cast<size_t>(i)] = logits[i] / p.temperature;
    // Division by a positive number keeps the order, so the greatest z is the greatest logit's. A tiny
    // temperature may make it infinite: then the greatest logits share all the weight, which is the limit of
    // the formula.
    const float shift = top / p.temperature;
    if (std::isinf(shift)) {
        for (int64_t i = 0; i < n; i++) e_[static_cast<size_t>(i)] = logits[i] == top ? 1.0f : 0.0f;
    } else {
        table_->exp_shifted(z_.data(), shift, n, e_.data());
    }
    kept_.clear();
    for (int32_t i = 0; i < n; i++) {
        const float e = e_[static_cast<size_t>(i)];
        if (e > 0.0f) kept_.push_back(i);
    }
    filter(p);
    std::erase_if(kept_, [&](int32_t id) { return e_[static_cast<size_t>(id)] < p.min_p; });
    std::sort(kept_.begin(), kept_.end());
    double total = 0;
    for (int32_t id : kept_) total += static_cast<double>(e_[static_cast<size_t>(id)]);
    const double u = static_cast<double>(counter_random(p.seed, p.choice, p.position) >> 11) * 0x1p-53;
    const double wanted = u * total;
    double sum = 0;
    for (int32_t id : kept_) {
        sum += static_cast<double>(e_[static_cast<size_t>(id)]);
        if (sum > wanted) return id;
    }
    return kept_.back();  // u * total rounded up to the sum itself
}

bool Sampler::log_probs(const float* logits, const int32_t* ids, int64_t n, float* out) {
    bool finite = false;
    const float top = table_->max_value(logits, vocab(), &finite);
    if (!finite) return false;
    table_->exp_shifted(logits, top, vocab(), e_.data());
    double sum = 0;
    for (float e : e_) sum += static_cast<double>(e);
    const double log_sum = exact_ln(sum);
    for (int64_t i = 0; i < n; i++) {
        out[i] = static_cast<float>(static_cast<double>(logits[ids[i]]) - static_cast<double>(top) - log_sum);
    }
    return true;
}

}  // namespace finback
