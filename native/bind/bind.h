// What the files of the binding share: one function per file that adds its part to the module, and the Python
// objects that own what the native core only borrows. The binding checks every argument (sizes, ranges, who
// owns the bytes) and releases the GIL around work; it does no arithmetic. Wrong use from Python raises
// ValueError, never crashes: these are defects of the calling code, the sentences for people are made in
// finback/native.py and above.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "core/arena.h"
#include "core/map.h"
#include "program.h"

namespace finback {

void bind_kernels(nanobind::module_& m);         // Table's float functions, for tests
void bind_kernels_linear(nanobind::module_& m);  // pack, linear, decode_row, for tests
void bind_sample(nanobind::module_& m);
void bind_memory(nanobind::module_& m);    // FileMap, Buffer, Matrix, MatrixStack, Value
void bind_resident(nanobind::module_& m);  // resident copies of matrices
void bind_sequence(nanobind::module_& m);  // KvLayout, Sequence, Batch
void bind_program(nanobind::module_& m);   // Program
void bind_bench(nanobind::module_& m);     // BenchProducts, BenchExperts

// Throws nanobind's ValueError.
[[noreturn]] void refuse(const std::string& what);

// A matrix and the FileMaps or Buffers its bytes lie in.
struct BoundMatrix {
    Matrix matrix{};
    nanobind::object data, scales;
};

// The same matrix of all experts of a layer: format and shape are shared, each expert has its own bytes.
struct BoundStack {
    std::vector<Matrix> matrices;
    std::vector<nanobind::object> owners;
};

struct BoundSequence {
    Sequence sequence;
    nanobind::object layout, frontier;
    std::vector<nanobind::object> pages;  // owners of sequence.pages
    int running = 0;                      // runs in progress; changed under the GIL
};

struct BoundBatch {
    Batch batch;
    int32_t max_rows = 0, max_logit_rows = 0, vocab = 0;
    std::vector<nanobind::object> sequences;  // of batch.segments
    int running = 0;
};

// Raises unless every sequence of the batch has this layout, fits the context and has pages for its new
// positions.
void check_runnable(const BoundBatch& b, const KvLayout* layout, int64_t max_context);

}  // namespace finback
