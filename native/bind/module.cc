// The module finback._native: what this build contains and what the pool did so far; the rest is added by the
// other files of this directory. Imported by finback/native.py and by nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind/bind.h"
#include "core/cpu.h"
#include "core/threads.h"

namespace nb = nanobind;

namespace finback {
namespace {

using LevelInfo = std::tuple<std::string, bool, std::string>;  // name, supported, missing
using KernelInfo =
    std::tuple<std::string, std::string, std::string, uintptr_t>;  // level, op, format, address

std::vector<LevelInfo> level_infos() {
    std::vector<LevelInfo> infos;
    for (const Level& level : levels()) infos.emplace_back(level.name, level.supported, level.missing);
    return infos;
}

template <class F>
void add_kernel(std::vector<KernelInfo>& infos, const Table& t, const char* op, const char* format, F f) {
    infos.emplace_back(t.level, op, format, reinterpret_cast<uintptr_t>(f));
}

// Which function serves each operation and format at each level; address 0: none. Equal addresses: the same
// code.
std::vector<KernelInfo> kernel_infos() {
    std::vector<KernelInfo> infos;
    for (const Level& level : levels()) {
        const Table& t = *level.table;
        for (int e = 0; e < static_cast<int>(Encoding::COUNT); e++) {
            add_kernel(infos, t, "pack", encoding_name(static_cast<Encoding>(e)), t.pack[e]);
        }
        for (int f = 0; f < static_cast<int>(Format::COUNT); f++) {
            add_kernel(infos, t, "linear", format_name(static_cast<Format>(f)), t.linear[f]);
            if (t.linear_tiles[f]) {  // not of formats that stay in rows
                add_kernel(infos, t, "linear_tiles", format_name(static_cast<Format>(f)), t.linear_tiles[f]);
            }
            add_kernel(infos, t, "make_resident", format_name(static_cast<Format>(f)), t.make_resident[f]);
            add_kernel(infos, t, "decode_row", format_name(static_cast<Format>(f)), t.decode_row[f]);
        }
        add_kernel(infos, t, "hyper_mix", "F32", t.hyper_mix);
        add_kernel(infos, t, "pool_add", "F32", t.pool_add);
        add_kernel(infos, t, "encode_row", "cache", t.encode_row);
        add_kernel(infos, t, "index_scores", "cache", t.index_scores);
        add_kernel(infos, t, "attend", "F32", t.attend);
        add_kernel(infos, t, "swiglu", "F32", t.swiglu);
    }
    return infos;
}

}  // namespace
}  // namespace finback

NB_MODULE(_native, m) {
    using namespace finback;
    m.def("levels", &level_infos);
    m.def("kernel_table", &kernel_infos);
    m.def("pool_owner", &pool_owner);
    m.def("pool_workers", &pool_workers);
    m.def("spin_limit", &spin_limit);
    m.def(
        "set_spin_limit",
        [](int threads) {
            if (threads < 1) refuse("the spin limit must be at least 1");
            set_spin_limit(threads);
        },
        nanobind::arg("threads"));
    bind_memory(m);
    bind_resident(m);
    bind_sequence(m);
    bind_program(m);
    bind_kernels(m);
    bind_kernels_linear(m);
    bind_sample(m);
    bind_bench(m);
}
