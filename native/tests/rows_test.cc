// The row-wise operations: embed, rotary, norm, take_rows, mtp_in, the hyper-connections, route, qkv_finish.
// Each result is compared with the kernel it stands for, under several team sizes, and one row that is not
// finite must harm no other.
#include <algorithm>

#include "kernels/rotary.h"
#include "tests/world.h"

namespace finback::test {
namespace {

constexpr int kTeams[] = {1, 2, 5};

Batch plain_batch(int32_t rows) {
    Batch batch;
    batch.n_rows = rows;
    for (int32_t t = 0; t < rows; t++) {
        batch.ids.push_back((t * 7) % 11);
        batch.positions.push_back(100 + t);
    }
    return batch;
}

bool only_bad(const std::vector<uint8_t>& bad, int64_t row) {
    for (size_t t = 0; t < bad.size(); t++) {
        if (bad[t] != (static_cast<int64_t>(t) == row)) return false;
    }
    return true;
}

void check_moves(const Table& table, int threads) {
    constexpr int64_t kWidth = 40;
    constexpr int32_t kRows = 7, kParts = 3;
    Random random(2);
    Arena arena;
    const Value embedded = arena.f32(kRows, kWidth), streams = arena.f32(kRows, kWidth, kParts);
    const Value sum = arena.f32(kRows, kWidth, kParts), taken = arena.f32(2, kWidth, kParts);
    const Value rotary = arena.f32(kRows, 8);
    const OwnedMatrix w = make_matrix(random, Format::F32, 11, kWidth);
    Batch batch = plain_batch(kRows);
    batch.logit_rows = {1, 6};
    run(table, *make_embed(embedded, w.m), batch, threads);
    run(table, *make_embed(streams, w.m), batch, threads);
    run(table, *make_mtp_in(embedded, streams, sum), batch, threads);
    run(table, *make_take_rows(sum, taken), batch, threads);
    run(table, *make_rotary(rotary, frequencies(8)), batch, threads);
    for (int32_t t = 0; t < kRows; t++) {
        const auto* expected =
            reinterpret_cast<const float*>(w.bytes.data()) + batch.ids[static_cast<size_t>(t)] * kWidth;
        for (int32_t part = 0; part < kParts; part++)
            CHECK(same(row(streams, t) + part * kWidth, expected, kWidth), t);
        for (int64_t i = 0; i < kParts * kWidth; i++) CHECK(row(sum, t)[i] == 2 * expected[i % kWidth], t);
        float angles[8];
        rotary_table(frequencies(8).data(), 4, &batch.positions[static_cast<size_t>(t)], 1, angles,
                     angles + 4);
        CHECK(same(row(rotary, t), angles, 8), t);
    }
    for (int32_t i = 0; i < 2; i++) {
        CHECK(same(row(taken, i), row(sum, batch.logit_rows[static_cast<size_t>(i)]), kParts * kWidth), i);
    }
}

void check_norm(const Table& table, int threads) {
    constexpr int64_t kWidth = 48;
    constexpr int32_t kRows = 5, kParts = 4;
    Random random(3);
    Arena arena;
    const Value x = arena.f32(kRows, kWidth, kParts), out = arena.f32(kRows, kWidth, kParts);
    const std::vector<float> w = random.vector(kWidth);
    for (int32_t t = 0; t < kRows; t++) random.fill(row(x, t), kParts * kWidth);
    row(x, 3)[kWidth + 1] = INFINITY;  // one part of row 3
    const std::vector<uint8_t> bad =
        run(table, *make_norm(x, out, w.data(), 1e-6f), plain_batch(kRows), threads);
    CHECK(only_bad(bad, 3));
    for (int32_t t = 0; t < kRows; t++) {
        for (int32_t part = 0; part < kParts; part++) {
            std::vector<float> expected(kWidth, 0.0f);
            const float* from = row(x, t) + part * kWidth;
            if (t != 3 || part != 1) {
                table.scale_rows(from, table.rms(from, kWidth, 1e-6f), w.data(), kWidth, expected.data());
            }
            CHECK(same(row(out, t) + part * kWidth, expected.data(), kWidth), t);
        }
    }
}

// hidden 1024 and four streams make fn large enough to be shared by the threads when there are few rows.
void check_hyper(const Table& table, int64_t hidden, int32_t rows, int threads) {
    constexpr int32_t kN = 4, kDots = (2 + kN) * kN;
    const HyperParams p{kN, 20, 1e-6f, 1e-6f};
    Random random(4);
    Arena arena;
    const Value streams = arena.f32(rows, hidden, kN), x = arena.f32(rows, hidden),
                mix = arena.f32(rows, kN + kN * kN);
    const Value scratch = arena.f32(rows, kDots), after = arena.f32(rows, hidden, kN),
                last = arena.f32(rows, hidden);
    for (int32_t t = 0; t < rows; t++) random.fill(row(streams, t), kN * hidden);
    const bool spoiled = rows > 2;
    if (spoiled) row(streams, 1)[hidden + 3] = NAN;
    const OwnedMatrix fn = make_matrix(random, Format::F32, kDots, kN * hidden);
    const OwnedMatrix head_fn = make_matrix(random, Format::F32, kN, kN * hidden);
    const std::vector<float> scale = random.vector(3), base = random.vector(kDots),
                             norm = random.vector(hidden);
    Batch batch = plain_batch(rows);
    for (int32_t t = 0; t < rows; t++) batch.logit_rows.push_back(t);
    const HyperWeights w{fn.m, scale.data(), base.data()}, head_w{head_fn.m, scale.data(), base.data()};
    const auto bad = run(table, *make_hyper_in(streams, x, mix, scratch, w, norm.data(), p), batch, threads);
    CHECK(only_bad(bad, spoiled ? 1 : -1));
    run(table, *make_hyper_out(streams, x, mix, after), batch, threads);
    const auto head_bad =
        run(table, *make_hyper_head(streams, last, scratch, head_w, norm.data(), p), batch, threads);
    CHECK(only_bad(head_bad, spoiled ? 1 : -1));
    for (int32_t t = 0; t < rows; t++) {
        std::vector<float> m(kDots), pre(kN), post(kN), comb(kN * kN), y(static_cast<size_t>(hidden));
        std::vector<float> out(static_cast<size_t>(kN * hidden));
        const uint8_t* input = row_bytes(streams, t);
        float* dots = m.data();
        table.linear[static_cast<int>(Format::F32)](fn.m, 0, kDots, &input, 1, &dots);
        const float inv = table.rms(row(streams, t), kN * hidden, p.norm_eps);
        table.hyper_mix(m.data(), inv, scale.data(), base.data(), kN, 20, p.hc_eps, pre.data(), post.data(),
                        comb.data());
        table.collapse(row(streams, t), pre.data(), kN, hidden, y.data());
        table.scale_rows(y.data(), table.rms(y.data(), hidden, p.norm_eps), norm.data(), hidden, y.data());
        table.expand(row(streams, t), y.data(), post.data(), comb.data(), kN, hidden, out.data());
        if (spoiled && t == 1) {
            CHECK(std::all_of(row(x, t), row(x, t) + hidden, [](float v) { return v == 0.0f; }));
            CHECK(std::all_of(row(last, t), row(last, t) + hidden, [](float v) { return v == 0.0f; }));
            continue;
        }
        CHECK(same(row(x, t), y.data(), hidden), t);
        CHECK(same(row(after, t), out.data(), kN * hidden), t);
        table.linear[static_cast<int>(Format::F32)](head_fn.m, 0, kN, &input, 1, &dots);
        table.hyper_pre(m.data(), inv, scale.data(), base.data(), kN, p.hc_eps, pre.data());
        table.collapse(row(streams, t), pre.data(), kN, hidden, y.data());
        table.scale_rows(y.data(), table.rms(y.data(), hidden, p.norm_eps), norm.data(), hidden, y.data());
        CHECK(same(row(last, t), y.data(), hidden), t);
    }
}

const int32_t* ids_of(const Value& routing, int64_t t) {
    return reinterpret_cast<int32_t*>(row_bytes(routing, t));
}
const float* weights_of(const Value& routing, int64_t t, int64_t k) {
    return reinterpret_cast<const float*>(ids_of(routing, t) + k);
}

void check_scored(const Table& table, int threads) {
    Arena arena;
    const Value logits = arena.f32(5, 6), routing = arena.bytes(5, 2 * 8);
    const float rows[5][6] = {{3, 1, 1, 1, 0, 2},     // plain: 0 and 5
                              {1, 1, 1, 1, 1, 1},     // all equal but for the bias of 4: 0 and 4
                              {-3, -3, 1, 1, -3, 1},  // three equal: 2 and 3
                              {0, 0, NAN, 0, 0, 0},   // not finite
                              {-200, -200, -200, -200, -200, -200}};  // all scores 0: their share is 0 / 0
    for (int t = 0; t < 5; t++) std::copy_n(rows[t], 6, row(logits, t));
    const float bias[6] = {0, 0, 0, 0, 0.05f, 0};
    const RouteShape shape{6, 2, 1.5f, true};
    const auto bad = run(table, *make_route(logits, routing, bias, nullptr, shape), plain_batch(5), threads);
    CHECK(bad == std::vector<uint8_t>({0, 0, 0, 1, 1}));
    const int32_t expected[5][2] = {{0, 5}, {0, 4}, {2, 3}, {0, 1}, {0, 1}};
    for (int t = 0; t < 5; t++) CHECK(std::equal(ids_of(routing, t), ids_of(routing, t) + 2, expected[t]), t);
    for (int t : {1, 2}) {  // equal logits have equal weights: the bias chose 4 and is not in its weight
        CHECK(weights_of(routing, t, 2)[0] == 0.75f && weights_of(routing, t, 2)[1] == 0.75f, t);
    }
    CHECK(weights_of(routing, 3, 2)[0] == 0.0f && weights_of(routing, 4, 2)[1] == 0.0f);
    const float w0 = weights_of(routing, 0, 2)[0], w1 = weights_of(routing, 0, 2)[1];
    CHECK(std::fabs(w0 + w1 - 1.5f) < 1e-6f && w0 > w1);
}

void check_hashed(const Table& table, int threads) {
    Arena arena;
    Random random(5);
    const Value logits = arena.f32(4, 6), routing = arena.bytes(4, 3 * 8);
    for (int t = 0; t < 4; t++) random.fill(row(logits, t), 6);
    std::vector<int32_t> ids;
    for (int token = 0; token < 11; token++)
        ids.insert(ids.end(), {token % 6, 5, token % 6});  // repeats an id
    const Batch batch = plain_batch(4);
    const auto bad =
        run(table, *make_route(logits, routing, nullptr, ids.data(), {6, 3, 2.0f, false}), batch, threads);
    CHECK(only_bad(bad, -1));
    for (int t = 0; t < 4; t++) {
        const int32_t id = batch.ids[static_cast<size_t>(t)] % 6;
        int32_t expected[3] = {id, 5, id};
        std::sort(expected, expected + 3);
        CHECK(std::equal(expected, expected + 3, ids_of(routing, t)), t);
        float scores[6];
        table.router_scores(row(logits, t), 6, scores);
        for (int i = 0; i < 3; i++) CHECK(weights_of(routing, t, 3)[i] == scores[expected[i]] * 2.0f, t);
    }
}

}  // namespace

void test_rows(const Table& table) {
    for (int threads : kTeams) {
        check_moves(table, threads);
        check_norm(table, threads);
    }
}

void test_hyper(const Table& table) {
    for (int threads : kTeams) {
        for (int32_t rows : {1, 3, 11}) {
            check_hyper(table, 1024, rows, threads);
            check_hyper(table, 40, rows, threads);
        }
    }
}

void test_route(const Table& table) {
    for (int threads : kTeams) {
        check_scored(table, threads);
        check_hashed(table, threads);
    }
}

// The step's rows are what the codes decode to, and encoding them again loses nothing: the ring holds the
// same keys.
void test_qkv_finish(const Table& table) {
    constexpr int32_t kHeads = 3, kRows = 200;
    constexpr int64_t kD = 112;  // 96 front channels: a block of 64 and one of 32
    LayoutSpec spec{.d = kD, .rotary = 16};
    const KvLayout layout = make_layout(spec);
    OwnedSequence owner(layout, kRows);
    Random random(6);
    Arena arena;
    const Value q = arena.f32(kRows, kHeads * kD), kv = arena.f32(kRows, kD), rotary = arena.f32(kRows, 16);
    const Value q_out = arena.f32(kRows, kHeads * kD), kv_out = arena.f32(kRows, kD);
    const std::vector<float> w = random.vector(kD);
    for (int32_t t = 0; t < kRows; t++) {
        random.fill(row(q, t), kHeads * kD);
        for (int64_t c = 0; c < kD; c++)
            row(kv, t)[c] = std::ldexp(random.uniform(), static_cast<int>(random.below(30)) - 15);
    }
    row(q, 9)[kD] = NAN;
    const RowShape shape = layout.layers[0].ring_shape;
    for (int threads : kTeams) {
        const Batch batch = make_batch({{&owner.sequence, 0, 50}, {&owner.sequence, 50, kRows - 50}});
        run(table, *make_rotary(rotary, frequencies(16)), batch, threads);
        const auto op = make_qkv_finish(q, kv, q_out, kv_out, rotary, w.data(), {0, kHeads, kD, 8, 1e-6f});
        CHECK(only_bad(run(table, *op, batch, threads), 9));
        for (int32_t t = 0; t < kRows; t++) {
            std::vector<float> y(kD), again(kD);
            std::vector<uint8_t> codes(static_cast<size_t>(cache_row_bytes(shape)));
            table.scale_rows(row(kv, t), table.rms(row(kv, t), kD, 1e-6f), w.data(), kD, y.data());
            table.rotate(y.data(), kD, {row(rotary, t), row(rotary, t) + 8}, 8, false);
            table.encode_row(y.data(), shape, codes.data());
            table.decode_cache_row(codes.data(), shape, y.data());
            CHECK(same(row(kv_out, t), y.data(), kD), t);
            table.encode_row(y.data(), shape, codes.data());
            table.decode_cache_row(codes.data(), shape, again.data());
            CHECK(same(y.data(), again.data(), kD), t);
            const float* head = row(q, t) + kD;
            table.scale_rows(head, table.rms(head, kD, 1e-6f), nullptr, kD, y.data());
            table.rotate(y.data(), kD, {row(rotary, t), row(rotary, t) + 8}, 8, false);
            if (t != 9) CHECK(same(row(q_out, t) + kD, y.data(), kD), t);
        }
    }
    // The edges of the argument in attend.cc: the largest of a block just around 224 and 448 times a power of
    // two, and around the floor of the scale.
    for (int exponent = -40; exponent < 40; exponent++) {
        for (float edge : {223.9f, 224.0f, 224.1f, 231.9f, 232.0f, 232.1f, 240.0f, 447.9f, 448.0f, 448.1f}) {
            std::vector<float> x(kD), once(kD), twice(kD);
            std::vector<uint8_t> codes(static_cast<size_t>(cache_row_bytes(shape)));
            for (float& v : x) v = std::ldexp(edge * (random.below(4) ? random.uniform() : -1.0f), exponent);
            table.encode_row(x.data(), shape, codes.data());
            table.decode_cache_row(codes.data(), shape, once.data());
            table.encode_row(once.data(), shape, codes.data());
            table.decode_cache_row(codes.data(), shape, twice.data());
            CHECK(same(once.data(), twice.data(), kD), exponent);
        }
    }
}

}  // namespace finback::test
