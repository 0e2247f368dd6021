// compress against the definition of docs/exactness.md section 10 without any state: a closed row pools its
// own tokens from an empty accumulator. Chunkings, team sizes, two sequences in a batch and tokens taken back
// must not show in the bytes.
#include <limits>

#include "kernels/rotary.h"
#include "tests/world.h"

namespace finback::test {
namespace {

constexpr int32_t kTokens = 75;
constexpr float kEps = 1e-6f;

struct Stream {
    LayoutSpec spec;
    bool index;
};

// One sequence's tokens and the layer's weights.
struct World {
    World(const Stream& s, uint64_t seed) : layout(make_layout(s.spec)), stream(stream_of(s)), random(seed) {
        const int64_t width = int64_t{stream.open} * stream.width;
        kv = random.vector(kTokens * width);
        gate = random.vector(kTokens * width);
        Random weights(1);
        ape = weights.vector(s.spec.ratio * width);
        norm = weights.vector(stream.width);
        shape = {0, s.index, frequencies(s.spec.rotary), kEps};
    }
    const StreamLayout& stream_of(const Stream& s) const {
        return s.index ? layout.layers[0].index : layout.layers[0].main;
    }
    int64_t width() const { return int64_t{stream.open} * stream.width; }

    const KvLayout layout;
    const StreamLayout& stream;
    Random random;
    std::vector<float> kv, gate, ape, norm;
    CompressShape shape;
};

// The stored bytes of row `group`.
std::vector<uint8_t> expected_row(const Table& table, const World& w, int64_t group) {
    const int64_t n = w.stream.width, ratio = w.layout.layers[0].ratio;
    std::vector<float> m(static_cast<size_t>(n), -std::numeric_limits<float>::infinity()),
        l(static_cast<size_t>(n)), a(static_cast<size_t>(n)), row(static_cast<size_t>(n));
    const auto add = [&](int64_t pos, int64_t half) {
        const int64_t at = pos * w.width() + half * n, ape = pos % ratio * w.width() + half * n;
        table.pool_add(m.data(), l.data(), a.data(), w.kv.data() + at, w.gate.data() + at, w.ape.data() + ape,
                       n);
    };
    const int64_t start = group * ratio;
    if (w.stream.open == 2 && group > 0) {
        for (int64_t p = start - ratio; p < start; p++) add(p, 0);
    }
    for (int64_t p = start; p < start + ratio; p++) add(p, w.stream.open - 1);
    table.pool_close(l.data(), a.data(), n, row.data());
    table.scale_rows(row.data(), table.rms(row.data(), n, kEps), w.norm.data(), n, row.data());
    const auto pairs = static_cast<int32_t>(w.shape.frequencies.size());
    std::vector<float> rotation(static_cast<size_t>(2 * pairs));
    rotary_table(w.shape.frequencies.data(), pairs, &start, 1, rotation.data(), rotation.data() + pairs);
    table.rotate(row.data(), n, {rotation.data(), rotation.data() + pairs}, pairs, false);
    if (w.shape.index && w.stream.shape.rounded) table.hadamard(row.data(), n);
    std::vector<uint8_t> out(static_cast<size_t>(w.stream.row_bytes));
    table.encode_row(row.data(), w.stream.shape, out.data());
    return out;
}

void check_rows(const Table& table, const World& w, const Sequence& sequence, int64_t tokens) {
    for (int64_t group = 0; group < tokens / w.layout.layers[0].ratio; group++) {
        const std::vector<uint8_t> expected = expected_row(table, w, group);
        const uint8_t* row = sequence.row(w.stream, w.layout.layers[0], group);
        CHECK(std::equal(expected.begin(), expected.end(), row), group);
    }
}

// Feeds rows of a batch; token i of a part comes from position pos0 + i of its world, or from noise.
class Feeder {
  public:
    Feeder(const Table& table, const World& w, int threads)
        : table_(table),
          threads_(threads),
          kv_(arena_.f32(2 * kTokens, w.width())),
          gate_(arena_.f32(2 * kTokens, w.width())),
          op_(make_compress(kv_, gate_,
                            arena_.scratch(compress_scratch_bytes(w.layout, w.shape, 2 * kTokens, threads)),
                            w.ape.data(), w.norm.data(), w.shape)) {}

    std::vector<uint8_t> feed(const std::vector<const World*>& worlds, const std::vector<Part>& parts,
                              bool noise = false) {
        const Batch batch = make_batch(parts);
        Random random(99);
        for (size_t s = 0; s < parts.size(); s++) {
            const World& w = *worlds[s];
            for (int32_t i = 0; i < parts[s].n; i++) {
                const int64_t row_in = batch.segments[s].row0 + i, at = (parts[s].pos0 + i) * w.width();
                std::copy_n(w.kv.data() + at, w.width(), row(kv_, row_in));
                std::copy_n(w.gate.data() + at, w.width(), row(gate_, row_in));
                if (noise) random.fill(row(kv_, row_in), w.width());
            }
        }
        return run(table_, *op_, batch, threads_);
    }
    float* kv(int64_t t) const { return row(kv_, t); }
    std::vector<uint8_t> replay(const Batch& batch) const { return run(table_, *op_, batch, threads_); }

  private:
    const Table& table_;
    const int threads_;
    Arena arena_;
    const Value kv_, gate_;
    const OpPtr op_;
};

void check_chunks(const Table& table, const Stream& s, int threads) {
    const World w(s, 11), other(s, 12);
    Feeder feeder(table, w, threads);
    for (int32_t chunk : {1, 2, 3, 5, 16, kTokens}) {
        OwnedSequence a(w.layout, kTokens), b(w.layout, kTokens);
        // b runs 4 tokens behind a in the same batches, and alone at the end.
        for (int32_t p = 0; p < kTokens + 4; p += chunk) {
            std::vector<Part> parts;
            std::vector<const World*> worlds;
            const int32_t n = std::min(chunk, kTokens - p), from = std::max(0, p - 4),
                          to = std::min(kTokens, p - 4 + chunk);
            if (n > 0) parts.push_back({&a.sequence, p, n}), worlds.push_back(&w);
            if (to > from) parts.push_back({&b.sequence, from, to - from}), worlds.push_back(&other);
            feeder.feed(worlds, parts);
        }
        check_rows(table, w, a.sequence, kTokens);
        check_rows(table, other, b.sequence, kTokens);
    }
}

// A draft of noise enters, is taken back (a length is set, no more), and the true tokens follow.
void check_taken_back(const Table& table, const Stream& s, int threads) {
    const World w(s, 13);
    Feeder feeder(table, w, threads);
    OwnedSequence owner(w.layout, kTokens + s.spec.max_draft);
    Random random(14);
    int64_t pos = 0;
    while (pos < kTokens) {
        const auto n = static_cast<int32_t>(std::min<int64_t>(1 + random.below(5), kTokens - pos));
        feeder.feed({&w}, {{&owner.sequence, pos, n}});
        pos += n;
        const auto draft =
            static_cast<int32_t>(std::min<int64_t>(random.below(s.spec.max_draft + 1), kTokens - pos));
        for (int32_t i = 0; i < draft; i++) feeder.feed({&w}, {{&owner.sequence, pos + i, 1}}, true);
        if (random.below(2) && draft > 1) feeder.feed({&w}, {{&owner.sequence, pos, draft}}, true);
    }
    check_rows(table, w, owner.sequence, kTokens);
}

void check_not_finite(const Table& table, const Stream& s) {
    const World w(s, 15);
    Feeder feeder(table, w, 2);
    OwnedSequence a(w.layout, kTokens), b(w.layout, kTokens);
    feeder.feed({&w, &w}, {{&a.sequence, 0, 20}, {&b.sequence, 0, 20}});
    const Batch batch = make_batch({{&a.sequence, 0, 20}, {&b.sequence, 0, 20}});
    feeder.kv(2)[w.width() - 1] = INFINITY;
    std::vector<uint8_t> expected(40);
    expected[2] = 1;
    CHECK(feeder.replay(batch) == expected);
    check_rows(table, w, b.sequence, 20);
}

}  // namespace

void test_compress(const Table& table) {
    const Stream streams[] = {{{.ratio = 4, .overlapped = true}, false},
                              {{.ratio = 4, .overlapped = true}, true},
                              {{.ratio = 4, .overlapped = true, .rounded = false}, true},
                              {{.ratio = 16, .d = 80, .max_draft = 0}, false},
                              {{.ratio = 16, .rounded = false, .max_draft = 5}, false}};
    for (const Stream& s : streams) {
        for (int threads : {1, 2, 4}) {
            check_chunks(table, s, threads);
            check_taken_back(table, s, threads);
        }
        check_not_finite(table, s);
    }
}

}  // namespace finback::test
