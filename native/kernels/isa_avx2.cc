// The AVX2 level (AVX2, FMA, F16C): the same lanes in two 256-bit registers. Everything lives in an anonymous
// namespace; only table_avx2() leaves this unit.
#include "kernels/codes_avx2.h"
#include "kernels/grids.h"
#include "kernels/resident.h"
#include "kernels/table.h"
#include "kernels/vec_avx2.h"

namespace finback {
namespace {
// clang-format off: each file uses those above it
#include "kernels/math.inl"           // exp, sigmoid, silu, log1p over sixteen lanes
#include "kernels/float_ops.inl"      // norms, hyper-connections, rotary, cache rows, pooling, indexer, attention, ...
#include "kernels/blocks.inl"         // block decoding shared by all levels (scalar code)
#include "kernels/rows_avx2.inl"      // rows unpacked 32 columns at a time
#include "kernels/linear_plain.inl"   // matrix products of every format, as the page has them
#include "kernels/linear_avx2.inl"  // pack, linear, decode_row
#include "kernels/tiles.inl"        // the resident layout: reading,
#include "kernels/tiles_make.inl"   // making,
#include "kernels/products_tiles.inl"  // linear_tiles
// clang-format on

constexpr Table make_table() {
    Table t{};
    t.level = "avx2";
    fill_float_ops(t);
    fill_linear(t);
    fill_tiles(t);
    make::fill_make_resident(t);
    fill_rows(t);
    return t;
}
constexpr Table kTable = make_table();
}  // namespace

const Table* table_avx2() { return &kTable; }
}  // namespace finback
