#include "bench/fill.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/walks.h"

namespace finback {
namespace {

constexpr int64_t kPool = int64_t{1} << 20;

// Rows taken from a pool of random values at places that do not repeat: gigabytes cost little more than the
// encoding of them.
class Rows {
  public:
    explicit Rows(uint64_t seed) : pool_(random_values(kPool, seed)), state_(seed) {
        for (float& x : pool_) x *= std::sqrt(3.0f);  // mean square 1, as after a norm
    }
    const float* next(int64_t width) {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return pool_.data() + (state_ >> 20) % static_cast<uint64_t>(kPool - width);
    }

  private:
    std::vector<float> pool_;
    uint64_t state_;
};

// The accumulators after each of the last positions, by the rules of ops/compress.cc on random tokens. One
// group before the first of them is enough to begin from nothing: what it lacks is closed with it.
void fill_slots(const Table& table, const Sequence& seq, const LayerLayout& layer, const StreamLayout& stream,
                int64_t length, Rows& rows) {
    const int64_t slots = seq.layout->slots, width = stream.width;
    const int64_t first = std::max<int64_t>(0, length - slots);
    const int64_t begin = std::max<int64_t>(0, first / layer.ratio - 1) * layer.ratio;
    const std::vector<float> ape(static_cast<size_t>(width), 0.0f);
    std::vector<float> now(static_cast<size_t>(stream.open * 3 * width), 0.0f);
    const auto at = [&](int64_t j, int64_t what) { return now.data() + (3 * j + what) * width; };
    const auto clear = [&](int64_t j) {
        std::fill_n(at(j, 0), width, -INFINITY);
        std::fill_n(at(j, 1), 2 * width, 0.0f);
    };
    for (int32_t j = 0; j < stream.open; j++) clear(j);
    for (int64_t pos = begin; pos < length; pos++) {
        for (int32_t j = 0; j < stream.open; j++) {
            table.pool_add(at(j, 0), at(j, 1), at(j, 2), rows.next(width), rows.next(width), ape.data(),
                           width);
        }
        if ((pos + 1) % layer.ratio == 0) {
            if (stream.open == 2) std::copy_n(at(1, 0), 3 * width, at(0, 0));
            clear(stream.open - 1);
        }
        if (pos < first) continue;
        std::copy_n(reinterpret_cast<const uint8_t*>(now.data()), stream.slot_bytes,
                    seq.frontier + stream.slot_offset + pos % slots * stream.slot_bytes);
    }
}

void fill_stream(const Table& table, const Sequence& seq, const LayerLayout& layer,
                 const StreamLayout& stream, int64_t length, Rows& rows) {
    if (stream.width == 0) return;
    for (int64_t w = 0; w < length / layer.ratio; w++) {
        table.encode_row(rows.next(stream.width), stream.shape, seq.row(stream, layer, w));
    }
    fill_slots(table, seq, layer, stream, length, rows);
}

}  // namespace

void fill_sequence(const Table& table, const Sequence& sequence, int64_t length, uint64_t seed) {
    Rows rows(seed);
    for (const LayerLayout& layer : sequence.layout->layers) {
        for (int64_t pos = std::max<int64_t>(0, length - sequence.layout->ring_depth); pos < length; pos++) {
            table.encode_row(rows.next(layer.ring_shape.width), layer.ring_shape,
                             sequence.ring_row(layer, pos));
        }
        fill_stream(table, sequence, layer, layer.main, length, rows);
        fill_stream(table, sequence, layer, layer.index, length, rows);
    }
}

}  // namespace finback
