// Python access to the sampler. Checks shapes and ranges; does no arithmetic.
#include "ops/sample.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bind/bind.h"
#include "core/cpu.h"

namespace nb = nanobind;

namespace finback {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static void check_width(const Sampler& s, const Logits& logits) {
    if (static_cast<int64_t>(logits.shape(0)) != s.vocab())
        throw nb::value_error("logits do not have the vocabulary's width");
}

void bind_sample(nb::module_& m) {
    m.def("counter_random", &counter_random, nb::arg("seed"), nb::arg("choice"), nb::arg("position"));
    nb::class_<Sampler>(m, "Sampler")
        .def(
            "__init__",
            [](Sampler* self, const std::string& isa, int64_t vocab) {
                if (vocab < 1 || vocab > (int64_t{1} << 24))
                    throw nb::value_error("vocabulary size out of range");
                std::string why;
                const Table* table = select_table(isa, &why);
                if (!table) throw nb::value_error(why.c_str());
                new (self) Sampler(table, vocab);
            },
            nb::arg("isa"), nb::arg("vocab"))
        .def(
            "draw",
            [](Sampler& s, Logits logits, float temperature, int32_t top_k, float top_p, float min_p,
               uint64_t seed, uint64_t choice, uint64_t position) {
                check_width(s, logits);
                const SampleParams p{temperature, top_k, top_p, min_p, seed, choice, position};
                nb::gil_scoped_release free;
                return s.draw(logits.data(), p);
            },
            nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
            nb::arg("seed"), nb::arg("choice"), nb::arg("position"))
        .def(
            "log_probs",
            [](Sampler& s, Logits logits, Ids ids, Floats out) {
                check_width(s, logits);
                if (ids.shape(0) != out.shape(0)) throw nb::value_error("ids and out differ in length");
                for (size_t i = 0; i < ids.shape(0); i++) {
                    if (ids.data()[i] < 0 || ids.data()[i] >= s.vocab())
                        throw nb::value_error("token id out of range");
                }
                nb::gil_scoped_release free;
                return s.log_probs(logits.data(), ids.data(), static_cast<int64_t>(ids.shape(0)), out.data());
            },
            nb::arg("logits"), nb::arg("ids"), nb::arg("out"));
}

}  // namespace finback
