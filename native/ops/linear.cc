// Packing and matrix products (docs/exactness.md sections 4 and 5).
//
//     pack            each part of a row cut into `groups` equal pieces, every piece in the encoding, one
//     after the other linear          out_j = W_j x for one or many matrices on the same input, for every
//     part of the row grouped_linear  out[g] = W[rows of group g] x[piece g]
//     *_logits        the same on the R rows of take_rows
//
// All products are one idea, a list of *products*: some rows of a matrix, which piece of the packed row they
// read, where their results go. A plain matrix is one product, a grouped one a product per group. The rows of
// all products together are cut into as many parts as there are threads, equal in bytes of weights, because
// those bytes are what a decode step waits for; no thread waits for another. A part of a product then meets
// all inputs of the step (ops/work.h, multiply).
#include <stdexcept>

#include "ops/work.h"

namespace finback {
namespace {

// Which rows an operation works on: those of the step, or the R rows whose logits are wanted.
enum class RowSet { STEP, LOGITS };

int64_t count(const Batch& batch, RowSet set) {
    return set == RowSet::STEP ? batch.n_rows : static_cast<int64_t>(batch.logit_rows.size());
}

class Pack final : public Op {
  public:
    Pack(Value x, Value out, Encoding e, int32_t groups, RowSet set)
        : x_(x),
          out_(out),
          e_(e),
          set_(set),
          pieces_(int64_t{x.parts} * groups),
          width_(x.width / groups),
          bytes_(packed_bytes(e, width_)) {
        if (x.width % groups) throw std::invalid_argument("a row cannot be cut into groups of equal width");
    }
    const char* name() const override { return "pack"; }
    void run(const Step& step, Team& team, int id) const override {
        const auto pack = step.table->pack[static_cast<int>(e_)];
        const Range mine = share(count(*step.batch, set_) * pieces_, id, team.size());
        for (int64_t i = mine.begin; i < mine.end; i++) {
            const int64_t row = i / pieces_, piece = i % pieces_;
            if (pack(step.f32(x_, row) + piece * width_, width_, step.bytes(out_, row) + piece * bytes_))
                continue;
            mark_bad(step, set_ == RowSet::STEP ? row : step.batch->logit_rows[static_cast<size_t>(row)]);
        }
    }

  private:
    const Value x_, out_;
    const Encoding e_;
    const RowSet set_;
    const int64_t pieces_, width_, bytes_;
};

struct Product {
    Matrix w;
    Range rows;  // of w
    int64_t in;  // byte of the packed row where the input of part 0 starts
    Value out;
    int64_t out_col;  // where the first of `rows` goes, in values of a part
};

class Linear final : public Op {
  public:
    Linear(Value packed, Encoding e, std::vector<Product> products, int32_t parts, RowSet set)
        : packed_(packed), products_(std::move(products)), parts_(parts), set_(set) {
        for (const Product& p : products_) {
            if (encoding_of(p.w.format) != e)
                throw std::invalid_argument("a matrix does not read this encoding");
            bytes_ += units(p) * unit_bytes(p);
        }
    }
    const char* name() const override { return "linear"; }
    int64_t weight_bytes() const override { return bytes_ * parts_; }
    void run(const Step& step, Team& team, int id) const override {
        const int64_t n = count(*step.batch, set_) * parts_;
        CostShare work(bytes_, id, team.size());
        for (const Product& p : products_) {
            const Range mine = work.take(units(p), unit_bytes(p));
            const Range rows{p.rows.begin + mine.begin * kRowGrain,
                             std::min(p.rows.begin + mine.end * kRowGrain, p.rows.end)};
            if (rows.begin >= rows.end) continue;
            const int64_t part_bytes = packed_bytes(encoding_of(p.w.format), p.w.cols);
            const int64_t col = p.out_col + rows.begin - p.rows.begin;
            const auto in = [&](int64_t i) {
                return step.bytes(packed_, i / parts_) + p.in + i % parts_ * part_bytes;
            };
            const auto out = [&](int64_t i) {
                return step.f32(p.out, i / parts_) + i % parts_ * p.out.width + col;
            };
            multiply(*step.table, p.w, rows, n, in, out);
        }
    }

  private:
    static int64_t units(const Product& p) { return (p.rows.end - p.rows.begin + kRowGrain - 1) / kRowGrain; }
    static int64_t unit_bytes(const Product& p) { return kRowGrain * p.w.row_bytes; }

    const Value packed_;
    const std::vector<Product> products_;
    const int32_t parts_;
    const RowSet set_;
    int64_t bytes_ = 0;
};

}  // namespace

OpPtr make_pack(Value x, Value out, Encoding e, int32_t groups) {
    return std::make_unique<Pack>(x, out, e, groups, RowSet::STEP);
}

OpPtr make_pack_logits(Value x, Value out, Encoding e) {
    return std::make_unique<Pack>(x, out, e, 1, RowSet::LOGITS);
}

OpPtr make_linear(Value packed, Encoding e, std::vector<Matrix> matrices, std::vector<Value> outs) {
    if (matrices.empty() || matrices.size() != outs.size()) {
        throw std::invalid_argument("linear needs one output for each matrix, and at least one");
    }
    std::vector<Product> products;
    for (size_t j = 0; j < matrices.size(); j++)
        products.push_back({matrices[j], {0, matrices[j].rows}, 0, outs[j], 0});
    return std::make_unique<Linear>(packed, e, std::move(products), outs[0].parts, RowSet::STEP);
}

OpPtr make_grouped_linear(Value packed, Encoding e, Matrix matrix, int32_t groups, Value out) {
    if (groups < 1 || matrix.rows % groups)
        throw std::invalid_argument("a matrix cannot be cut into equal groups");
    const int64_t height = matrix.rows / groups, piece = packed_bytes(e, matrix.cols);
    std::vector<Product> products;
    for (int64_t g = 0; g < groups; g++) {
        products.push_back({matrix, {g * height, (g + 1) * height}, g * piece, out, g * height});
    }
    return std::make_unique<Linear>(packed, e, std::move(products), 1, RowSet::STEP);
}

OpPtr make_linear_logits(Value packed, Encoding e, Matrix matrix, Value out) {
    std::vector<Product> products{{matrix, {0, matrix.rows}, 0, out, 0}};
    return std::make_unique<Linear>(packed, e, std::move(products), 1, RowSet::LOGITS);
}

}  // namespace finback
