// One add method for each maker of program.h. Each checks that its values lie in the arena for the most rows
// a step may have, and that widths, matrices and vectors fit each other; so the operations themselves check
// nothing.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/bound_program.h"

namespace nb = nanobind;

namespace finback {
namespace {

// ---- rows and matrices --------------------------------------------------------------------------

void check_packed(const BoundProgram& p, const Value& v, int64_t n, Encoding e, int64_t pieces,
                  int64_t width) {
    require(width >= 1 && !(e == Encoding::A8x32 && width % 32) && !(e == Encoding::A8x256 && width % 256),
            "a row of this width has no such encoding");
    p.check_bytes(v, n, pieces * packed_bytes(e, width));
}

void add_embed(BoundProgram& p, Value out, const BoundMatrix& table) {
    require(table.matrix.rows >= p.vocab(), "the embedding has fewer rows than the vocabulary");
    p.check(out, p.rows(), out.parts, table.matrix.cols);
    p.add(make_embed(out, p.keep(table)));
}

void add_rotary(BoundProgram& p, Value out, std::vector<double> frequencies) {
    p.check(out, p.rows(), 1, static_cast<int64_t>(frequencies.size()) * 2);
    p.add(make_rotary(out, std::move(frequencies)));
}

void add_norm(BoundProgram& p, Value x, Value out, Vector w, float eps) {
    p.check(x, p.rows(), x.parts, x.width);
    p.check(out, p.rows(), x.parts, x.width);
    p.add(make_norm(x, out, p.keep(std::move(w), x.width), eps));
}

void add_pack(BoundProgram& p, Value x, Value out, Encoding e, int32_t groups, bool of_logits) {
    const int64_t n = of_logits ? p.logit_rows() : p.rows();
    p.check(x, n, x.parts, x.width);
    require(groups >= 1 && x.width % groups == 0, "a row cannot be cut into these groups");
    check_packed(p, out, n, e, int64_t{x.parts} * groups, x.width / groups);
    if (of_logits) {
        require(groups == 1, "rows of logits are not grouped");
        p.add(make_pack_logits(x, out, e));
    } else {
        p.add(make_pack(x, out, e, groups));
    }
}

void add_linear(BoundProgram& p, Value packed, Encoding e, const std::vector<const BoundMatrix*>& matrices,
                std::vector<Value> outs, bool of_logits) {
    const int64_t n = of_logits ? p.logit_rows() : p.rows();
    require(!matrices.empty() && matrices.size() == outs.size(),
            "one output for each matrix, and at least one");
    require(!of_logits || matrices.size() == 1, "rows of logits meet one matrix");
    std::vector<Matrix> kept;
    for (size_t i = 0; i < matrices.size(); i++) {
        const Matrix& m = matrices[i]->matrix;
        require(encoding_of(m.format) == e, "a matrix does not read this encoding");
        require(m.cols == matrices[0]->matrix.cols, "matrices on the same input have the same width");
        p.check(outs[i], n, outs[0].parts, m.rows);
        kept.push_back(p.keep(*matrices[i]));
    }
    check_packed(p, packed, n, e, outs[0].parts, kept[0].cols);
    p.add(of_logits ? make_linear_logits(packed, e, kept[0], outs[0])
                    : make_linear(packed, e, kept, std::move(outs)));
}

void add_grouped_linear(BoundProgram& p, Value packed, Encoding e, const BoundMatrix& matrix, int32_t groups,
                        Value out) {
    const Matrix& m = matrix.matrix;
    require(encoding_of(m.format) == e, "a matrix does not read this encoding");
    require(groups >= 1 && m.rows % groups == 0, "a matrix cannot be cut into these groups");
    check_packed(p, packed, p.rows(), e, groups, m.cols);
    p.check(out, p.rows(), 1, m.rows);
    p.add(make_grouped_linear(packed, e, p.keep(matrix), groups, out));
}

void add_take_rows(BoundProgram& p, Value x, Value out) {
    p.check(x, p.rows(), x.parts, x.width);
    p.check(out, p.logit_rows(), x.parts, x.width);
    p.add(make_take_rows(x, out));
}

void add_mtp_in(BoundProgram& p, Value embedded, Value streams, Value out) {
    p.check(streams, p.rows(), streams.parts, streams.width);
    p.check(embedded, p.rows(), 1, streams.width);
    p.check(out, p.rows(), streams.parts, streams.width);
    p.add(make_mtp_in(embedded, streams, out));
}

// ---- hyper-connections --------------------------------------------------------------------------

// `sums`: rows of fn; `scales`: 3, or 1 for the head's.
HyperWeights keep_hyper(BoundProgram& p, const Value& streams, const BoundMatrix& fn, Vector scale,
                        Vector base, int64_t sums, int64_t scales) {
    require(streams.parts >= 1 && streams.parts <= 8, "there are 1 to 8 streams");
    p.check_matrix(fn.matrix, sums, streams.parts * streams.width);
    require(encoding_of(fn.matrix.format) == Encoding::F32,
            "hyper-connection weights must be F32, F16 or BF16");
    return {p.keep(fn), p.keep(std::move(scale), scales), p.keep(std::move(base), sums)};
}

void add_hyper_in(BoundProgram& p, Value streams, Value x, Value mix, Value scratch, const BoundMatrix& fn,
                  Vector scale, Vector base, Vector norm, int32_t sinkhorn_iters, float hc_eps,
                  float norm_eps) {
    const int64_t n = streams.parts, sums = (2 + n) * n;
    const HyperWeights w = keep_hyper(p, streams, fn, std::move(scale), std::move(base), sums, 3);
    require(sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1");
    p.check(streams, p.rows(), n, streams.width);
    p.check(x, p.rows(), 1, streams.width);
    p.check(mix, p.rows(), 1, n + n * n);
    p.check(scratch, p.rows(), 1, sums);
    p.add(make_hyper_in(streams, x, mix, scratch, w, p.keep(std::move(norm), streams.width),
                        {static_cast<int32_t>(n), sinkhorn_iters, hc_eps, norm_eps}));
}

void add_hyper_out(BoundProgram& p, Value streams, Value y, Value mix, Value out) {
    const int64_t n = streams.parts;
    p.check(streams, p.rows(), n, streams.width);
    p.check(y, p.rows(), 1, streams.width);
    p.check(mix, p.rows(), 1, n + n * n);
    p.check(out, p.rows(), n, streams.width);
    require(out.offset != streams.offset, "hyper_out cannot write over its input");
    p.add(make_hyper_out(streams, y, mix, out));
}

void add_hyper_head(BoundProgram& p, Value streams, Value out, Value scratch, const BoundMatrix& fn,
                    Vector scale, Vector base, Vector norm, float hc_eps, float norm_eps) {
    const HyperWeights w = keep_hyper(p, streams, fn, std::move(scale), std::move(base), streams.parts, 1);
    p.check(streams, p.logit_rows(), streams.parts, streams.width);
    p.check(out, p.logit_rows(), 1, streams.width);
    p.check(scratch, p.logit_rows(), 1, streams.parts);
    p.add(make_hyper_head(streams, out, scratch, w, p.keep(std::move(norm), streams.width),
                          {streams.parts, 0, hc_eps, norm_eps}));
}

// ---- attention ----------------------------------------------------------------------------------

AttentionShape attention_shape(const BoundProgram& p, int32_t layer, int32_t heads, int64_t d, int32_t pairs,
                               float eps) {
    require(p.layer(layer).ring_shape.width == d, "head_dim is not the layout's");
    require(heads >= 1 && pairs >= 0 && 2 * int64_t{pairs} <= d, "heads or rotary channels are out of range");
    return {layer, heads, d, pairs, eps};
}

void add_qkv_finish(BoundProgram& p, Value q, Value kv, Value q_out, Value kv_out, Value rotary,
                    Vector kv_norm, int32_t layer, int32_t heads, int64_t d, int32_t pairs, float eps) {
    const AttentionShape s = attention_shape(p, layer, heads, d, pairs, eps);
    p.check(q, p.rows(), 1, heads * d);
    p.check(q_out, p.rows(), 1, heads * d);
    p.check(kv, p.rows(), 1, d);
    p.check(kv_out, p.rows(), 1, d);
    p.check(rotary, p.rows(), 1, 2 * pairs);
    p.add(make_qkv_finish(q, kv, q_out, kv_out, rotary, p.keep(std::move(kv_norm), d), s));
}

const StreamLayout& stream_of(const BoundProgram& p, int32_t layer, bool index) {
    const LayerLayout& l = p.layer(layer);
    const StreamLayout& s = index ? l.index : l.main;
    require(s.width > 0, "the layer has no such compressed rows");
    return s;
}

void add_compress(BoundProgram& p, Value kv, Value gate, Value scratch, Vector ape, Vector norm,
                  int32_t layer, bool index, std::vector<double> frequencies, float eps) {
    const StreamLayout& s = stream_of(p, layer, index);
    const LayerLayout& l = p.layer(layer);
    const int64_t width = int64_t{s.width} * (l.overlapped ? 2 : 1);
    CompressShape shape{layer, index, std::move(frequencies), eps};
    require(2 * static_cast<int64_t>(shape.frequencies.size()) <= s.width,
            "more rotary channels than a row has");
    p.check(kv, p.rows(), 1, width);
    p.check(gate, p.rows(), 1, width);
    p.check_scratch(scratch, compress_scratch_bytes(p.layout(), shape, p.rows(), p.threads()));
    const float* ape_data = p.keep(std::move(ape), l.ratio * width);
    const float* norm_data = p.keep(std::move(norm), s.width);
    p.add(make_compress(kv, gate, scratch, ape_data, norm_data, std::move(shape)));
}

int64_t selection_bytes(int32_t topk) { return 4 * (int64_t{topk} + 1); }

IndexShape index_shape(int32_t layer, int32_t heads, int32_t topk, int64_t d, int32_t pairs,
                       float weight_scale) {
    require(heads >= 1 && topk >= 1 && pairs >= 0 && 2 * int64_t{pairs} <= d,
            "an indexer number is out of range");
    return {layer, heads, topk, d, pairs, weight_scale};
}

void add_index_select(BoundProgram& p, Value q, Value weights, Value rotary, Value selection, Value scratch,
                      int32_t layer, int32_t heads, int32_t topk, int64_t d, int32_t pairs,
                      float weight_scale) {
    const IndexShape s = index_shape(layer, heads, topk, d, pairs, weight_scale);
    require(stream_of(p, layer, true).width == d, "the indexer's width is not the layout's");
    p.check(q, p.rows(), 1, heads * d);
    p.check(weights, p.rows(), 1, heads);
    p.check(rotary, p.rows(), 1, 2 * pairs);
    p.check_bytes(selection, p.rows(), selection_bytes(topk));
    p.check_scratch(scratch, index_scratch_bytes(p.layout(), s, p.rows(), p.threads()));
    p.add(make_index_select(q, weights, rotary, selection, scratch, s));
}

void add_attend(BoundProgram& p, Value q, Value kv, Value rotary, std::optional<Value> selection, Value out,
                Value scratch, Vector sink, int32_t topk, int32_t layer, int32_t heads, int64_t d,
                int32_t pairs, float eps) {
    const AttentionShape s = attention_shape(p, layer, heads, d, pairs, eps);
    require(selection.has_value() == (p.layer(layer).index.width > 0),
            "layers with an indexer attend a selection");
    p.check(q, p.rows(), 1, heads * d);
    p.check(kv, p.rows(), 1, d);
    p.check(out, p.rows(), 1, heads * d);
    p.check(rotary, p.rows(), 1, 2 * pairs);
    if (selection) p.check_bytes(*selection, p.rows(), selection_bytes(topk));
    p.check_scratch(scratch,
                    attend_scratch_bytes(p.layout(), s, topk, p.max_context(), p.rows(), p.threads()));
    p.add(make_attend(q, kv, rotary, selection.value_or(Value{}), out, scratch,
                      p.keep(std::move(sink), heads), topk, p.max_context(), s));
}

// ---- experts ------------------------------------------------------------------------------------

void add_route(BoundProgram& p, Value logits, Value routing, std::optional<Vector> bias,
               std::optional<Table32> table, int32_t experts, int32_t chosen, float scale, bool normalise) {
    require(experts >= 1 && chosen >= 1 && chosen <= experts, "more experts chosen than there are");
    require(bias.has_value() != table.has_value(), "experts are chosen by a bias or by a table");
    p.check(logits, p.rows(), 1, experts);
    p.check_bytes(routing, p.rows(), 8 * int64_t{chosen});
    const int32_t* ids = nullptr;
    if (table) {
        require(table->shape(0) >= static_cast<size_t>(p.vocab()) &&
                    table->shape(1) == static_cast<size_t>(chosen),
                "the table of experts has the wrong shape");
        const int32_t* end = table->data() + table->size();
        require(std::all_of(table->data(), end, [experts](int32_t id) { return id >= 0 && id < experts; }),
                "the table names an expert that does not exist");
        ids = p.keep(std::move(*table));
    }
    const float* b = bias ? p.keep(std::move(*bias), experts) : nullptr;
    p.add(make_route(logits, routing, b, ids, {experts, chosen, scale, normalise}));
}

Encoding encoding_for(const std::vector<Matrix>& matrices) { return encoding_of(matrices.at(0).format); }

// Gate, up and down of all experts; `n` of them, [inner, hidden] and [hidden, inner].
void check_experts(const BoundProgram& p, const ExpertMatrices& e, size_t n, int64_t hidden, int64_t inner) {
    require(e.w1.size() == n && e.w3.size() == n && e.w2.size() == n, "every expert has three matrices");
    p.check_matrix(e.w1[0], inner, hidden);
    p.check_matrix(e.w3[0], inner, hidden);
    p.check_matrix(e.w2[0], hidden, inner);
    require(encoding_for(e.w1) == encoding_for(e.w3), "gate and up of an expert read the same encoding");
}

void add_experts(BoundProgram& p, Value packed, Value packed_shared, Value routing, Value out, Value scratch,
                 const std::vector<const BoundStack*>& routed, const std::vector<const BoundMatrix*>& shared,
                 int32_t chosen, float limit) {
    require(routed.size() == 3 && (shared.empty() || shared.size() == 3),
            "an expert has three matrices: w1, w3, w2");
    ExpertMatrices r{p.keep(*routed[0]), p.keep(*routed[1]), p.keep(*routed[2])}, s;
    require(!r.w1.empty() && chosen >= 1, "there are no experts");
    ExpertShape shape{static_cast<int32_t>(r.w1.size()), chosen, r.w1[0].cols, r.w1[0].rows, 0, limit};
    check_experts(p, r, r.w1.size(), shape.hidden, shape.inner);
    check_packed(p, packed, p.rows(), encoding_for(r.w1), 1, shape.hidden);
    if (!shared.empty()) {
        s = {{p.keep(*shared[0])}, {p.keep(*shared[1])}, {p.keep(*shared[2])}};
        shape.shared_inner = s.w1[0].rows;
        check_experts(p, s, 1, shape.hidden, shape.shared_inner);
        check_packed(p, packed_shared, p.rows(), encoding_for(s.w1), 1, shape.hidden);
    }
    p.check_bytes(routing, p.rows(), 8 * int64_t{chosen});
    p.check(out, p.rows(), 1, shape.hidden);
    const Encoding inner = encoding_for(r.w2), shared_inner = shared.empty() ? inner : encoding_for(s.w2);
    p.check_scratch(scratch, experts_scratch_bytes(shape, inner, shared_inner, p.rows(), p.threads()));
    p.add(make_experts(packed, packed_shared, routing, out, scratch, std::move(r), std::move(s), shape));
}

}  // namespace

// ---- scratch sizes, for the recorder ------------------------------------------------------------

void bind_scratch(nb::module_& m) {
    m.def(
        "compress_scratch_bytes",
        [](const KvLayout& k, int32_t layer, bool index, std::vector<double> frequencies, float eps,
           int32_t max_rows, int32_t threads) {
            require(layer >= 0 && static_cast<size_t>(layer) < k.layers.size(), "no such layer");
            return compress_scratch_bytes(k, {layer, index, std::move(frequencies), eps}, max_rows, threads);
        },
        nb::arg("layout"), nb::arg("layer"), nb::arg("index"), nb::arg("frequencies"), nb::arg("eps"),
        nb::arg("max_rows"), nb::arg("threads"));
    m.def(
        "index_scratch_bytes",
        [](const KvLayout& k, int32_t layer, int32_t heads, int32_t topk, int64_t d, int32_t pairs,
           float weight_scale, int32_t max_rows, int32_t threads) {
            require(layer >= 0 && static_cast<size_t>(layer) < k.layers.size(), "no such layer");
            return index_scratch_bytes(k, index_shape(layer, heads, topk, d, pairs, weight_scale), max_rows,
                                       threads);
        },
        nb::arg("layout"), nb::arg("layer"), nb::arg("heads"), nb::arg("topk"), nb::arg("d"),
        nb::arg("pairs"), nb::arg("weight_scale"), nb::arg("max_rows"), nb::arg("threads"));
    m.def(
        "attend_scratch_bytes",
        [](const KvLayout& k, int32_t layer, int32_t heads, int64_t d, int32_t pairs, float eps, int32_t topk,
           int64_t max_context, int32_t max_rows, int32_t threads) {
            require(layer >= 0 && static_cast<size_t>(layer) < k.layers.size(), "no such layer");
            return attend_scratch_bytes(k, {layer, heads, d, pairs, eps}, topk, max_context, max_rows,
                                        threads);
        },
        nb::arg("layout"), nb::arg("layer"), nb::arg("heads"), nb::arg("d"), nb::arg("pairs"), nb::arg("eps"),
        nb::arg("topk"), nb::arg("max_context"), nb::arg("max_rows"), nb::arg("threads"));
    m.def(
        "experts_scratch_bytes",
        [](int32_t experts, int32_t chosen, int64_t hidden, int64_t inner, int64_t shared_inner, float limit,
           Encoding inner_encoding, Encoding shared_encoding, int32_t max_rows, int32_t threads) {
            return experts_scratch_bytes({experts, chosen, hidden, inner, shared_inner, limit},
                                         inner_encoding, shared_encoding, max_rows, threads);
        },
        nb::arg("experts"), nb::arg("chosen"), nb::arg("hidden"), nb::arg("inner"), nb::arg("shared_inner"),
        nb::arg("limit"), nb::arg("inner_encoding"), nb::arg("shared_encoding"), nb::arg("max_rows"),
        nb::arg("threads"));
}

// ---- the methods --------------------------------------------------------------------------------

void bind_add_ops(nb::class_<BoundProgram>& c) {
    const auto attention = [](auto& to, const char* name, auto f, auto... args) {
        to.def(name, f, args..., nb::arg("layer"), nb::arg("heads"), nb::arg("d"), nb::arg("pairs"),
               nb::arg("eps"));
    };
    c.def("add_embed", &add_embed, nb::arg("out"), nb::arg("table"));
    c.def("add_rotary", &add_rotary, nb::arg("out"), nb::arg("frequencies"));
    c.def("add_norm", &add_norm, nb::arg("x"), nb::arg("out"), nb::arg("w"), nb::arg("eps"));
    c.def("add_pack", &add_pack, nb::arg("x"), nb::arg("out"), nb::arg("encoding"), nb::arg("groups"),
          nb::arg("of_logits"));
    c.def("add_linear", &add_linear, nb::arg("packed"), nb::arg("encoding"), nb::arg("matrices"),
          nb::arg("outs"), nb::arg("of_logits"));
    c.def("add_grouped_linear", &add_grouped_linear, nb::arg("packed"), nb::arg("encoding"),
          nb::arg("matrix"), nb::arg("groups"), nb::arg("out"));
    c.def("add_take_rows", &add_take_rows, nb::arg("x"), nb::arg("out"));
    c.def("add_mtp_in", &add_mtp_in, nb::arg("embedded"), nb::arg("streams"), nb::arg("out"));
    c.def("add_hyper_in", &add_hyper_in, nb::arg("streams"), nb::arg("x"), nb::arg("mix"), nb::arg("scratch"),
          nb::arg("fn"), nb::arg("scale"), nb::arg("base"), nb::arg("norm"), nb::arg("sinkhorn_iters"),
          nb::arg("hc_eps"), nb::arg("norm_eps"));
    c.def("add_hyper_out", &add_hyper_out, nb::arg("streams"), nb::arg("y"), nb::arg("mix"), nb::arg("out"));
    c.def("add_hyper_head", &add_hyper_head, nb::arg("streams"), nb::arg("out"), nb::arg("scratch"),
          nb::arg("fn"), nb::arg("scale"), nb::arg("base"), nb::arg("norm"), nb::arg("hc_eps"),
          nb::arg("norm_eps"));
    attention(c, "add_qkv_finish", &add_qkv_finish, nb::arg("q"), nb::arg("kv"), nb::arg("q_out"),
              nb::arg("kv_out"), nb::arg("rotary"), nb::arg("kv_norm"));
    c.def("add_compress", &add_compress, nb::arg("kv"), nb::arg("gate"), nb::arg("scratch"), nb::arg("ape"),
          nb::arg("norm"), nb::arg("layer"), nb::arg("index"), nb::arg("frequencies"), nb::arg("eps"));
    c.def("add_index_select", &add_index_select, nb::arg("q"), nb::arg("weights"), nb::arg("rotary"),
          nb::arg("selection"), nb::arg("scratch"), nb::arg("layer"), nb::arg("heads"), nb::arg("topk"),
          nb::arg("d"), nb::arg("pairs"), nb::arg("weight_scale"));
    attention(c, "add_attend", &add_attend, nb::arg("q"), nb::arg("kv"), nb::arg("rotary"),
              nb::arg("selection").none(), nb::arg("out"), nb::arg("scratch"), nb::arg("sink"),
              nb::arg("topk"));
    c.def("add_route", &add_route, nb::arg("logits"), nb::arg("routing"), nb::arg("bias").none(),
          nb::arg("table").none(), nb::arg("experts"), nb::arg("chosen"), nb::arg("scale"),
          nb::arg("normalise"));
    c.def("add_experts", &add_experts, nb::arg("packed"), nb::arg("packed_shared"), nb::arg("routing"),
          nb::arg("out"), nb::arg("scratch"), nb::arg("routed"), nb::arg("shared"), nb::arg("chosen"),
          nb::arg("limit"));
}

}  // namespace finback
