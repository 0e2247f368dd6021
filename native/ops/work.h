// What the operations share: how work is cut into contiguous parts for the threads of a team, how a row that
// is not finite is reported, and how a matrix meets many inputs without leaving the cache. Owns no arithmetic
// (kernels/table.h) and no order of operations (program.cc). Nothing here allocates; everything may be called
// from run().
//
// Every split below is a pure function of (step, team size, id): threads agree on it without talking, and it
// never changes what is computed for a row, only by whom (docs/exactness.md: no rule depends on the split).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "program.h"

namespace finback {

// Output rows are handed out in units of 16: one cache line of f32, so two threads never write the same line
// of a row whose start is a multiple of 64 bytes.
static constexpr int64_t kRowGrain = 16;

// Cuts a sequence of items into contiguous parts of equal cost. Every thread walks the same sequence with
// take(), and an item belongs to the thread whose interval of [0, total) holds the item's first unit of cost.
//
//     CostShare part(total, id, size);
//     for (each run of n items of equal cost)  Range mine = part.take(n, cost);
class CostShare {
  public:
    CostShare(int64_t total, int id, int size) : begin_(total * id / size), end_(total * (id + 1) / size) {}
    Range take(int64_t n, int64_t cost) {
        const Range mine{first(begin_, n, cost), first(end_, n, cost)};
        at_ += n * cost;
        return mine;
    }

  private:
    int64_t first(int64_t edge, int64_t n,
                  int64_t cost) const {  // first of n items that starts at or after `edge`
        if (edge <= at_) return 0;
        return std::min((edge - at_ + cost - 1) / cost, n);
    }
    const int64_t begin_, end_;
    int64_t at_ = 0;
};

// Several threads may meet the same bad row (each in its own part of it): the flag only ever goes from 0
// to 1.
inline void mark_bad(const Step& step, int64_t row) {
    std::atomic_ref<uint8_t>(step.bad_rows[row]).store(1, std::memory_order_relaxed);
}

inline bool all_finite(const Table& table, const float* x, int64_t n) {
    bool finite = false;
    table.max_value(x, n, &finite);
    return finite;
}

// y = norm(x, w) of docs/exactness.md section 7; w null: no weight; y may be x. Looks at the result rather
// than at the factor: an infinite x gives a factor of 0 and a NaN here. Returns false, and a row of zeros, if
// the result is not finite, so that what follows (rotation, rounding to codes) only ever sees numbers.
inline bool norm_row(const Table& table, const float* x, int64_t n, float eps, const float* w, float* y) {
    table.scale_rows(x, table.rms(x, n, eps), w, n, y);
    if (all_finite(table, y, n)) return true;
    std::fill_n(y, n, 0.0f);
    return false;
}

// Many inputs against a range of rows of one matrix, so many at a time that the arithmetic on a weight
// outweighs bringing it from memory by far. A kernel prepares its inputs once a call: so the rows come in one
// piece.
static constexpr int64_t kInputTile = 64;

// in(i): packed input i, i < n. out(i): where its product with row rows.begin goes; the following rows follow
// it.
template <class In, class Out>
void multiply(const Table& table, const Matrix& w, Range rows, int64_t n, const In& in, const Out& out) {
    const auto linear =
        (w.layout == Layout::TILES ? table.linear_tiles : table.linear)[static_cast<int>(w.format)];
    for (int64_t i0 = 0; i0 < n; i0 += kInputTile) {
        const int64_t tile = std::min(kInputTile, n - i0);
        const uint8_t* x[kInputTile];
        float* y[kInputTile];
        for (int64_t i = 0; i < tile; i++) {
            x[i] = in(i0 + i);
            y[i] = out(i0 + i);
        }
        linear(w, rows.begin, rows.end, x, tile, y);
    }
}

}  // namespace finback
