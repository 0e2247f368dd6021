// The NEON level (aarch64 with the dot product instructions): the sixteen lanes in four registers. Matrices
// in rows use the plain products. Everything lives in an anonymous namespace; only table_neon() leaves this
// unit.
#include "kernels/table.h"
#include "kernels/vec_neon.h"

namespace finback {
namespace {
// clang-format off: each file uses those above it
#include "kernels/math.inl"           // exp, sigmoid, silu, log1p over sixteen lanes
#include "kernels/float_ops.inl"      // norms, hyper-connections, rotary, cache rows, pooling, indexer, attention, ...
#include "kernels/blocks.inl"         // block decoding shared by all levels (scalar code)
#include "kernels/linear_scalar.inl"  // pack, linear, decode_row
// clang-format on

constexpr Table make_table() {
    Table t{};
    t.level = "neon";
    fill_float_ops(t);
    fill_linear(t);
    return t;
}
constexpr Table kTable = make_table();
}  // namespace

const Table* table_neon() { return &kTable; }
}  // namespace finback
