// The k greatest of a stream of scores, in memory that does not grow with the stream. Owns the one order in
// which the project compares scores: greater first, +0 equal to -0, equal scores to the lower id
// (docs/exactness.md sections 11, 13). The order is that of unsigned integers, so it is total whatever the
// scores are: a NaN cannot lead a selection astray.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

namespace finback {

// A greater key comes first. The upper half orders scores: adding +0 turns -0 into +0; the bits of a positive
// float ascend with it, those of a negative one descend, so the first get their sign bit set and the second
// are inverted. The lower half is the inverted id.
inline uint64_t rank_key(float score, int32_t id) {
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
inline int32_t key_id(uint64_t key) { return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key)); }

// Keeps candidates in a buffer of 2k keys. When it is full the k greatest move to the front, and from then on
// a key below the least of them is refused at once. n keys cost O(n + k), since at least k keys enter between
// two selections.
class Top {
  public:
    Top(uint64_t* buffer, int64_t k) : keys_(buffer), k_(k) {}
    void add(uint64_t key) {
        if (key < floor_) return;
        keys_[n_++] = key;
        if (n_ == 2 * k_) compact();
    }
    // Leaves the greatest, at most k, at the front of the buffer in any order; returns their number.
    int64_t finish() {
        if (n_ > k_) compact();
        return n_;
    }

  private:
    void compact() {
        std::nth_element(keys_, keys_ + (k_ - 1), keys_ + n_, std::greater<>());
        n_ = k_;
        floor_ = keys_[k_ - 1];
    }
    uint64_t* keys_;
    int64_t k_, n_ = 0;
    uint64_t floor_ = 0;
};

}  // namespace finback
