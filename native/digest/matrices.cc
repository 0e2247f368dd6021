// Packing, matrix products in both layouts, resident copies and decoded rows of every format. Owns random
// weights: any bytes are codes, only scales are chosen, so that they are finite. Refuses a format whose
// scales it does not know: a new format is added to kScales.
#include <cmath>
#include <vector>

#include "digest/digest.h"
#include "kernels/resident.h"

namespace finback::digest {
namespace {

// ---- weights

// Where the f16 scales of a block lie; -1: no such scale.
struct Scales {
    const char* format;
    int d, dmin;
};
constexpr Scales kScales[] = {
    {"Q8_0", 0, -1},   {"Q4_0", 0, -1},    {"Q4_K", 0, 2},   {"Q6_K", 208, -1},  {"Q2_K", 80, 82},
    {"Q3_K", 108, -1}, {"Q5_K", 0, 2},     {"IQ1_S", 0, -1}, {"IQ2_XXS", 0, -1}, {"IQ2_XS", 0, -1},
    {"IQ2_S", 0, -1},  {"IQ3_XXS", 0, -1}, {"IQ3_S", 0, -1}, {"IQ4_NL", 0, -1},  {"IQ4_XS", 0, -1},
};

// PLAIN: near 0.01. EXTREME: anything finite, often the smallest, zero or the largest. BROKEN: some are not
// finite.
enum class Spread { PLAIN, EXTREME, BROKEN };

uint16_t half(Random& random, Spread spread) {
    constexpr uint16_t kEdges[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF};
    const uint32_t sign = random.bits() & 0x8000;
    if (spread == Spread::PLAIN) return static_cast<uint16_t>(sign | (0x2000 + (random.bits() & 0x3FF)));
    if (spread == Spread::BROKEN && random.below(40) == 0) return random.below(2) ? 0x7C00 : 0xFE01;
    if (random.below(3) == 0) return kEdges[random.below(7)];
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(random.below(0x7C00)));
}

uint8_t exponent(Random& random, Spread spread) {
    constexpr uint8_t kEdges[] = {0, 1, 2, 3, 127};
    if (spread == Spread::PLAIN) return static_cast<uint8_t>(116 + random.below(8));
    if (spread == Spread::BROKEN && random.below(40) == 0) return 255;
    return random.below(3) ? static_cast<uint8_t>(random.below(168)) : kEdges[random.below(5)];
}

void put_half(uint8_t* p, uint16_t h) { std::memcpy(p, &h, sizeof(h)); }

void fill_block(Random& random, Format format, Spread spread, uint8_t* p) {
    const std::string name = format_name(format);
    const int64_t bytes = block_size(format).bytes;
    for (int64_t i = 0; i < bytes; i++) p[i] = static_cast<uint8_t>(random.bits());
    if (name == "MXFP4") {
        p[0] = exponent(random, spread);
        return;
    }
    if (name == "IQ1_M") {  // one f16, a nibble on top of each of four words
        const uint16_t d = half(random, spread);
        for (int i = 0; i < 4; i++)
            p[49 + 2 * i] = static_cast<uint8_t>((p[49 + 2 * i] & 15) | (d >> (4 * i) & 15) << 4);
        return;
    }
    for (const Scales& s : kScales) {
        if (name != s.format) continue;
        put_half(p + s.d, half(random, spread));
        if (s.dmin >= 0) put_half(p + s.dmin, half(random, spread));
        return;
    }
    std::fprintf(stderr, "kernel_digest has no scales for %s; add it to kScales\n", name.c_str());
    std::exit(2);
}

void fill_floats(Random& random, Format format, Spread spread, uint8_t* p) {
    if (format == Format::F16) return put_half(p, half(random, spread));
    const int kind = spread == Spread::PLAIN ? 0 : random.below(kKinds);
    float x;
    fill(random, static_cast<Kind>(kind), &x, 1);
    if (spread == Spread::BROKEN && random.below(500) == 0) x = __builtin_inff();
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    if (format == Format::BF16)
        put_half(p, static_cast<uint16_t>(bits >> 16));
    else
        std::memcpy(p, &bits, sizeof(bits));
}

// How a format with a scale plane is cut; {0, 0} for the others.
struct Plane {
    int32_t block_rows, block_cols;
    ScaleKind kind;
};

class Weights {
  public:
    Weights(Random& random, Format format, int64_t rows, int64_t cols, Plane plane, Spread spread)
        : data_(row_bytes(format, cols) * rows, 3), scales_(plane_bytes(rows, cols, plane), 1) {
        const BlockSize block = block_size(format);
        matrix_ = {format,
                   Layout::ROWS,
                   plane.kind,
                   rows,
                   cols,
                   data_.bytes(),
                   row_bytes(format, cols),
                   nullptr,
                   0,
                   plane.block_rows,
                   plane.block_cols};
        for (int64_t at = 0; at < data_.size(); at += block.bytes) fill(random, spread, data_.bytes() + at);
        if (plane.kind == ScaleKind::NONE) return;
        matrix_.scales = scales_.bytes();
        matrix_.scale_cols = (cols + plane.block_cols - 1) / plane.block_cols;
        for (int64_t at = 0; at < scales_.size(); at += plane.kind == ScaleKind::F32 ? 4 : 1) {
            uint8_t* p = scales_.bytes() + at;
            if (plane.kind == ScaleKind::F32)
                fill_floats(random, Format::F32, Spread::PLAIN, p);
            else
                *p = exponent(random, spread);
        }
    }
    const Matrix& matrix() const { return matrix_; }

    static int64_t row_bytes(Format format, int64_t cols) {
        return cols / block_size(format).weights * block_size(format).bytes;
    }

  private:
    static int64_t plane_bytes(int64_t rows, int64_t cols, Plane plane) {
        if (plane.kind == ScaleKind::NONE) return 0;
        const int64_t count = (rows + plane.block_rows - 1) / plane.block_rows *
                              ((cols + plane.block_cols - 1) / plane.block_cols);
        return count * (plane.kind == ScaleKind::F32 ? 4 : 1);
    }
    void fill(Random& random, Spread spread, uint8_t* p) {
        switch (matrix_.format) {
            case Format::F32:
            case Format::F16:
            case Format::BF16:
                return fill_floats(random, matrix_.format, spread, p);
            case Format::FP8_E4M3:
                *p = static_cast<uint8_t>(random.bits());
                if ((*p & 0x7F) == 0x7F && (spread != Spread::BROKEN || random.below(8))) *p = 0x7E;
                return;
            case Format::MXFP4_PAIRS:
                for (int i = 0; i < 16; i++) p[i] = static_cast<uint8_t>(random.bits());
                return;
            default:
                return fill_block(random, matrix_.format, spread, p);
        }
    }
    Memory data_, scales_;
    Matrix matrix_{};
};

// ---- activations

class Inputs {
  public:
    Inputs(const Table& table, Random& random, Encoding e, int64_t cols, int64_t n)
        : bytes_(packed_bytes(e, cols)), packed_(bytes_ * n) {
        for (int64_t t = 0; t < n; t++) {
            const Values x(random, static_cast<Kind>(t % kKinds), cols);
            table.pack[static_cast<int>(e)](x.floats(), cols, packed_.bytes() + t * bytes_);
            rows_.push_back(packed_.bytes() + t * bytes_);
        }
    }
    const uint8_t* const* rows() const { return rows_.data(); }

  private:
    int64_t bytes_;
    Memory packed_;
    std::vector<const uint8_t*> rows_;
};

void digest_pack(const Table& table) {
    for (int e = 0; e < static_cast<int>(Encoding::COUNT); e++) {
        const Encoding encoding = static_cast<Encoding>(e);
        const bool plain = encoding == Encoding::F32 || encoding == Encoding::BF16;
        const int64_t unit = plain ? 1 : encoding == Encoding::A8x32 ? 32 : 256;
        for (int64_t k : {unit, 3 * unit, plain ? 37 : 5 * unit}) {
            for (int kind = 0; kind < kKinds + 2; kind++) {  // the last two: not finite
                Random random(static_cast<uint64_t>(100 * e + kind));
                Values x(random, static_cast<Kind>(kind < kKinds ? kind : 0), k);
                if (kind >= kKinds)
                    x.floats()[k - 1] = kind == kKinds ? __builtin_inff() : __builtin_nanf("");
                const Memory packed(packed_bytes(encoding, k));
                Hash hash;
                hash.number(table.pack[e](x.floats(), k, packed.bytes()));
                hash.bytes(packed.bytes(), packed.size());
                line("pack", encoding_name(encoding), "-", shape(k), kind, hash);
            }
        }
    }
}

// ---- products

using Product = void (*)(const Matrix&, int64_t, int64_t, const uint8_t* const*, int64_t, float* const*);

// The rows of w in three ranges, for n inputs. Where weights are broken a result counts as not finite,
// whether it is an infinity or a NaN: that it is found is the promise, not how it looks.
Hash product(Product linear, const Matrix& w, const Inputs& x, int64_t n, bool broken) {
    const Memory result(4 * n * w.rows);
    const int64_t cut[] = {0, w.rows / 3, w.rows - w.rows / 5, w.rows};
    for (int part = 0; part < 3; part++) {
        if (cut[part] == cut[part + 1]) continue;
        std::vector<float*> out;
        for (int64_t t = 0; t < n; t++) out.push_back(result.floats() + t * w.rows + cut[part]);
        linear(w, cut[part], cut[part + 1], x.rows(), n, out.data());
    }
    for (int64_t i = 0; broken && i < n * w.rows; i++) {
        float& y = result.floats()[i];
        if (!std::isfinite(y)) y = __builtin_nanf("");
    }
    Hash hash;
    hash.all(result);
    return hash;
}

// What a case is called: the blocks of its scale plane are part of its shape.
std::string name_of(const Matrix& w, int64_t n) {
    std::string text = shape(w.rows, w.cols) + (n ? "x" + std::to_string(n) : "");
    if (w.scale_kind == ScaleKind::NONE) return text;
    return text + "/" + shape(w.block_rows, w.block_cols) + (w.scale_kind == ScaleKind::F32 ? "f" : "e");
}

void digest_products(const Table& table, const Matrix& w, const Matrix* tiles, int seed) {
    const int f = static_cast<int>(w.format);
    const bool broken = seed == static_cast<int>(Spread::BROKEN);
    for (int64_t n : {1, 2, 3, 5, 17, 64}) {
        Random random(static_cast<uint64_t>(1000 * f + n));
        const Inputs x(table, random, encoding_of(w.format), w.cols, n);
        line("linear", format_name(w.format), "rows", name_of(w, n), seed,
             product(table.linear[f], w, x, n, broken));
        if (tiles)
            line("linear", format_name(w.format), "tiles", name_of(w, n), seed,
                 product(table.linear_tiles[f], *tiles, x, n, broken));
    }
    Hash hash;
    for (int64_t r = 0; r < w.rows; r++) {
        const Memory row(4 * w.cols);
        table.decode_row[f](w, r, row.floats());
        hash.all(row);
    }
    line("decode_row", format_name(w.format), "rows", name_of(w, 0), seed, hash);
}

void digest_matrix(const Table& table, Format format, int64_t rows, int64_t cols, Plane plane) {
    const int f = static_cast<int>(format);
    for (int seed = 0; seed < 3; seed++) {
        Random random(static_cast<uint64_t>(10000 * f + 10 * rows + cols + seed));
        const Weights weights(random, format, rows, cols, plane, static_cast<Spread>(seed));
        const Matrix& w = weights.matrix();
        if (!table.make_resident[f]) {
            digest_products(table, w, nullptr, seed);
            continue;
        }
        const Memory copy(resident_bytes(format, rows, cols));
        std::memset(copy.bytes(), 0, static_cast<size_t>(copy.size()));
        const int64_t middle = rows / 2 / kTileRows * kTileRows;
        Hash hash;
        hash.number(table.make_resident[f](w, 0, middle, copy.bytes()));
        hash.number(table.make_resident[f](w, middle, rows, copy.bytes()));
        hash.bytes(copy.bytes(), copy.size());
        const char* layout = resident_layout(format) == Layout::TILES ? "tiles" : "rows";
        line("make_resident", format_name(format), layout, name_of(w, 0), seed, hash);
        // Tiles are made of weights that were found to be finite; rows are read as they are.
        if (resident_layout(format) == Layout::ROWS || seed == static_cast<int>(Spread::BROKEN)) {
            digest_products(table, w, nullptr, seed);
            continue;
        }
        Matrix tiles = w;
        tiles.layout = Layout::TILES;
        tiles.data = copy.bytes();
        digest_products(table, w, &tiles, seed);
    }
}

}  // namespace

void digest_matrices(const Table& table) {
    digest_pack(table);
    for (int f = 0; f < static_cast<int>(Format::COUNT); f++) {
        const Format format = static_cast<Format>(f);
        const int64_t unit = block_size(format).weights;
        if (format == Format::FP8_E4M3) {
            digest_matrix(table, format, 37, 300, {128, 128, ScaleKind::E8M0});
            digest_matrix(table, format, 130, 257, {128, 128, ScaleKind::F32});
            digest_matrix(table, format, 33, 129, {32, 32, ScaleKind::E8M0});
            digest_matrix(table, format, 5, 31, {32, 32, ScaleKind::F32});
            continue;
        }
        const Plane plane = format == Format::MXFP4_PAIRS ? Plane{1, 32, ScaleKind::E8M0} : Plane{};
        digest_matrix(table, format, 1, unit == 1 ? 15 : unit, plane);
        digest_matrix(table, format, 16, unit == 1 ? 131 : unit == 32 ? 1056 : 1280, plane);
        digest_matrix(table, format, 37, unit == 1 ? 529 : unit == 32 ? 544 : 768, plane);
    }
}

}  // namespace finback::digest
