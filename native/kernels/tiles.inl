// What the bytes of a tile mean (resident.h): for every format, how a step of 32 columns becomes eight
// registers of codes, and what its scales are. Included by every level after its codes_*.h. Owns reading;
// writing, the same rules backwards, is in tiles_make.inl. Refuses nothing.
//
// A format says
//     kColumns    of a block: 32 (A8x32 activations) or 256 (A8x256)
//     kGroup      columns under one integer scale: 16, 32, or 0 without
//     kMaxCode    largest code, for the width of the sums; 255: codes are signed numbers (`wide`)
//     kBias       what is added to each number to make its code
//     kMinimums   whether a minimum per group is subtracted (then kBias is 0)
//     kStep       bytes of a step
//     codes_of(q, use)     use(i, codes of columns 4i .. 4i+3), i ascending
//     d(head), dmin(head)  f32 factors;  scale<g>(head), minimum<g>(head): integers of group g

namespace tiles {

// ---- planes: low bits of the codes, then the high ones. Register i of a step lies
//   in planes of four bits: byte plane i / 2, at bit 4 * (i % 2)
//   in planes of two bits:  byte plane i / 4, at bit 2 * (i % 4)
//   in planes of one bit:   the byte plane, at bit i

template <int kLow, int kHigh>
struct Planes {
    using Stored = Planes;
    static constexpr int64_t kStep = 64 * (kLow + kHigh);
    static constexpr const uint8_t* kNumbers = nullptr;

    template <int i>
    FINBACK_HOT static codes low(const uint8_t* q) {
        if constexpr (kLow == 8) return load_codes(q + 64 * i);
        if constexpr (kLow == 4) return bits<4 * (i % 2), 15>(load_codes(q + 64 * (i / 2)));
        if constexpr (kLow == 2) return bits<2 * (i % 4), 3>(load_codes(q + 64 * (i / 4)));
    }
    template <int i>
    FINBACK_HOT static codes at(const uint8_t* q) {
        const uint8_t* high = q + 64 * kLow;
        if constexpr (kHigh == 0) return low<i>(q);
        if constexpr (kHigh == 1) return low<i>(q) | bits<i - kLow, 1 << kLow>(load_codes(high));
        if constexpr (kHigh == 2) {
            return low<i>(q) | bits<2 * (i % 4) - kLow, 3 << kLow>(load_codes(high + 64 * (i / 4)));
        }
    }
    // Written out: a loop that the compiler may or may not unroll would not do.
    template <class Use>
    FINBACK_HOT static void codes_of(const uint8_t* q, Use use) {
        use(0, at<0>(q));
        use(1, at<1>(q));
        use(2, at<2>(q));
        use(3, at<3>(q));
        use(4, at<4>(q));
        use(5, at<5>(q));
        use(6, at<6>(q));
        use(7, at<7>(q));
    }
};

// Codes that are places in a table of sixteen.
template <class Index, const uint8_t* kTable>
struct Looked {
    using Stored = Index;
    static constexpr const uint8_t* kNumbers = kTable;
    static constexpr int64_t kStep = Index::kStep;
    template <class Use>
    FINBACK_HOT static void codes_of(const uint8_t* q, Use use) {
        const code_table table = table_of(kTable);
        Index::codes_of(q, [&](int i, codes c) FINBACK_HOT_LAMBDA { use(i, lookup(table, c)); });
    }
};

// ---- heads of blocks of 32: a factor, no integer scales

struct Plain {
    static constexpr int kColumns = 32, kGroup = 0;
    static constexpr bool kMinimums = false;
};
struct HalfHead : Plain {
    FINBACK_HOT static f32x16 d(const uint8_t* head) { return load_f16(head); }
};
struct E8M0Head : Plain {
    FINBACK_HOT static f32x16 d(const uint8_t* head) { return load_e8m0_halves(head); }
};

// ---- heads of blocks of 256: f16 factors, then words: byte i of a row is byte i % 4 of its lane in word i /
// 4

FINBACK_HOT codes word(const uint8_t* words, int i) { return load_codes(words + 64 * i); }

struct Block256 {
    static constexpr int kColumns = 256;
    static constexpr bool kMinimums = false;
    FINBACK_HOT static f32x16 d(const uint8_t* head) { return load_f16(head); }
};

// Scales and minimums in six bits, a group of 32 each: twelve bytes, packed as in the file
// (blocks::unpack_scales).
struct SixBitHead : Block256 {
    static constexpr int kGroup = 32, kBias = 0;
    static constexpr bool kMinimums = true;
    FINBACK_HOT static f32x16 dmin(const uint8_t* head) { return load_f16(head + 32); }
    template <int g>
    FINBACK_HOT static scales scale(const uint8_t* head) {
        const codes first = word(head + 64, 0);
        if constexpr (g < 4) return unsigned_scales<g>(lanes_of(bits<0, 63>(first)));
        return unsigned_scales<g % 4>(lanes_of(bits<0, 15>(word(head + 64, 2)) | bits<2, 0x30>(first)));
    }
    template <int g>
    FINBACK_HOT static scales minimum(const uint8_t* head) {
        const codes second = word(head + 64, 1);
        if constexpr (g < 4) return unsigned_scales<g>(lanes_of(bits<0, 63>(second)));
        return unsigned_scales<g % 4>(lanes_of(bits<4, 15>(word(head + 64, 2)) | bits<2, 0x30>(second)));
    }
};

// Scales and minimums in four bits, a group of 16 each: byte g holds both of group g, the scale in its low
// half.
struct FourBitHead : Block256 {
    static constexpr int kGroup = 16, kBias = 0;
    static constexpr bool kMinimums = true;
    FINBACK_HOT static f32x16 dmin(const uint8_t* head) { return load_f16(head + 32); }
    template <int g>
    FINBACK_HOT static scales scale(const uint8_t* head) {
        return unsigned_scales<g % 4>(lanes_of(bits<0, 15>(word(head + 64, g / 4))));
    }
    template <int g>
    FINBACK_HOT static scales minimum(const uint8_t* head) {
        return unsigned_scales<g % 4>(lanes_of(bits<4, 15>(word(head + 64, g / 4))));
    }
};

// A signed byte for each group.
template <int group>
struct SignedHead : Block256 {
    static constexpr int kGroup = group;
    template <int g>
    FINBACK_HOT static scales scale(const uint8_t* head) {
        return signed_scales<g % 4>(lanes_of(word(head + 32, g / 4)));
    }
};

// Sixteen scales plus 32 in six bits: the low bits of twelve bytes for groups 0..11, and two bits on top of
// bytes j, 4 + j and 8 + j for group 12 + j, lowest first.
struct SixBitSignedHead : Block256 {
    static constexpr int kGroup = 16;
    template <int g>
    FINBACK_HOT static scales scale(const uint8_t* head) {
        const uint8_t* words = head + 32;
        if constexpr (g < 12)
            return minus(unsigned_scales<g % 4>(lanes_of(bits<0, 63>(word(words, g / 4)))), 32);
        const codes top =
            bits<6, 3>(word(words, 0)) | bits<4, 0x0c>(word(words, 1)) | bits<2, 0x30>(word(words, 2));
        return minus(unsigned_scales<g % 4>(lanes_of(top)), 32);
    }
};

// Scales 2 s + 1, s in four bits: byte g / 2 holds groups g and g + 1. The factor is the f16 times 1 / parts.
template <int group, int parts>
struct OddHead : Block256 {
    static constexpr int kGroup = group, kParts = parts;
    FINBACK_HOT static f32x16 d(const uint8_t* head) { return load_f16(head) * broadcast(1.0f / parts); }
    template <int g>
    FINBACK_HOT static scales scale(const uint8_t* head) {
        const codes both = word(head + 32, g / 8), one = fill_codes(1);
        const codes odd = (g % 2 ? bits<3, 0x1e>(both) : bits<-1, 0x1e>(both)) | one;
        return unsigned_scales<g / 2 % 4>(lanes_of(odd));
    }
};

// ---- tables: the numbers plus a bias

alignas(16) constexpr uint8_t kE2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
// level, minus above; of blocks::kLevels3, kLevels8, kOdd8
alignas(16) constexpr uint8_t kGrid3[16] = {51, 68, 86, 0, 35, 18, 0, 0, 51, 68, 86, 0, 35, 18, 0, 0};
alignas(16) constexpr uint8_t kGrid8[16] = {66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0};
alignas(16) constexpr uint8_t kGridOdd[16] = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
// 8 g + shift of IQ1: -9, -7, -1, 1, 7, 9
alignas(16) constexpr uint8_t kShifted[16] = {0, 2, 8, 10, 16, 18, 0, 0, 0, 2, 8, 10, 16, 18, 0, 0};
// blocks::kTable16, signed
alignas(16) constexpr uint8_t kCurve[16] = {129, 152, 173, 191, 207, 221, 234, 246,
                                            1,   13,  25,  38,  53,  69,  89,  113};

// ---- formats

template <Format format, int max_code>
struct Name {
    static constexpr Format kFormat = format;
    static constexpr int kMaxCode = max_code;
};
template <int bias>
struct Bias {
    static constexpr int kBias = bias;
};

struct Q8_0 : Name<Format::Q8_0, 255>, HalfHead, Planes<8, 0>, Bias<0> {};
struct Q4_0 : Name<Format::Q4_0, 15>, HalfHead, Planes<4, 0>, Bias<8> {};
struct MXFP4 : Name<Format::MXFP4, 24>, E8M0Head, Looked<Planes<4, 0>, kE2M1>, Bias<12> {};
struct IQ4_NL : Name<Format::IQ4_NL, 255>, HalfHead, Looked<Planes<4, 0>, kCurve>, Bias<0> {};

struct Q2_K : Name<Format::Q2_K, 3>, FourBitHead, Planes<2, 0> {};
struct Q3_K : Name<Format::Q3_K, 7>, SixBitSignedHead, Planes<2, 1>, Bias<4> {};
struct Q4_K : Name<Format::Q4_K, 15>, SixBitHead, Planes<4, 0> {};
struct Q5_K : Name<Format::Q5_K, 31>, SixBitHead, Planes<4, 1> {};
struct Q6_K : Name<Format::Q6_K, 63>, SignedHead<16>, Planes<4, 2>, Bias<32> {};

struct IQ1_S : Name<Format::IQ1_S, 18>, OddHead<32, 8>, Looked<Planes<2, 1>, kShifted>, Bias<9> {};
struct IQ1_M : Name<Format::IQ1_M, 18>, OddHead<16, 8>, Looked<Planes<2, 1>, kShifted>, Bias<9> {};
struct IQ2_XXS : Name<Format::IQ2_XXS, 86>, OddHead<32, 8>, Looked<Planes<2, 1>, kGrid3>, Bias<43> {};
struct IQ2_XS : Name<Format::IQ2_XS, 86>, OddHead<16, 8>, Looked<Planes<2, 1>, kGrid3>, Bias<43> {};
struct IQ2_S : Name<Format::IQ2_S, 86>, OddHead<16, 8>, Looked<Planes<2, 1>, kGrid3>, Bias<43> {};
struct IQ3_XXS : Name<Format::IQ3_XXS, 124>, OddHead<32, 4>, Looked<Planes<4, 0>, kGrid8>, Bias<62> {};
struct IQ3_S : Name<Format::IQ3_S, 30>, OddHead<32, 1>, Looked<Planes<4, 0>, kGridOdd>, Bias<15> {};
struct IQ4_XS : Name<Format::IQ4_XS, 255>, SignedHead<32>, Looked<Planes<4, 0>, kCurve>, Bias<0> {};

}  // namespace tiles
