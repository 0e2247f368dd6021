// The packing, product and decoding kernels of one level on NumPy arrays. Owns the checks that make a Matrix from arrays safe
// to read: widths in whole blocks, rows and scales of the right length. Does no arithmetic. Refuses formats and encodings by
// name when they are not those of format.h.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "bind/kernels.h"
#include "core/float_mode.h"

namespace finback {
namespace {

using nb::literals::operator""_a;

Encoding encoding_named(const std::string& name) {
    for (int e = 0; e < static_cast<int>(Encoding::COUNT); ++e)
        if (name == encoding_name(static_cast<Encoding>(e))) return static_cast<Encoding>(e);
    throw nb::value_error(("encoding='" + name + "' is not one of F32, BF16, A8x32, A8x256").c_str());
}

Format format_named(const std::string& name) {
    for (int f = 0; f < static_cast<int>(Format::COUNT); ++f)
        if (name == format_name(static_cast<Format>(f))) return static_cast<Format>(f);
    throw nb::value_error(("format='" + name + "' has no kernels").c_str());
}

// Values of one stored block and its bytes.
struct BlockSize {
    int64_t values, bytes;
};

BlockSize block_size(Format f) {
    switch (f) {
        case Format::F32: return {1, 4};
        case Format::F16:
        case Format::BF16: return {1, 2};
        case Format::FP8_E4M3: return {1, 1};
        case Format::MXFP4: return {32, sizeof(BlockMXFP4)};
        case Format::MXFP4_PAIRS: return {32, 16};
        case Format::Q8_0: return {32, sizeof(BlockQ8_0)};
        case Format::Q4_0: return {32, sizeof(BlockQ4_0)};
        case Format::Q4_K: return {256, sizeof(BlockQ4_K)};
        case Format::Q6_K: return {256, sizeof(BlockQ6_K)};
        case Format::COUNT: break;
    }
    return {1, 1};
}

// Widths an encoding can pack.
int64_t encoding_unit(Encoding e) { return e == Encoding::A8x32 ? 32 : e == Encoding::A8x256 ? 256 : 1; }

// scales: bytes [scale rows, scale cols] (E8M0) or f32 of the same shape, for FP8_E4M3 and MXFP4_PAIRS only.
using ScaleRows = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void set_scales(Matrix& w, const ScaleRows& scales, int32_t block_rows, int32_t block_cols) {
    check(block_rows >= 1 && block_cols >= 1, "block_rows and block_cols must be at least 1");
    const bool floats = scales.dtype() == nb::dtype<float>();
    check(floats || scales.dtype() == nb::dtype<uint8_t>(), "scales are neither f32 nor E8M0 bytes");
    const int64_t need_rows = (w.rows + block_rows - 1) / block_rows, need_cols = (w.cols + block_cols - 1) / block_cols;
    check(static_cast<int64_t>(scales.shape(0)) >= need_rows && static_cast<int64_t>(scales.shape(1)) >= need_cols,
          "scales do not cover the matrix");
    w.scale_kind = floats ? ScaleKind::F32 : ScaleKind::E8M0;
    w.scales = static_cast<const uint8_t*>(scales.data());
    w.scale_cols = static_cast<int64_t>(scales.shape(1));
    w.block_rows = block_rows;
    w.block_cols = block_cols;
}

Matrix matrix_of(const std::string& format, int64_t cols, const ByteRows& data, const std::optional<ScaleRows>& scales,
                 int32_t block_rows, int32_t block_cols) {
    Matrix w{};
    w.format = format_named(format);
    w.rows = static_cast<int64_t>(data.shape(0));
    w.cols = cols;
    w.data = data.data();
    w.row_bytes = static_cast<int64_t>(data.shape(1));
    const BlockSize block = block_size(w.format);
    check(cols >= 1 && cols % block.values == 0, "cols is not a whole number of blocks");
    check(w.row_bytes >= cols / block.values * block.bytes, "rows of data are shorter than cols needs");
    const bool plane = w.format == Format::FP8_E4M3 || w.format == Format::MXFP4_PAIRS;
    check(plane == scales.has_value(), "scales are for FP8_E4M3 and MXFP4_PAIRS, and needed there");
    if (scales) set_scales(w, *scales, block_rows, block_cols);
    return w;
}

}  // namespace

void bind_linear_kernels(nb::module_& m) {
    m.def(
        "pack",
        [](const std::string& level, const std::string& encoding, Floats x) {
            const Encoding e = encoding_named(encoding);
            const int64_t k = static_cast<int64_t>(x.shape(0));
            check(k >= 1 && k % encoding_unit(e) == 0, "the length of x is not a whole number of the encoding's blocks");
            Fresh<uint8_t> out({static_cast<size_t>(packed_bytes(e, k))});
            const FloatMode mode;
            const bool finite = level_table(level).pack[static_cast<int>(e)](x.data(), k, out.data);
            return std::make_pair(finite, out.array);
        },
        "level"_a, "encoding"_a, "x"_a.noconvert(), "(whether x is finite, packed row)");
    m.def(
        "linear",
        [](const std::string& level, const std::string& format, int64_t cols, ByteRows data,
           std::optional<ScaleRows> scales, int32_t block_rows, int32_t block_cols, ByteRows packed, int64_t row0,
           int64_t row1) {
            const Matrix w = matrix_of(format, cols, data, scales, block_rows, block_cols);
            check(row0 >= 0 && row0 <= row1 && row1 <= w.rows, "row0 .. row1 is not a range of rows");
            check(static_cast<int64_t>(packed.shape(1)) == packed_bytes(encoding_of(w.format), cols),
                  "packed rows are not in the encoding of the format");
            const size_t n = packed.shape(0), width = static_cast<size_t>(row1 - row0);
            Fresh<float> out({n, width});
            std::vector<const uint8_t*> x;
            std::vector<float*> to;
            for (size_t t = 0; t < n; ++t) {
                x.push_back(packed.data() + t * packed.shape(1));
                to.push_back(out.data + t * width);
            }
            const FloatMode mode;
            level_table(level).linear[static_cast<int>(w.format)](w, row0, row1, x.data(), static_cast<int64_t>(n),
                                                                  to.data());
            return out.array;
        },
        "level"_a, "format"_a, "cols"_a, "data"_a.noconvert(), "scales"_a.noconvert().none(), "block_rows"_a,
        "block_cols"_a, "packed"_a.noconvert(), "row0"_a, "row1"_a, "f32 [packed rows, row1 - row0]");
    m.def(
        "decode_row",
        [](const std::string& level, const std::string& format, int64_t cols, ByteRows data,
           std::optional<ScaleRows> scales, int32_t block_rows, int32_t block_cols, int64_t row) {
            const Matrix w = matrix_of(format, cols, data, scales, block_rows, block_cols);
            check(row >= 0 && row < w.rows, "row is not a row of data");
            Fresh<float> out({static_cast<size_t>(cols)});
            const FloatMode mode;
            level_table(level).decode_row[static_cast<int>(w.format)](w, row, out.data);
            return out.array;
        },
        "level"_a, "format"_a, "cols"_a, "data"_a.noconvert(), "scales"_a.noconvert().none(), "block_rows"_a,
        "block_cols"_a, "row"_a, "f32 [cols]");
}

}  // namespace finback
