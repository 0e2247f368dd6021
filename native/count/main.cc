// kernel_count LEVEL: runs each of the main kernels once, on fixed inputs, for a tool that counts
// instructions (tests/kernels/instructions.py). Prints the compiler, then a line for each call of `counted`,
// in order: the tool is told that name, and counts nothing else. Owns the shapes, small multiples of the
// model's. Refuses to time anything and checks no result: kernel_digest does that.
#include <vector>

#include "core/cpu.h"
#include "core/float_mode.h"
#include "digest/digest.h"
#include "kernels/resident.h"
#include "ops/sample.h"

namespace finback::count {
namespace {

using digest::Kind;
using digest::Memory;
using digest::Random;
using digest::Values;

class Work {
  public:
    virtual ~Work() = default;
    virtual void run() const = 0;
};

template <class Call>
class WorkOf final : public Work {
  public:
    explicit WorkOf(const Call& call) : call_(call) {}
    void run() const override { call_(); }

  private:
    const Call& call_;
};

}  // namespace

// Never inlined and with a name of its own, so that the tool finds it.
[[gnu::noinline]] void counted(const Work& work) {
    work.run();
    asm volatile("" ::: "memory");  // and never jumps to what it calls instead of returning from it
}

namespace {

template <class Call>
void measure(const std::string& name, const Call& call) {
    std::printf("%s\n", name.c_str());
    counted(WorkOf<Call>(call));
}

// ---- products

constexpr int64_t kRows = 64, kCols = 2048;
constexpr uint16_t kSmallHalf = 0x2000;  // 2^-7

// Any bytes are codes, only scales are chosen.
void fill(Random& random, Format format, uint8_t* data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++) data[i] = static_cast<uint8_t>(random.bits());
    const int64_t block = block_size(format).bytes;
    for (int64_t at = 0; at < bytes; at += block) {
        uint8_t* p = data + at;
        if (format == Format::FP8_E4M3) {
            if ((*p & 0x7F) == 0x7F) *p = 0;  // NaN
        } else if (format == Format::MXFP4) {
            p[0] = 120;
        } else {  // d first; in Q4_K dmin after it
            std::memcpy(p, &kSmallHalf, sizeof(kSmallHalf));
            if (format == Format::Q4_K) std::memcpy(p + 2, &kSmallHalf, sizeof(kSmallHalf));
        }
    }
}

void count_products(const Table& table, Format format) {
    const int f = static_cast<int>(format);
    Random random(static_cast<uint64_t>(f));
    const BlockSize block = block_size(format);
    const int64_t row_bytes = kCols / block.weights * block.bytes;
    const bool plane = format == Format::FP8_E4M3;
    const Memory data(row_bytes * kRows), scales(kCols / 128);
    fill(random, format, data.bytes(), data.size());
    std::memset(scales.bytes(), 120, static_cast<size_t>(scales.size()));
    const Matrix rows{format,
                      Layout::ROWS,
                      plane ? ScaleKind::E8M0 : ScaleKind::NONE,
                      kRows,
                      kCols,
                      data.bytes(),
                      row_bytes,
                      plane ? scales.bytes() : nullptr,
                      plane ? kCols / 128 : 0,
                      plane ? 128 : 0,
                      plane ? 128 : 0};
    const Memory copy(resident_bytes(format, kRows, kCols));
    Matrix tiles = rows;
    tiles.layout = Layout::TILES;
    tiles.data = copy.bytes();
    const bool tiled = resident_layout(format) == Layout::TILES;
    if (tiled) table.make_resident[f](rows, 0, kRows, copy.bytes());

    constexpr int64_t kInputs = 16;
    const Encoding encoding = encoding_of(format);
    const int64_t packed = packed_bytes(encoding, kCols);
    const Memory inputs(packed * kInputs), result(4 * kRows * kInputs);
    std::vector<const uint8_t*> x;
    std::vector<float*> out;
    for (int64_t t = 0; t < kInputs; t++) {
        x.push_back(inputs.bytes() + t * packed);
        out.push_back(result.floats() + t * kRows);
        table.pack[static_cast<int>(encoding)](Values(random, Kind::PLAIN, kCols).floats(), kCols,
                                               inputs.bytes() + t * packed);
    }
    const std::string name = std::string("linear ") + format_name(format);
    for (const int64_t n : {int64_t{1}, kInputs}) {
        const std::string end = " " + std::to_string(n);
        measure(name + " rows" + end, [&] { table.linear[f](rows, 0, kRows, x.data(), n, out.data()); });
        if (!tiled) continue;
        measure(name + " tiles" + end,
                [&] { table.linear_tiles[f](tiles, 0, kRows, x.data(), n, out.data()); });
    }
}

// ---- the rest

void count_attend(const Table& table) {
    constexpr int32_t kHeads = 64;
    constexpr int64_t kWidth = 512, kKeys = 192;
    Random random(1);
    const Values q(random, Kind::PLAIN, kHeads * kWidth), sink(random, Kind::PLAIN, kHeads);
    const Values rows(random, Kind::PLAIN, kKeys * kWidth);
    const Memory scores(4 * kHeads * kKeys), out(4 * kHeads * kWidth);
    std::vector<const float*> keys;
    for (int64_t i = 0; i < kKeys; i++) keys.push_back(rows.floats() + i * kWidth);
    measure("attend", [&] {
        table.attend(q.floats(), kHeads, kWidth, 0.044f, keys.data(), kKeys, sink.floats(), scores.floats(),
                     kKeys, out.floats());
    });
}

void count_index(const Table& table) {
    constexpr RowShape kShape{128, 0, 1};
    constexpr int32_t kHeads = 64;
    constexpr int64_t kKeys = 256;
    Random random(2);
    const int64_t bytes = cache_row_bytes(kShape);
    const Memory q(bytes * kHeads), rows(bytes * kKeys), score(4 * kKeys);
    const Values w(random, Kind::PLAIN, kHeads);
    std::vector<const uint8_t*> keys;
    for (int64_t h = 0; h < kHeads; h++)
        table.encode_row(Values(random, Kind::PLAIN, 128).floats(), kShape, q.bytes() + h * bytes);
    for (int64_t i = 0; i < kKeys; i++) {
        keys.push_back(rows.bytes() + i * bytes);
        table.encode_row(Values(random, Kind::PLAIN, 128).floats(), kShape, rows.bytes() + i * bytes);
    }
    measure("index_scores", [&] {
        table.index_scores(q.bytes(), bytes, w.floats(), kHeads, kShape, keys.data(), kKeys, score.floats());
    });
}

void count_hyper(const Table& table) {
    constexpr int32_t kStreams = 4;
    Random random(3);
    const Values m(random, Kind::PLAIN, 24), base(random, Kind::PLAIN, 24), scale(random, Kind::PLAIN, 3);
    const Memory pre(4 * kStreams), post(4 * kStreams), comb(4 * kStreams * kStreams);
    measure("hyper_mix", [&] {
        table.hyper_mix(m.floats(), 0.8f, scale.floats(), base.floats(), kStreams, 20, 1e-6f, pre.floats(),
                        post.floats(), comb.floats());
    });
}

void count_sampling(const Table& table) {
    constexpr int64_t kVocab = 129280;
    Random random(4);
    const Values logits(random, Kind::PLAIN, kVocab);
    for (int64_t i = 0; i < kVocab; i++) logits.floats()[i] *= 8;
    Sampler sampler(&table, kVocab);
    const SampleParams greedy{0, 0, 1, 0, 1, 0, 0}, filtered{0.8f, 40, 0.95f, 0, 1, 0, 0};
    const SampleParams all{1, 0, 1, 0, 1, 0, 0};
    measure("sample greedy", [&] { sampler.draw(logits.floats(), greedy); });
    measure("sample all", [&] { sampler.draw(logits.floats(), all); });
    measure("sample top_k top_p", [&] { sampler.draw(logits.floats(), filtered); });
}

}  // namespace
}  // namespace finback::count

int main(int argc, char** argv) {
    using namespace finback;
    if (argc != 2) {
        std::fprintf(stderr, "usage: kernel_count LEVEL\n");
        return 2;
    }
    std::string why;
    const Table* table = select_table(argv[1], &why);
    if (!table) {
        std::fprintf(stderr, "%s\n", why.c_str());
        return 2;
    }
    const FloatMode mode;
#ifdef __clang__
    std::printf("clang %d.%d.%d\n", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
    std::printf("gcc %d.%d.%d\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
    for (const Format f : {Format::Q8_0, Format::MXFP4, Format::Q4_K, Format::FP8_E4M3, Format::IQ2_XXS})
        count::count_products(*table, f);
    count::count_attend(*table);
    count::count_index(*table);
    count::count_hyper(*table);
    count::count_sampling(*table);
    return 0;
}
