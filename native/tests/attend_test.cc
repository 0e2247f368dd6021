// attend against one kernel call per query over a key list written down from the definition, with every row
// of the sequence at hand. Nothing of chunks, ring, tiles, shared keys and team sizes may show in the bytes.
#include <algorithm>

#include "tests/world.h"

namespace finback::test {
namespace {

constexpr int32_t kHeads = 6, kPairs = 4, kTopk = 10;
constexpr int64_t kD = 32, kMaxContext = 1 << 18;

// A sequence as the definition sees it: every decoded window row, every decoded compressed row.
struct World {
    World(const LayoutSpec& spec, int64_t tokens, uint64_t seed, int32_t chosen)
        : layout(make_layout(spec)), owner(layout, tokens), random(seed), topk(chosen), n(tokens) {
        const LayerLayout& l = layout.layers[0];
        for (int64_t p = 0; p < n; p++) window.push_back(rounded_row(l.ring_shape, scratch_row()));
        for (int64_t r = 0; l.ratio && r < n / l.ratio; r++) {
            compressed.push_back(rounded_row(l.ring_shape, owner.sequence.row(l.main, l, r)));
        }
        q = random.vector(n * kHeads * kD);
    }
    uint8_t* scratch_row() {
        codes.resize(static_cast<size_t>(layout.layers[0].ring_row_bytes));
        return codes.data();
    }
    std::vector<float> rounded_row(RowShape shape, uint8_t* stored) {
        std::vector<float> x = random.vector(kD);
        table_scalar()->encode_row(x.data(), shape, stored);
        table_scalar()->decode_cache_row(stored, shape, x.data());
        return x;
    }
    // The rows a query at p selects: a fixed pseudo-random choice, ascending.
    std::vector<int32_t> chosen(int64_t p) const {
        const int64_t visible = layout.layers[0].ratio ? (p + 1) / layout.layers[0].ratio : 0;
        std::vector<int32_t> rows;
        if (!layout.layers[0].overlapped || visible <= topk) {
            for (int32_t r = 0; r < visible; r++) rows.push_back(r);
            return rows;
        }
        Random pick(static_cast<uint64_t>(p));
        for (int32_t r = 0; r < visible; r++) {  // each left row with the chance that fills the list
            const int64_t wanted = topk - static_cast<int64_t>(rows.size());
            if (pick.below(visible - r) < wanted) rows.push_back(r);
        }
        return rows;
    }
    void fill_ring(int64_t pos) {  // as if rows up to pos - 1 had been computed
        const LayerLayout& l = layout.layers[0];
        for (int64_t p = std::max<int64_t>(0, pos - layout.ring_depth); p < pos; p++) {
            table_scalar()->encode_row(window[static_cast<size_t>(p)].data(), l.ring_shape,
                                       owner.sequence.ring_row(l, p));
        }
    }

    const KvLayout layout;
    OwnedSequence owner;
    Random random;
    const int32_t topk;
    const int64_t n;
    std::vector<uint8_t> codes;
    std::vector<std::vector<float>> window, compressed;
    std::vector<float> q;
};

// Another sequence with the same history: its own frontier, the same pages.
struct Fork {
    explicit Fork(const World& w)
        : frontier(w.owner.sequence.frontier, w.owner.sequence.frontier + w.layout.frontier_bytes),
          sequence(w.owner.sequence) {
        sequence.frontier = frontier.data();
    }
    std::vector<uint8_t> frontier;
    Sequence sequence;
};

class Runner {
  public:
    Runner(const Table& table, const World& w, int32_t rows, int threads)
        : table_(table),
          threads_(threads),
          sink_(Random(5).vector(kHeads)),
          q_(arena_.f32(rows, kHeads * kD)),
          kv_(arena_.f32(rows, kD)),
          rotary_(arena_.f32(rows, 2 * kPairs)),
          out_(arena_.f32(rows, kHeads * kD)),
          selection_(arena_.bytes(rows, 4 * (1 + w.topk), 1, 1 + w.topk)) {
        const AttentionShape s{0, kHeads, kD, kPairs, 1e-6f};
        const int64_t bytes = attend_scratch_bytes(w.layout, s, w.topk, kMaxContext, rows, threads);
        op_ = make_attend(q_, kv_, rotary_, w.layout.layers[0].overlapped ? selection_ : Value{}, out_,
                          arena_.scratch(bytes), sink_.data(), w.topk, kMaxContext, s);
    }

    struct Piece {
        World* w;
        int64_t pos0;
        int32_t n;
        Sequence* fork = nullptr;  // instead of the world's own
    };
    // Runs the pieces as one step and checks every output row.
    void step(const std::vector<Piece>& pieces) {
        std::vector<Part> parts;
        for (const Piece& p : pieces) parts.push_back({p.fork ? p.fork : &p.w->owner.sequence, p.pos0, p.n});
        const Batch batch = make_batch(parts);
        run(table_, *make_rotary(rotary_, frequencies(2 * kPairs)), batch, threads_);
        for (size_t s = 0; s < pieces.size(); s++) {
            for (int32_t i = 0; i < pieces[s].n; i++)
                load(*pieces[s].w, pieces[s].pos0 + i, batch.segments[s].row0 + i);
        }
        run(table_, *op_, batch, threads_);
        for (size_t s = 0; s < pieces.size(); s++) {
            for (int32_t i = 0; i < pieces[s].n; i++)
                check(*pieces[s].w, pieces[s].pos0 + i, batch.segments[s].row0 + i);
        }
    }

  private:
    void load(const World& w, int64_t p, int64_t t) {
        std::copy_n(w.q.data() + p * kHeads * kD, kHeads * kD, row(q_, t));
        std::copy_n(w.window[static_cast<size_t>(p)].data(), kD, row(kv_, t));
        const std::vector<int32_t> rows = w.chosen(p);
        auto* selection = reinterpret_cast<int32_t*>(row_bytes(selection_, t));
        if (!w.layout.layers[0].overlapped) return;
        selection[0] = static_cast<int32_t>(rows.size());
        std::copy(rows.begin(), rows.end(), selection + 1);
    }
    void check(const World& w, int64_t p, int64_t t) const {
        std::vector<const float*> keys;
        for (int32_t r : w.chosen(p)) keys.push_back(w.compressed[static_cast<size_t>(r)].data());
        for (int64_t k = std::max<int64_t>(0, p - w.layout.window + 1); k <= p; k++) {
            keys.push_back(w.window[static_cast<size_t>(k)].data());
        }
        const auto n = static_cast<int64_t>(keys.size());
        std::vector<float> scores(static_cast<size_t>(kHeads * n)), out(kHeads * kD);
        table_.attend(w.q.data() + p * kHeads * kD, kHeads, kD,
                      static_cast<float>(1.0 / std::sqrt(double{kD})), keys.data(), n, sink_.data(),
                      scores.data(), n, out.data());
        const float* cos = row(rotary_, t);
        for (int32_t h = 0; h < kHeads; h++)
            table_.rotate(out.data() + h * kD, kD, {cos, cos + kPairs}, kPairs, true);
        CHECK(same(row(out_, t), out.data(), kHeads * kD), p);
    }

    const Table& table_;
    const int threads_;
    const std::vector<float> sink_;
    Arena arena_;
    const Value q_, kv_, rotary_, out_, selection_;
    OpPtr op_;
};

// The whole sequence in chunks, a second one a few tokens behind in the same steps.
void check_chunks(const Table& table, const LayoutSpec& spec, int threads) {
    constexpr int32_t kTokens = 61, kBehind = 5;
    for (int32_t chunk : {1, 3, 8, 20, kTokens}) {
        World a(spec, kTokens, 31, kTopk), b(spec, kTokens, 32, kTopk);
        Runner runner(table, a, 2 * kTokens, threads);
        for (int32_t p = 0; p < kTokens + kBehind; p += chunk) {
            std::vector<Runner::Piece> pieces;
            const int32_t n = std::min(chunk, kTokens - p);
            const int32_t from = std::max(0, p - kBehind), to = std::min(kTokens, p - kBehind + chunk);
            if (to > from) pieces.push_back({&b, from, to - from});
            if (n > 0) pieces.push_back({&a, p, n});
            runner.step(pieces);
        }
    }
}

// Takes back up to max_draft tokens again and again: the ring still holds what the window needs.
void check_taken_back(const Table& table, const LayoutSpec& spec, int threads) {
    World w(spec, 90, 33, kTopk);
    Runner runner(table, w, 8, threads);
    Random random(34);
    for (int64_t pos = 0; pos < 80;) {
        const auto n = static_cast<int32_t>(1 + random.below(7));
        runner.step({{&w, pos, n}});
        pos += n;
        pos -= random.below(std::min(n, spec.max_draft) + 1);
    }
}

// Long contexts: more visible rows than there are slots, so queries decode their own selections, in several
// tiles.
void check_long(const Table& table, int threads) {
    constexpr int64_t kTokens = 18000;
    World w({.ratio = 4, .overlapped = true, .window = 128, .page_span = 128}, kTokens, 35, 64);
    Runner runner(table, w, 100, threads);
    w.fill_ring(17600);
    runner.step({{&w, 17600, 1}});
    runner.step({{&w, 17601, 100}});
    runner.step({{&w, 17701, 3}});
    // Many sequences of one row each need more slots than there are. They share pages, as sequences with one
    // prefix do.
    std::vector<std::unique_ptr<Fork>> forks;
    std::vector<Runner::Piece> pieces;
    for (int i = 0; i < 60; i++) {
        forks.push_back(std::make_unique<Fork>(w));
        pieces.push_back({&w, 17704, 1, &forks.back()->sequence});
    }
    runner.step(pieces);
}

}  // namespace

void test_attend(const Table& table) {
    const LayoutSpec specs[] = {{},
                                {.ratio = 4, .overlapped = true},
                                {.ratio = 4, .overlapped = true, .rounded = false, .max_draft = 0},
                                {.ratio = 16},
                                {.ratio = 16, .rounded = false, .window = 1}};
    for (int threads : {1, 2, 4}) {
        for (const LayoutSpec& spec : specs) {
            check_chunks(table, spec, threads);
            check_taken_back(table, spec, threads);
        }
        check_long(table, threads);
    }
}

}  // namespace finback::test
