// Moving rows without changing them, and the MTP block's input.
//
//     take_rows   out[i] = x[logit_rows[i]]              i < R: everything after it works on R rows
//     mtp_in      out[t][j] = embedded[t] + streams[t][j]   j < N
//
// Threads own contiguous rows. Neither looks at the values: what is not finite is found where the rows are
// normed.
#include "ops/work.h"

namespace finback {
namespace {

class TakeRows final : public Op {
  public:
    TakeRows(Value x, Value out) : x_(x), out_(out) {}
    const char* name() const override { return "take_rows"; }
    void run(const Step& step, Team& team, int id) const override {
        const std::vector<int32_t>& wanted = step.batch->logit_rows;
        const Range rows = share(static_cast<int64_t>(wanted.size()), id, team.size());
        for (int64_t i = rows.begin; i < rows.end; i++) {
            std::copy_n(step.f32(x_, wanted[static_cast<size_t>(i)]), x_.parts * x_.width, step.f32(out_, i));
        }
    }

  private:
    const Value x_, out_;
};

class MtpIn final : public Op {
  public:
    MtpIn(Value embedded, Value streams, Value out) : embedded_(embedded), streams_(streams), out_(out) {}
    const char* name() const override { return "mtp_in"; }
    void run(const Step& step, Team& team, int id) const override {
        const Range rows = share(step.batch->n_rows, id, team.size());
        for (int64_t t = rows.begin; t < rows.end; t++) {
            const float* embedded = step.f32(embedded_, t);
            for (int32_t j = 0; j < streams_.parts; j++) {
                const int64_t at = j * streams_.width;
                step.table->add(embedded, step.f32(streams_, t) + at, streams_.width, step.f32(out_, t) + at);
            }
        }
    }

  private:
    const Value embedded_, streams_, out_;
};

}  // namespace

OpPtr make_take_rows(Value x, Value out) { return std::make_unique<TakeRows>(x, out); }

OpPtr make_mtp_in(Value embedded, Value streams, Value out) {
    return std::make_unique<MtpIn>(embedded, streams, out);
}

}  // namespace finback
