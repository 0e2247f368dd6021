// Norms and rotary positions (docs/exactness.md sections 7, 8, 9).
//
//     rotary      row t: cos [pairs], sin [pairs] of position[t]
//     norm        out = norm(x, w), every part on its own
//     qkv_finish  q, per head: norm without weight, rotate
//                 kv:          norm with weight, rotate, encode -> decode by the layer's window shape
//
// The step's window rows are handed on as they decode from the cache's codes, so a key has the same bits
// whether a query of this step reads it here or a later step reads it from the ring. attend encodes the same
// values once more; that gives the ring rows these very values again (the argument is in attend.cc).
//
// Threads own contiguous parts of rows x parts; in qkv_finish a row has `heads` query parts and one key part,
// so that one row alone keeps every thread busy.
#include <stdexcept>

#include "kernels/rotary.h"
#include "ops/work.h"

namespace finback {
namespace {

constexpr int64_t kMaxHeadDim = 4096;  // bounds the codes of one row, which live on the stack

class RotaryTable final : public Op {
  public:
    RotaryTable(Value out, std::vector<double> frequencies)
        : out_(out), frequencies_(std::move(frequencies)) {}
    const char* name() const override { return "rotary"; }
    void run(const Step& step, Team& team, int id) const override {
        const auto pairs = static_cast<int32_t>(frequencies_.size());
        const Range rows = share(step.batch->n_rows, id, team.size());
        for (int64_t t = rows.begin; t < rows.end; t++) {
            float* cos = step.f32(out_, t);
            rotary_table(frequencies_.data(), pairs, &step.batch->positions[static_cast<size_t>(t)], 1, cos,
                         cos + pairs);
        }
    }

  private:
    const Value out_;
    const std::vector<double> frequencies_;
};

class Norm final : public Op {
  public:
    Norm(Value x, Value out, const float* w, float eps) : x_(x), out_(out), w_(w), eps_(eps) {}
    const char* name() const override { return "norm"; }
    void run(const Step& step, Team& team, int id) const override {
        const Range mine = share(int64_t{step.batch->n_rows} * x_.parts, id, team.size());
        for (int64_t i = mine.begin; i < mine.end; i++) {
            const int64_t t = i / x_.parts, at = i % x_.parts * x_.width;
            if (!norm_row(*step.table, step.f32(x_, t) + at, x_.width, eps_, w_, step.f32(out_, t) + at))
                mark_bad(step, t);
        }
    }

  private:
    const Value x_, out_;
    const float* const w_;
    const float eps_;
};

class QkvFinish final : public Op {
  public:
    QkvFinish(Value q, Value kv, Value q_out, Value kv_out, Value rotary, const float* kv_norm,
              AttentionShape s)
        : q_(q), kv_(kv), q_out_(q_out), kv_out_(kv_out), rotary_(rotary), kv_norm_(kv_norm), s_(s) {
        if (s.d > kMaxHeadDim)
            throw std::invalid_argument("head_dim is above 4096, the most this build handles");
    }
    const char* name() const override { return "qkv_finish"; }
    void run(const Step& step, Team& team, int id) const override {
        const int64_t parts = s_.heads + 1;
        CostShare work(step.batch->n_rows * parts, id, team.size());
        for (const Segment& seg : step.batch->segments) {
            const RowShape shape = seg.sequence->layout->layers[static_cast<size_t>(s_.layer)].ring_shape;
            const Range mine = work.take(seg.n * parts, 1);
            for (int64_t i = mine.begin; i < mine.end; i++) {
                const int64_t t = seg.row0 + i / parts, part = i % parts;
                const bool finite = part < s_.heads ? query(step, t, part) : key(step, t, shape);
                if (!finite) mark_bad(step, t);
            }
        }
    }

  private:
    bool finish(const Step& step, int64_t t, const float* x, const float* w, float* y) const {
        const bool finite = norm_row(*step.table, x, s_.d, s_.eps, w, y);
        const float* cos = step.f32(rotary_, t);
        step.table->rotate(y, s_.d, {cos, cos + s_.rotary_pairs}, s_.rotary_pairs, false);
        return finite;
    }
    bool query(const Step& step, int64_t t, int64_t head) const {
        return finish(step, t, step.f32(q_, t) + head * s_.d, nullptr, step.f32(q_out_, t) + head * s_.d);
    }
    bool key(const Step& step, int64_t t, RowShape shape) const {
        float* y = step.f32(kv_out_, t);
        const bool finite = finish(step, t, step.f32(kv_, t), kv_norm_, y);
        if (shape.rounded) {  // codes of d values: at most two bytes each, and a scale for every 64
            uint8_t codes[kMaxHeadDim * 2 + kMaxHeadDim / 64 + 64];
            step.table->encode_row(y, shape, codes);
            step.table->decode_cache_row(codes, shape, y);
        }
        return finite;
    }

    const Value q_, kv_, q_out_, kv_out_, rotary_;
    const float* const kv_norm_;
    const AttentionShape s_;
};

}  // namespace

OpPtr make_rotary(Value out, std::vector<double> frequencies) {
    return std::make_unique<RotaryTable>(out, std::move(frequencies));
}

OpPtr make_norm(Value x, Value out, const float* w, float eps) {
    return std::make_unique<Norm>(x, out, w, eps);
}

OpPtr make_qkv_finish(Value q, Value kv, Value q_out, Value kv_out, Value rotary, const float* kv_norm,
                      AttentionShape s) {
    return std::make_unique<QkvFinish>(q, kv, q_out, kv_out, rotary, kv_norm, s);
}

}  // namespace finback
