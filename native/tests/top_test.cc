// Top against sorting everything: ties, both zeros, infinities and NaN, streams shorter and longer than the
// buffer.
#include "ops/top.h"

#include <limits>

#include "tests/world.h"

namespace finback::test {

static void check_stream(Random& random, int64_t n, int64_t k) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float few[] = {0.0f, -0.0f, 1.0f,  -1.0f,
                         0.5f, kInf,  -kInf, std::numeric_limits<float>::quiet_NaN()};
    std::vector<uint64_t> all, buffer(static_cast<size_t>(2 * k));
    Top top(buffer.data(), k);
    for (int32_t i = 0; i < n; i++) {
        const uint64_t key = rank_key(random.below(2) ? few[random.below(8)] : random.uniform(), i);
        CHECK(key_id(key) == i, i);
        all.push_back(key);
        top.add(key);
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    const int64_t kept = top.finish();
    CHECK(kept == std::min(n, k), n);
    std::sort(buffer.begin(), buffer.begin() + kept, std::greater<>());
    CHECK(std::equal(buffer.begin(), buffer.begin() + kept, all.begin()), n);
}

void test_top(const Table&) {
    Random random(1);
    CHECK(rank_key(0.0f, 3) == rank_key(-0.0f, 3));
    CHECK(rank_key(-0.0f, 2) > rank_key(0.0f, 3));  // equal scores: the lower id first
    CHECK(rank_key(-1.0f, 0) < rank_key(-0.5f, 9));
    CHECK(rank_key(1e-45f, 9) > rank_key(0.0f, 0));
    for (int64_t k : {1, 2, 7, 64}) {
        for (int64_t n : {0, 1, 6, 7, 8, 13, 14, 15, 128, 129, 1000}) check_stream(random, n, k);
    }
}

}  // namespace finback::test
