// Memory as Python sees it: mapped files, buffers, and the matrices and values that lie in them. Checks that
// every matrix lies within its file; after that the kernels trust the numbers.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <optional>

#include "bind/bind.h"

namespace nb = nanobind;

namespace finback {

void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

namespace {

struct Bytes {
    const uint8_t* data;
    int64_t size;
};

Bytes bytes_of(nb::handle source) {
    if (nb::isinstance<FileMap>(source)) {
        const auto& map = nb::cast<const FileMap&>(source);
        return {map.data(), map.size()};
    }
    if (nb::isinstance<Buffer>(source)) {
        const auto& buffer = nb::cast<const Buffer&>(source);
        return {buffer.data(), buffer.size()};
    }
    throw nb::type_error("bytes of a matrix must lie in a FileMap or a Buffer");
}

const uint8_t* at(Bytes bytes, int64_t offset, int64_t size, const char* what) {
    if (offset < 0 || size < 0 || offset > bytes.size || size > bytes.size - offset) {
        refuse(std::string(what) + " of " + std::to_string(size) + " bytes at " + std::to_string(offset) +
               " leave their source of " + std::to_string(bytes.size) + " bytes");
    }
    return bytes.data + offset;
}

constexpr int64_t kMaxSide = int64_t{1} << 31;  // keeps every product below 2^63

// What a Matrix and a MatrixStack have in common; data and scales are still to be filled in.
struct Shape {
    Matrix matrix;
    int64_t nbytes, scale_nbytes;
};

Shape shape_of(Format format, int64_t rows, int64_t cols, ScaleKind kind, int32_t block_rows,
               int32_t block_cols) {
    const BlockSize block = block_size(format);
    if (!block.weights) refuse("unknown weight format");
    if (rows < 1 || cols < 1 || rows >= kMaxSide || cols >= kMaxSide)
        refuse("rows and cols must be 1 to 2^31 - 1");
    if (cols % block.weights) refuse("cols must be a multiple of the format's block");
    const bool planes = format == Format::FP8_E4M3 || format == Format::MXFP4_PAIRS;
    if (planes != (kind != ScaleKind::NONE))
        refuse("FP8_E4M3 and MXFP4_PAIRS need a scale plane, no other format has");
    if (planes && (block_rows < 1 || block_cols < 1)) refuse("a scale plane needs the block it scales");
    if (format == Format::MXFP4_PAIRS && (block_rows != 1 || block_cols != 32 || kind != ScaleKind::E8M0)) {
        refuse("MXFP4_PAIRS has one E8M0 scale for 32 columns of a row");
    }
    Shape s{};
    s.matrix.format = format;
    s.matrix.scale_kind = kind;
    s.matrix.rows = rows;
    s.matrix.cols = cols;
    s.matrix.row_bytes = cols / block.weights * block.bytes;
    s.nbytes = rows * s.matrix.row_bytes;
    if (planes) {
        s.matrix.scale_cols = (cols + block_cols - 1) / block_cols;
        s.matrix.block_rows = block_rows;
        s.matrix.block_cols = block_cols;
        s.scale_nbytes =
            (rows + block_rows - 1) / block_rows * s.matrix.scale_cols * (kind == ScaleKind::F32 ? 4 : 1);
    }
    return s;
}

using Numbers32 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void init_matrix(BoundMatrix* self, Format format, int64_t rows, int64_t cols, nb::object data,
                 int64_t offset, nb::object scales, int64_t scale_offset, ScaleKind kind, int32_t block_rows,
                 int32_t block_cols, int64_t row_stride) {
    Shape s = shape_of(format, rows, cols, kind, block_rows, block_cols);
    if (row_stride) {  // rows lie apart, as one half of a matrix that holds two side by side
        if (row_stride < s.matrix.row_bytes || row_stride >= kMaxSide * 16)
            refuse("row_stride is shorter than a row, or absurd");
        s.nbytes = (rows - 1) * row_stride + s.matrix.row_bytes;
        s.matrix.row_bytes = row_stride;
    }
    s.matrix.data = at(bytes_of(data), offset, s.nbytes, "weights");
    if (kind != ScaleKind::NONE)
        s.matrix.scales = at(bytes_of(scales), scale_offset, s.scale_nbytes, "scales");
    new (self) BoundMatrix{s.matrix, std::move(data), std::move(scales)};
}

// Where each expert's bytes start: number of the file in `sources`, and the offset in it.
void place(std::vector<Matrix>& matrices, const std::vector<Bytes>& sources, const Numbers32& files,
           const Numbers64& offsets, int64_t nbytes, bool scales) {
    if (files.shape(0) != matrices.size() || offsets.shape(0) != matrices.size()) {
        refuse("files and offsets must have one entry for each expert");
    }
    for (size_t e = 0; e < matrices.size(); e++) {
        const int32_t file = files.data()[e];
        if (file < 0 || static_cast<size_t>(file) >= sources.size()) refuse("no such file");
        const uint8_t* p =
            at(sources[static_cast<size_t>(file)], offsets.data()[e], nbytes, scales ? "scales" : "weights");
        (scales ? matrices[e].scales : matrices[e].data) = p;
    }
}

void init_stack(BoundStack* self, Format format, int64_t rows, int64_t cols, std::vector<nb::object> sources,
                const Numbers32& files, const Numbers64& offsets, std::optional<Numbers32> scale_files,
                std::optional<Numbers64> scale_offsets, ScaleKind kind, int32_t block_rows,
                int32_t block_cols) {
    const Shape s = shape_of(format, rows, cols, kind, block_rows, block_cols);
    std::vector<Bytes> bytes;
    for (const nb::object& source : sources) bytes.push_back(bytes_of(source));
    std::vector<Matrix> matrices(files.shape(0), s.matrix);
    place(matrices, bytes, files, offsets, s.nbytes, false);
    if (kind != ScaleKind::NONE) {
        if (!scale_files || !scale_offsets) refuse("scales are missing");
        place(matrices, bytes, *scale_files, *scale_offsets, s.scale_nbytes, true);
    }
    new (self) BoundStack{std::move(matrices), std::move(sources)};
}

nb::object view(nb::handle owner, uint8_t* data, int64_t size) {
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {static_cast<size_t>(size)}, owner),
                    nb::rv_policy::reference);
}

}  // namespace

void bind_memory(nb::module_& m) {
    nb::enum_<Format>(m, "Format")
        .value("F32", Format::F32)
        .value("F16", Format::F16)
        .value("BF16", Format::BF16)
        .value("FP8_E4M3", Format::FP8_E4M3)
        .value("MXFP4", Format::MXFP4)
        .value("MXFP4_PAIRS", Format::MXFP4_PAIRS)
        .value("Q8_0", Format::Q8_0)
        .value("Q4_0", Format::Q4_0)
        .value("Q4_K", Format::Q4_K)
        .value("Q6_K", Format::Q6_K)
        .value("Q2_K", Format::Q2_K)
        .value("Q3_K", Format::Q3_K)
        .value("Q5_K", Format::Q5_K)
        .value("IQ1_S", Format::IQ1_S)
        .value("IQ1_M", Format::IQ1_M)
        .value("IQ2_XXS", Format::IQ2_XXS)
        .value("IQ2_XS", Format::IQ2_XS)
        .value("IQ2_S", Format::IQ2_S)
        .value("IQ3_XXS", Format::IQ3_XXS)
        .value("IQ3_S", Format::IQ3_S)
        .value("IQ4_NL", Format::IQ4_NL)
        .value("IQ4_XS", Format::IQ4_XS);
    nb::enum_<ScaleKind>(m, "ScaleKind")
        .value("NONE", ScaleKind::NONE)
        .value("E8M0", ScaleKind::E8M0)
        .value("F32", ScaleKind::F32);
    nb::enum_<Encoding>(m, "Encoding")
        .value("F32", Encoding::F32)
        .value("BF16", Encoding::BF16)
        .value("A8x32", Encoding::A8x32)
        .value("A8x256", Encoding::A8x256);

    nb::class_<FileMap>(m, "FileMap")
        .def(nb::new_([](const std::string& path) {
                 std::string why;
                 auto map = FileMap::open(path, &why);
                 if (!map) {
                     PyErr_SetString(PyExc_OSError, why.c_str());
                     throw nb::python_error();
                 }
                 return map;
             }),
             nb::arg("path"))
        .def_prop_ro("path", &FileMap::path)
        .def_prop_ro("size", &FileMap::size)
        .def("changed",
             [](const FileMap& map) -> std::optional<std::string> {
                 std::string why;
                 if (!map.changed(&why)) return std::nullopt;
                 return why;
             })
        .def(
            "read",
            [](const FileMap& map, int64_t offset, int64_t size) {
                const uint8_t* p = at({map.data(), map.size()}, offset, size, "a read");
                return nb::bytes(p, static_cast<size_t>(size));
            },
            nb::arg("offset"), nb::arg("size"));

    nb::class_<Buffer>(m, "Buffer")
        .def(nb::init<int64_t>(), nb::arg("size"))
        .def_prop_ro("size", &Buffer::size)
        .def("view", [](nb::handle self) {
            const auto& buffer = nb::cast<const Buffer&>(self);
            return view(self, buffer.data(), buffer.size());
        });
    m.def("buffer_bytes", &Buffer::total);
    // Keeps the bytes of a FileMap or a Buffer in memory, or lets them go again; 0, or why it cannot be done
    // (an errno). Reads what is not there yet.
    m.def(
        "lock_memory",
        [](nb::handle owner, bool on) {
            const Bytes bytes = bytes_of(owner);
            const nb::gil_scoped_release released;
            const auto size = static_cast<size_t>(bytes.size);
            return (on ? mlock(bytes.data, size) : munlock(bytes.data, size)) == 0 ? 0 : errno;
        },
        nb::arg("owner"), nb::arg("on"));

    nb::class_<Value>(m, "Value")
        .def(
            "__init__",
            [](Value* self, int64_t offset, int64_t row_bytes, int32_t parts, int64_t width) {
                new (self) Value{offset, row_bytes, parts, width};
            },
            nb::arg("offset"), nb::arg("row_bytes"), nb::arg("parts"), nb::arg("width"))
        .def_ro("offset", &Value::offset)
        .def_ro("row_bytes", &Value::row_bytes)
        .def_ro("parts", &Value::parts)
        .def_ro("width", &Value::width);

    nb::class_<BoundMatrix>(m, "Matrix")
        .def("__init__", &init_matrix, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"),
             nb::arg("offset"), nb::arg("scales").none() = nb::none(), nb::arg("scale_offset") = 0,
             nb::arg("scale_kind") = ScaleKind::NONE, nb::arg("block_rows") = 0, nb::arg("block_cols") = 0,
             nb::arg("row_stride") = 0)
        .def_prop_ro("format", [](const BoundMatrix& b) { return b.matrix.format; })
        .def_prop_ro("rows", [](const BoundMatrix& b) { return b.matrix.rows; })
        .def_prop_ro("cols", [](const BoundMatrix& b) { return b.matrix.cols; });

    nb::class_<BoundStack>(m, "MatrixStack")
        .def("__init__", &init_stack, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("sources"),
             nb::arg("files"), nb::arg("offsets"), nb::arg("scale_files").none() = nb::none(),
             nb::arg("scale_offsets").none() = nb::none(), nb::arg("scale_kind") = ScaleKind::NONE,
             nb::arg("block_rows") = 0, nb::arg("block_cols") = 0)
        .def("__len__", [](const BoundStack& s) { return s.matrices.size(); });

    m.def(
        "packed_bytes",
        [](Encoding e, int64_t k) {
            if (k < 1 || k >= kMaxSide) refuse("a row has 1 to 2^31 - 1 values");
            return packed_bytes(e, k);
        },
        nb::arg("encoding"), nb::arg("k"));
    m.def("encoding_of", &encoding_of, nb::arg("format"));
}

}  // namespace finback
