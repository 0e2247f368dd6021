// Resident copies of matrices for Python: how large they are, making them on the pool, and matrices that lie
// in them. Owns the split of the work over threads and what happens to the file's pages, which are asked for
// ahead and given back behind, or passed by. Checks every place; the copying is Table::make_resident.
#include "kernels/resident.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>

#include "bind/bind.h"
#include "core/cpu.h"
#include "core/direct.h"
#include "core/threads.h"

namespace nb = nanobind;

namespace finback {
namespace {

using Numbers32 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t copy_bytes(const Matrix& w) { return resident_bytes(w.format, w.rows, w.cols); }

uint8_t* place_in(const Buffer& buffer, int64_t offset, int64_t size) {
    if (offset < 0 || offset % 64 || size > buffer.size() || offset > buffer.size() - size) {
        refuse("a resident copy of " + std::to_string(size) + " bytes at " + std::to_string(offset) +
               " leaves its buffer of " + std::to_string(buffer.size()) + " bytes or is not aligned to 64");
    }
    return buffer.data() + offset;
}

// Tells the system what becomes of the pages of a matrix. Whole pages inside it: its neighbours keep theirs.
void advise(const Matrix& w, int advice) {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(w.data),
               end = begin + static_cast<uintptr_t>(w.rows * w.row_bytes);
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

using Make = bool (*)(const Matrix&, int64_t, int64_t, uint8_t*);

// Bytes of a window that matrices with such rows are read through: whole tiles of rows, about 4 MB.
int64_t window_rows(const Matrix& w) {
    return std::max<int64_t>(kTileRows, (int64_t{4} << 20) / w.row_bytes / kTileRows * kTileRows);
}

// What is read past the page cache: by which reader each matrix is, and a window for each thread.
struct Direct {
    std::vector<const DirectFile*> readers;  // empty: everything is read where it is mapped
    std::vector<uint8_t*> windows;
    std::atomic<bool> cut{false};

    // `make` of rows [begin, end) of matrix m, which is w, read through the window of a thread.
    bool copy(Make make, const Matrix& w, size_t m, int id, int64_t begin, int64_t end, uint8_t* to) {
        const DirectFile& reader = *readers[m];
        const int64_t base = w.data - reader.map().data(), step = window_rows(w);
        bool finite = true;
        for (int64_t row = begin; row < end; row += step) {
            const int64_t last = std::min(end, row + step);
            const uint8_t* bytes = reader.read(base + row * w.row_bytes, (last - row) * w.row_bytes,
                                               windows[static_cast<size_t>(id)]);
            if (!bytes) {
                cut = true;
                return true;
            }
            Matrix part = w;
            part.data = bytes - row * w.row_bytes;  // so that row `row` lies at `bytes`
            finite &= make(part, row, last, to);
        }
        return finite;
    }
};

// Copies each matrix to its place; returns the number of the first that holds a weight which is not finite,
// -1 if there is none, nothing in a forked child. OSError if the system refuses the threads, or bytes that
// were there when the file was opened.
std::optional<int64_t> copy_all(const std::string& level, int threads, const std::vector<Matrix>& from,
                                const std::vector<uint8_t*>& to, bool mapped, Direct& direct) {
    std::string why;
    const Table* table = select_table(level, &why);
    if (!table) refuse(why);
    if (threads < 1) refuse("a copy needs at least one thread");
    const Make make = table->make_resident[static_cast<int>(from[0].format)];
    const int64_t tiles = (from[0].rows + kTileRows - 1) / kTileRows,
                  count = static_cast<int64_t>(from.size());
    const bool by_map = direct.readers.empty();
    std::atomic<int64_t> bad{count};
    const auto body = [&](Team& team, int id) {
        const Range mine = share(count * tiles, id, team.size());
        for (int64_t at = mine.begin; at < mine.end;) {
            const int64_t m = at / tiles, first = at % tiles, last = std::min(tiles, first + mine.end - at);
            const Matrix& w = from[static_cast<size_t>(m)];
            const int64_t begin = first * kTileRows, end = std::min(w.rows, last * kTileRows);
            uint8_t* place = to[static_cast<size_t>(m)];
            if (by_map && mapped && first == 0) advise(w, MADV_WILLNEED);
            const bool finite = by_map ? make(w, begin, end, place)
                                       : direct.copy(make, w, static_cast<size_t>(m), id, begin, end, place);
            if (!finite) {
                for (int64_t seen = bad; m < seen && !bad.compare_exchange_weak(seen, m);) {
                }
            }
            at += last - first;
        }
        team.barrier();
        if (!mapped || !by_map) return;
        const Range done = share(count, id, team.size());
        for (int64_t m = done.begin; m < done.end; m++) advise(from[static_cast<size_t>(m)], MADV_DONTNEED);
    };
    try {
        const nb::gil_scoped_release released;
        if (!run_team(threads, body)) return std::nullopt;
    } catch (const std::system_error& error) {
        PyErr_SetString(PyExc_OSError, error.what());
        throw nb::python_error();
    }
    if (direct.cut) {
        PyErr_SetString(PyExc_EOFError, "the file was cut while it was read");
        throw nb::python_error();
    }
    return bad == count ? -1 : bad.load();
}

// The reader of the file that a matrix lies in.
const DirectFile* reader_of(const Matrix& w, const std::vector<const DirectFile*>& readers) {
    for (const DirectFile* reader : readers) {
        const uint8_t* begin = reader->map().data();
        if (w.data >= begin && w.data < begin + reader->map().size()) return reader;
    }
    refuse("a matrix lies in none of the files that are read");
}

Matrix resident(const Matrix& from, uint8_t* data) {
    Matrix w = from;
    const BlockSize block = block_size(w.format);
    w.layout = resident_layout(w.format);
    w.data = data;
    w.row_bytes = w.cols / block.weights * block.bytes;
    return w;
}

// `source`: a MatrixStack, or a Matrix, which is a stack of one.
std::optional<int64_t> make(const std::string& level, int threads, nb::handle source,
                            const Numbers32& numbers, const Buffer& to, const Numbers64& offsets,
                            const std::vector<const DirectFile*>& readers,
                            const std::vector<const Buffer*>& windows) {
    if (numbers.shape(0) != offsets.shape(0)) refuse("each matrix needs one offset");
    const bool single = nb::isinstance<BoundMatrix>(source);
    std::vector<Matrix> stack;
    std::vector<nb::object> owners;
    if (single) {
        const auto& from = nb::cast<const BoundMatrix&>(source);
        stack = {from.matrix};
        owners = {from.data};
    } else {
        const auto& from = nb::cast<const BoundStack&>(source);
        stack = from.matrices;
        owners = from.owners;
    }
    std::vector<Matrix> matrices;
    std::vector<uint8_t*> places;
    for (size_t i = 0; i < numbers.shape(0); i++) {
        const int32_t number = numbers.data()[i];
        if (number < 0 || static_cast<size_t>(number) >= stack.size()) refuse("no such matrix in the stack");
        matrices.push_back(stack[static_cast<size_t>(number)]);
        places.push_back(place_in(to, offsets.data()[i], copy_bytes(matrices.back())));
    }
    if (matrices.empty()) return -1;
    const bool mapped = std::all_of(owners.begin(), owners.end(),
                                    [](const nb::object& owner) { return nb::isinstance<FileMap>(owner); });
    Direct direct;
    if (!readers.empty()) {
        if (windows.size() < static_cast<size_t>(threads)) refuse("each thread needs a window");
        for (const Matrix& w : matrices) direct.readers.push_back(reader_of(w, readers));
        const int64_t needed = DirectFile::room(window_rows(matrices[0]) * matrices[0].row_bytes);
        for (const Buffer* window : windows) {
            if (window->size() < needed) refuse("a window of " + std::to_string(needed) + " bytes is needed");
            direct.windows.push_back(window->data());
        }
    }
    const std::optional<int64_t> bad = copy_all(level, threads, matrices, places, mapped, direct);
    return bad && *bad >= 0 ? numbers.data()[*bad] : bad;
}

BoundMatrix resident_matrix(const BoundMatrix& from, nb::object buffer, int64_t offset) {
    uint8_t* data = place_in(nb::cast<const Buffer&>(buffer), offset, copy_bytes(from.matrix));
    return {resident(from.matrix, data), std::move(buffer), from.scales};
}

BoundStack resident_stack(const BoundStack& from, std::vector<nb::object> buffers, const Numbers32& which,
                          const Numbers64& offsets) {
    if (which.shape(0) != from.matrices.size() || offsets.shape(0) != from.matrices.size()) {
        refuse("which and offsets must have one entry for each matrix");
    }
    BoundStack out;
    for (size_t e = 0; e < from.matrices.size(); e++) {
        const int32_t number = which.data()[e];
        if (number < 0 || static_cast<size_t>(number) >= buffers.size()) refuse("no such buffer");
        const auto& buffer = nb::cast<const Buffer&>(buffers[static_cast<size_t>(number)]);
        const Matrix& w = from.matrices[e];
        out.matrices.push_back(resident(w, place_in(buffer, offsets.data()[e], copy_bytes(w))));
    }
    out.owners = std::move(buffers);
    for (const nb::object& owner : from.owners) out.owners.push_back(owner);  // scale planes stay in the file
    return out;
}

}  // namespace

void bind_resident(nb::module_& m) {
    m.def(
        "resident_bytes",
        [](Format format, int64_t rows, int64_t cols) {
            const BlockSize block = block_size(format);
            if (!block.weights || rows < 1 || cols < 1 || cols % block.weights)
                refuse("no matrix has this shape");
            return resident_bytes(format, rows, cols);
        },
        nb::arg("format"), nb::arg("rows"), nb::arg("cols"));
    m.def("make_resident", &make, nb::arg("level"), nb::arg("threads"), nb::arg("source"), nb::arg("numbers"),
          nb::arg("to"), nb::arg("offsets"), nb::arg("readers"), nb::arg("windows"));
    m.def(
        "window_bytes",
        [](nb::handle source) {
            const Matrix& w = nb::isinstance<BoundMatrix>(source)
                                  ? nb::cast<const BoundMatrix&>(source).matrix
                                  : nb::cast<const BoundStack&>(source).matrices.at(0);
            return DirectFile::room(window_rows(w) * w.row_bytes);
        },
        nb::arg("source"));
    nb::class_<DirectFile>(m, "DirectFile")
        .def(nb::init<const FileMap&>(), nb::arg("map"), nb::keep_alive<1, 2>())
        .def_prop_ro("buffered", &DirectFile::buffered);
    m.def("resident_matrix", &resident_matrix, nb::arg("source"), nb::arg("buffer"), nb::arg("offset"));
    m.def("resident_stack", &resident_stack, nb::arg("source"), nb::arg("buffers"), nb::arg("which"),
          nb::arg("offsets"));
}

}  // namespace finback
