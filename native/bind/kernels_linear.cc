// Python access to packing, matrix products and row decoding of one instruction-set level, for tests: pack,
// linear, decode_row. Owns the checks that make a Matrix out of arrays safe to read, and copies what the
// kernels want aligned. Does no arithmetic. Refuses unknown names, widths that are not whole blocks, and
// arrays of another length than the shape needs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "core/cpu.h"
#include "core/float_mode.h"

namespace nb = nanobind;

namespace finback {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PackedRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // uint8 (E8M0) or float32
using BlockShape = std::optional<std::pair<int32_t, int32_t>>;

constexpr int64_t kMostValues = int64_t{1}
                                << 32;  // of one matrix or row: keeps every product of sizes in range

void require(bool good, const std::string& sentence) {
    if (!good) throw nb::value_error(sentence.c_str());
}

const Table& table_of(const std::string& level) {
    std::string why;
    const Table* table = select_table(level, &why);
    require(table != nullptr, why);
    return *table;
}

Format format_of(const std::string& name) {
    for (int f = 0; f < static_cast<int>(Format::COUNT); f++) {
        if (name == format_name(static_cast<Format>(f))) return static_cast<Format>(f);
    }
    throw nb::value_error(("no kernels for format '" + name + "'").c_str());
}

Encoding encoding_of_name(const std::string& name) {
    for (int e = 0; e < static_cast<int>(Encoding::COUNT); e++) {
        if (name == encoding_name(static_cast<Encoding>(e))) return static_cast<Encoding>(e);
    }
    throw nb::value_error(("no encoding '" + name + "'; there are F32, BF16, A8x32, A8x256").c_str());
}

void set_scales(Matrix& w, const std::optional<Scales>& scales, const BlockShape& block) {
    const bool fp8 = w.format == Format::FP8_E4M3, plane = fp8 || w.format == Format::MXFP4_PAIRS;
    require(plane == scales.has_value() && plane == block.has_value(),
            "scales and block belong to FP8_E4M3 and MXFP4_PAIRS, which need both");
    if (!plane) return;
    const bool known =
        fp8 ? (*block == std::pair{128, 128} || *block == std::pair{32, 32}) : *block == std::pair{1, 32};
    require(known, "block is 128x128 or 32x32 for FP8_E4M3, 1x32 for MXFP4_PAIRS");
    const bool e8m0 = scales->dtype() == nb::dtype<uint8_t>();
    require(e8m0 || (fp8 && scales->dtype() == nb::dtype<float>()),
            "scales are uint8 (E8M0), or float32 for FP8_E4M3");
    w.scale_kind = e8m0 ? ScaleKind::E8M0 : ScaleKind::F32;
    w.block_rows = block->first;
    w.block_cols = block->second;
    w.scale_cols = (w.cols + w.block_cols - 1) / w.block_cols;
    const int64_t scale_rows = (w.rows + w.block_rows - 1) / w.block_rows;
    require(static_cast<int64_t>(scales->size()) == scale_rows * w.scale_cols,
            "scales do not have one entry per block");
    w.scales = static_cast<const uint8_t*>(scales->data());
}

Matrix matrix_of(const std::string& format, const Bytes& data, const std::optional<Scales>& scales,
                 int64_t rows, int64_t cols, const BlockShape& block) {
    Matrix w{};
    w.format = format_of(format);
    const BlockSize b = block_size(w.format);
    require(rows >= 1 && cols >= 1 && cols <= kMostValues / rows, "rows or cols out of range");
    require(cols % b.weights == 0, "cols is not a whole number of blocks");
    w.rows = rows;
    w.cols = cols;
    w.row_bytes = cols / b.weights * b.bytes;
    require(static_cast<int64_t>(data.size()) == rows * w.row_bytes, "data does not have rows * row bytes");
    w.data = data.data();
    set_scales(w, scales, block);
    return w;
}

template <class T>
nb::ndarray<nb::numpy, T> owned(T* data, std::initializer_list<size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

// Memory at a multiple of 64 bytes, as packed rows are in the engine's arena.
struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
};
std::unique_ptr<uint8_t, Free> aligned(int64_t bytes) {
    void* p = std::aligned_alloc(64, static_cast<size_t>(pad64(bytes + 1)));
    if (!p) throw std::bad_alloc();
    return std::unique_ptr<uint8_t, Free>(static_cast<uint8_t*>(p));
}

auto linear(const std::string& level, const std::string& format, Bytes data, std::optional<Scales> scales,
            int64_t rows, int64_t cols, BlockShape block, PackedRows packed, int64_t row0, int64_t row1,
            bool resident) {
    const Table& table = table_of(level);
    Matrix w = matrix_of(format, data, scales, rows, cols, block);
    const int64_t n = static_cast<int64_t>(packed.shape(0)),
                  bytes = packed_bytes(encoding_of(w.format), cols);
    require(0 <= row0 && row0 <= row1 && row1 <= rows, "row0, row1 are not a range of the rows");
    require(static_cast<int64_t>(packed.shape(1)) == bytes,
            "packed rows do not have the length of the format's encoding");
    const auto inputs = aligned(n * bytes);
    std::copy_n(packed.data(), n * bytes, inputs.get());
    float* result = new float[static_cast<size_t>(n * (row1 - row0))];
    auto array = owned(result, {static_cast<size_t>(n), static_cast<size_t>(row1 - row0)});
    std::vector<const uint8_t*> x;
    std::vector<float*> out;
    for (int64_t t = 0; t < n; t++) {
        x.push_back(inputs.get() + t * bytes);
        out.push_back(result + t * (row1 - row0));
    }
    const FloatMode mode;
    const int f = static_cast<int>(w.format);
    std::unique_ptr<uint8_t, Free> copy;
    if (resident) {
        copy = aligned(resident_bytes(w.format, rows, cols));
        table.make_resident[f](w, 0, rows, copy.get());
        w.layout = resident_layout(w.format);
        w.data = copy.get();
    }
    (w.layout == Layout::TILES ? table.linear_tiles : table.linear)[f](w, row0, row1, x.data(), n,
                                                                       out.data());
    return array;
}

// The resident copy of a matrix, and whether all of it is finite.
auto resident_copy(const std::string& level, const std::string& format, Bytes data,
                   std::optional<Scales> scales, int64_t rows, int64_t cols, BlockShape block) {
    const Table& table = table_of(level);
    const Matrix w = matrix_of(format, data, scales, rows, cols, block);
    const int64_t bytes = resident_bytes(w.format, rows, cols);
    const auto copy = aligned(bytes);
    std::fill_n(copy.get(), bytes, uint8_t{0xa5});  // a byte that is left unwritten is found
    const bool finite = table.make_resident[static_cast<int>(w.format)](w, 0, rows, copy.get());
    uint8_t* result = new uint8_t[static_cast<size_t>(bytes)];
    std::copy_n(copy.get(), bytes, result);
    return std::pair(owned(result, {static_cast<size_t>(bytes)}), finite);
}

auto pack(const std::string& level, const std::string& encoding, Floats x) {
    const Table& table = table_of(level);
    const Encoding e = encoding_of_name(encoding);
    const int64_t k = static_cast<int64_t>(x.shape(0)), unit = e == Encoding::A8x32    ? 32
                                                               : e == Encoding::A8x256 ? 256
                                                                                       : 1;
    require(k >= 1 && k <= kMostValues && k % unit == 0, "the width of x is not a whole number of blocks");
    const int64_t bytes = packed_bytes(e, k);
    const auto row = aligned(bytes);
    std::fill_n(row.get(), bytes, uint8_t{0xa5});  // a kernel that leaves a byte unwritten is found
    const FloatMode mode;
    const bool finite = table.pack[static_cast<int>(e)](x.data(), k, row.get());
    uint8_t* result = new uint8_t[static_cast<size_t>(bytes)];
    std::copy_n(row.get(), bytes, result);
    return std::pair(owned(result, {static_cast<size_t>(bytes)}), finite);
}

auto decode_row(const std::string& level, const std::string& format, Bytes data, std::optional<Scales> scales,
                int64_t rows, int64_t cols, BlockShape block, int64_t row) {
    const Table& table = table_of(level);
    const Matrix w = matrix_of(format, data, scales, rows, cols, block);
    require(0 <= row && row < rows, "row is not a row of the matrix");
    float* result = new float[static_cast<size_t>(cols)];
    auto array = owned(result, {static_cast<size_t>(cols)});
    const FloatMode mode;
    table.decode_row[static_cast<int>(w.format)](w, row, result);
    return array;
}

}  // namespace

void bind_kernels_linear(nb::module_& m) {
    m.def("pack", &pack, nb::arg("level"), nb::arg("encoding"), nb::arg("x").noconvert());
    m.def("linear", &linear, nb::arg("level"), nb::arg("format"), nb::arg("data").noconvert(),
          nb::arg("scales").noconvert().none(), nb::arg("rows"), nb::arg("cols"), nb::arg("block").none(),
          nb::arg("packed").noconvert(), nb::arg("row0"), nb::arg("row1"), nb::arg("resident") = false);
    m.def("resident_copy", &resident_copy, nb::arg("level"), nb::arg("format"), nb::arg("data").noconvert(),
          nb::arg("scales").noconvert().none(), nb::arg("rows"), nb::arg("cols"), nb::arg("block").none());
    m.def("decode_row", &decode_row, nb::arg("level"), nb::arg("format"), nb::arg("data").noconvert(),
          nb::arg("scales").noconvert().none(), nb::arg("rows"), nb::arg("cols"), nb::arg("block").none(),
          nb::arg("row"));
}

}  // namespace finback
