// What an operation needs around it, built by hand: values, random weights, sequences, batches, a team. Owns
// memory: every value is an allocation of its own, so that the address sanitizer sees a step over its end;
// new memory is filled with bytes that are NaN as f32, so that a value nobody wrote shows. Refuses
// convenience that hides an order: tests call operations.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "program.h"
#include "tests/check.h"

namespace finback::test {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(state_ >> 33);
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(bits()) % n; }
    float uniform() { return static_cast<float>(bits()) * 0x1p-30f - 1.0f; }  // [-1, 1)
    void fill(float* x, int64_t n) {
        for (int64_t i = 0; i < n; i++) x[i] = uniform();
    }
    std::vector<float> vector(int64_t n) {
        std::vector<float> x(static_cast<size_t>(n));
        fill(x.data(), n);
        return x;
    }

  private:
    uint64_t state_;
};

// Values whose offsets count from address 0, so that each may be its own allocation.
class Arena {
  public:
    Value f32(int64_t rows, int64_t width, int32_t parts = 1) {
        return bytes(rows, parts * width * 4, parts, width);
    }
    Value bytes(int64_t rows, int64_t row_bytes, int32_t parts = 1, int64_t width = 0) {
        const int64_t padded = pad64(row_bytes);
        return {allocate(rows * padded), padded, parts, width};
    }
    Value scratch(int64_t bytes) { return {allocate(bytes), 0, 1, 0}; }
    static uint8_t* base() { return nullptr; }

  private:
    int64_t allocate(int64_t bytes) {
        const auto size = static_cast<size_t>(std::max<int64_t>(64, pad64(bytes)));
        memory_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(64, size)), std::free);
        std::memset(memory_.back().get(), 0xFF, size);
        return static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.back().get()));
    }
    std::vector<std::unique_ptr<uint8_t, decltype(&std::free)>> memory_;
};

inline float* row(const Value& v, int64_t t) { return reinterpret_cast<float*>(v.offset + t * v.row_bytes); }
inline uint8_t* row_bytes(const Value& v, int64_t t) {
    return reinterpret_cast<uint8_t*>(v.offset + t * v.row_bytes);
}

// A matrix of f32 or of Q8_0 blocks that owns its bytes.
struct OwnedMatrix {
    std::vector<uint8_t> bytes;
    Matrix m{};
};
OwnedMatrix make_matrix(Random& random, Format format, int64_t rows, int64_t cols);

// Runs one operation on a team; returns the flags of bad rows.
std::vector<uint8_t> run(const Table& table, const Op& op, const Batch& batch, int threads);

// One layer with everything the operations look at. ratio 0: window only; overlapped: CSA with an indexer.
struct LayoutSpec {
    int32_t ratio = 0;
    bool overlapped = false, rounded = true;
    int32_t d = 32, rotary = 8, index_d = 32;
    int32_t window = 8, max_draft = 3, page_span = 32;
};
KvLayout make_layout(const LayoutSpec& spec);

// A sequence with room for `tokens` tokens; its memory starts as NaN bytes.
class OwnedSequence {
  public:
    OwnedSequence(const KvLayout& layout, int64_t tokens);
    Sequence sequence;

  private:
    std::vector<uint8_t> frontier_;
    std::vector<std::vector<uint8_t>> pages_;
};

// A batch of the given (sequence, first position, rows) segments, rows in that order.
struct Part {
    Sequence* sequence;
    int64_t pos0;
    int32_t n;
};
Batch make_batch(const std::vector<Part>& parts);

inline bool same(const float* a, const float* b, int64_t n) {
    return std::memcmp(a, b, static_cast<size_t>(n) * 4) == 0;
}

// Frequencies of a rotation of `channels` channels; any numbers will do.
inline std::vector<double> frequencies(int32_t channels) {
    std::vector<double> f;
    for (int32_t i = 0; i < channels / 2; i++) f.push_back(1.0 / (1 + 3 * i));
    return f;
}

}  // namespace finback::test
