// What the bytes of the K-quants mean: blocks of 256 weights with sub-scales, and minimums in Q2_K, Q4_K and
// Q5_K. Included inside namespace blocks. Owns Codes256, the one unpacked form of every format with blocks of
// 256, and the unpacking of Q2_K to Q6_K; the IQ formats are in blocks_grids.inl.

// Sixteen groups of sixteen signed codes: weight = (d * sc) * code, minus dmin * m where Unpack::kMinimums
// says so (else m and dmin are not set). Formats with groups of 32 repeat their scale.
struct Codes256 {
    int8_t code[256];
    int32_t sc[16], m[16];
    float d, dmin;
};

// Block b of row r, unpacked by one of the structs below: `scales` sets everything but the codes.
template <class Unpack>
void unpack(const Matrix& w, int64_t r, int64_t b, Codes256& out) {
    const uint8_t* p = row_of(w, r) + b * Unpack::kBytes;
    Unpack::scales(p, out);
    Unpack::codes(p, out.code);
}

// The value of group g of 32 as that of its two halves.
inline void set_pair(int32_t* values, int g, int value) { values[2 * g] = values[2 * g + 1] = value; }

// Eight 6-bit scales and eight 6-bit minimums in twelve bytes: the first four of each lie in the low six bits
// of bytes 0..3 and 4..7; the last four have their low four bits in bytes 8..11 and their high two bits on
// top of bytes 0..7.
inline void unpack_scales(const uint8_t* s, Codes256& out) {
    for (int j = 0; j < 4; j++) {
        set_pair(out.sc, j, s[j] & 63);
        set_pair(out.m, j, s[4 + j] & 63);
        set_pair(out.sc, 4 + j, (s[8 + j] & 15) | (s[j] >> 6) << 4);
        set_pair(out.m, 4 + j, s[8 + j] >> 4 | (s[4 + j] >> 6) << 4);
    }
}

// Code i of the places where the formats keep bits: runs of 32 as nibbles, two runs to 32 bytes; runs of 32
// as bit pairs, four runs to 32 bytes; single bits, one byte to eight runs.
inline int nibble_at(const uint8_t* p, int i) { return p[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15; }
inline int pair_at(const uint8_t* p, int i) { return p[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }
inline int bit_at(const uint8_t* p, int i) { return p[i % 32] >> i / 32 & 1; }

struct UnpackQ2_K {
    static constexpr bool kMinimums = true;
    static constexpr int64_t kBytes = sizeof(BlockQ2_K);
    static void scales(const uint8_t* p, Codes256& out) {
        for (int j = 0; j < 16; j++) {
            out.sc[j] = p[j] & 15;
            out.m[j] = p[j] >> 4;
        }
        out.d = f32_of_f16(load<uint16_t>(p + 80));
        out.dmin = f32_of_f16(load<uint16_t>(p + 82));
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int i = 0; i < 256; i++) code[i] = static_cast<int8_t>(pair_at(p + 16, i));
    }
};

// Scale j: nibble j / 8 of byte j % 8, under bit pair j / 4 of byte 8 + j % 4.
struct UnpackQ3_K {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockQ3_K);
    static void scales(const uint8_t* p, Codes256& out) {
        const uint8_t* s = p + 96;
        for (int j = 0; j < 16; j++) {
            out.sc[j] = ((s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
        }
        out.d = f32_of_f16(load<uint16_t>(p + 108));
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int i = 0; i < 256; i++) {
            code[i] = static_cast<int8_t>((pair_at(p + 32, i) | bit_at(p, i) << 2) - 4);
        }
    }
};

struct UnpackQ4_K {
    static constexpr bool kMinimums = true;
    static constexpr int64_t kBytes = sizeof(BlockQ4_K);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = f32_of_f16(load<uint16_t>(p));
        out.dmin = f32_of_f16(load<uint16_t>(p + 2));
        unpack_scales(p + 4, out);
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int i = 0; i < 256; i++) code[i] = static_cast<int8_t>(nibble_at(p + 16, i));
    }
};

struct UnpackQ5_K {
    static constexpr bool kMinimums = true;
    static constexpr int64_t kBytes = sizeof(BlockQ5_K);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = f32_of_f16(load<uint16_t>(p));
        out.dmin = f32_of_f16(load<uint16_t>(p + 2));
        unpack_scales(p + 4, out);
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int i = 0; i < 256; i++) {
            code[i] = static_cast<int8_t>(nibble_at(p + 48, i) | bit_at(p + 16, i) << 4);
        }
    }
};

// Each half of the block holds four runs of 32 columns: low four bits from 64 bytes of ql (runs 0 and 1 in
// the low nibbles, 2 and 3 in the high ones), high two bits from 32 bytes of qh, run q at bit 2q.
struct UnpackQ6_K {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockQ6_K);
    static void scales(const uint8_t* p, Codes256& out) {
        for (int j = 0; j < 16; j++) out.sc[j] = static_cast<int8_t>(p[192 + j]);
        out.d = f32_of_f16(load<uint16_t>(p + 208));
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int i = 0; i < 256; i++) {
            const int half = i / 128, run = i % 128 / 32, l = i % 32;
            const int low = p[64 * half + 32 * (run & 1) + l] >> (run < 2 ? 0 : 4) & 15;
            code[i] = static_cast<int8_t>((low | pair_at(p + 128, i) << 4) - 32);
        }
    }
};
