// The AVX-512 level (F, BW, VL, DQ, VNNI): the sixteen lanes in one register. What it leaves out (packing,
// matrices in rows, making copies) is the AVX2 level's, which such a processor has: core/cpu.cc lays one
// table over the other. Everything lives in an anonymous namespace; only table_avx512() leaves this unit.
#include "kernels/codes_avx512.h"
#include "kernels/grids.h"
#include "kernels/resident.h"
#include "kernels/table.h"
#include "kernels/vec_avx512.h"

namespace finback {
namespace {
// clang-format off: each file uses those above it
#include "kernels/math.inl"           // exp, sigmoid, silu, log1p over sixteen lanes
#include "kernels/float_ops.inl"      // norms, hyper-connections, rotary, cache rows, pooling, indexer, attention, ...
#include "kernels/blocks.inl"         // block decoding shared by all levels (scalar code)
#include "kernels/tiles.inl"        // the resident layout: reading,
#include "kernels/tiles_make.inl"   // (the walk over rows names it)
#include "kernels/products_tiles.inl"  // linear_tiles
// clang-format on

constexpr Table make_table() {
    Table t{};
    t.level = "avx512";
    fill_float_ops(t);
    fill_tiles(t);
    return t;
}
constexpr Table kTable = make_table();
}  // namespace

const Table* table_avx512() { return &kTable; }
}  // namespace finback
