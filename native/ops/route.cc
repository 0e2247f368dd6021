// route: which experts a row goes to and with what weight (docs/exactness.md section 13).
//
//     s = sqrt(softplus(logits));   chosen: the k greatest of s + bias, or the table's row of the token id
//     list ascending;   weight_i = s_i / sum16(s over the list) * scale        (without normalise: s_i *
//     scale)
//
// The bias chooses and nothing else. A table row that repeats an id keeps both. Threads own contiguous rows.
// A row whose logits are not finite is reported and goes on to experts 0 .. k-1 with weight 0. Table entries
// are expert ids: that they are below the number of experts was checked when the table was bound.
#include <stdexcept>

#include "ops/top.h"
#include "ops/work.h"

namespace finback {
namespace {

constexpr int32_t kMaxExperts = 1024;  // scores and keys of one row live on the stack

class Route final : public Op {
  public:
    Route(Value logits, Value routing, const float* bias, const int32_t* table, RouteShape s)
        : logits_(logits), routing_(routing), bias_(bias), table_(table), s_(s) {
        if (s.experts > kMaxExperts || s.chosen < 1 || s.chosen > s.experts) {
            throw std::invalid_argument("routing needs 1 <= chosen <= experts <= 1024");
        }
        if ((bias == nullptr) == (table == nullptr)) {
            throw std::invalid_argument("routing needs either a bias or a table of token ids");
        }
    }
    const char* name() const override { return "route"; }
    void run(const Step& step, Team& team, int id) const override {
        const Range rows = share(step.batch->n_rows, id, team.size());
        for (int64_t t = rows.begin; t < rows.end; t++) {
            auto* ids = reinterpret_cast<int32_t*>(step.bytes(routing_, t));
            auto* weights = reinterpret_cast<float*>(ids + s_.chosen);
            float scores[kMaxExperts];
            bool finite = all_finite(*step.table, step.f32(logits_, t), s_.experts);
            if (finite) {
                step.table->router_scores(step.f32(logits_, t), s_.experts, scores);
                table_ ? look_up(step.batch->ids[static_cast<size_t>(t)], ids) : choose(scores, ids);
                weigh(*step.table, scores, ids, weights);
                finite = all_finite(*step.table, weights, s_.chosen);
            }
            if (finite) continue;
            mark_bad(step, t);
            for (int32_t i = 0; i < s_.chosen; i++) ids[i] = i, weights[i] = 0.0f;
        }
    }

  private:
    void look_up(int32_t token, int32_t* ids) const {
        std::copy_n(table_ + int64_t{token} * s_.chosen, s_.chosen, ids);
        std::sort(ids, ids + s_.chosen);
    }
    void choose(const float* scores, int32_t* ids) const {
        uint64_t keys[kMaxExperts];
        for (int32_t e = 0; e < s_.experts; e++) keys[e] = rank_key(scores[e] + bias_[e], e);
        std::nth_element(keys, keys + s_.chosen - 1, keys + s_.experts, std::greater<>());
        for (int32_t i = 0; i < s_.chosen; i++) ids[i] = key_id(keys[i]);
        std::sort(ids, ids + s_.chosen);
    }
    void weigh(const Table& table, const float* scores, const int32_t* ids, float* weights) const {
        for (int32_t i = 0; i < s_.chosen; i++) weights[i] = scores[ids[i]];
        const float sum = s_.normalise ? table.sum16(weights, s_.chosen) : 1.0f;
        for (int32_t i = 0; i < s_.chosen; i++) {
            weights[i] = (s_.normalise ? weights[i] / sum : weights[i]) * s_.scale;
        }
    }

    const Value logits_, routing_;
    const float* const bias_;
    const int32_t* const table_;
    const RouteShape s_;
};

}  // namespace

OpPtr make_route(Value logits, Value routing, const float* bias, const int32_t* table, RouteShape s) {
    return std::make_unique<Route>(logits, routing, bias, table, s);
}

}  // namespace finback
