// Timing of kernels as Python sees it: weights made of copies of one matrix, and windows of work on them.
// Checks sizes; holds no clock and does no arithmetic. The GIL is free while something is timed.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <system_error>
#include <tuple>

#include "bench/walks.h"
#include "bind/bind.h"
#include "core/cpu.h"

namespace nb = nanobind;

namespace finback {
namespace {

using Windows = std::vector<std::tuple<double, double, bool>>;  // seconds, amount of work, disturbed
// Of the work, in matrices or layers; of reading, in bytes; and the digest of what was computed.
using Timed = std::tuple<Windows, Windows, uint64_t>;

constexpr int64_t kMostBytes = int64_t{1} << 40, kMostRows = 4096;

const Table& table_of(const std::string& isa) {
    std::string why;
    const Table* table = select_table(isa, &why);
    if (!table) refuse(why);
    return *table;
}

Windows exported(const std::vector<Window>& windows, double unit) {
    Windows out;
    for (const Window& w : windows) {
        out.emplace_back(w.seconds, static_cast<double>(w.units) * unit, w.disturbed);
    }
    return out;
}

void check_timing(int64_t rows, int threads, double seconds) {
    if (rows < 1 || rows > kMostRows) refuse("rows must be 1 to 4096");
    if (threads < 1 || threads > 1024) refuse("threads must be 1 to 1024");
    if (!(seconds >= 0 && seconds <= 3600)) refuse("seconds must be 0 to 3600");
}

template <class Work>
Timed timed(Work& work, const Buffer& memory, int threads, double seconds) {
    ReadWalk reads(memory);
    std::vector<std::vector<Window>> windows;
    uint64_t digest = 0;
    try {
        const nb::gil_scoped_release free;
        if (!time_in_turn({&work, &reads}, threads, seconds, &windows))
            throw std::runtime_error("threads do not survive a fork");
        digest = work.digest();
    } catch (const std::system_error& error) {  // the system refuses another thread
        PyErr_SetString(PyExc_OSError, error.what());
        throw nb::python_error();
    }
    return {exported(windows[0], work.share_of_unit()), exported(windows[1], ReadWalk::kPiece), digest};
}

int64_t copies_for(int64_t bytes, int64_t each) {
    if (bytes < 1 || bytes > kMostBytes) refuse("bytes must be 1 to 2^40");
    return (bytes + each - 1) / each;
}

// At least `bytes` of one matrix in a layout.
class BenchProducts {
  public:
    BenchProducts(const std::string& isa, const BoundMatrix& pattern, int64_t bytes, bool resident)
        : table_(table_of(isa)),
          unit_(file_bytes(pattern.matrix)),
          weights_(table_, pattern.matrix, copies_for(bytes, unit_), resident) {}
    int64_t unit_bytes() const { return unit_; }
    Timed time(int64_t rows, int threads, double seconds, const Buffer& memory) const {
        check_timing(rows, threads, seconds);
        ProductWalk walk(table_, weights_, rows, threads);
        return timed(walk, memory, threads, seconds);
    }

  private:
    const Table& table_;
    const int64_t unit_;
    const Copies weights_;
};

// At least `bytes` of whole layers of experts.
class BenchExperts {
  public:
    BenchExperts(const std::string& isa, const BoundMatrix& up, const BoundMatrix& down, int32_t experts,
                 int64_t bytes, bool resident)
        : table_(table_of(isa)),
          experts_(checked(experts)),
          unit_(experts_ * (2 * file_bytes(up.matrix) + file_bytes(down.matrix))),
          up_(table_, up.matrix, 2 * experts_ * copies_for(bytes, unit_), resident),
          down_(table_, down.matrix, experts_ * copies_for(bytes, unit_), resident) {
        if (up.matrix.rows != down.matrix.cols || up.matrix.cols != down.matrix.rows)
            refuse("up is [inner, hidden], down is [hidden, inner]");
    }
    int64_t unit_bytes() const { return unit_; }
    Timed time(int32_t chosen, int64_t rows, int threads, double seconds, const Buffer& memory) const {
        check_timing(rows, threads, seconds);
        if (chosen < 1 || chosen > experts_ || experts_ * rows % chosen ||
            experts_ * rows / chosen > kMostRows)
            refuse("rows of all experts must be a multiple of chosen, and at most 4096 rows of a step");
        ExpertsWalk walk(table_, up_, down_, {experts_, chosen, rows}, threads);
        return timed(walk, memory, threads, seconds);
    }

  private:
    static int32_t checked(int32_t experts) {
        if (experts < 1 || experts > 4096) refuse("experts must be 1 to 4096");
        return experts;
    }
    const Table& table_;
    const int32_t experts_;
    const int64_t unit_;
    const Copies up_, down_;
};

}  // namespace

void bind_bench(nb::module_& m) {
    m.def(
        "why_no_kernel",
        [](const std::string& isa, Format format, bool resident) {
            return why_no_kernel(table_of(isa), format, resident);
        },
        nb::arg("isa"), nb::arg("format"), nb::arg("resident"));
    nb::class_<BenchProducts>(m, "BenchProducts")
        .def(nb::init<const std::string&, const BoundMatrix&, int64_t, bool>(), nb::arg("isa"),
             nb::arg("pattern"), nb::arg("bytes"), nb::arg("resident"))
        .def_prop_ro("unit_bytes", &BenchProducts::unit_bytes)
        .def("time", &BenchProducts::time, nb::arg("rows"), nb::arg("threads"), nb::arg("seconds"),
             nb::arg("memory"));
    nb::class_<BenchExperts>(m, "BenchExperts")
        .def(nb::init<const std::string&, const BoundMatrix&, const BoundMatrix&, int32_t, int64_t, bool>(),
             nb::arg("isa"), nb::arg("up"), nb::arg("down"), nb::arg("experts"), nb::arg("bytes"),
             nb::arg("resident"))
        .def_prop_ro("unit_bytes", &BenchExperts::unit_bytes)
        .def("time", &BenchExperts::time, nb::arg("chosen"), nb::arg("rows"), nb::arg("threads"),
             nb::arg("seconds"), nb::arg("memory"));
}

}  // namespace finback
