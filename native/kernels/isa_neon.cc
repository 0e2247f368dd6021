// The NEON level (aarch64 with the dot product instructions): the sixteen lanes in four registers. Block
// formats in rows go through the inner loop of tiles; floats, FP8 and MXFP4 in pairs use the plain products.
// Everything lives in an anonymous namespace; only table_neon() leaves this unit.
#include "kernels/codes_neon.h"
#include "kernels/grids.h"
#include "kernels/resident.h"
#include "kernels/table.h"
#include "kernels/vec_neon.h"

namespace finback {
namespace {
// clang-format off: each file uses those above it
#include "kernels/math.inl"           // exp, sigmoid, silu, log1p over sixteen lanes
#include "kernels/float_ops.inl"      // norms, hyper-connections, rotary, cache rows, pooling, indexer, attention, ...
#include "kernels/blocks.inl"         // block decoding shared by all levels (scalar code)
#include "kernels/linear_plain.inl"   // matrix products of every format, as the page has them
#include "kernels/linear_scalar.inl"  // pack, linear, decode_row
#include "kernels/tiles.inl"        // the resident layout: reading,
#include "kernels/tiles_make.inl"   // making,
#include "kernels/products_tiles.inl"  // linear_tiles
// clang-format on

constexpr Table make_table() {
    Table t{};
    t.level = "neon";
    fill_float_ops(t);
    fill_linear(t);
    fill_tiles(t);
    make::fill_make_resident(t);
    fill_rows(t);
    set_rows(t, tiles::Q8_0{}, blocks::UnpackQ8_0{});
    set_rows(t, tiles::Q4_0{}, blocks::UnpackQ4_0{});
    set_rows(t, tiles::MXFP4{}, blocks::UnpackMXFP4{});
    set_rows(t, tiles::Q4_K{}, blocks::UnpackQ4_K{});
    set_rows(t, tiles::Q6_K{}, blocks::UnpackQ6_K{});
    return t;
}
constexpr Table kTable = make_table();
}  // namespace

const Table* table_neon() { return &kTable; }
}  // namespace finback
