// linear, grouped_linear, pack and their logits variants against one kernel call per row of the matrix:
// whatever the split, the tiles and the number of inputs, a result has the bits of its own row and input.
#include "tests/world.h"

namespace finback::test {
namespace {

float single(const Table& table, const Matrix& w, int64_t r, const uint8_t* x) {
    float y = 0;
    float* out = &y;
    table.linear[static_cast<int>(w.format)](w, r, r + 1, &x, 1, &out);
    return y;
}

struct Case {
    Format format;
    int32_t rows, parts;
    int64_t cols;
};

void check_matrices(const Table& table, Case c, int threads) {
    Random random(7);
    Arena arena;
    const Encoding e = encoding_of(c.format);
    const Value x = arena.f32(c.rows, c.cols, c.parts);
    const Value packed = arena.bytes(c.rows, c.parts * packed_bytes(e, c.cols), c.parts, c.cols);
    for (int32_t t = 0; t < c.rows; t++) random.fill(row(x, t), c.parts * c.cols);
    std::vector<OwnedMatrix> owned;
    std::vector<Matrix> matrices;
    std::vector<Value> outs;
    for (int64_t height : {1, 37, 300}) {
        owned.push_back(make_matrix(random, c.format, height, c.cols));
        matrices.push_back(owned.back().m);
        outs.push_back(arena.f32(c.rows, height, c.parts));
    }
    Batch batch;
    batch.n_rows = c.rows;
    run(table, *make_pack(x, packed, e, 1), batch, threads);
    run(table, *make_linear(packed, e, matrices, outs), batch, threads);
    for (size_t j = 0; j < matrices.size(); j++) {
        for (int64_t i = 0; i < int64_t{c.rows} * c.parts; i++) {
            const uint8_t* input = row_bytes(packed, i / c.parts) + i % c.parts * packed_bytes(e, c.cols);
            const float* y = row(outs[j], i / c.parts) + i % c.parts * matrices[j].rows;
            for (int64_t r = 0; r < matrices[j].rows; r++) {
                const float expected = single(table, matrices[j], r, input);
                if (!CHECK(same(y + r, &expected, 1), i)) return;
            }
        }
    }
}

void check_groups(const Table& table, int threads) {
    constexpr int64_t kGroups = 4, kHeight = 24, kWidth = 64, kRows = 40;
    Random random(8);
    Arena arena;
    const Encoding e = Encoding::A8x32;
    const int64_t piece = packed_bytes(e, kWidth);
    const Value x = arena.f32(kRows, kGroups * kWidth), out = arena.f32(kRows, kGroups * kHeight);
    const Value packed = arena.bytes(kRows, kGroups * piece);
    for (int64_t t = 0; t < kRows; t++) random.fill(row(x, t), x.width);
    row(x, 5)[70] = INFINITY;
    const OwnedMatrix w = make_matrix(random, Format::Q8_0, kGroups * kHeight, kWidth);
    Batch batch;
    batch.n_rows = kRows;
    const std::vector<uint8_t> bad = run(table, *make_pack(x, packed, e, kGroups), batch, threads);
    for (int64_t t = 0; t < kRows; t++) CHECK(bad[static_cast<size_t>(t)] == (t == 5), t);
    run(table, *make_grouped_linear(packed, e, w.m, kGroups, out), batch, threads);
    for (int64_t t = 0; t < kRows; t++) {
        for (int64_t r = 0; r < w.m.rows; r++) {
            const float expected = single(table, w.m, r, row_bytes(packed, t) + r / kHeight * piece);
            if (!CHECK(same(row(out, t) + r, &expected, 1), t)) return;
        }
    }
}

// A row that is not finite is reported under its number in the step, not in the list of logits.
void check_logits(const Table& table, int threads) {
    Random random(9);
    Arena arena;
    const Value x = arena.f32(2, 32), packed = arena.bytes(2, packed_bytes(Encoding::F32, 32));
    const Value out = arena.f32(2, 50);
    const OwnedMatrix w = make_matrix(random, Format::F32, 50, 32);
    for (int64_t i = 0; i < 2; i++) random.fill(row(x, i), 32);
    row(x, 1)[31] = NAN;
    Batch batch;
    batch.n_rows = 6;
    batch.logit_rows = {2, 5};
    const std::vector<uint8_t> bad = run(table, *make_pack_logits(x, packed, Encoding::F32), batch, threads);
    CHECK(bad == std::vector<uint8_t>({0, 0, 0, 0, 0, 1}));
    run(table, *make_linear_logits(packed, Encoding::F32, w.m, out), batch, threads);
    for (int64_t r = 0; r < 50; r++) {
        const float expected = single(table, w.m, r, row_bytes(packed, 0));
        CHECK(same(row(out, 0) + r, &expected, 1), r);
        CHECK(row(out, 1)[r] == 0.0f, r);  // packed as zeros
    }
}

}  // namespace

void test_linear(const Table& table) {
    for (int threads : {1, 2, 5}) {
        check_matrices(table, {Format::F32, 1, 1, 40}, threads);
        check_matrices(table, {Format::Q8_0, 3, 4, 64}, threads);
        check_matrices(table, {Format::F32, 70, 1, 2048},
                       threads);  // rows of 8 KB: several blocks, several tiles
        check_groups(table, threads);
        check_logits(table, threads);
    }
}

}  // namespace finback::test
