// experts against one row and one expert at a time, summed in the order of the row's list; and the clamp of
// the activation against a table of numbers.
#include <algorithm>

#include "tests/world.h"

namespace finback::test {
namespace {

void fill_routing(const Value& routing, int64_t t, const std::vector<int32_t>& ids,
                  const std::vector<float>& weights) {
    std::copy(ids.begin(), ids.end(), reinterpret_cast<int32_t*>(row_bytes(routing, t)));
    std::copy(weights.begin(), weights.end(), row(routing, t) + ids.size());
}

std::vector<float> product(const Table& table, const Matrix& w, const uint8_t* x) {
    std::vector<float> y(static_cast<size_t>(w.rows));
    float* out = y.data();
    table.linear[static_cast<int>(w.format)](w, 0, w.rows, &x, 1, &out);
    return y;
}

struct Networks {
    Networks(Random& random, Format up, Format down, int64_t n, int64_t hidden, int64_t inner) {
        owned.reserve(static_cast<size_t>(3 * n));
        for (int64_t e = 0; e < n; e++) {
            m.w1.push_back(owned.emplace_back(make_matrix(random, up, inner, hidden)).m);
            m.w3.push_back(owned.emplace_back(make_matrix(random, up, inner, hidden)).m);
            m.w2.push_back(owned.emplace_back(make_matrix(random, down, hidden, inner)).m);
        }
    }
    std::vector<OwnedMatrix> owned;
    ExpertMatrices m;
};

std::vector<float> network(const Table& table, const ExpertMatrices& m, size_t e, const uint8_t* x,
                           float limit, const float* weight) {
    std::vector<float> u = product(table, m.w1[e], x);
    const std::vector<float> up = product(table, m.w3[e], x);
    table.swiglu(u.data(), up.data(), static_cast<int64_t>(u.size()), limit, weight, u.data());
    const Encoding e2 = encoding_of(m.w2[e].format);
    const auto n = static_cast<int64_t>(u.size());
    std::vector<uint8_t> codes(static_cast<size_t>(packed_bytes(e2, n)) + 64);
    uint8_t* aligned = codes.data() + (64 - reinterpret_cast<uintptr_t>(codes.data()) % 64) % 64;
    table.pack[static_cast<int>(e2)](u.data(), n, aligned);
    return product(table, m.w2[e], aligned);
}

struct Case {
    int32_t rows, experts, chosen;
    int32_t crowd;  // rows of which the first choice is expert 1
    int64_t shared_inner;
    Format up, down;
};

void check_case(const Table& table, Case c, int threads) {
    constexpr int64_t kHidden = 64, kInner = 96;
    Random random(41);
    Arena arena;
    const Networks routed(random, c.up, c.down, c.experts, kHidden, kInner);
    const Networks shared(random, Format::F32, Format::Q8_0, c.shared_inner ? 1 : 0, kHidden, c.shared_inner);
    const Encoding e = encoding_of(c.up), inner = encoding_of(c.down);
    const Value x = arena.f32(c.rows, kHidden), packed = arena.bytes(c.rows, packed_bytes(e, kHidden));
    const Value packed_shared = arena.bytes(c.rows, packed_bytes(Encoding::F32, kHidden));
    const Value routing = arena.bytes(c.rows, c.chosen * 8), out = arena.f32(c.rows, kHidden);
    const Batch batch = make_batch({{nullptr, 0, c.rows}});
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(c.rows));
    for (int32_t t = 0; t < c.rows; t++) {
        random.fill(row(x, t), kHidden);
        std::vector<int32_t>& list = ids[static_cast<size_t>(t)];
        for (int32_t i = 0; i < c.chosen; i++) list.push_back(static_cast<int32_t>(random.below(c.experts)));
        if (t < c.crowd) list[0] = 1;
        std::sort(list.begin(), list.end());  // repeats included, as a table of ids may have them
        fill_routing(routing, t, list, random.vector(c.chosen));
    }
    run(table, *make_pack(x, packed, e, 1), batch, threads);
    run(table, *make_pack(x, packed_shared, Encoding::F32, 1), batch, threads);
    const ExpertShape s{c.experts, c.chosen, kHidden, kInner, c.shared_inner, 0.7f};
    const Value scratch = arena.scratch(experts_scratch_bytes(s, inner, Encoding::A8x32, c.rows, threads));
    const auto op = make_experts(packed, packed_shared, routing, out, scratch, routed.m, shared.m, s);
    const auto bad = run(table, *op, batch, threads);
    CHECK(std::count(bad.begin(), bad.end(), 1) == 0);
    for (int32_t t = 0; t < c.rows; t++) {
        std::vector<float> sum(kHidden, 0.0f);
        for (int32_t i = 0; i < c.chosen; i++) {
            const auto expert = static_cast<size_t>(ids[static_cast<size_t>(t)][static_cast<size_t>(i)]);
            const auto y = network(table, routed.m, expert, row_bytes(packed, t), s.limit,
                                   row(routing, t) + c.chosen + i);
            table.add(sum.data(), y.data(), kHidden, sum.data());
        }
        if (c.shared_inner) {
            const auto y = network(table, shared.m, 0, row_bytes(packed_shared, t), s.limit, nullptr);
            table.add(sum.data(), y.data(), kHidden, sum.data());
        }
        if (!CHECK(same(row(out, t), sum.data(), kHidden), t)) return;
    }
}

// An expert that overflows spoils its own rows only.
void check_not_finite(const Table& table, int threads) {
    Random random(42);
    Arena arena;
    Networks routed(random, Format::F32, Format::F32, 2, 32, 32);
    for (float* w = reinterpret_cast<float*>(routed.owned[3].bytes.data());
         w < reinterpret_cast<float*>(routed.owned[3].bytes.data() + routed.owned[3].bytes.size()); w++)
        *w = 3e38f;
    const Value x = arena.f32(3, 32), routing = arena.bytes(3, 8), out = arena.f32(3, 32);
    for (int64_t t = 0; t < 3; t++) {
        std::fill_n(row(x, t), 32, 1.0f);
        fill_routing(routing, t, {t == 1 ? 1 : 0}, {1.0f});
    }
    const ExpertShape s{2, 1, 32, 32, 0, 0.0f};
    const Value scratch = arena.scratch(experts_scratch_bytes(s, Encoding::F32, Encoding::F32, 3, threads));
    const auto op = make_experts(x, x, routing, out, scratch, routed.m, {}, s);
    CHECK(run(table, *op, make_batch({{nullptr, 0, 3}}), threads) == std::vector<uint8_t>({0, 1, 0}));
    CHECK(std::isfinite(row(out, 0)[0]) && row(out, 1)[0] == 0.0f && same(row(out, 0), row(out, 2), 32));
}

}  // namespace

void test_experts(const Table& table) {
    for (int threads : {1, 2, 3}) {
        check_case(table, {1, 6, 3, 0, 32, Format::Q8_0, Format::Q8_0}, threads);
        check_case(table, {1, 6, 3, 0, 0, Format::F32, Format::Q8_0}, threads);
        check_case(table, {50, 4, 2, 0, 160, Format::Q8_0, Format::F32}, threads);
        check_case(table, {700, 5, 2, 0, 32, Format::F32, Format::F32}, threads);  // slices between experts
        check_case(table, {1300, 3, 1, 1200, 32, Format::F32, Format::F32},
                   threads);  // an expert larger than a slice
        check_not_finite(table, threads);
    }
}

// Gate and up values against silu(min(gate, 10)) * clip(up, -10, 10), in the routed path with weight 1 and in
// the shared one: x is 1 in its first channel, so the first columns of w1 and w3 are what the activation
// sees, and w2 hands it on.
void test_clamp(const Table& table) {
    constexpr int64_t kN = 32;
    const float gates[] = {-20, -1, 0, 5, 12, 50}, ups[] = {-50, -9, 0, 9, 50};
    Random random(43);
    Networks routed(random, Format::F32, Format::F32, 1, kN, kN);
    const auto cell = [&](size_t m, int64_t r, int64_t c) {
        return reinterpret_cast<float*>(routed.owned[m].bytes.data()) + r * kN + c;
    };
    for (size_t m = 0; m < 3; m++) std::fill_n(cell(m, 0, 0), kN * kN, 0.0f);
    for (int64_t i = 0; i < kN; i++) {
        *cell(0, i, 0) = gates[i % 6];
        *cell(1, i, 0) = ups[i / 6 % 5];
        *cell(2, i, i) = 1.0f;
    }
    for (bool shared : {false, true}) {
        Arena arena;
        const Value x = arena.f32(1, kN), routing = arena.bytes(1, 8), out = arena.f32(1, kN);
        std::fill_n(row(x, 0), kN, 0.0f);
        row(x, 0)[0] = 1.0f;
        fill_routing(routing, 0, {0}, {shared ? 0.0f : 1.0f});  // weight 0 leaves the shared expert alone
        const ExpertShape s{1, 1, kN, kN, shared ? kN : 0, 10.0f};
        const Value scratch = arena.scratch(experts_scratch_bytes(s, Encoding::F32, Encoding::F32, 1, 1));
        const auto op =
            make_experts(x, x, routing, out, scratch, routed.m, shared ? routed.m : ExpertMatrices{}, s);
        run(table, *op, make_batch({{nullptr, 0, 1}}), 1);
        for (int64_t i = 0; i < 30; i++) {
            const double gate = std::min(gates[i % 6], 10.0f), up = std::clamp(ups[i / 6 % 5], -10.0f, 10.0f);
            const double expected = gate / (1 + std::exp(-gate)) * up;
            CHECK(std::fabs(row(out, 0)[i] - expected) <= 1e-6 * std::fabs(expected), i);
        }
    }
}

}  // namespace finback::test
