#include "bench/walks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "ops/work.h"

namespace finback {

std::string why_no_kernel(const Table& table, Format format, bool resident) {
    const auto f = static_cast<size_t>(format);
    const bool tiles = resident && resident_layout(format) == Layout::TILES;
    if (tiles ? table.linear_tiles[f] && table.make_resident[f] : table.linear[f] != nullptr) return {};
    return std::string("level ") + table.level + " has no kernel for " + format_name(format) +
           (tiles ? " in tiles" : " as files store it");
}

std::vector<float> random_values(int64_t n, uint64_t seed) {
    std::vector<float> values(static_cast<size_t>(n));
    uint64_t state = seed * 2 + 1;
    for (float& value : values) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        value = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
    }
    return values;
}

void Digest::add(const float* x, int64_t n) {  // FNV-1a
    const auto* bytes = reinterpret_cast<const uint8_t*>(x);
    for (int64_t i = 0; i < 4 * n; i++) value_ = (value_ ^ bytes[i]) * 0x100000001b3;
}

// ---- copies of a matrix -------------------------------------------------------------------------

namespace {

int64_t scale_bytes(const Matrix& w) {
    if (w.scale_kind == ScaleKind::NONE) return 0;
    const int64_t rows = (w.rows + w.block_rows - 1) / w.block_rows;
    return rows * w.scale_cols * (w.scale_kind == ScaleKind::F32 ? 4 : 1);
}

}  // namespace

int64_t file_bytes(const Matrix& w) { return w.rows * w.row_bytes + scale_bytes(w); }

Copies::Copies(const Table& table, const Matrix& pattern, int64_t count, bool resident) {
    const std::string why = why_no_kernel(table, pattern.format, resident);
    if (!why.empty()) throw std::invalid_argument(why);
    Matrix w = pattern;
    w.layout = resident ? resident_layout(w.format) : Layout::ROWS;
    const int64_t size =
        w.layout == Layout::TILES ? resident_bytes(w.format, w.rows, w.cols) : w.rows * w.row_bytes;
    const int64_t stride = pad64(size), scale_size = scale_bytes(w), scale_stride = pad64(scale_size);
    const Pages pages = resident ? Pages::HUGE : Pages::SMALL;
    data_ = std::make_unique<Buffer>(stride * count, pages);
    if (w.layout == Layout::TILES) {
        table.make_resident[static_cast<int>(w.format)](pattern, 0, w.rows, data_->data());
    } else {
        std::memcpy(data_->data(), pattern.data, static_cast<size_t>(size));
    }
    if (scale_size) scales_ = std::make_unique<Buffer>(scale_stride * count, pages);
    for (int64_t i = 0; i < count; i++) {
        if (i > 0) std::memcpy(data_->data() + i * stride, data_->data(), static_cast<size_t>(size));
        w.data = data_->data() + i * stride;
        if (scale_size) {
            std::memcpy(scales_->data() + i * scale_stride, pattern.scales, static_cast<size_t>(scale_size));
            w.scales = scales_->data() + i * scale_stride;
        }
        matrices_.push_back(w);
    }
}

// ---- products -----------------------------------------------------------------------------------

namespace {

// A tenth of a millisecond or more of arithmetic for each thread, and so many rows that preparing the inputs,
// which a kernel does once a call, weighs as little as in a step.
constexpr int64_t kStripeGrains = 16;
constexpr int64_t kStripeWork = int64_t{1} << 26;  // products of a weight and a value

// How many equal stripes a matrix is cut into.
int64_t stripes_of(const Matrix& w, int64_t n, int threads) {
    if (w.rows % kRowGrain) return 1;
    const int64_t grains = w.rows / kRowGrain;
    const int64_t work = kStripeWork / (n * w.cols * kRowGrain);
    const int64_t least = threads * std::max(work, kStripeGrains);
    int64_t stripes = std::max<int64_t>(grains / least, 1);
    while (grains % stripes) stripes--;
    return stripes;
}

}  // namespace

ProductWalk::ProductWalk(const Table& table, const Copies& weights, int64_t n, int threads)
    : table_(table),
      weights_(weights),
      n_(n),
      stripes_(stripes_of(weights.matrices()[0], n, threads)),
      stripe_rows_(weights.matrices()[0].rows / stripes_),
      packed_bytes_(packed_bytes(encoding_of(weights.matrices()[0].format), weights.matrices()[0].cols)),
      out_stride_(pad64(weights.matrices()[0].rows * 4) / 4),
      threads_(threads),
      packed_(n * packed_bytes_),
      out_(n * out_stride_ * 4) {
    const Matrix& w = weights.matrices()[0];
    const auto pack = table.pack[static_cast<int>(encoding_of(w.format))];
    for (int64_t i = 0; i < n; i++) {
        const std::vector<float> x = random_values(w.cols, static_cast<uint64_t>(i));
        pack(x.data(), w.cols, packed_.data() + i * packed_bytes_);
    }
}

void ProductWalk::run(Team& team, int id, int64_t unit) {
    const Matrix& w = weights_.matrices()[static_cast<size_t>(unit / stripes_)];
    const int64_t first = unit % stripes_ * stripe_rows_;
    const Range part = share(stripe_rows_, id, team.size(), kRowGrain);
    const Range rows{first + part.begin, first + part.end};
    if (rows.begin >= rows.end) return;
    auto* out = reinterpret_cast<float*>(out_.data());
    multiply(
        table_, w, rows, n_, [&](int64_t i) { return packed_.data() + i * packed_bytes_; },
        [&](int64_t i) { return out + i * out_stride_ + rows.begin; });
}

uint64_t ProductWalk::digest() {
    run_team(threads_, [&](Team& team, int id) {
        for (int64_t stripe = 0; stripe < stripes_; stripe++) run(team, id, stripe);
    });
    Digest digest;
    for (int64_t i = 0; i < n_; i++) {
        digest.add(reinterpret_cast<const float*>(out_.data()) + i * out_stride_,
                   weights_.matrices()[0].rows);
    }
    return digest.value();
}

// ---- experts ------------------------------------------------------------------------------------

ExpertsWalk::ExpertsWalk(const Table& table, const Copies& up, const Copies& down, ExpertsSize size,
                         int threads)
    : table_(table), size_(size), rows_(static_cast<int32_t>(size.experts * size.rows / size.chosen)) {
    const std::vector<Matrix>&ups = up.matrices(), &downs = down.matrices();
    const ExpertShape shape{size.experts, size.chosen, ups[0].cols, ups[0].rows, 0, 10.0f};
    place(ups[0], downs[0], shape, threads);
    fill(ups[0]);
    const auto experts = static_cast<size_t>(size.experts);
    for (size_t first = 0; first + experts <= downs.size(); first += experts) {
        ExpertMatrices m;
        for (size_t e = first; e < first + experts; e++) {
            m.w1.push_back(ups[2 * e]);
            m.w3.push_back(ups[2 * e + 1]);
            m.w2.push_back(downs[e]);
        }
        layers_.push_back(make_experts(packed_, packed_, routing_, out_, scratch_, std::move(m), {}, shape));
    }
}

void ExpertsWalk::place(const Matrix& up, const Matrix& down, ExpertShape shape, int threads) {
    int64_t size = 0;
    const auto take = [&](int64_t rows, int64_t row_bytes, int64_t width) {
        const Value v{size, pad64(row_bytes), 1, width};
        size += rows * v.row_bytes;
        return v;
    };
    const Encoding inner = encoding_of(down.format);
    packed_ = take(rows_, packed_bytes(encoding_of(up.format), up.cols), up.cols);
    routing_ = take(rows_, int64_t{8} * shape.chosen, 2 * shape.chosen);
    out_ = take(rows_, 4 * shape.hidden, shape.hidden);
    scratch_ = take(1, experts_scratch_bytes(shape, inner, inner, rows_, threads), 0);
    arena_ = std::make_unique<Buffer>(size);
    batch_.n_rows = rows_;
    bad_rows_.resize(static_cast<size_t>(rows_));
}

// Rows take turns with the experts, so that each expert gets as many as the others.
void ExpertsWalk::fill(const Matrix& up) {
    const auto pack = table_.pack[static_cast<int>(encoding_of(up.format))];
    for (int32_t t = 0; t < rows_; t++) {
        const std::vector<float> x = random_values(up.cols, static_cast<uint64_t>(t));
        pack(x.data(), up.cols, arena_->data() + packed_.offset + t * packed_.row_bytes);
        auto* ids = reinterpret_cast<int32_t*>(arena_->data() + routing_.offset + t * routing_.row_bytes);
        for (int32_t j = 0; j < size_.chosen; j++) ids[j] = (t * size_.chosen + j) % size_.experts;
        std::sort(ids, ids + size_.chosen);
        std::fill_n(reinterpret_cast<float*>(ids + size_.chosen), size_.chosen,
                    1.0f / static_cast<float>(size_.chosen));
    }
}

void ExpertsWalk::run(Team& team, int id, int64_t unit) {
    const Step step{&table_, &batch_, arena_->data(), bad_rows_.data()};
    layers_[static_cast<size_t>(unit)]->run(step, team, id);
    team.barrier();  // as the replay does after every operation
}

uint64_t ExpertsWalk::digest() const {
    Digest digest;
    for (int32_t t = 0; t < rows_; t++) {
        const uint8_t* row = arena_->data() + out_.offset + t * out_.row_bytes;
        digest.add(reinterpret_cast<const float*>(row), out_.width);
    }
    return digest.value();
}

// ---- reading ------------------------------------------------------------------------------------

namespace {

using Wide = uint64_t __attribute__((vector_size(16), may_alias));
constexpr int64_t kStreams = 4;

// Four places far apart are read in turn: a core that follows several streams has more lines on their way.
// Sixteen bytes a load are as fast as any width once memory is what a core waits for.
uint64_t sum(const uint8_t* p, int64_t size) {
    const int64_t stretch = size / kStreams / 64 * 64;
    Wide total[kStreams] = {};
    for (int64_t at = 0; at < stretch; at += 64) {
        for (int64_t s = 0; s < kStreams; s++) {
            const auto* line = reinterpret_cast<const Wide*>(p + s * stretch + at);
            total[s] += (line[0] + line[1]) + (line[2] + line[3]);
        }
    }
    uint64_t all = 0;
    for (const Wide& t : total) all += t[0] + t[1];
    return all;
}

}  // namespace

ReadWalk::ReadWalk(const Buffer& memory) : memory_(memory) {
    if (memory.size() < kPiece) throw std::invalid_argument("the memory to read is too short");
}

void ReadWalk::run(Team& team, int id, int64_t unit) {
    const Range mine = share(kPiece, id, team.size(), 64 * kStreams);
    const uint64_t part = sum(memory_.data() + unit * kPiece + mine.begin, mine.end - mine.begin);
    sum_.fetch_add(part, std::memory_order_relaxed);
}

}  // namespace finback
