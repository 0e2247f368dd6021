// A recorded model: a flat list of operations over values in one arena, and its replay over a batch. Owns the
// order of operations, the meeting of threads between them, interruption and the report of rows that are not
// finite. Owns no arithmetic (kernels/) and no memory planning (finback/ops/native.py decides every offset).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/threads.h"
#include "kernels/table.h"
#include "kv.h"

namespace finback {

// A value of the program: rows of the step in the arena. Row r starts at offset + r * row_bytes, a multiple
// of 64; it holds `parts` parts of `width` f32 (streams: parts = N), or an encoding, or integers: the
// operations agree on that.
struct Value {
    int64_t offset = 0;
    int64_t row_bytes = 0;
    int32_t parts = 1;
    int64_t width = 0;
};

// Consecutive rows of the step that belong to one sequence, at consecutive positions.
struct Segment {
    Sequence* sequence;
    int32_t row0, n;
    int64_t pos0;
};

struct Batch {
    int32_t n_rows = 0;
    std::vector<int32_t> ids;        // [n_rows] token ids, checked against the vocabulary
    std::vector<int64_t> positions;  // [n_rows]
    std::vector<Segment> segments;
    std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending; at most the engine's limit
};

// One run of a program. Threads share it read-only, except `bad_rows`.
struct Step {
    const Table* table;
    const Batch* batch;
    uint8_t* arena;
    uint8_t* bad_rows;  // [n_rows], set to 1 by an operation that met a value that is not finite in that row
    float* f32(const Value& v, int64_t row) const {
        return reinterpret_cast<float*>(arena + v.offset + row * v.row_bytes);
    }
    uint8_t* bytes(const Value& v, int64_t row) const { return arena + v.offset + row * v.row_bytes; }
};

// An operation. run() is called by every thread of the team with its id; it may meet the others at
// team.barrier() any number of times (all threads the same number). The replay puts a barrier after each
// operation. run() allocates nothing: scratch is a Value reserved by the recorder, sized by scratch_bytes of
// the maker. It never throws.
class Op {
  public:
    virtual ~Op() = default;
    virtual void run(const Step& step, Team& team, int id) const = 0;
    virtual const char* name() const = 0;
    // Bytes of weights it reads for one row of the step: what the replay sizes its team by.
    virtual int64_t weight_bytes() const { return 0; }
};

// ---- makers, one per operation of docs/ops.md; implemented in native/ops/. Matrices and vectors are
// borrowed and must outlive the program. `scratch` values are regions of the arena that the operation may use
// while it runs; where a maker takes one, the function beside it tells its size in bytes for `max_rows` rows
// and `threads` threads.
using OpPtr = std::unique_ptr<Op>;

struct HyperWeights {
    Matrix fn;
    const float* scale;
    const float* base;
};
struct HyperParams {
    int32_t streams, sinkhorn_iters;
    float hc_eps, norm_eps;
};

OpPtr make_embed(Value out, Matrix table);                      // out.parts copies of the decoded row
OpPtr make_rotary(Value out, std::vector<double> frequencies);  // row: cos [pairs], sin [pairs]
// mix row: post [N], comb [N*N]; scratch row: raw dots [(2+N)N] (a Value with one row per step row)
OpPtr make_hyper_in(Value streams, Value x, Value mix, Value scratch, HyperWeights w, const float* norm,
                    HyperParams p);
OpPtr make_hyper_out(Value streams, Value y, Value mix, Value out);
OpPtr make_norm(Value x, Value out, const float* w, float eps);  // every part on its own
OpPtr make_pack(Value x, Value out, Encoding e,
                int32_t groups);  // each part cut into `groups` equal pieces, packed one after the other
OpPtr make_linear(Value packed, Encoding e, std::vector<Matrix> matrices,
                  std::vector<Value> outs);  // per part
OpPtr make_grouped_linear(Value packed, Encoding e, Matrix matrix, int32_t groups, Value out);
OpPtr make_take_rows(Value x, Value out);  // out row i = x row batch.logit_rows[i]
OpPtr make_mtp_in(Value embedded, Value streams, Value out);
OpPtr make_hyper_head(Value streams, Value out, Value scratch, HyperWeights w, const float* norm,
                      HyperParams p);  // R rows
// rows of take_rows and below: programs tell linear and pack to use R = logit_rows.size() instead of T with
// `of_logits`
OpPtr make_pack_logits(Value x, Value out, Encoding e);
OpPtr make_linear_logits(Value packed, Encoding e, Matrix matrix, Value out);

struct AttentionShape {
    int32_t layer, heads;
    int64_t d;
    int32_t rotary_pairs;
    float eps;
};
// q_out: normalised and rotated queries; kv_out: rounded step rows (f32, as decoded from the cache codes)
OpPtr make_qkv_finish(Value q, Value kv, Value q_out, Value kv_out, Value rotary, const float* kv_norm,
                      AttentionShape s);

struct CompressShape {
    int32_t layer;
    bool index;                       // the indexer's keys (Hadamard, FP4) or the main rows
    std::vector<double> frequencies;  // rotation of closed rows at their group's first position
    float eps;
};
int64_t compress_scratch_bytes(const KvLayout& layout, const CompressShape& s, int32_t max_rows,
                               int32_t threads);
OpPtr make_compress(Value kv, Value gate, Value scratch, const float* ape, const float* norm,
                    CompressShape s);

struct IndexShape {
    int32_t layer, heads, topk;
    int64_t d;
    int32_t rotary_pairs;
    float weight_scale;  // d^-1/2 heads^-1/2
};
int64_t index_scratch_bytes(const KvLayout& layout, const IndexShape& s, int32_t max_rows, int32_t threads);
// selection row: int32 count, int32 rows[topk] ascending
OpPtr make_index_select(Value q, Value weights, Value rotary, Value selection, Value scratch, IndexShape s);

int64_t attend_scratch_bytes(const KvLayout& layout, const AttentionShape& s, int32_t topk,
                             int64_t max_context, int32_t max_rows, int32_t threads);
// selection: null width for HCA and window-only layers. Writes the step's rows to the ring at its end.
OpPtr make_attend(Value q, Value kv, Value rotary, Value selection, Value out, Value scratch,
                  const float* sink, int32_t topk, int64_t max_context, AttentionShape s);

struct RouteShape {
    int32_t experts, chosen;
    float scale;
    bool normalise;
};
// logits: router products [T, E]; table: int32 [V, k] or null; bias null for hashed layers.
// routing row: int32 ids[k] ascending, float weights[k]
OpPtr make_route(Value logits, Value routing, const float* bias, const int32_t* table, RouteShape s);

struct ExpertMatrices {
    std::vector<Matrix> w1, w3, w2;  // one per expert
};
struct ExpertShape {
    int32_t experts, chosen;
    int64_t hidden, inner;  // D, I
    int64_t shared_inner;   // 0: no shared expert
    float limit;
};
int64_t experts_scratch_bytes(const ExpertShape& s, Encoding inner, Encoding shared_inner, int32_t max_rows,
                              int32_t threads);
// packed: the input in the routed experts' encoding; packed_shared: in the shared expert's (may be the same
// value)
OpPtr make_experts(Value packed, Value packed_shared, Value routing, Value out, Value scratch,
                   ExpertMatrices routed, ExpertMatrices shared, ExpertShape s);

// ---- replay
// ---------------------------------------------------------------------------------------------------------------

enum class RunResult { OK, BAD_ROW, INTERRUPTED, FORKED };

class Program {
  public:
    // Starts the threads it will need. max_rows: the most rows a batch may have. Throws std::system_error.
    Program(const Table* table, int threads, int32_t max_rows);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    void add(OpPtr op) {
        weight_bytes_ += op->weight_bytes();
        ops_.push_back(std::move(op));
    }
    // Threads a step of `n_rows` rows runs on: all of them when it has work for all. A hundred operations
    // meet a hundred times; on a machine that also does other things each meeting can cost a turn of the
    // scheduler, so a step that one thread finishes in under a millisecond is given to one. No result depends
    // on it.
    int team_size(int64_t n_rows) const;
    // Replays all operations over the batch. `poll` (may be null) is called by thread 0 between operations,
    // at most every 20 ms; returning true stops the run (cache state of the batch's sequences is then
    // undefined). bad_rows: the rows with a value that is not finite, ascending; the other rows of the batch
    // are good. Programs in one arena must not run at once; the pool makes callers wait for each other, but
    // what they read afterwards is theirs to order.
    RunResult run(const Batch& batch, uint8_t* arena, bool (*poll)(), std::vector<int32_t>* bad_rows) const;
    int threads() const { return threads_; }
    int32_t max_rows() const { return static_cast<int32_t>(bad_rows_.size()); }
    const Table* table() const { return table_; }
    size_t size() const { return ops_.size(); }
    const char* op_name(size_t i) const { return ops_[i]->name(); }

  private:
    const Table* table_;
    int threads_;
    int64_t weight_bytes_ = 0;               // read for one row
    mutable std::vector<uint8_t> bad_rows_;  // scratch of one run at a time
    std::vector<OpPtr> ops_;
};

}  // namespace finback
