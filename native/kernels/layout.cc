// Sizes and names of the packed layouts: packed activation rows, stored cache rows. Owns the arithmetic of
// bytes that the engine allocates by; the kernels lay out by the same constants (format.h). Refuses nothing:
// shapes were checked before.
#include "kernels/resident.h"
#include "kernels/table.h"

namespace finback {

int64_t packed_bytes(Encoding e, int64_t k) {
    switch (e) {
        case Encoding::F32:
            return pad64(4 * k);
        case Encoding::BF16:
            return pad64(2 * k);
        case Encoding::A8x32:
            return pad64(k) + 2 * pad64(k / 32 * 4);
        case Encoding::A8x256:
            return pad64(k) + pad64(k / 256 * 4) + pad64(k / 16 * 2);
        case Encoding::COUNT:
            break;
    }
    return 0;
}

int64_t cache_row_bytes(RowShape shape) {
    if (!shape.rounded) return 4 * static_cast<int64_t>(shape.width);
    if (shape.rotary > 0) return main_rotary_offset(shape.width - shape.rotary) + 2 * shape.rotary;
    return (shape.width + 1) / 2 + (shape.width + kFp4Block - 1) / kFp4Block;
}

Encoding encoding_of(Format f) {
    switch (f) {
        case Format::FP8_E4M3:
            return Encoding::BF16;
        case Format::MXFP4:
        case Format::MXFP4_PAIRS:
        case Format::Q8_0:
        case Format::Q4_0:
        case Format::IQ4_NL:
            return Encoding::A8x32;
        case Format::Q4_K:
        case Format::Q6_K:
        case Format::Q2_K:
        case Format::Q3_K:
        case Format::Q5_K:
        case Format::IQ1_S:
        case Format::IQ1_M:
        case Format::IQ2_XXS:
        case Format::IQ2_XS:
        case Format::IQ2_S:
        case Format::IQ3_XXS:
        case Format::IQ3_S:
        case Format::IQ4_XS:
            return Encoding::A8x256;
        case Format::F32:
        case Format::F16:
        case Format::BF16:
        case Format::COUNT:
            break;
    }
    return Encoding::F32;
}

const char* format_name(Format f) {
    switch (f) {
        case Format::F32:
            return "F32";
        case Format::F16:
            return "F16";
        case Format::BF16:
            return "BF16";
        case Format::FP8_E4M3:
            return "FP8_E4M3";
        case Format::MXFP4:
            return "MXFP4";
        case Format::MXFP4_PAIRS:
            return "MXFP4_PAIRS";
        case Format::Q8_0:
            return "Q8_0";
        case Format::Q4_0:
            return "Q4_0";
        case Format::Q4_K:
            return "Q4_K";
        case Format::Q6_K:
            return "Q6_K";
        case Format::Q2_K:
            return "Q2_K";
        case Format::Q3_K:
            return "Q3_K";
        case Format::Q5_K:
            return "Q5_K";
        case Format::IQ1_S:
            return "IQ1_S";
        case Format::IQ1_M:
            return "IQ1_M";
        case Format::IQ2_XXS:
            return "IQ2_XXS";
        case Format::IQ2_XS:
            return "IQ2_XS";
        case Format::IQ2_S:
            return "IQ2_S";
        case Format::IQ3_XXS:
            return "IQ3_XXS";
        case Format::IQ3_S:
            return "IQ3_S";
        case Format::IQ4_NL:
            return "IQ4_NL";
        case Format::IQ4_XS:
            return "IQ4_XS";
        case Format::COUNT:
            break;
    }
    return "?";
}

BlockSize block_size(Format format) {
    switch (format) {
        case Format::F32:
            return {1, 4};
        case Format::F16:
            return {1, 2};
        case Format::BF16:
            return {1, 2};
        case Format::FP8_E4M3:
            return {1, 1};
        case Format::MXFP4:
            return {32, sizeof(BlockMXFP4)};
        case Format::MXFP4_PAIRS:
            return {32, 16};
        case Format::Q8_0:
            return {32, sizeof(BlockQ8_0)};
        case Format::Q4_0:
            return {32, sizeof(BlockQ4_0)};
        case Format::Q4_K:
            return {256, sizeof(BlockQ4_K)};
        case Format::Q6_K:
            return {256, sizeof(BlockQ6_K)};
        case Format::Q2_K:
            return {256, sizeof(BlockQ2_K)};
        case Format::Q3_K:
            return {256, sizeof(BlockQ3_K)};
        case Format::Q5_K:
            return {256, sizeof(BlockQ5_K)};
        case Format::IQ1_S:
            return {256, sizeof(BlockIQ1_S)};
        case Format::IQ1_M:
            return {256, sizeof(BlockIQ1_M)};
        case Format::IQ2_XXS:
            return {256, sizeof(BlockIQ2_XXS)};
        case Format::IQ2_XS:
            return {256, sizeof(BlockIQ2_XS)};
        case Format::IQ2_S:
            return {256, sizeof(BlockIQ2_S)};
        case Format::IQ3_XXS:
            return {256, sizeof(BlockIQ3_XXS)};
        case Format::IQ3_S:
            return {256, sizeof(BlockIQ3_S)};
        case Format::IQ4_NL:
            return {32, sizeof(BlockIQ4_NL)};
        case Format::IQ4_XS:
            return {256, sizeof(BlockIQ4_XS)};
        case Format::COUNT:
            break;
    }
    return {0, 0};
}

Layout resident_layout(Format f) { return tile_shape(f).columns ? Layout::TILES : Layout::ROWS; }

int64_t resident_bytes(Format f, int64_t rows, int64_t cols) {
    const TileShape s = tile_shape(f);
    if (s.columns) return (rows + kTileRows - 1) / kTileRows * tile_bytes(s, cols);
    const BlockSize b = block_size(f);
    return rows * (cols / b.weights * b.bytes);
}

const char* encoding_name(Encoding e) {
    switch (e) {
        case Encoding::F32:
            return "F32";
        case Encoding::BF16:
            return "BF16";
        case Encoding::A8x32:
            return "A8x32";
        case Encoding::A8x256:
            return "A8x256";
        case Encoding::COUNT:
            break;
    }
    return "?";
}

}  // namespace finback
