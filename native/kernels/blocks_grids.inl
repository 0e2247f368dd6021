// What the bytes of the IQ formats mean: weights that are points of a grid, or picks from a table. Included
// inside namespace blocks. Owns what the levels of a grid are worth and the unpacking of IQ1 to IQ4 into
// Codes256 and Codes32. Every scale is an integer of the form 2 s + 1 on an exact fraction of the stored d,
// so that codes are whole numbers: IQ1 weights g +- 1/8 become 8 g +- 1.

constexpr int8_t kLevels3[4] = {8, 25, 43, 0};                               // IQ2; a point has no level 3
constexpr int8_t kLevels8[8] = {4, 12, 20, 28, 36, 44, 52, 62};              // IQ3_XXS
constexpr int8_t kOdd8[8] = {1, 3, 5, 7, 9, 11, 13, 15};                     // IQ3_S
constexpr int8_t kTable16[16] = {-127, -104, -83, -65, -49, -35, -22, -10,   //
                                 1,    13,   25,  38,  53,  69,  89,  113};  // IQ4

// Eight signs from seven: the eighth makes the number of minuses even.
inline uint32_t eight_signs(uint32_t seven) {
    return (seven & 127) | static_cast<uint32_t>(__builtin_parity(seven & 127)) << 7;
}

// Eight weights of an IQ2 point, minus where `signs` has a 1.
inline void put_eight(uint32_t point, uint32_t signs, int8_t* code) {
    for (int i = 0; i < 8; i++) {
        const int magnitude = kLevels3[point >> 2 * i & 3];
        code[i] = static_cast<int8_t>(signs >> i & 1 ? -magnitude : magnitude);
    }
}

// Four weights of an IQ3 point.
inline void put_four(uint32_t point, const int8_t* levels, uint32_t signs, int8_t* code) {
    for (int i = 0; i < 4; i++) {
        const int magnitude = levels[point >> 3 * i & 7];
        code[i] = static_cast<int8_t>(signs >> i & 1 ? -magnitude : magnitude);
    }
}

// Eight weights of an IQ1 point: 8 g + shift.
inline void put_shifted(uint32_t point, int shift, int8_t* code) {
    for (int i = 0; i < 8; i++) {
        code[i] = static_cast<int8_t>(8 * (static_cast<int>(point >> 2 * i & 3) - 1) + shift);
    }
}

inline int nibble_of(const uint8_t* p, int j) { return p[j / 2] >> j % 2 * 4 & 15; }

struct UnpackIQ1_S {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ1_S);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = 0.125f * f32_of_f16(load<uint16_t>(p));
        for (int g = 0; g < 8; g++) {
            set_pair(out.sc, g, 2 * (load<uint16_t>(p + 34 + 2 * g) >> 12 & 7) + 1);
        }
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int g = 0; g < 8; g++) {
            const uint32_t high = load<uint16_t>(p + 34 + 2 * g);
            for (int l = 0; l < 4; l++) {
                const uint32_t at = p[2 + 4 * g + l] | (high >> 3 * l & 7) << 8;
                put_shifted(grids::kIQ1.point[at], high >> 15 ? -1 : 1, code + 32 * g + 8 * l);
            }
        }
    }
};

struct UnpackIQ1_M {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ1_M);
    static void scales(const uint8_t* p, Codes256& out) {
        uint32_t d = 0;
        for (int j = 0; j < 16; j++) {
            const uint32_t word = load<uint16_t>(p + 48 + j / 4 * 2);
            out.sc[j] = static_cast<int>(2 * (word >> j % 4 * 3 & 7) + 1);
            if (j % 4 == 0) d |= word >> 12 << j;
        }
        out.d = 0.125f * f32_of_f16(static_cast<uint16_t>(d));
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int l = 0; l < 32; l++) {
            const uint32_t high = static_cast<uint32_t>(nibble_of(p + 32, l));
            put_shifted(grids::kIQ1.point[p[l] | (high & 7) << 8], high & 8 ? -1 : 1, code + 8 * l);
        }
    }
};

struct UnpackIQ2_XXS {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ2_XXS);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = 0.125f * f32_of_f16(load<uint16_t>(p));
        for (int g = 0; g < 8; g++) set_pair(out.sc, g, 2 * (p[9 + 8 * g] >> 4) + 1);
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int g = 0; g < 8; g++) {
            const uint8_t* q = p + 2 + 8 * g;
            const uint32_t tail = load<uint32_t>(q + 4);
            for (int l = 0; l < 4; l++) {
                put_eight(grids::kIQ2_XXS.point[q[l]], eight_signs(tail >> 7 * l), code + 32 * g + 8 * l);
            }
        }
    }
};

struct UnpackIQ2_XS {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ2_XS);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = 0.125f * f32_of_f16(load<uint16_t>(p));
        for (int j = 0; j < 16; j++) out.sc[j] = 2 * nibble_of(p + 66, j) + 1;
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int l = 0; l < 32; l++) {
            const uint32_t q = load<uint16_t>(p + 2 + 2 * l);
            put_eight(grids::kIQ2_XS.point[q & 511], eight_signs(q >> 9), code + 8 * l);
        }
    }
};

struct UnpackIQ2_S {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ2_S);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = 0.125f * f32_of_f16(load<uint16_t>(p));
        for (int j = 0; j < 16; j++) out.sc[j] = 2 * nibble_of(p + 74, j) + 1;
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int l = 0; l < 32; l++) {
            const int at = p[2 + l] | (p[66 + l / 4] >> l % 4 * 2 & 3) << 8;
            put_eight(grids::kIQ2_S.point[at], p[34 + l], code + 8 * l);
        }
    }
};

struct UnpackIQ3_XXS {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ3_XXS);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = 0.25f * f32_of_f16(load<uint16_t>(p));
        for (int g = 0; g < 8; g++) set_pair(out.sc, g, 2 * (p[69 + 4 * g] >> 4) + 1);
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int g = 0; g < 8; g++) {
            const uint32_t tail = load<uint32_t>(p + 66 + 4 * g);
            for (int l = 0; l < 8; l++) {
                const uint32_t signs = eight_signs(tail >> l / 2 * 7) >> l % 2 * 4;
                put_four(grids::kIQ3_XXS.point[p[2 + 8 * g + l]], kLevels8, signs, code + 32 * g + 4 * l);
            }
        }
    }
};

struct UnpackIQ3_S {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ3_S);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = f32_of_f16(load<uint16_t>(p));
        for (int g = 0; g < 8; g++) set_pair(out.sc, g, 2 * nibble_of(p + 106, g) + 1);
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int l = 0; l < 64; l++) {
            const int at = p[2 + l] | (p[66 + l / 8] >> l % 8 & 1) << 8;
            const uint32_t signs = static_cast<uint32_t>(nibble_of(p + 74, l));
            put_four(grids::kIQ3_S.point[at], kOdd8, signs, code + 4 * l);
        }
    }
};

// Sixteen bytes of nibbles: byte i holds weights i (low) and i + 16 (high).
inline void put_picks(const uint8_t* q, int8_t* code) {
    for (int i = 0; i < 16; i++) {
        code[i] = kTable16[q[i] & 15];
        code[i + 16] = kTable16[q[i] >> 4];
    }
}

struct UnpackIQ4_NL {
    static void block(const Matrix& w, int64_t r, int64_t b, Codes32& out) {
        const uint8_t* p = row_of(w, r) + b * static_cast<int64_t>(sizeof(BlockIQ4_NL));
        out.d = f32_of_f16(load<uint16_t>(p));
        put_picks(p + 2, out.code);
    }
};

struct UnpackIQ4_XS {
    static constexpr bool kMinimums = false;
    static constexpr int64_t kBytes = sizeof(BlockIQ4_XS);
    static void scales(const uint8_t* p, Codes256& out) {
        out.d = f32_of_f16(load<uint16_t>(p));
        const int high = load<uint16_t>(p + 2);
        for (int g = 0; g < 8; g++) {
            set_pair(out.sc, g, (nibble_of(p + 4, g) | (high >> 2 * g & 3) << 4) - 32);
        }
    }
    static void codes(const uint8_t* p, int8_t* code) {
        for (int g = 0; g < 8; g++) put_picks(p + 8 + 16 * g, code + 32 * g);
    }
};
