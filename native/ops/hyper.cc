// Hyper-connections (docs/exactness.md section 7): N residual streams of D values a row, mixed down to one
// row before a layer's work and written back after it.
//
//     dots     m = fn . f                      f: the row's N * D values as one vector
//     hyper_in   m, rms(f) -> pre, post, comb;  x = norm(sum_j pre_j S_j);  post and comb go to `mix`
//     hyper_out  S'_k = post_k y + sum_j comb_jk S_j
//     hyper_head m, rms(f) -> pre;              x = norm(sum_j pre_j S_j)       on the R rows of take_rows
//
// `fn` is the only large thing here (24 x 16384 in V4-Flash). With enough rows each thread takes rows and
// does everything for them; with few, as in decoding, threads first share the rows of fn, meet once, and then
// finish the rows. A row whose streams are not finite is reported and leaves x = 0, post = 0, comb = 0.
#include <cmath>
#include <stdexcept>

#include "ops/work.h"

namespace finback {
namespace {

constexpr int32_t kMaxStreams = 8;  // of Table::hyper_mix
constexpr int64_t kSharedBytes =
    256 << 10;  // of fn: reading less takes about as long as waking a sleeping thread

// The part that hyper_in and hyper_head have in common: raw dots and the walk over rows.
class Mixer {
  public:
    Mixer(Value streams, Value dots, HyperWeights w, const float* norm, HyperParams p)
        : streams_(streams), dots_(dots), w_(w), norm_(norm), p_(p) {
        if (p.streams < 1 || p.streams > kMaxStreams)
            throw std::invalid_argument("hyper-connections need 1 to 8 streams");
        if (encoding_of(w.fn.format) != Encoding::F32) {
            throw std::invalid_argument("the matrix of a hyper-connection must be F32, F16 or BF16");
        }
    }

    // finish(row, m, inv, finite) is called once for each of n rows, by one thread.
    template <class Finish>
    void run(const Step& step, Team& team, int id, int64_t n, const Finish& finish) const {
        const bool shared = n < 2 * team.size() && w_.fn.rows * w_.fn.row_bytes >= kSharedBytes;
        const Range rows = share(n, id, team.size());
        if (shared) {
            multiply_dots(step, {0, n}, share(w_.fn.rows, id, team.size()));
            team.barrier();
        } else {
            multiply_dots(step, rows, {0, w_.fn.rows});
        }
        for (int64_t t = rows.begin; t < rows.end; t++) {
            const float* m = step.f32(dots_, t);
            const float inv =
                step.table->rms(step.f32(streams_, t), p_.streams * streams_.width, p_.norm_eps);
            finish(t, m, inv, std::isfinite(inv) && all_finite(*step.table, m, w_.fn.rows));
        }
    }

    // x = norm(sum_j pre_j S_j); false and zeros if that is not finite.
    bool collapse(const Step& step, int64_t t, const float* pre, float* x) const {
        step.table->collapse(step.f32(streams_, t), pre, p_.streams, streams_.width, x);
        return norm_row(*step.table, x, streams_.width, p_.norm_eps, norm_, x);
    }

    const HyperWeights& weights() const { return w_; }
    const HyperParams& params() const { return p_; }

  private:
    // The streams of a row lie one after the other, so the row is its own F32 encoding.
    void multiply_dots(const Step& step, Range rows, Range dots) const {
        const auto in = [&](int64_t i) { return step.bytes(streams_, rows.begin + i); };
        const auto out = [&](int64_t i) { return step.f32(dots_, rows.begin + i) + dots.begin; };
        multiply(*step.table, w_.fn, dots, rows.end - rows.begin, in, out);
    }

    const Value streams_, dots_;
    const HyperWeights w_;
    const float* const norm_;
    const HyperParams p_;
};

class HyperIn final : public Op {
  public:
    HyperIn(Mixer mixer, Value x, Value mix) : mixer_(mixer), x_(x), mix_(mix) {}
    const char* name() const override { return "hyper_in"; }
    void run(const Step& step, Team& team, int id) const override {
        mixer_.run(step, team, id, step.batch->n_rows,
                   [&](int64_t t, const float* m, float inv, bool finite) {
                       const HyperParams& p = mixer_.params();
                       float pre[kMaxStreams];
                       float* x = step.f32(x_, t);
                       float* post = step.f32(mix_, t);
                       float* comb = post + p.streams;
                       if (finite) {
                           step.table->hyper_mix(m, inv, mixer_.weights().scale, mixer_.weights().base,
                                                 p.streams, p.sinkhorn_iters, p.hc_eps, pre, post, comb);
                           if (mixer_.collapse(step, t, pre, x)) return;
                       }
                       mark_bad(step, t);
                       std::fill_n(x, x_.width, 0.0f);
                       std::fill_n(post, p.streams + p.streams * p.streams, 0.0f);
                   });
    }

  private:
    const Mixer mixer_;
    const Value x_, mix_;
};

class HyperHead final : public Op {
  public:
    HyperHead(Mixer mixer, Value out) : mixer_(mixer), out_(out) {}
    const char* name() const override { return "hyper_head"; }
    void run(const Step& step, Team& team, int id) const override {
        const std::vector<int32_t>& wanted = step.batch->logit_rows;
        const auto finish = [&](int64_t i, const float* m, float inv, bool finite) {
            const HyperParams& p = mixer_.params();
            float pre[kMaxStreams];
            if (finite) {
                step.table->hyper_pre(m, inv, mixer_.weights().scale, mixer_.weights().base, p.streams,
                                      p.hc_eps, pre);
                if (mixer_.collapse(step, i, pre, step.f32(out_, i))) return;
            }
            mark_bad(step, wanted[static_cast<size_t>(i)]);
            std::fill_n(step.f32(out_, i), out_.width, 0.0f);
        };
        mixer_.run(step, team, id, static_cast<int64_t>(wanted.size()), finish);
    }

  private:
    const Mixer mixer_;
    const Value out_;
};

class HyperOut final : public Op {
  public:
    HyperOut(Value streams, Value y, Value mix, Value out) : streams_(streams), y_(y), mix_(mix), out_(out) {}
    const char* name() const override { return "hyper_out"; }
    void run(const Step& step, Team& team, int id) const override {
        const Range rows = share(step.batch->n_rows, id, team.size());
        for (int64_t t = rows.begin; t < rows.end; t++) {
            const float* post = step.f32(mix_, t);
            step.table->expand(step.f32(streams_, t), step.f32(y_, t), post, post + streams_.parts,
                               streams_.parts, streams_.width, step.f32(out_, t));
        }
    }

  private:
    const Value streams_, y_, mix_, out_;
};

}  // namespace

OpPtr make_hyper_in(Value streams, Value x, Value mix, Value scratch, HyperWeights w, const float* norm,
                    HyperParams p) {
    return std::make_unique<HyperIn>(Mixer(streams, scratch, w, norm, p), x, mix);
}

OpPtr make_hyper_head(Value streams, Value out, Value scratch, HyperWeights w, const float* norm,
                      HyperParams p) {
    return std::make_unique<HyperHead>(Mixer(streams, scratch, w, norm, p), out);
}

OpPtr make_hyper_out(Value streams, Value y, Value mix, Value out) {
    return std::make_unique<HyperOut>(streams, y, mix, out);
}

}  // namespace finback
