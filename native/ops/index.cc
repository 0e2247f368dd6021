// index_select: which compressed rows each query of a CSA layer attends (docs/exactness.md section 11).
//
//     query     per head: rotate -> (Hadamard) -> encode, like the indexer's keys;   weights: w *
//     weight_scale scores    over the rows visible at the query's position, in blocks, straight from the
//     pages select    the topk greatest by (score descending, row ascending), then listed ascending
//
// A query that sees at most topk rows selects them all and nothing is scored. For the others memory does not
// grow with the context: scores pass through a buffer of 2 * topk candidates (ops/top.h).
//
// With at least as many scoring queries as threads, a thread takes whole queries, equal in visible rows. With
// fewer, as in decoding, the threads share each query: its heads while it is prepared, then its rows; one of
// them merges the candidates of all. The set that wins is the same either way, because the order is total.
#include <stdexcept>

#include "ops/top.h"
#include "ops/work.h"

namespace finback {
namespace {

// Rows per call of the kernel, which unpacks the query's heads each time: as much work as scoring fifty rows.
// Pointers and scores stay on the stack.
constexpr int64_t kScoreBlock = 1024;

// Scratch: a region per thread with a query's codes, its head weights, the candidates, a head in f32, the
// number of candidates.
struct Scratch {
    Scratch(const StreamLayout& stream, const IndexShape& s, int64_t threads)
        : query_bytes(pad64(cache_row_bytes(query_shape(stream, s)))),
          weights(s.heads * query_bytes),
          keys(weights + pad64(s.heads * 4)),
          head(keys + pad64(2 * int64_t{s.topk} * 8)),
          count(head + pad64(s.d * 4)),
          thread_bytes(count + 64),
          bytes(threads * thread_bytes) {}
    static RowShape query_shape(const StreamLayout& stream, const IndexShape& s) {
        return {static_cast<int32_t>(s.d), 0, stream.shape.rounded};
    }
    const int64_t query_bytes, weights, keys, head, count, thread_bytes, bytes;
};

class IndexSelect final : public Op {
  public:
    IndexSelect(Value q, Value weights, Value rotary, Value selection, Value scratch, IndexShape s)
        : q_(q), weights_(weights), rotary_(rotary), selection_(selection), scratch_(scratch), s_(s) {
        if (s.topk < 1 || s.d > kMaxIndexWidth) {
            throw std::invalid_argument(
                "the indexer needs index_topk of at least 1 and index_head_dim of at most 1024");
        }
    }
    const char* name() const override { return "index_select"; }

    void run(const Step& step, Team& team, int id) const override {
        if (step.batch->segments.empty()) return;
        int64_t queries = 0, rows = 0;  // that need scores; what they see together
        for_queries(step, [&](const Segment&, int64_t row, int64_t visible) {
            if (visible > s_.topk) {
                queries++;
                rows += visible;
            } else if (row % team.size() == id) {
                select_all(step, row, visible);
            }
        });
        if (queries == 0) return;
        const Scratch plan(stream_of(step.batch->segments[0]), s_, team.size());
        if (queries >= team.size()) {
            CostShare work(rows, id, team.size());
            for_queries(step, [&](const Segment& seg, int64_t row, int64_t visible) {
                if (visible <= s_.topk) return;
                const Range mine = work.take(1, visible);
                if (mine.begin < mine.end) search(step, plan, id, seg, row, visible);
            });
        } else {
            int turn = 0;
            for_queries(step, [&](const Segment& seg, int64_t row, int64_t visible) {
                if (visible > s_.topk)
                    search_together(step, team, id, plan, turn++ % team.size(), seg, row, visible);
            });
        }
    }

  private:
    const LayerLayout& layer_of(const Segment& seg) const {
        return seg.sequence->layout->layers[static_cast<size_t>(s_.layer)];
    }
    const StreamLayout& stream_of(const Segment& seg) const { return layer_of(seg).index; }

    template <class Visit>
    void for_queries(const Step& step, const Visit& visit) const {
        for (const Segment& seg : step.batch->segments) {
            for (int64_t i = 0; i < seg.n; i++)
                visit(seg, seg.row0 + i, (seg.pos0 + i + 1) / layer_of(seg).ratio);
        }
    }

    // A thread's region.
    uint8_t* region(const Step& step, const Scratch& plan, int id) const {
        return step.arena + scratch_.offset + id * plan.thread_bytes;
    }
    float* head_weights(const Step& step, const Scratch& plan, int id) const {
        return reinterpret_cast<float*>(region(step, plan, id) + plan.weights);
    }
    uint64_t* keys(const Step& step, const Scratch& plan, int id) const {
        return reinterpret_cast<uint64_t*>(region(step, plan, id) + plan.keys);
    }
    int64_t* count(const Step& step, const Scratch& plan, int id) const {
        return reinterpret_cast<int64_t*>(region(step, plan, id) + plan.count);
    }

    int32_t* selection(const Step& step, int64_t row) const {
        return reinterpret_cast<int32_t*>(step.bytes(selection_, row));
    }
    void select_all(const Step& step, int64_t row, int64_t visible) const {
        int32_t* out = selection(step, row);
        out[0] = static_cast<int32_t>(visible);
        for (int32_t i = 0; i < visible; i++) out[1 + i] = i;
    }
    void select(const Step& step, int64_t row, const uint64_t* best, int64_t n) const {
        int32_t* out = selection(step, row);
        out[0] = static_cast<int32_t>(n);
        for (int64_t i = 0; i < n; i++) out[1 + i] = key_id(best[i]);
        std::sort(out + 1, out + 1 + n);
    }

    // Codes of some heads of a query into `codes`.
    void encode_heads(const Step& step, const Scratch& plan, int id, const Segment& seg, int64_t row,
                      Range heads, uint8_t* codes) const {
        const RowShape shape = Scratch::query_shape(stream_of(seg), s_);
        const float* cos = step.f32(rotary_, row);
        for (int64_t h = heads.begin; h < heads.end; h++) {
            auto* q = reinterpret_cast<float*>(region(step, plan, id) + plan.head);
            std::copy_n(step.f32(q_, row) + h * s_.d, s_.d, q);
            step.table->rotate(q, s_.d, {cos, cos + s_.rotary_pairs}, s_.rotary_pairs, false);
            if (shape.rounded) step.table->hadamard(q, s_.d);
            if (!all_finite(*step.table, q, s_.d)) {
                mark_bad(step, row);
                std::fill_n(q, s_.d, 0.0f);
            }
            step.table->encode_row(q, shape, codes + h * plan.query_bytes);
        }
    }
    void scale_weights(const Step& step, int64_t row, float* out) const {
        const float* w = step.f32(weights_, row);
        if (!all_finite(*step.table, w, s_.heads)) mark_bad(step, row);
        for (int32_t h = 0; h < s_.heads; h++) out[h] = w[h] * s_.weight_scale;
    }

    // Candidates among some of the visible rows.
    void score(const Step& step, const Scratch& plan, const uint8_t* codes, const float* w,
               const Segment& seg, Range rows, Top& top) const {
        const LayerLayout& layer = layer_of(seg);
        const RowShape shape = Scratch::query_shape(layer.index, s_);
        for (int64_t r0 = rows.begin; r0 < rows.end; r0 += kScoreBlock) {
            const int64_t n = std::min(kScoreBlock, rows.end - r0);
            const uint8_t* at[kScoreBlock];
            float scores[kScoreBlock];
            for (int64_t i = 0; i < n; i++) at[i] = seg.sequence->row(layer.index, layer, r0 + i);
            step.table->index_scores(codes, plan.query_bytes, w, s_.heads, shape, at, n, scores);
            for (int64_t i = 0; i < n; i++) top.add(rank_key(scores[i], static_cast<int32_t>(r0 + i)));
        }
    }

    void search(const Step& step, const Scratch& plan, int id, const Segment& seg, int64_t row,
                int64_t visible) const {
        uint8_t* codes = region(step, plan, id);
        float* w = head_weights(step, plan, id);
        encode_heads(step, plan, id, seg, row, {0, s_.heads}, codes);
        scale_weights(step, row, w);
        Top top(keys(step, plan, id), s_.topk);
        score(step, plan, codes, w, seg, {0, visible}, top);
        const int64_t n = top.finish();
        select(step, row, keys(step, plan, id), n);
    }

    // Two meetings: the query's codes are complete; the candidates are. The codes lie in thread 0's region.
    // The next query may overwrite them after the second meeting, and the candidates only after its own first
    // one, which the merger joins late.
    void search_together(const Step& step, Team& team, int id, const Scratch& plan, int merger,
                         const Segment& seg, int64_t row, int64_t visible) const {
        uint8_t* codes = region(step, plan, 0);
        encode_heads(step, plan, id, seg, row, share(s_.heads, id, team.size()), codes);
        scale_weights(step, row, head_weights(step, plan, id));
        team.barrier();
        Top top(keys(step, plan, id), s_.topk);
        score(step, plan, codes, head_weights(step, plan, id), seg,
              share(visible, id, team.size(), kScoreBlock), top);
        *count(step, plan, id) = top.finish();
        team.barrier();
        if (id != merger) return;
        for (int other = 0; other < team.size(); other++) {
            if (other == id) continue;
            const uint64_t* candidates = keys(step, plan, other);
            for (int64_t i = 0; i < *count(step, plan, other); i++) top.add(candidates[i]);
        }
        const int64_t n = top.finish();
        select(step, row, keys(step, plan, id), n);
    }

    const Value q_, weights_, rotary_, selection_, scratch_;
    const IndexShape s_;
};

}  // namespace

int64_t index_scratch_bytes(const KvLayout& layout, const IndexShape& s, int32_t max_rows, int32_t threads) {
    static_cast<void>(max_rows);  // queries are worked on one at a time per thread
    return Scratch(layout.layers[static_cast<size_t>(s.layer)].index, s, threads).bytes;
}

OpPtr make_index_select(Value q, Value weights, Value rotary, Value selection, Value scratch, IndexShape s) {
    return std::make_unique<IndexSelect>(q, weights, rotary, selection, scratch, s);
}

}  // namespace finback
