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

// The scales of one row into the head of its block, by the kind of head. Returns whether they are finite.

inline bool put_scales(tiles::HalfHead, const blocks::Codes32& c, int row, uint8_t* head) {
    put_half(head, row, c.d);
    return finite(c.d);
}
inline bool put_scales(tiles::E8M0Head, const blocks::Codes32& c, int row, uint8_t* head) {
    const uint32_t bits = blocks::bits_of_f32(c.d);  // 2^(b-128) back to b; NaN is 255
    const uint32_t b = bits < 0x00800000u ? bits >> 22 : (bits >> 23) + 1;
    head[row] = static_cast<uint8_t>(finite(c.d) ? b : 255);
    return finite(c.d);
}

// Blocks of 256 repeat the scale of a group of 32.
inline uint8_t byte_of(int v) { return static_cast<uint8_t>(v); }

inline bool put_scales(tiles::SixBitHead, const blocks::Codes256& c, int row, uint8_t* head) {
    put_half(head, row, c.d);
    put_half(head + 32, row, c.dmin);
    uint8_t* words = head + 64;
    for (int j = 0; j < 4; j++) {
        const int sc = c.sc[2 * j], sc4 = c.sc[2 * j + 8], m = c.m[2 * j], m4 = c.m[2 * j + 8];
        word_byte(words, row, j) = byte_of(sc | (sc4 >> 4) << 6);
        word_byte(words, row, 4 + j) = byte_of(m | (m4 >> 4) << 6);
        word_byte(words, row, 8 + j) = byte_of((sc4 & 15) | (m4 & 15) << 4);
    }
    return finite(c.d) && finite(c.dmin);
}
inline bool put_scales(tiles::FourBitHead, const blocks::Codes256& c, int row, uint8_t* head) {
    put_half(head, row, c.d);
    put_half(head + 32, row, c.dmin);
    for (int g = 0; g < 16; g++) word_byte(head + 64, row, g) = byte_of(c.sc[g] | c.m[g] << 4);
    return finite(c.d) && finite(c.dmin);
}
template <int group>
bool put_scales(tiles::SignedHead<group>, const blocks::Codes256& c, int row, uint8_t* head) {
    put_half(head, row, c.d);
    for (int g = 0; g < 256 / group; g++) word_byte(head + 32, row, g) = byte_of(c.sc[g * group / 16]);
    return finite(c.d);
}
inline bool put_scales(tiles::SixBitSignedHead, const blocks::Codes256& c, int row, uint8_t* head) {
    put_half(head, row, c.d);
    for (int i = 0; i < 12; i++) {
        const int top = (c.sc[12 + i % 4] + 32) >> (2 * (i / 4)) & 3;
        word_byte(head + 32, row, i) = byte_of((c.sc[i] + 32) | top << 6);
    }
    return finite(c.d);
}
template <int group, int parts>
bool put_scales(tiles::OddHead<group, parts>, const blocks::Codes256& c, int row, uint8_t* head) {
    put_half(head, row, c.d * parts);
    for (int g = 0; g < 256 / group; g += 2) {
        const int low = c.sc[g * group / 16] / 2,
                  high = c.sc[(g + 1) * group / 16] / 2;  // (2 s + 1) / 2 is s
        word_byte(head + 32, row, g / 2) = byte_of(low | high << 4);
    }
    return finite(c.d);
}

// ---- codes: a number plus the bias, or the place where a table has that

struct Places {
    uint8_t at[256];
};
constexpr Places places_in(const uint8_t* numbers) {
    Places p{};
    for (int i = 0; i < 256; i++) p.at[i] = static_cast<uint8_t>(i);
    for (int i = 15; numbers && i >= 0; i--) p.at[numbers[i]] = static_cast<uint8_t>(i);
    return p;
}

// ---- the walk

// Block b of sixteen rows from row0 on: numbers plus the bias, row after row, and the head. Rows beyond the
// last are zeros.
template <class F, class Unpack>
bool read_rows(const Matrix& w, int64_t row0, int64_t b, uint8_t (*rows)[F::kColumns], uint8_t* head) {
    bool good = true;
    const int64_t ahead =
        (b + 3) * w.row_bytes / (w.cols / F::kColumns);  // sixteen streams are more than hardware follows
    for (int i = 0; i < kTileRows; i++) {
        if (row0 + i < w.rows) __builtin_prefetch(blocks::row_of(w, row0 + i) + ahead);
        typename blocks::BlockOf<F::kColumns>::type c{};
        if (row0 + i < w.rows) blocks::unpack<typename blocks::Fastest<Unpack>::type>(w, row0 + i, b, c);
        good &= put_scales(F{}, c, i, head);
        for (int k = 0; k < F::kColumns; k++) rows[i][k] = static_cast<uint8_t>(c.code[k] + F::kBias);
    }
    return good;
}

// Step s of a block as eight registers of [16 rows][4 columns].
template <int kColumns>
void turn(const uint8_t (*rows)[kColumns], int s, uint8_t* reg) {
    for (int r = 0; r < 8; r++) {
        for (int i = 0; i < kTileRows; i++) {
            __builtin_memcpy(reg + 64 * r + 4 * i, rows[i] + 32 * s + 4 * r, 4);
        }
    }
}

template <class F, class Unpack>
bool make_block(const Matrix& w, int64_t row0, int64_t b, uint8_t* head, uint8_t* codes) {
    static constexpr Places kPlaces = places_in(F::kNumbers);
    alignas(64) uint8_t rows[kTileRows][F::kColumns];
    const bool good = read_rows<F, Unpack>(w, row0, b, rows, head);
    if constexpr (F::kNumbers != nullptr) {
        for (auto& row : rows) {
            for (uint8_t& code : row) code = kPlaces.at[code];
        }
    }
    for (int s = 0; s < F::kColumns / 32; s++) {
        Step step;
        turn<F::kColumns>(rows, s, step.reg[0]);
        put_planes(step, typename F::Stored{}, codes + s * F::kStep);
    }
    return good;
}

template <class F, class Unpack>
bool make_tiles(const Matrix& w, int64_t row0, int64_t row1, uint8_t* to) {
    constexpr TileShape shape = tile_shape(F::kFormat);
    static_assert(shape.codes == F::kColumns / 32 * F::kStep && shape.columns == F::kColumns);
    const int64_t width = w.cols / F::kColumns, bytes = tile_bytes(shape, w.cols);
    bool good = true;
    for (int64_t r = row0; r < row1; r += kTileRows) {
        uint8_t* heads = to + r / kTileRows * bytes;
        uint8_t* codes = heads + tile_codes(shape, w.cols);
        for (uint8_t* pad = heads + width * shape.head; pad < codes; pad++) *pad = 0;
        for (int64_t b = 0; b < width; b++) {
            good &= make_block<F, Unpack>(w, r, b, heads + b * shape.head, codes + b * shape.codes);
        }
    }
    return good;
}

// ---- formats that stay in rows

template <class Load>
struct FloatWeights {
    static bool finite_row(const Matrix& w, int64_t r) {
        const uint8_t* row = blocks::row_of(w, r);
        bool good = true;
        for (int64_t i = 0; i < w.cols; i++) good &= finite(Load::at(row, i));
        return good;
    }
};
struct Fp8Weights {
    static bool finite_row(const Matrix& w, int64_t r) {
        const uint8_t* row = blocks::row_of(w, r);
        const blocks::ScaleRow scales(w, r);
        bool good = true;
        for (int64_t i = 0; i < w.cols; i++) good &= (row[i] & 0x7f) != 0x7f;
        for (int64_t c = 0; c < w.scale_cols; c++) good &= finite(scales[c]);
        return good;
    }
};

template <class Weights, int64_t kBytes>
bool make_rows(const Matrix& w, int64_t row0, int64_t row1, uint8_t* to) {
    bool good = true;
    for (int64_t r = row0; r < row1; r++) {
        const uint8_t* row = blocks::row_of(w, r);
        good &= Weights::finite_row(w, r);
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
    const auto tile = [&t]<class F, class Unpack>(F, Unpack) {
        t.make_resident[static_cast<int>(F::kFormat)] = make_tiles<F, Unpack>;
    };
    tile(tiles::Q8_0{}, blocks::UnpackQ8_0{});
    tile(tiles::Q4_0{}, blocks::UnpackQ4_0{});
    tile(tiles::MXFP4{}, blocks::UnpackMXFP4{});
    tile(tiles::IQ4_NL{}, blocks::UnpackIQ4_NL{});
    tile(tiles::Q2_K{}, blocks::UnpackQ2_K{});
    tile(tiles::Q3_K{}, blocks::UnpackQ3_K{});
    tile(tiles::Q4_K{}, blocks::UnpackQ4_K{});
    tile(tiles::Q5_K{}, blocks::UnpackQ5_K{});
    tile(tiles::Q6_K{}, blocks::UnpackQ6_K{});
    tile(tiles::IQ1_S{}, blocks::UnpackIQ1_S{});
    tile(tiles::IQ1_M{}, blocks::UnpackIQ1_M{});
    tile(tiles::IQ2_XXS{}, blocks::UnpackIQ2_XXS{});
    tile(tiles::IQ2_XS{}, blocks::UnpackIQ2_XS{});
    tile(tiles::IQ2_S{}, blocks::UnpackIQ2_S{});
    tile(tiles::IQ3_XXS{}, blocks::UnpackIQ3_XXS{});
    tile(tiles::IQ3_S{}, blocks::UnpackIQ3_S{});
    tile(tiles::IQ4_XS{}, blocks::UnpackIQ4_XS{});
    set(Format::MXFP4_PAIRS, make_tiles<tiles::MXFP4, blocks::UnpackMXFP4Pairs>);
}

}  // namespace make
