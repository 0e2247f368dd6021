// index_select against scoring every visible row on its own and sorting. Keys repeat, so scores tie; a query
// that shares its step with others, or its rows with other threads, must select the same set.
#include <algorithm>

#include "ops/top.h"
#include "tests/world.h"

namespace finback::test {
namespace {

constexpr int32_t kHeads = 5, kTopk = 12;
constexpr int64_t kD = 32;
constexpr float kWeightScale = 0.07f;

struct World {
    explicit World(bool rounded, int64_t tokens)
        : layout(make_layout({.ratio = 4, .overlapped = true, .rounded = rounded, .index_d = kD})),
          owner(layout, tokens) {
        Random random(21);
        for (int64_t r = 0; r < tokens / 4; r++) {  // every third key is a copy, every fifth is zero
            std::vector<float> key = random.vector(kD);
            if (r % 3 == 2) key = last;
            if (r % 5 == 4) key.assign(kD, 0.0f);
            last = key;
            const LayerLayout& l = layout.layers[0];
            kernel()->encode_row(key.data(), l.index.shape, owner.sequence.row(l.index, l, r));
        }
    }
    static const Table* kernel() { return table_scalar(); }
    const KvLayout layout;
    OwnedSequence owner;
    std::vector<float> last;
};

std::vector<int32_t> expected_rows(const Table& table, const World& w, const float* q, const float* weights,
                                   const float* rotation, int64_t pos) {
    const LayerLayout& layer = w.layout.layers[0];
    const RowShape shape = layer.index.shape;
    const int64_t visible = (pos + 1) / 4, stride = pad64(cache_row_bytes(shape));
    std::vector<uint8_t> codes(static_cast<size_t>(kHeads * stride));
    std::vector<float> scaled(kHeads);
    for (int32_t h = 0; h < kHeads; h++) {
        std::vector<float> head(q + h * kD, q + (h + 1) * kD);
        table.rotate(head.data(), kD, {rotation, rotation + 4}, 4, false);
        if (shape.rounded) table.hadamard(head.data(), kD);
        table.encode_row(head.data(), shape, codes.data() + h * stride);
        scaled[static_cast<size_t>(h)] = weights[h] * kWeightScale;
    }
    std::vector<std::pair<float, int32_t>> order;
    for (int32_t r = 0; r < visible; r++) {
        const uint8_t* key = w.owner.sequence.row(layer.index, layer, r);
        float score = 0;
        table.index_scores(codes.data(), stride, scaled.data(), kHeads, shape, &key, 1, &score);
        order.emplace_back(
            -score, r);  // ascending: greatest score first, then lower row; -0 < +0 is false, as it must be
    }
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(std::min<int64_t>(visible, kTopk)));
    std::vector<int32_t> rows;
    for (const auto& [score, r] : order) rows.push_back(r);
    std::sort(rows.begin(), rows.end());
    return rows;
}

void check(const Table& table, World& w, const std::vector<Part>& parts, int threads) {
    Batch batch = make_batch(parts);
    Random random(22);
    Arena arena;
    const Value q = arena.f32(batch.n_rows, kHeads * kD), weights = arena.f32(batch.n_rows, kHeads);
    const Value rotary = arena.f32(batch.n_rows, 8), selection = arena.bytes(batch.n_rows, 4 * (1 + kTopk));
    for (int32_t t = 0; t < batch.n_rows; t++) {
        random.fill(row(q, t), kHeads * kD);
        random.fill(row(weights, t), kHeads);
    }
    const IndexShape shape{0, kHeads, kTopk, kD, 4, kWeightScale};
    const Value scratch = arena.scratch(index_scratch_bytes(w.layout, shape, batch.n_rows, threads));
    run(table, *make_rotary(rotary, frequencies(8)), batch, threads);
    const std::vector<float> before(row(q, 0), row(q, 0) + kHeads * kD);
    const OpPtr op = make_index_select(q, weights, rotary, selection, scratch, shape);
    const auto bad = run(table, *op, batch, threads);
    CHECK(std::count(bad.begin(), bad.end(), 1) == 0);
    CHECK(same(row(q, 0), before.data(), kHeads * kD));  // inputs are never modified
    for (int32_t t = 0; t < batch.n_rows; t++) {
        const auto expected = expected_rows(table, w, row(q, t), row(weights, t), row(rotary, t),
                                            batch.positions[static_cast<size_t>(t)]);
        const auto* got = reinterpret_cast<const int32_t*>(row_bytes(selection, t));
        CHECK(got[0] == static_cast<int32_t>(expected.size()), t);
        CHECK(std::equal(expected.begin(), expected.end(), got + 1), t);
    }
    row(q, batch.n_rows - 1)[kD] = NAN;
    const auto spoiled = run(table, *op, batch, threads);
    const bool scored = (batch.positions.back() + 1) / 4 > kTopk;
    CHECK(std::count(spoiled.begin(), spoiled.end(), 1) == (scored ? 1 : 0) &&
          spoiled.back() == (scored ? 1 : 0));
}

}  // namespace

void test_index_select(const Table& table) {
    for (bool rounded : {true, false}) {
        World w(rounded, 4200);
        Sequence* s = &w.owner.sequence;
        for (int threads : {1, 2, 3}) {
            check(table, w, {{s, 0, 60}}, threads);    // from all visible to a choice
            check(table, w, {{s, 4100, 1}}, threads);  // decoding: rows shared by the threads
            check(table, w, {{s, 4000, 1}, {s, 20, 1}, {s, 3000, 1}}, threads);
            check(table, w, {{s, 2000, 9}, {s, 40, 30}, {s, 0, 3}}, threads);
        }
    }
}

}  // namespace finback::test
