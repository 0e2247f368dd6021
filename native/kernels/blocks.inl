// Decoding of stored weights and the shape of packed activations, shared by all instruction sets. Included
// inside the anonymous namespace of each isa_*.cc, so every unit has its own copy and no symbol can leak
// between levels. Owns what the bytes of a block mean (docs/exactness.md sections 4 and 6) and the decode_row
// entries; owns no product. Refuses nothing: sizes, widths and scale kinds were checked where the matrix was
// made.

namespace blocks {

// ---- numbers

constexpr float f32_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
constexpr uint32_t bits_of_f32(float x) { return __builtin_bit_cast(uint32_t, x); }

constexpr float kNan = f32_of_bits(0x7fc00000u);

// Weights lie where the file put them, at any address.
template <class T>
inline T load(const uint8_t* p) {
    T value;
    __builtin_memcpy(&value, p, sizeof(T));
    return value;
}

constexpr float f32_of_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fffu;
    if (magnitude > 0x7c00)
        return f32_of_bits(sign | 0x7fc00000u | (magnitude & 0x3ffu) << 13);  // NaN, made quiet
    if (magnitude == 0x7c00) return f32_of_bits(sign | 0x7f800000u);
    if (magnitude >= 0x400) return f32_of_bits(sign | ((magnitude << 13) + (112u << 23)));
    return f32_of_bits(sign | bits_of_f32(static_cast<float>(magnitude) * 0x1p-24f));  // subnormal: exact
}

constexpr float f32_of_bf16(uint16_t h) { return f32_of_bits(static_cast<uint32_t>(h) << 16); }

// E8M0 byte as 2^(b - 127). 255 is NaN; 0 is the one subnormal result.
constexpr float f32_of_e8m0(uint8_t b) {
    if (b == 255) return kNan;
    return f32_of_bits(b == 0 ? 0x00400000u : static_cast<uint32_t>(b) << 23);
}

// E8M0 byte as 2^(b - 128), the scale of doubled E2M1 codes. Subnormal for 0 and 1.
constexpr float half_of_e8m0(uint8_t b) {
    if (b == 255) return kNan;
    return f32_of_bits(b < 2 ? 0x00200000u << b : static_cast<uint32_t>(b - 1) << 23);
}

// All 256 E4M3 codes ("fn" variant: no infinity, 0x7f and 0xff are NaN, largest value 448).
struct E4M3Table {
    float value[256];
};
constexpr E4M3Table make_e4m3() {
    E4M3Table t{};
    for (uint32_t code = 0; code < 256; code++) {
        const uint32_t sign = (code & 0x80) << 24, exponent = code >> 3 & 15, fraction = code & 7;
        uint32_t bits = (exponent + 120) << 23 | fraction << 20;
        if (exponent == 0) bits = bits_of_f32(static_cast<float>(fraction) * 0x1p-9f);
        if ((code & 0x7f) == 0x7f) bits = 0x7fc00000u;
        t.value[code] = f32_of_bits(sign | bits);
    }
    return t;
}
constexpr E4M3Table kE4M3 = make_e4m3();

// Twice the value of each E2M1 code, an integer. Code 8 (minus zero) is 0.
constexpr int8_t kDoubledE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// ---- packed activations (format.h)

// Byte offsets of the arrays behind the codes of an int8 row of k values in blocks of `block`.
struct Int8Layout {
    int64_t d, sum, end;
};
constexpr Int8Layout layout_a8x32(int64_t k) {
    const int64_t d = pad64(k), sum = d + pad64(k / 32 * 4);
    return {d, sum, sum + pad64(k / 32 * 4)};
}
constexpr Int8Layout layout_a8x256(int64_t k) {
    const int64_t d = pad64(k), sum = d + pad64(k / 256 * 4);
    return {d, sum, sum + pad64(k / 16 * 2)};
}

// Magnitudes, as bits, that an encoding has no code for: infinities and NaN, and for BF16 also what rounds to
// infinity.
constexpr uint32_t kNotFinite = 0x7f800000u, kBf16Overflow = 0x7f7f8000u;
inline bool is_below(float x, uint32_t bound) { return (bits_of_f32(x) & 0x7fffffffu) < bound; }

// Nearest bf16, ties to even, with magnitudes below 2^-100 made +0.
inline uint16_t bf16_code(float x) {
    const uint32_t bits = bits_of_f32(x);
    if ((bits & 0x7fffffffu) < bits_of_f32(0x1p-100f)) return 0;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// ---- scales beside the codes

// The scales of one row of a matrix with a scale plane, by block column.
class ScaleRow {
  public:
    ScaleRow() = default;
    ScaleRow(const Matrix& w, int64_t r) : e8m0_(w.scale_kind == ScaleKind::E8M0) {
        at_ = w.scales + r / w.block_rows * w.scale_cols * (e8m0_ ? 1 : 4);
    }
    float operator[](int64_t c) const { return e8m0_ ? f32_of_e8m0(at_[c]) : load<float>(at_ + 4 * c); }

  private:
    const uint8_t* at_ = nullptr;
    bool e8m0_ = true;
};

inline const uint8_t* row_of(const Matrix& w, int64_t r) { return w.data + r * w.row_bytes; }

// ---- blocks of 32: signed codes and one scale, weight = d * code

struct Codes32 {
    int8_t code[32];
    float d;
};

// Block b of row r, unpacked by one of the structs below.
template <class Unpack>
void unpack(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
    Unpack::block(w, r, b, out);
}

struct UnpackQ8_0 {
    static void block(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
        const uint8_t* p = row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockQ8_0));
        out.d = f32_of_f16(load<uint16_t>(p));
        __builtin_memcpy(out.code, p + 2, 32);
    }
};

struct UnpackQ4_0 {
    static void block(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
        const uint8_t* p = row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockQ4_0));
        out.d = f32_of_f16(load<uint16_t>(p));
        for (int i = 0; i < 16; i++) {
            out.code[i] = static_cast<int8_t>((p[2 + i] & 15) - 8);
            out.code[i + 16] = static_cast<int8_t>((p[2 + i] >> 4) - 8);
        }
    }
};

struct UnpackMXFP4 {  // GGUF order: byte i holds columns i and i + 16
    static void block(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
        const uint8_t* p = row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockMXFP4));
        out.d = half_of_e8m0(p[0]);
        for (int i = 0; i < 16; i++) {
            out.code[i] = kDoubledE2M1[p[1 + i] & 15];
            out.code[i + 16] = kDoubledE2M1[p[1 + i] >> 4];
        }
    }
};

struct UnpackMXFP4Pairs {  // safetensors order: byte i holds columns 2i and 2i + 1; scales lie in their own
                           // plane
    static void block(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
        const uint8_t* p = row_of(w, r) + 16 * b;
        out.d = half_of_e8m0(w.scales[r * w.scale_cols + b]);
        for (int i = 0; i < 16; i++) {
            out.code[2 * i] = kDoubledE2M1[p[i] & 15];
            out.code[2 * i + 1] = kDoubledE2M1[p[i] >> 4];
        }
    }
};

// ---- blocks of 256: Codes256, and one Unpack for each format

#include "kernels/blocks_kquants.inl"
//
#include "kernels/blocks_grids.inl"

// The way a level unpacks a format: its own where it has one.
template <class Unpack>
struct Fastest {
    using type = Unpack;
};

// A level's walk of one input over rows of a format: `type::walk`, or void.
template <class Unpack>
struct OneInput {
    using type = void;
};

// The unpacked form of a format by the columns of its blocks.
template <int kColumns>
struct BlockOf {
    using type = Codes256;
};
template <>
struct BlockOf<32> {
    using type = Codes32;
};

// ---- float formats: weight i of a row

struct LoadF32 {
    static constexpr int64_t kBytes = 4;
    static float at(const uint8_t* row, int64_t i) { return load<float>(row + 4 * i); }
};
struct LoadF16 {
    static constexpr int64_t kBytes = 2;
    static float at(const uint8_t* row, int64_t i) { return f32_of_f16(load<uint16_t>(row + 2 * i)); }
};
struct LoadBF16 {
    static constexpr int64_t kBytes = 2;
    static float at(const uint8_t* row, int64_t i) { return f32_of_bf16(load<uint16_t>(row + 2 * i)); }
};

// ---- decode_row: weights as numbers (section 6)

template <class Load>
void decode_floats(const Matrix& w, int64_t r, float* out) {
    for (int64_t i = 0; i < w.cols; i++) out[i] = Load::at(row_of(w, r), i);
}

void decode_fp8(const Matrix& w, int64_t r, float* out) {
    const uint8_t* row = row_of(w, r);
    const ScaleRow scales(w, r);
    for (int64_t c0 = 0, c = 0; c0 < w.cols; c0 += w.block_cols, c++) {
        const int64_t c1 = c0 + w.block_cols < w.cols ? c0 + w.block_cols : w.cols;
        for (int64_t i = c0; i < c1; i++) out[i] = kE4M3.value[row[i]] * scales[c];
    }
}

template <class Unpack>
void decode_codes32(const Matrix& w, int64_t r, float* out) {
    Codes32 c;
    for (int64_t b = 0; b < w.cols / 32; b++) {
        unpack<Unpack>(w, r, b, c);
        for (int i = 0; i < 32; i++) out[32 * b + i] = c.d * static_cast<float>(c.code[i]);
    }
}

template <class Unpack>
void decode_codes256(const Matrix& w, int64_t r, float* out) {
    Codes256 c;
    for (int64_t b = 0; b < w.cols / 256; b++) {
        unpack<Unpack>(w, r, b, c);
        for (int i = 0; i < 256; i++) {
            const float value = c.d * static_cast<float>(c.sc[i / 16]) * static_cast<float>(c.code[i]);
            out[256 * b + i] = value;
            if constexpr (Unpack::kMinimums) {
                out[256 * b + i] = value - c.dmin * static_cast<float>(c.m[i / 16]);
            }
        }
    }
}

constexpr void fill_decode_row(Table& t) {
    const auto set = [&t](Format f, auto function) { t.decode_row[static_cast<int>(f)] = function; };
    set(Format::F32, decode_floats<LoadF32>);
    set(Format::F16, decode_floats<LoadF16>);
    set(Format::BF16, decode_floats<LoadBF16>);
    set(Format::FP8_E4M3, decode_fp8);
    set(Format::MXFP4, decode_codes32<UnpackMXFP4>);
    set(Format::MXFP4_PAIRS, decode_codes32<UnpackMXFP4Pairs>);
    set(Format::Q8_0, decode_codes32<UnpackQ8_0>);
    set(Format::Q4_0, decode_codes32<UnpackQ4_0>);
    set(Format::Q2_K, decode_codes256<UnpackQ2_K>);
    set(Format::Q3_K, decode_codes256<UnpackQ3_K>);
    set(Format::Q4_K, decode_codes256<UnpackQ4_K>);
    set(Format::Q5_K, decode_codes256<UnpackQ5_K>);
    set(Format::Q6_K, decode_codes256<UnpackQ6_K>);
    set(Format::IQ1_S, decode_codes256<UnpackIQ1_S>);
    set(Format::IQ1_M, decode_codes256<UnpackIQ1_M>);
    set(Format::IQ2_XXS, decode_codes256<UnpackIQ2_XXS>);
    set(Format::IQ2_XS, decode_codes256<UnpackIQ2_XS>);
    set(Format::IQ2_S, decode_codes256<UnpackIQ2_S>);
    set(Format::IQ3_XXS, decode_codes256<UnpackIQ3_XXS>);
    set(Format::IQ3_S, decode_codes256<UnpackIQ3_S>);
    set(Format::IQ4_NL, decode_codes32<UnpackIQ4_NL>);
    set(Format::IQ4_XS, decode_codes256<UnpackIQ4_XS>);
}

}  // namespace blocks
