// Resident copies: the rules of tiles.inl backwards. Owns the way from rows of a file to tiles, through the
// unpacked blocks of blocks.inl, so that a format's file layout is known in one place; and the check that
// every weight is a number. Refuses nothing: the answer to a weight that is not finite is `false`, the copy
// is made all the same.

namespace make {

using tiles::Planes;

// ---- planes

// Sixteen rows x 32 columns of codes as eight registers.
struct Step {
    alignas(64) uint8_t reg[8][64];
};

template <int kLow, int kHigh>
void put_planes(const Step& s, Planes<kLow, kHigh>, uint8_t* to) {
    constexpr int kBits[2] = {kLow, kHigh};
    for (int part = 0, from = 0; part < 2; from += kBits[part++]) {
        const int n = kBits[part];
        if (n == 0) continue;
        const int mask = (1 << n) - 1, per_byte = 8 / n;
        for (int plane = 0; plane < n; plane++, to += 64) {
            for (int k = 0; k < 64; k++) {
                int byte = 0;
                for (int i = 0; i < per_byte; i++)
                    byte |= (s.reg[per_byte * plane + i][k] >> from & mask) << (n * i);
                to[k] = static_cast<uint8_t>(byte);
            }
        }
    }
}

// ---- heads. The f16 bits of a value that is one.
inline uint16_t f16_of(float x) {
    const uint32_t bits = blocks::bits_of_f32(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x38800000u) return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(blocks::f32_of_bits(magnitude) * 0x1p24f));
}
inline void put_half(uint8_t* halves, int row, float x) {
    const uint16_t h = f16_of(x);
    __builtin_memcpy(halves + 2 * row, &h, 2);
}
// Byte i of a row's words: dword i / 4 of the sixteen rows.
inline uint8_t& word_byte(uint8_t* words, int row, int i) { return words[64 * (i / 4) + 4 * row + i % 4]; }

inline bool finite(float x) { return blocks::is_below(x, blocks::kNotFinite); }

// A format's unpacked block, how a number becomes a code, and how a row's scales go into the head of its
// block. scale() returns whether they are finite.

struct Q8_0 {
    using Tile = tiles::Q8_0;
    using Unpack = blocks::UnpackQ8_0;
    using Block = blocks::Codes32;
    static uint8_t code(int v) { return static_cast<uint8_t>(v + 128); }
    static bool scale(const Block& c, int row, uint8_t* head) {
        put_half(head, row, c.d);
        return finite(c.d);
    }
};

struct Q4_0 : Q8_0 {
    using Tile = tiles::Q4_0;
    using Unpack = blocks::UnpackQ4_0;
    static uint8_t code(int v) { return static_cast<uint8_t>(v + 8); }
};

// Place of each number in a table of sixteen entries that hold numbers plus `bias`.
struct Places {
    uint8_t at[256];
};
constexpr Places places_in(const uint8_t* table) {
    Places p{};
    for (int i = 15; i >= 0; i--) p.at[table[i]] = static_cast<uint8_t>(i);
    return p;
}

template <class Unpacker>
struct MXFP4From {
    using Tile = tiles::MXFP4;
    using Unpack = Unpacker;
    using Block = blocks::Codes32;
    static constexpr Places kPlaces = places_in(tiles::kE2M1);
    static uint8_t code(int v) { return kPlaces.at[v + 12]; }
    static bool scale(const Block& c, int row, uint8_t* head) {  // 2^(b-128) back to b
        const uint32_t bits = blocks::bits_of_f32(c.d);
        head[row] = static_cast<uint8_t>(bits < 0x00800000u ? bits >> 22 : (bits >> 23) + 1);
        return finite(c.d);
    }
};

struct Q4_K {
    using Tile = tiles::Q4_K;
    struct Block : blocks::CodesQ4_K {};
    struct Unpack {
        static void block(const Matrix& w, int64_t r, int64_t b, Block& out) { blocks::unpack(w, r, b, out); }
    };
    static uint8_t code(int v) { return static_cast<uint8_t>(v); }
    static bool scale(const Block& c, int row, uint8_t* head) {
        put_half(head, row, c.d);
        put_half(head + 32, row, c.dmin);
        uint8_t* words = head + 64;  // blocks::unpack_scales, backwards
        for (int j = 0; j < 4; j++) {
            word_byte(words, row, j) = static_cast<uint8_t>(c.sc[j] | (c.sc[4 + j] >> 4) << 6);
            word_byte(words, row, 4 + j) = static_cast<uint8_t>(c.m[j] | (c.m[4 + j] >> 4) << 6);
            word_byte(words, row, 8 + j) = static_cast<uint8_t>((c.sc[4 + j] & 15) | (c.m[4 + j] & 15) << 4);
        }
        return finite(c.d) && finite(c.dmin);
    }
};

struct Q6_K {
    using Tile = tiles::Q6_K;
    struct Block : blocks::CodesQ6_K {};
    struct Unpack {
        static void block(const Matrix& w, int64_t r, int64_t b, Block& out) { blocks::unpack(w, r, b, out); }
    };
    static uint8_t code(int v) { return static_cast<uint8_t>(v + 32); }
    static bool scale(const Block& c, int row, uint8_t* head) {
        put_half(head, row, c.d);
        for (int j = 0; j < 16; j++) word_byte(head + 32, row, j) = static_cast<uint8_t>(c.sc[j]);
        return finite(c.d);
    }
};

// ---- the walk

template <class M>
bool make_block(const Matrix& w, int64_t row0, int64_t b, uint8_t* head, uint8_t* codes) {
    using Tile = typename M::Tile;
    alignas(64) uint8_t rows[kTileRows][Tile::kColumns];
    bool good = true;
    for (int i = 0; i < kTileRows; i++) {
        typename M::Block c{};  // rows beyond the last are zeros
        if (row0 + i < w.rows) M::Unpack::block(w, row0 + i, b, c);
        good &= M::scale(c, i, head);
        for (int k = 0; k < Tile::kColumns; k++) rows[i][k] = M::code(c.code[k]);
    }
    for (int s = 0; s < Tile::kColumns / 32; s++) {
        Step step;
        for (int r = 0; r < 8; r++) {
            for (int i = 0; i < kTileRows; i++)
                __builtin_memcpy(step.reg[r] + 4 * i, rows[i] + 32 * s + 4 * r, 4);
        }
        put_planes(step, typename Tile::Stored{}, codes + s * Tile::kStep);
    }
    return good;
}

template <class M>
bool make_tiles(const Matrix& w, int64_t row0, int64_t row1, uint8_t* to) {
    using Tile = typename M::Tile;
    constexpr TileShape shape = tile_shape(Tile::kFormat);
    const int64_t width = w.cols / Tile::kColumns, bytes = tile_bytes(shape, w.cols);
    bool good = true;
    for (int64_t r = row0; r < row1; r += kTileRows) {
        uint8_t* heads = to + r / kTileRows * bytes;
        uint8_t* codes = heads + tile_codes(shape, w.cols);
        for (uint8_t* pad = heads + width * shape.head; pad < codes; pad++) *pad = 0;
        for (int64_t b = 0; b < width; b++) {
            good &= make_block<M>(w, r, b, heads + b * shape.head, codes + b * shape.codes);
        }
    }
    return good;
}

// ---- formats that stay in rows

template <class Load>
struct FloatWeights {
    static bool finite_row(const uint8_t* row, int64_t cols) {
        bool good = true;
        for (int64_t i = 0; i < cols; i++) good &= finite(Load::at(row, i));
        return good;
    }
};
struct Fp8Weights {
    static bool finite_row(const uint8_t* row, int64_t cols) {
        bool good = true;
        for (int64_t i = 0; i < cols; i++) good &= (row[i] & 0x7f) != 0x7f;
        return good;
    }
};

template <class Weights, int64_t kBytes>
bool make_rows(const Matrix& w, int64_t row0, int64_t row1, uint8_t* to) {
    bool good = true;
    for (int64_t r = row0; r < row1; r++) {
        const uint8_t* row = blocks::row_of(w, r);
        good &= Weights::finite_row(row, w.cols);
        __builtin_memcpy(to + r * w.cols * kBytes, row, static_cast<size_t>(w.cols * kBytes));
    }
    return good;
}

constexpr void fill_make_resident(Table& t) {
    const auto set = [&t](Format f, auto function) { t.make_resident[static_cast<int>(f)] = function; };
    set(Format::F32, make_rows<FloatWeights<blocks::LoadF32>, 4>);
    set(Format::F16, make_rows<FloatWeights<blocks::LoadF16>, 2>);
    set(Format::BF16, make_rows<FloatWeights<blocks::LoadBF16>, 2>);
    set(Format::FP8_E4M3, make_rows<Fp8Weights, 1>);
    set(Format::MXFP4, make_tiles<MXFP4From<blocks::UnpackMXFP4>>);
    set(Format::MXFP4_PAIRS, make_tiles<MXFP4From<blocks::UnpackMXFP4Pairs>>);
    set(Format::Q8_0, make_tiles<Q8_0>);
    set(Format::Q4_0, make_tiles<Q4_0>);
    set(Format::Q4_K, make_tiles<Q4_K>);
    set(Format::Q6_K, make_tiles<Q6_K>);
}

}  // namespace make
