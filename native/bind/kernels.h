// What the two files that bind kernels share: array types that accept one dtype and layout only, fresh result arrays, and the
// checks that raise. Owns no kernel call. Not for other bindings: the engine passes memory, not arrays.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <string>

#include "core/cpu.h"

namespace nb = nanobind;

namespace finback {

template <class T, int Dimensions>
using Input = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Floats = Input<float, 1>;
using FloatRows = Input<float, 2>;
using Bytes = Input<uint8_t, 1>;
using ByteRows = Input<uint8_t, 2>;
using Doubles = Input<double, 1>;
using Positions = Input<int64_t, 1>;

// A new NumPy array of the given shape; `data` is where to write, `array` is what to return and owns the memory.
template <class T>
struct Fresh {
    T* data;
    nb::ndarray<nb::numpy, T> array;
    Fresh(std::initializer_list<size_t> shape) {
        size_t count = 1;
        for (size_t n : shape) count *= n;
        data = new T[count]();
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
        array = nb::ndarray<nb::numpy, T>(data, shape, owner);
    }
};

// The table of a level this machine can run; raises ValueError with the reason otherwise.
const Table& level_table(const std::string& level);

// Raises ValueError with the sentence unless good.
void check(bool good, const char* sentence);

}  // namespace finback
