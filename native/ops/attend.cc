// attend: joint attention of a step's queries over compressed rows and window rows, inverse rotation, and at
// the end the step's own rows enter the window ring (docs/exactness.md section 12).
//
// Keys of a query at position p, in list order:
//     compressed rows   the selected ones ascending (CSA), or all visible ones (HCA), none in window-only
//     layers window rows       positions max(0, p - w + 1) .. p:   before the step from the ring, of the step
//     from `kv`
//
// Cached rows are codes; keys are f32. The step is cut into *tiles*, as many rows as find room for their
// decoded keys, and a tile is a list of *pieces*: consecutive rows of one segment that share decoded keys.
// Per tile:
//     decode    all threads, cut by keys:  ring rows and compressed rows of every piece -> slots of the
//     shared scratch meet attend    all threads, cut by rows x heads weighted by list length:  pointers to
//     the keys, attend, inverse rotation meet      only if another tile follows, which reuses the slots
// A piece decodes all visible compressed rows once when that is less work than the selected rows of each
// query, else a slot range for each query. One decoding row (T = 1) is one tile: its keys are decoded by all
// threads, its heads split over them.
//
// The ring is read only while decoding, so after the last meeting that follows a decode it may be written: no
// further meeting is needed. Rows of `kv` are already decoded codes; encoding them again gives codes of the
// same values:
//   a block of scale s holds values c * s with codes c, and its largest is at least 224 s (section 9: the
//   scale was the smallest power of two with max |x| <= 448 s, and a code never rounds across 224). If the
//   largest is above 224 s the scale is s again, and so are the codes. If it is exactly 224 s the scale
//   becomes s / 2 and the codes 2 c, which are all codes, for 2 c <= 448. Below the floor 1e-4 the scale is
//   2^-22 both times. bf16 rounds to itself. tests/ops checks the claim.
#include <cmath>

#include "ops/work.h"

namespace finback {
namespace {

constexpr int64_t kHeadGroup = 64;   // heads of one kernel call, for which a key row is loaded once
constexpr int64_t kKeySlots = 4096;  // slots offered when one query needs less: 8 MB of keys at d = 512

int64_t compressed_limit(const LayerLayout& layer, int32_t topk, int64_t max_context) {
    if (layer.ratio == 0) return 0;
    const int64_t rows = max_context / layer.ratio;
    return layer.overlapped ? std::min<int64_t>(topk, rows) : rows;
}

// Scratch: decoded keys, then for each thread the pointers of one query's list and the scores of a group of
// heads. Keys lie a cache line further apart than they are long: rows of a power of two would all fall on the
// same few sets of the cache.
struct Scratch {
    Scratch(const KvLayout& layout, const AttentionShape& s, int32_t topk, int64_t max_context, int64_t rows,
            int64_t threads) {
        const LayerLayout& layer = layout.layers[static_cast<size_t>(s.layer)];
        const int64_t need = layout.window + compressed_limit(layer, topk, max_context);  // keys of one query
        slots = std::min(std::max(need, kKeySlots), rows * need);
        key_bytes = pad64(s.d * 4) + 64;
        pointers = slots * key_bytes;
        scores = pad64(need * static_cast<int64_t>(sizeof(float*)));
        score_stride = pad64(need * 4) / 4;
        thread_bytes = scores + std::min<int64_t>(s.heads, kHeadGroup) * score_stride * 4;
        bytes = pointers + threads * thread_bytes;
    }
    int64_t slots, key_bytes;
    int64_t pointers;              // offset of the first thread's region
    int64_t scores, thread_bytes;  // in a thread's region
    int64_t score_stride;          // in values, from head to head
    int64_t bytes;
};

// Consecutive rows of a segment whose keys are decoded together, and which slots hold them: first the ring
// rows, then rows 0 .. shared - 1 of the compressed stream, or `per_query` slots for each row's own
// selection.
struct Piece {
    const Segment* seg = nullptr;
    int32_t first = 0, n = 0;  // rows of the segment; n = 0: no room
    int64_t slot0 = 0;
    int64_t ring_pos = 0, ring = 0;
    int64_t shared = 0, per_query = 0;
    int64_t row(int64_t i) const { return seg->row0 + first + i; }
    int64_t pos(int64_t i) const { return seg->pos0 + first + i; }
    int64_t keys() const { return ring + shared + per_query * n; }
};

// Where a tile starts: a segment and a row of it.
struct Cursor {
    size_t segment = 0;
    int32_t row = 0;
};

class Attend final : public Op {
  public:
    Attend(Value q, Value kv, Value rotary, Value selection, Value out, Value scratch, const float* sink,
           int32_t topk, int64_t max_context, AttentionShape s)
        : q_(q),
          kv_(kv),
          rotary_(rotary),
          selection_(selection),
          out_(out),
          scratch_(scratch),
          sink_(sink),
          topk_(topk),
          max_context_(max_context),
          s_(s),
          scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.d)))) {}
    const char* name() const override { return "attend"; }

    void run(const Step& step, Team& team, int id) const override {
        const std::vector<Segment>& segments = step.batch->segments;
        if (segments.empty()) return;
        const KvLayout& layout = *segments[0].sequence->layout;
        const Scratch plan(layout, s_, topk_, max_context_, step.batch->n_rows, team.size());
        for (Cursor tile; tile.segment < segments.size();) {
            const Cursor next = decode(step, team, id, plan, tile);
            team.barrier();
            attend(step, team, id, plan, tile);
            if (next.segment < segments.size()) team.barrier();
            tile = next;
        }
        write_ring(step, team, id, layout);
    }

  private:
    const LayerLayout& layer(const Segment& seg) const {
        return seg.sequence->layout->layers[static_cast<size_t>(s_.layer)];
    }
    int64_t visible(const Segment& seg, int64_t pos) const {
        const int32_t ratio = layer(seg).ratio;
        return ratio ? (pos + 1) / ratio : 0;
    }
    int64_t selected(const Segment& seg, int64_t pos) const {  // length of the compressed part of a key list
        const int64_t n = visible(seg, pos);
        return layer(seg).overlapped ? std::min<int64_t>(n, topk_) : n;
    }

    // Calls visit(piece) for the pieces of the tile that starts at `at`; returns where the next one starts.
    template <class Visit>
    Cursor for_pieces(const Step& step, const Scratch& plan, Cursor at, const Visit& visit) const {
        const std::vector<Segment>& segments = step.batch->segments;
        int64_t used = 0;
        while (at.segment < segments.size()) {
            const Piece piece = piece_at(segments[at.segment], at.row, used, plan.slots);
            if (piece.n == 0) break;
            visit(piece);
            used += piece.keys();
            at.row += piece.n;
            if (at.row == segments[at.segment].n) at = {at.segment + 1, 0};
        }
        return at;
    }

    // As many rows from `first` on as fit in slots slot0 .. slots - 1. Everything fits or nothing, except
    // that rows with slots of their own may come in part. One row always fits an empty tile.
    Piece piece_at(const Segment& seg, int32_t first, int64_t slot0, int64_t slots) const {
        Piece piece{.seg = &seg, .first = first, .slot0 = slot0};
        const int64_t pos = seg.pos0 + first, last = seg.pos0 + seg.n - 1;
        piece.ring_pos = std::max<int64_t>(0, pos - seg.sequence->layout->window + 1);
        piece.ring = std::max<int64_t>(0, seg.pos0 - piece.ring_pos);
        const int64_t rest = seg.n - first, all = visible(seg, last), each = selected(seg, last);
        const int64_t room = slots - slot0 - piece.ring;
        if (each == all || (all <= rest * each && all + piece.ring <= slots)) {
            piece.shared = all;
            piece.n = all <= room ? static_cast<int32_t>(rest) : 0;
        } else {
            piece.per_query = each;
            piece.n = static_cast<int32_t>(std::clamp<int64_t>(room / each, 0, rest));
        }
        return piece;
    }

    float* slot(const Step& step, const Scratch& plan, int64_t i) const {
        return reinterpret_cast<float*>(step.arena + scratch_.offset + i * plan.key_bytes);
    }
    const int32_t* selection(const Step& step, int64_t row) const {  // count, then ids
        return reinterpret_cast<const int32_t*>(step.bytes(selection_, row));
    }

    Cursor decode(const Step& step, Team& team, int id, const Scratch& plan, Cursor tile) const {
        int64_t keys = 0;
        const Cursor next = for_pieces(step, plan, tile, [&](const Piece& piece) { keys += piece.keys(); });
        CostShare work(keys, id, team.size());
        for_pieces(step, plan, tile, [&](const Piece& piece) {
            const LayerLayout& l = layer(*piece.seg);
            const Sequence& sequence = *piece.seg->sequence;
            const auto decode_row = step.table->decode_cache_row;
            int64_t at = piece.slot0;
            const Range ring = work.take(piece.ring, 1);
            for (int64_t i = ring.begin; i < ring.end; i++) {
                decode_row(sequence.ring_row(l, piece.ring_pos + i), l.ring_shape, slot(step, plan, at + i));
            }
            at += piece.ring;
            const Range shared = work.take(piece.shared, 1);
            for (int64_t i = shared.begin; i < shared.end; i++) {
                decode_row(sequence.row(l.main, l, i), l.main.shape, slot(step, plan, at + i));
            }
            if (piece.per_query == 0) return;
            const Range own = work.take(piece.per_query * piece.n, 1);
            for (int64_t i = own.begin; i < own.end; i++) {
                const int64_t row = i / piece.per_query, k = i % piece.per_query;
                if (k >= selected(*piece.seg, piece.pos(row))) continue;
                const int32_t chosen = selection(step, piece.row(row))[1 + k];
                decode_row(sequence.row(l.main, l, chosen), l.main.shape, slot(step, plan, at + i));
            }
        });
        return next;
    }

    // The key list of row i of a piece; returns its length.
    int64_t list_keys(const Step& step, const Scratch& plan, const Piece& piece, int64_t i,
                      const float** keys) const {
        const Segment& seg = *piece.seg;
        const int64_t pos = piece.pos(i), n = selected(seg, pos);
        const int64_t compressed = piece.slot0 + piece.ring;
        const int32_t* chosen = layer(seg).overlapped ? selection(step, piece.row(i)) + 1 : nullptr;
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = piece.per_query ? i * piece.per_query + k : chosen ? chosen[k] : k;
            keys[k] = slot(step, plan, compressed + at);
        }
        const float** window = keys + n;
        for (int64_t p = first_key(seg, pos); p <= pos; p++) {
            *window++ = p < seg.pos0 ? slot(step, plan, piece.slot0 + p - piece.ring_pos)
                                     : step.f32(kv_, seg.row0 + p - seg.pos0);
        }
        return window - keys;
    }
    static int64_t first_key(const Segment& seg, int64_t pos) {
        return std::max<int64_t>(0, pos - seg.sequence->layout->window + 1);
    }
    int64_t list_length(const Piece& piece, int64_t i) const {
        const int64_t pos = piece.pos(i);
        return selected(*piece.seg, pos) + pos - first_key(*piece.seg, pos) + 1;
    }

    void attend(const Step& step, Team& team, int id, const Scratch& plan, Cursor tile) const {
        int64_t total = 0;
        for_pieces(step, plan, tile, [&](const Piece& piece) {
            for (int64_t i = 0; i < piece.n; i++) total += list_length(piece, i) * s_.heads;
        });
        CostShare work(total, id, team.size());
        uint8_t* own = step.arena + scratch_.offset + plan.pointers + id * plan.thread_bytes;
        auto* keys = reinterpret_cast<const float**>(own);
        auto* scores = reinterpret_cast<float*>(own + plan.scores);
        for_pieces(step, plan, tile, [&](const Piece& piece) {
            for (int64_t i = 0; i < piece.n; i++) {
                const Range heads = work.take(s_.heads, list_length(piece, i));
                if (heads.begin >= heads.end) continue;
                const int64_t row = piece.row(i), n = list_keys(step, plan, piece, i, keys);
                attend_heads(step, plan, row, heads, keys, n, scores);
            }
        });
    }

    void attend_heads(const Step& step, const Scratch& plan, int64_t row, Range heads,
                      const float* const* keys, int64_t n, float* scores) const {
        float* out = step.f32(out_, row);
        const float* q = step.f32(q_, row);
        for (int64_t h = heads.begin; h < heads.end; h += kHeadGroup) {
            const auto some = static_cast<int32_t>(std::min(kHeadGroup, heads.end - h));
            step.table->attend(q + h * s_.d, some, s_.d, scale_, keys, n, sink_ + h, scores,
                               plan.score_stride, out + h * s_.d);
        }
        const float* cos = step.f32(rotary_, row);
        for (int64_t h = heads.begin; h < heads.end; h++) {
            step.table->rotate(out + h * s_.d, s_.d, {cos, cos + s_.rotary_pairs}, s_.rotary_pairs, true);
        }
    }

    // The last ring_depth rows of every segment: earlier ones would be overwritten in this very step.
    void write_ring(const Step& step, Team& team, int id, const KvLayout& layout) const {
        int64_t total = 0;
        for (const Segment& seg : step.batch->segments) total += std::min(seg.n, layout.ring_depth);
        CostShare work(total, id, team.size());
        for (const Segment& seg : step.batch->segments) {
            const LayerLayout& l = layer(seg);
            const int32_t n = std::min(seg.n, layout.ring_depth);
            const Range mine = work.take(n, 1);
            for (int64_t k = mine.begin; k < mine.end; k++) {
                const int64_t i = seg.n - n + k;
                step.table->encode_row(step.f32(kv_, seg.row0 + i), l.ring_shape,
                                       seg.sequence->ring_row(l, seg.pos0 + i));
            }
        }
    }

    const Value q_, kv_, rotary_, selection_, out_, scratch_;
    const float* const sink_;
    const int32_t topk_;
    const int64_t max_context_;
    const AttentionShape s_;
    const float scale_;
};

}  // namespace

int64_t attend_scratch_bytes(const KvLayout& layout, const AttentionShape& s, int32_t topk,
                             int64_t max_context, int32_t max_rows, int32_t threads) {
    return Scratch(layout, s, topk, max_context, max_rows, threads).bytes;
}

OpPtr make_attend(Value q, Value kv, Value rotary, Value selection, Value out, Value scratch,
                  const float* sink, int32_t topk, int64_t max_context, AttentionShape s) {
    return std::make_unique<Attend>(q, kv, rotary, selection, out, scratch, sink, topk, max_context, s);
}

}  // namespace finback
