// What `finback bench kernels` times: matrix products and networks of experts over more weights than fit the
// caches, and plain reading beside them. Owns the memory of the weights, copies of one matrix in the layout
// asked for, and the inputs. Refuses, by throwing std::invalid_argument, a layout that the table has no
// kernel for. Knows no clock (clock.h) and makes no weights: the matrix that is copied is the caller's.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bench/clock.h"
#include "core/arena.h"
#include "kernels/table.h"
#include "program.h"

namespace finback {

// Why a format in the resident layout, or as files store it, cannot be multiplied at this level; empty: it
// can.
std::string why_no_kernel(const Table& table, Format format, bool resident);

// Copies of a matrix: resident, in large pages; or as files store it, in small ones.
class Copies {
  public:
    Copies(const Table& table, const Matrix& pattern, int64_t count, bool resident);
    const std::vector<Matrix>& matrices() const { return matrices_; }

  private:
    std::unique_ptr<Buffer> data_, scales_;
    std::vector<Matrix> matrices_;
};

// A hash of numbers as bytes: results that are the same to the bit have the same.
class Digest {
  public:
    void add(const float* x, int64_t n);
    uint64_t value() const { return value_; }

  private:
    uint64_t value_ = 0xcbf29ce484222325;
};

int64_t file_bytes(const Matrix& w);                         // with its scale plane
std::vector<float> random_values(int64_t n, uint64_t seed);  // uniform in [-1, 1)

// Matrices against `n` inputs. A unit is a stripe of rows, cut over the threads: the whole matrix where that
// is little work, so that a window stays short.
class ProductWalk final : public Walk {
  public:
    ProductWalk(const Table& table, const Copies& weights, int64_t n, int threads);
    int64_t units() const override { return stripes_ * static_cast<int64_t>(weights_.matrices().size()); }
    double share_of_unit() const { return 1.0 / static_cast<double>(stripes_); }  // of a matrix
    void run(Team& team, int id, int64_t unit) override;
    uint64_t digest();  // of all products of a matrix, computed once more

  private:
    const Table& table_;
    const Copies& weights_;
    const int64_t n_, stripes_, stripe_rows_, packed_bytes_, out_stride_;
    const int threads_;
    Buffer packed_, out_;
};

struct ExpertsSize {
    int32_t experts, chosen;  // of a layer, and of a row
    int64_t rows;             // of each expert; experts * rows is a multiple of chosen
};

// The operation `experts` of a layer a unit: `up` has two matrices an expert, `down` one.
class ExpertsWalk final : public Walk {
  public:
    ExpertsWalk(const Table& table, const Copies& up, const Copies& down, ExpertsSize size, int threads);
    int64_t units() const override { return static_cast<int64_t>(layers_.size()); }
    double share_of_unit() const { return 1.0; }  // of a layer
    void run(Team& team, int id, int64_t unit) override;
    uint64_t digest() const;  // of the rows last computed

  private:
    void place(const Matrix& up, const Matrix& down, ExpertShape shape, int threads);
    void fill(const Matrix& up);

    const Table& table_;
    const ExpertsSize size_;
    const int32_t rows_;  // of the step
    Value packed_, routing_, out_, scratch_;
    std::unique_ptr<Buffer> arena_;
    std::vector<uint8_t> bad_rows_;
    Batch batch_;
    std::vector<OpPtr> layers_;
};

// A piece of a buffer a unit, its bytes summed: the speed of memory for the same threads.
class ReadWalk final : public Walk {
  public:
    static constexpr int64_t kPiece = int64_t{8} << 20;
    explicit ReadWalk(const Buffer& memory);  // at least kPiece long
    int64_t units() const override { return memory_.size() / kPiece; }
    void run(Team& team, int id, int64_t unit) override;

  private:
    const Buffer& memory_;
    std::atomic<uint64_t> sum_{0};  // so that the reads cannot be left out
};

}  // namespace finback
