// embed: out[t] = `parts` copies of row ids[t] of the embedding, decoded by docs/exactness.md section 6.
//
//     ids[t] -> decode_row -> part 0 -> copied to parts 1 .. N-1
//
// Threads own contiguous rows of the step. Ids were checked against the vocabulary when the batch was made; a
// row that decodes to values that are not finite (a damaged file) is found by the first norm.
#include "ops/work.h"

namespace finback {
namespace {

class Embed final : public Op {
  public:
    Embed(Value out, Matrix table) : out_(out), table_(table) {}
    const char* name() const override { return "embed"; }
    void run(const Step& step, Team& team, int id) const override {
        const auto decode_row = step.table->decode_row[static_cast<int>(table_.format)];
        const Range rows = share(step.batch->n_rows, id, team.size());
        for (int64_t t = rows.begin; t < rows.end; t++) {
            float* row = step.f32(out_, t);
            decode_row(table_, step.batch->ids[static_cast<size_t>(t)], row);
            for (int32_t part = 1; part < out_.parts; part++)
                std::copy_n(row, out_.width, row + part * out_.width);
        }
    }

  private:
    const Value out_;
    const Matrix table_;
};

}  // namespace

OpPtr make_embed(Value out, Matrix table) { return std::make_unique<Embed>(out, table); }

}  // namespace finback
