// What the bytes of a tile mean (resident.h): for every format, how a step of 32 columns becomes eight
// registers of codes, and what its scales are. Included by every level after its codes_*.h. Owns reading;
// writing, the same rules backwards, is in tiles_make.inl. Refuses nothing.
//
// A format says
//     kColumns    of a block: 32 (A8x32 activations) or 256 (A8x256)
//     kGroup      columns under one integer scale: 16, 32, or 0 without
//     kMaxCode    largest code, for the width of the sums; 255: codes are numbers plus 128 (`wide`)
//     kBias       what is added to each number to make its code
//     kMinimums   whether a minimum per group is subtracted (then kBias is 0)
//     kStep       bytes of a step
//     codes_of(q, use)     use(i, codes of columns 4i .. 4i+3), i ascending
//     d(head), dmin(head)  f32 factors;  scale<g>(head), minimum<g>(head): integers of group g

#define FINBACK_LAMBDA __attribute__((always_inline))

namespace tiles {

// ---- planes: low bits of the codes, then the high ones. Register i of a step lies
//   in planes of four bits: byte plane i / 2, at bit 4 * (i % 2)
//   in planes of two bits:  byte plane i / 4, at bit 2 * (i % 4)
//   in planes of one bit:   the byte plane, at bit i

template <int kLow, int kHigh>
struct Planes {
    using Stored = Planes;
    static constexpr int64_t kStep = 64 * (kLow + kHigh);

    template <int i>
    FINBACK_INLINE static codes low(const uint8_t* q) {
        if constexpr (kLow == 8) return load_codes(q + 64 * i);
        if constexpr (kLow == 4) return bits<4 * (i % 2), 15>(load_codes(q + 64 * (i / 2)));
        if constexpr (kLow == 2) return bits<2 * (i % 4), 3>(load_codes(q + 64 * (i / 4)));
    }
    template <int i>
    FINBACK_INLINE static codes at(const uint8_t* q) {
        const uint8_t* high = q + 64 * kLow;
        if constexpr (kHigh == 0) return low<i>(q);
        if constexpr (kHigh == 1) return low<i>(q) | bits<i - kLow, 1 << kLow>(load_codes(high));
        if constexpr (kHigh == 2) {
            return low<i>(q) | bits<2 * (i % 4) - kLow, 3 << kLow>(load_codes(high + 64 * (i / 4)));
        }
    }
    // Written out: a loop that the compiler may or may not unroll would not do.
    template <class Use>
    FINBACK_INLINE static void codes_of(const uint8_t* q, Use use) {
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
    static constexpr int64_t kStep = Index::kStep;
    template <class Use>
    FINBACK_INLINE static void codes_of(const uint8_t* q, Use use) {
        const code_table table = table_of(kTable);
        Index::codes_of(q, [&](int i, codes c) FINBACK_LAMBDA { use(i, lookup(table, c)); });
    }
};

// ---- blocks of 32: no integer scales

struct Plain {
    static constexpr int kColumns = 32, kGroup = 0;
    static constexpr bool kMinimums = false;
};
struct F16Head : Plain {
    FINBACK_INLINE static f32x16 d(const uint8_t* head) { return load_f16(head); }
};

struct Q8_0 : F16Head, Planes<8, 0> {
    static constexpr Format kFormat = Format::Q8_0;
    static constexpr int kMaxCode = 255, kBias = 128;
};

struct Q4_0 : F16Head, Planes<4, 0> {
    static constexpr Format kFormat = Format::Q4_0;
    static constexpr int kMaxCode = 15, kBias = 8;
};

// Doubled E2M1 values plus 12.
alignas(16) constexpr uint8_t kE2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct MXFP4 : Plain, Looked<Planes<4, 0>, kE2M1> {
    static constexpr Format kFormat = Format::MXFP4;
    static constexpr int kMaxCode = 24, kBias = 12;
    FINBACK_INLINE static f32x16 d(const uint8_t* head) { return load_e8m0_halves(head); }
};

// ---- blocks of 256

// Bytes of four groups of every row: dword `i` behind the f16 factors.
FINBACK_INLINE codes head_codes(const uint8_t* head, int64_t offset, int i) {
    return load_codes(head + offset + 64 * i);
}

// d, dmin; eight 6-bit scales and minimums in the twelve bytes of blocks::unpack_scales.
struct SixBitPairs {
    static constexpr int kColumns = 256, kGroup = 32, kBias = 0;
    static constexpr bool kMinimums = true;
    FINBACK_INLINE static f32x16 d(const uint8_t* head) { return load_f16(head); }
    FINBACK_INLINE static f32x16 dmin(const uint8_t* head) { return load_f16(head + 32); }
    template <int g>
    FINBACK_INLINE static scales scale(const uint8_t* head) {
        const codes s0 = head_codes(head, 64, 0);
        if constexpr (g < 4) return unsigned_scales<g>(lanes_of(bits<0, 63>(s0)));
        const codes s2 = head_codes(head, 64, 2);
        return unsigned_scales<g % 4>(lanes_of(bits<0, 15>(s2) | bits<2, 0x30>(s0)));
    }
    template <int g>
    FINBACK_INLINE static scales minimum(const uint8_t* head) {
        const codes s1 = head_codes(head, 64, 1);
        if constexpr (g < 4) return unsigned_scales<g>(lanes_of(bits<0, 63>(s1)));
        const codes s2 = head_codes(head, 64, 2);
        return unsigned_scales<g % 4>(lanes_of(bits<4, 15>(s2) | bits<2, 0x30>(s1)));
    }
};

struct Q4_K : SixBitPairs, Planes<4, 0> {
    static constexpr Format kFormat = Format::Q4_K;
    static constexpr int kMaxCode = 15;
};

// d and sixteen signed bytes.
struct Q6_K : Planes<4, 2> {
    static constexpr Format kFormat = Format::Q6_K;
    static constexpr int kColumns = 256, kGroup = 16, kMaxCode = 63, kBias = 32;
    static constexpr bool kMinimums = false;
    FINBACK_INLINE static f32x16 d(const uint8_t* head) { return load_f16(head); }
    template <int g>
    FINBACK_INLINE static scales scale(const uint8_t* head) {
        return signed_scales<g % 4>(lanes_of(head_codes(head, 32, g / 4)));
    }
};

}  // namespace tiles
