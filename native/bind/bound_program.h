// A program as Python records it: the native list, its arena and limits, and everything that it borrows. Owns
// the checks that values, matrices and vectors fit, which the add functions (add_ops.cc) put together for
// each operation, and keeps what was borrowed alive.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "core/cpu.h"

namespace finback {

using Vector = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
using Table32 =
    nanobind::ndarray<const int32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// Throws ValueError unless good.
inline void require(bool good, const char* what) {
    if (!good) refuse(what);
}

class BoundProgram {
  public:
    BoundProgram(const std::string& isa, int threads, int32_t max_rows, int32_t max_logit_rows,
                 int64_t max_context, int32_t vocab, nanobind::object arena, nanobind::object layout)
        : arena_(nanobind::cast<const Buffer&>(arena)),
          layout_(&nanobind::cast<const KvLayout&>(layout)),
          max_logit_rows_(max_logit_rows),
          max_context_(max_context),
          vocab_(vocab),
          program_(table_for(isa), checked(threads), max_rows) {
        require(max_rows >= 1 && max_logit_rows >= 1 && max_context >= 1 && vocab >= 1,
                "limits must be at least 1");
        owners_.push_back(std::move(arena));
        owners_.push_back(std::move(layout));
    }

    // ---- checks ---------------------------------------------------------------------------------

    int32_t rows() const { return program_.max_rows(); }
    int32_t logit_rows() const { return max_logit_rows_; }
    int threads() const { return program_.threads(); }
    const KvLayout& layout() const { return *layout_; }
    int64_t max_context() const { return max_context_; }
    int32_t vocab() const { return vocab_; }

    // A value of `n` rows that hold at least `bytes`.
    void check_bytes(const Value& v, int64_t n, int64_t bytes) const {
        require(v.offset >= 0 && v.offset % 64 == 0 && v.row_bytes > 0 && v.row_bytes % 64 == 0,
                "offset and row_bytes of a value must be multiples of 64");
        require(v.offset <= arena_.size() && (arena_.size() - v.offset) / v.row_bytes >= n,
                "a value does not lie in the arena");
        require(bytes <= v.row_bytes, "rows of a value are too short");
    }
    // A value of f32.
    void check(const Value& v, int64_t n, int64_t parts, int64_t width) const {
        require(v.parts == parts && v.width == width && parts >= 1 && width >= 1,
                "a value has the wrong shape");
        require(width < (int64_t{1} << 40), "a value is too wide");
        check_bytes(v, n, parts * width * 4);
    }
    void check_scratch(const Value& v, int64_t bytes) const { check_bytes(v, 1, bytes); }
    void check_matrix(const Matrix& m, int64_t rows, int64_t cols) const {
        require(m.rows == rows && m.cols == cols, "a matrix has the wrong shape");
    }
    const LayerLayout& layer(int32_t index) const {
        require(index >= 0 && static_cast<size_t>(index) < layout_->layers.size(), "no such layer");
        return layout_->layers[static_cast<size_t>(index)];
    }

    // ---- keeping what is borrowed alive ---------------------------------------------------------

    const float* keep(Vector v, int64_t n) {
        require(static_cast<int64_t>(v.size()) == n, "a vector has the wrong length");
        const float* data = v.data();
        vectors_.push_back(std::move(v));
        return data;
    }
    const int32_t* keep(Table32 t) {
        const int32_t* data = t.data();
        tables_.push_back(std::move(t));
        return data;
    }
    void keep(const nanobind::object& owner) {
        if (!owner.is_valid() || owner.is_none()) return;
        for (const nanobind::object& other : owners_) {
            if (other.is(owner)) return;
        }
        owners_.push_back(owner);
        if (nanobind::isinstance<FileMap>(owner)) maps_.push_back(&nanobind::cast<const FileMap&>(owner));
    }
    Matrix keep(const BoundMatrix& m) {
        keep(m.data);
        keep(m.scales);
        return m.matrix;
    }
    std::vector<Matrix> keep(const BoundStack& stack) {
        for (const nanobind::object& owner : stack.owners) keep(owner);
        return stack.matrices;
    }

    void add(OpPtr op) {
        require(running_ == 0, "a program in use cannot grow");
        program_.add(std::move(op));
    }
    std::vector<std::string> op_names() const {
        std::vector<std::string> names;
        for (size_t i = 0; i < program_.size(); i++) names.emplace_back(program_.op_name(i));
        return names;
    }

    // ---- running --------------------------------------------------------------------------------

    // Path of a mapped file that changed since it was mapped, and how.
    std::optional<std::pair<std::string, std::string>> changed_file() const {
        std::string why;
        for (const FileMap* map : maps_) {
            if (map->changed(&why)) return std::pair(map->path(), why);
        }
        return std::nullopt;
    }

    std::pair<RunResult, std::vector<int32_t>> run(BoundBatch& b, bool on_main_thread);

  private:
    class InUse;

    static const Table* table_for(const std::string& isa) {
        std::string why;
        const Table* table = select_table(isa, &why);
        if (!table) refuse(why);
        return table;
    }
    static int checked(int threads) {
        require(threads >= 1 && threads <= 1024, "threads must be 1 to 1024");
        return threads;
    }

    const Buffer& arena_;
    const KvLayout* layout_;
    int32_t max_logit_rows_;
    int64_t max_context_;
    int32_t vocab_;
    Program program_;
    int running_ = 0;
    std::vector<nanobind::object> owners_;  // arena, layout, buffers and mappings of the matrices
    std::vector<const FileMap*> maps_;
    std::vector<Vector> vectors_;
    std::vector<Table32> tables_;
};

// Adds Program's add methods (add_ops.cc).
void bind_add_ops(nanobind::class_<BoundProgram>& c);

// Adds the functions that tell the recorder how much scratch an operation needs (add_ops.cc).
void bind_scratch(nanobind::module_& m);

}  // namespace finback
