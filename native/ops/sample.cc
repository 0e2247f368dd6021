#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/rotary.h"
#include "ops/top.h"

namespace finback {
namespace {

constexpr int64_t kBlock = 128;     // ids under one maximum: what most draws look at is a few blocks
constexpr int64_t kStretch = 1024;  // ids between two marks of a running sum; z of so many on the stack
constexpr int64_t kFirstOrdered = 16, kMoreOrdered = 4;  // ids put in order for top_p: 16, 64, 256 ..

uint64_t mix(uint64_t x) {  // splitmix64's output function of x plus its increment
    uint64_t z = x + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// A whole number of sixteens at a time, which the compiler turns into vector divisions.
void divide(const float* __restrict x, float by, int64_t n, float* __restrict z) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int64_t k = 0; k < 16; k++) z[i + k] = x[i + k] / by;
    for (; i < n; i++) z[i] = x[i] / by;
}

// How many of a block are at least `least`: also a loop for vectors.
int32_t count_at_least(const float* x, float least) {
    int32_t hits = 0;
    for (int64_t k = 0; k < kBlock; k++) hits += x[k] >= least;
    return hits;
}

}  // namespace

uint64_t counter_random(uint64_t seed, uint64_t choice, uint64_t position) {
    return mix(mix(mix(seed) ^ choice) ^ position);
}

// z is logits / temperature. A tiny temperature may make the greatest z infinite: then z is 0 for the
// greatest logits and -inf for all others, the limit of the formula, and every rule stays as it is.
struct Sampler::Row {
    Row(const float* l, float t, float greatest)
        : logits(l),
          temperature(t),
          top(greatest),
          overflows(std::isinf(greatest / t)),
          shift(overflows ? 0.0f : greatest / t) {}
    void scale(const float* x, int64_t n, float* z) const {
        if (temperature == 1.0f) return static_cast<void>(std::copy_n(x, n, z));  // x / 1 is x
        if (!overflows) return divide(x, temperature, n, z);
        for (int64_t i = 0; i < n; i++) z[i] = x[i] == top ? 0.0f : -std::numeric_limits<float>::infinity();
    }
    const float* const logits;
    const float temperature, top;
    const bool overflows;
    const float shift;  // the greatest z
};

Sampler::Sampler(const Table* table, int64_t vocab)
    : table_(table),
      best_(static_cast<size_t>((vocab + kBlock - 1) / kBlock)),
      e_(static_cast<size_t>(vocab)) {
    marks_.reserve(static_cast<size_t>(vocab / kStretch + 1));
    keys_.reserve(e_.size());
    order_.reserve(e_.size());
    few_.reserve(std::max(e_.size(), best_.size()));
}

double Sampler::weight(uint64_t key) const {
    return static_cast<double>(e_[static_cast<size_t>(key_id(key))]);
}

// ---- over the whole row

bool Sampler::find_greatest(const float* logits, float* top) {
    bool all_finite = true;
    *top = -std::numeric_limits<float>::infinity();
    for (size_t b = 0; b < best_.size(); b++) {
        const int64_t begin = static_cast<int64_t>(b) * kBlock;
        bool finite = false;
        best_[b] = table_->max_value(logits + begin, std::min(kBlock, vocab() - begin), &finite);
        all_finite &= finite;
        *top = best_[b] > *top ? best_[b] : *top;
    }
    return all_finite;
}

int32_t Sampler::first_greatest(const float* logits, float top) const {
    const auto block = std::find(best_.begin(), best_.end(), top) - best_.begin();
    return static_cast<int32_t>(std::find(logits + block * kBlock, logits + vocab(), top) - logits);
}

// e of every id, and their f64 sum by ascending id. One addition waits for the other, so this is done once a
// draw, and its marks let the draw find its place again. An id that is out has e = 0 and changes no sum.
double Sampler::weigh(const Row& row) {
    marks_.clear();
    double sum = 0;
    for (int64_t i = 0; i < vocab(); i += kStretch) {
        const int64_t n = std::min(kStretch, vocab() - i);
        float z[kStretch];
        row.scale(row.logits + i, n, z);
        marks_.push_back(sum);
        sum = table_->exp_shifted(z, row.shift, n, e_.data() + i, sum);
    }
    return sum;
}

int32_t Sampler::pick_of_all(double wanted) const {
    const auto after = std::upper_bound(marks_.begin(), marks_.end(), wanted);  // its first mark is 0
    auto id = static_cast<size_t>(after - marks_.begin() - 1) * kStretch;
    double sum = *(after - 1);
    for (; id < e_.size(); id++) {
        sum += static_cast<double>(e_[id]);
        if (sum > wanted) return static_cast<int32_t>(id);
    }
    while (e_[--id] == 0.0f) continue;  // u * total rounded up to the sum itself: the last one that is in
    return static_cast<int32_t>(id);
}

// ---- filters

// Leaves in keys_ the first ids of the order (z descending, id ascending), at least `wanted` if so many are
// in, ids ascending, and their weights in e_: with an id, all ids of the same or a greater z.
void Sampler::gather(const Row& row, int64_t wanted) {
    float least = -std::numeric_limits<float>::infinity(), z_least = least;
    if (wanted < static_cast<int64_t>(best_.size())) {
        // Each of the `wanted` greatest blocks has an id at or above `bound`. Smaller logits may have the
        // same z: two quotients that round to one number are at most an ulp of it apart, 2^-22 of it or
        // 2^-149.
        few_ = best_;
        const auto at = few_.begin() + (wanted - 1);
        std::nth_element(few_.begin(), at, few_.end(), std::greater<>());
        const float bound = *at;
        row.scale(&bound, 1, &z_least);
        least = bound - (std::abs(bound) * 0x1p-20f + 0x1p-130f);
    }
    keys_.clear();
    few_.clear();
    for (size_t b = 0; b < best_.size(); b++) {
        if (best_[b] < least) continue;
        const int64_t begin = static_cast<int64_t>(b) * kBlock, n = std::min(kBlock, vocab() - begin);
        float z[kBlock];
        row.scale(row.logits + begin, n, z);
        for (int64_t i = 0; i < n; i++) {
            if (z[i] < z_least) continue;
            keys_.push_back(rank_key(z[i], static_cast<int32_t>(begin + i)));
            few_.push_back(z[i]);
        }
    }
    table_->exp_shifted(few_.data(), row.shift, static_cast<int64_t>(few_.size()), few_.data(), 0);
    for (size_t i = 0; i < few_.size(); i++) e_[static_cast<size_t>(key_id(keys_[i]))] = few_[i];
    std::erase_if(keys_, [this](uint64_t key) { return weight(key) == 0; });
}

void Sampler::keep_top_k(int32_t top_k) {
    if (static_cast<size_t>(top_k) >= keys_.size()) return;
    order_ = keys_;
    const auto last = order_.begin() + (top_k - 1);
    std::nth_element(order_.begin(), last, order_.end(), std::greater<>());
    std::erase_if(keys_, [floor = *last](uint64_t key) { return key < floor; });
}

// The shortest prefix of the order that weighs `wanted`; false, and everything stays, if keys_ do not. Puts
// in order the first `some`, then four times as many, until that is enough.
bool Sampler::keep_top_p(double wanted, int64_t some) {
    order_ = keys_;
    double sum = 0;
    for (auto at = order_.begin(); at != order_.end(); some *= kMoreOrdered) {
        const auto end = order_.begin() + std::min<int64_t>(some, order_.end() - order_.begin());
        if (end != order_.end()) std::nth_element(at, end, order_.end(), std::greater<>());
        std::sort(at, end, std::greater<>());
        for (; at != end; at++) {
            sum += weight(*at);
            if (sum < wanted) continue;
            std::erase_if(keys_, [floor = *at](uint64_t key) { return key < floor; });
            return true;
        }
    }
    return false;
}

// Looks for the prefix among the greatest few first, then among four times as many, at last among all.
void Sampler::gather_top_p(const Row& row, double wanted) {
    const auto all = static_cast<int64_t>(best_.size());
    int64_t some = kFirstOrdered;
    for (int64_t blocks = kFirstOrdered;; blocks *= kMoreOrdered) {
        const bool last = blocks >= all * kMoreOrdered;
        gather(row, last ? all : std::min(blocks, all - 1));
        if (keep_top_p(wanted, some) || last) return;
        some = static_cast<int64_t>(keys_.size()) * kMoreOrdered;
    }
}

void Sampler::gather_min_p(float min_p) {
    keys_.clear();
    for (int64_t i = 0; i < vocab(); i += kBlock) {
        const int64_t n = std::min(kBlock, vocab() - i);
        if (n == kBlock && count_at_least(e_.data() + i, min_p) == 0) continue;
        for (int64_t id = i; id < i + n; id++) {
            if (e_[static_cast<size_t>(id)] >= min_p) keys_.push_back(rank_key(0, static_cast<int32_t>(id)));
        }
    }
}

void Sampler::drop_min_p(float min_p) {
    std::erase_if(keys_, [&](uint64_t key) { return e_[static_cast<size_t>(key_id(key))] < min_p; });
}

double Sampler::sum_kept() const {
    double sum = 0;
    for (const uint64_t key : keys_) sum += weight(key);
    return sum;
}

int32_t Sampler::pick(double u) const {
    const double wanted = u * sum_kept();
    double sum = 0;
    for (const uint64_t key : keys_) {
        sum += weight(key);
        if (sum > wanted) return key_id(key);
    }
    return key_id(keys_.back());  // u * total rounded up to the sum itself
}

// ---- what a caller wants

int32_t Sampler::draw(const float* logits, const SampleParams& p) {
    float top = 0;
    if (!find_greatest(logits, &top)) return -1;
    if (p.temperature == 0.0f) return first_greatest(logits, top);
    const Row row(logits, p.temperature, top);
    const double u = static_cast<double>(counter_random(p.seed, p.choice, p.position) >> 11) * 0x1p-53;
    const double top_p = static_cast<double>(p.top_p);
    if (p.top_k > 0) {  // first, because it leaves few: nothing else looks at the whole row then
        gather(row, p.top_k);
        keep_top_k(p.top_k);
        if (p.top_p < 1.0f) keep_top_p(top_p * sum_kept(), kFirstOrdered);
    } else {
        const double total = weigh(row);
        if (p.top_p == 1.0f && p.min_p == 0.0f) return pick_of_all(u * total);
        if (p.top_p < 1.0f)
            gather_top_p(row, top_p * total);
        else
            gather_min_p(p.min_p);
    }
    drop_min_p(p.min_p);
    return pick(u);
}

bool Sampler::log_probs(const float* logits, const int32_t* ids, int64_t n, float* out) {
    float top = 0;
    if (!find_greatest(logits, &top)) return false;
    const double log_sum = exact_ln(weigh(Row(logits, 1.0f, top)));
    for (int64_t i = 0; i < n; i++) {
        out[i] = static_cast<float>(static_cast<double>(logits[ids[i]]) - static_cast<double>(top) - log_sum);
    }
    return true;
}

}  // namespace finback
