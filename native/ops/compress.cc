// compress: the step's tokens enter the open groups of a layer's compressed stream; a group that closes
// becomes a row of the cache (docs/exactness.md sections 8 to 10; kv.h tells where everything lies).
//
//     walk    per channel, positions in order:   accumulator <- pool_add(kv, gate + ape[p mod ratio])
//             at the end of a group:             closed row <- pool_close;  the next group becomes the
//             current one last `slots` positions:            slot[p mod slots] <- accumulators
//     finish  per closed row:                    norm -> rotate at the group's first position -> (Hadamard)
//     -> encode -> page
//
// The walk is sequential in positions and independent in channels, so threads own channels; finishing needs
// whole rows, so threads meet once and then own closed rows. A step that closes nothing (three of four when
// decoding CSA) does not meet.
//
// CSA rows overlap: a token's upper half of channels goes to the current group, its lower half to the next
// one. With one open group (HCA) there is only the upper half. Both are "accumulator j takes channels (open -
// 1 - j) * width ..".
#include <limits>

#include "kernels/rotary.h"
#include "ops/work.h"

namespace finback {
namespace {

// Scratch: the accumulators of the segment being walked, one row for each group that may close in the step,
// and a rotation for each thread. A step of T rows closes at most T groups (T sequences may each close one).
struct Scratch {
    Scratch(const StreamLayout& stream, int64_t pairs, int64_t rows, int64_t threads)
        : row_bytes(pad64(stream.width * 4)),
          rotation_bytes(pad64(2 * pairs * 4)),
          closed(pad64(stream.slot_bytes)),
          rotations(closed + rows * row_bytes),
          bytes(rotations + threads * rotation_bytes) {}
    const int64_t row_bytes, rotation_bytes;
    const int64_t closed, rotations, bytes;  // offsets; the accumulators come first
};

const StreamLayout& stream_of(const LayerLayout& layer, bool index) {
    return index ? layer.index : layer.main;
}

// Groups that close in a segment, and the first of them.
struct Closing {
    int64_t first, n;
    Closing(const Segment& seg, int32_t ratio)
        : first(seg.pos0 / ratio), n((seg.pos0 + seg.n) / ratio - first) {}
};

class Compress final : public Op {
  public:
    Compress(Value kv, Value gate, Value scratch, const float* ape, const float* norm, CompressShape s)
        : kv_(kv), gate_(gate), scratch_(scratch), ape_(ape), norm_(norm), s_(std::move(s)) {}
    const char* name() const override { return s_.index ? "compress_index" : "compress"; }

    void run(const Step& step, Team& team, int id) const override {
        const std::vector<Segment>& segments = step.batch->segments;
        if (segments.empty()) return;
        const LayerLayout& layer = segments[0].sequence->layout->layers[static_cast<size_t>(s_.layer)];
        const StreamLayout& stream = stream_of(layer, s_.index);
        const Scratch plan(stream, pairs(), step.batch->n_rows, team.size());
        uint8_t* scratch = step.arena + scratch_.offset;

        const Range channels = share(stream.width, id, team.size(), kRowGrain);
        int64_t closed = 0;
        for (const Segment& seg : segments) {
            if (channels.begin < channels.end) walk(step, seg, layer, channels, plan, closed);
            closed += Closing(seg, layer.ratio).n;
        }
        if (closed == 0) return;
        team.barrier();
        const Range mine = share(closed, id, team.size());
        auto* rotation = reinterpret_cast<float*>(scratch + plan.rotations + id * plan.rotation_bytes);
        int64_t i = 0;
        for (const Segment& seg : segments) {
            const Closing groups(seg, layer.ratio);
            for (int64_t g = 0; g < groups.n; g++, i++) {
                if (i < mine.begin || i >= mine.end) continue;
                auto* row = reinterpret_cast<float*>(scratch + plan.closed + i * plan.row_bytes);
                finish(step, seg, layer, groups.first + g, row, rotation);
            }
        }
    }

  private:
    int32_t pairs() const { return static_cast<int32_t>(s_.frequencies.size()); }

    // The open groups as this thread sees them: m, l and a of its own channels.
    struct Accumulators {
        float* base;  // [open, 3, width]
        int32_t open;
        int64_t width;
        Range channels;
        float* at(int64_t j, int64_t what) const { return base + (j * 3 + what) * width + channels.begin; }
        int64_t n() const { return channels.end - channels.begin; }
        void clear(int64_t j) const {
            std::fill_n(at(j, 0), n(), -std::numeric_limits<float>::infinity());
            std::fill_n(at(j, 1), n(), 0.0f);
            std::fill_n(at(j, 2), n(), 0.0f);
        }
        void copy_from(const Accumulators& from) const {
            for (int64_t j = 0; j < open; j++) {
                for (int64_t what = 0; what < 3; what++) std::copy_n(from.at(j, what), n(), at(j, what));
            }
        }
    };

    // A token that is not finite is reported and stays out: the state it would leave has no meaning.
    void add_token(const Step& step, int64_t row, int64_t place, const Accumulators& now) const {
        for (int32_t j = 0; j < now.open; j++) {
            const int64_t c = (now.open - 1 - j) * now.width + now.channels.begin;
            const float* kv = step.f32(kv_, row) + c;
            const float* gate = step.f32(gate_, row) + c;
            if (all_finite(*step.table, kv, now.n()) && all_finite(*step.table, gate, now.n())) {
                const float* ape = ape_ + place * now.open * now.width + c;
                step.table->pool_add(now.at(j, 0), now.at(j, 1), now.at(j, 2), kv, gate, ape, now.n());
            } else {
                mark_bad(step, row);
            }
        }
    }

    void walk(const Step& step, const Segment& seg, const LayerLayout& layer, Range channels,
              const Scratch& plan, int64_t closed) const {
        const StreamLayout& stream = stream_of(layer, s_.index);
        const int32_t slots = seg.sequence->layout->slots;
        uint8_t* scratch = step.arena + scratch_.offset;
        const auto slot = [&](int64_t pos) {
            uint8_t* at = seg.sequence->frontier + stream.slot_offset + pos % slots * stream.slot_bytes;
            return Accumulators{reinterpret_cast<float*>(at), stream.open, stream.width, channels};
        };
        const Accumulators now{reinterpret_cast<float*>(scratch), stream.open, stream.width, channels};
        if (seg.pos0 > 0) {
            now.copy_from(slot(seg.pos0 - 1));
        } else {
            for (int32_t j = 0; j < stream.open; j++) now.clear(j);
        }
        for (int64_t i = 0; i < seg.n; i++) {
            const int64_t pos = seg.pos0 + i;
            add_token(step, seg.row0 + i, pos % layer.ratio, now);
            if ((pos + 1) % layer.ratio == 0) {
                auto* row = reinterpret_cast<float*>(scratch + plan.closed + closed++ * plan.row_bytes);
                step.table->pool_close(now.at(0, 1), now.at(0, 2), now.n(), row + channels.begin);
                for (int64_t k = 0; k < 3 && stream.open == 2; k++)
                    std::copy_n(now.at(1, k), now.n(), now.at(0, k));
                now.clear(stream.open - 1);
            }
            if (i >= seg.n - slots) slot(pos).copy_from(now);
        }
    }

    void finish(const Step& step, const Segment& seg, const LayerLayout& layer, int64_t group, float* row,
                float* rotation) const {
        const StreamLayout& stream = stream_of(layer, s_.index);
        const int64_t start = group * layer.ratio;
        if (!norm_row(*step.table, row, stream.width, s_.eps, norm_, row)) {
            mark_bad(step, seg.row0 + (start + layer.ratio - 1 - seg.pos0));
        }
        rotary_table(s_.frequencies.data(), pairs(), &start, 1, rotation, rotation + pairs());
        step.table->rotate(row, stream.width, {rotation, rotation + pairs()}, pairs(), false);
        if (s_.index && stream.shape.rounded) step.table->hadamard(row, stream.width);
        step.table->encode_row(row, stream.shape, seg.sequence->row(stream, layer, group));
    }

    const Value kv_, gate_, scratch_;
    const float* const ape_;
    const float* const norm_;
    const CompressShape s_;
};

}  // namespace

int64_t compress_scratch_bytes(const KvLayout& layout, const CompressShape& s, int32_t max_rows,
                               int32_t threads) {
    const StreamLayout& stream = stream_of(layout.layers[static_cast<size_t>(s.layer)], s.index);
    return Scratch(stream, static_cast<int64_t>(s.frequencies.size()), max_rows, threads).bytes;
}

OpPtr make_compress(Value kv, Value gate, Value scratch, const float* ape, const float* norm,
                    CompressShape s) {
    return std::make_unique<Compress>(kv, gate, scratch, ape, norm, std::move(s));
}

}  // namespace finback
