// The kernels of one instruction-set level on NumPy arrays: finback._native.kernels, for tests and for
// `finback doctor`. Owns the checks a kernel does not make (lengths that must agree, a level this machine can
// run) and one fresh array a result. Does no arithmetic. Refuses arrays of another type or layout instead of
// converting them: a test must know what it passed. Matrix products are bound in kernels_linear.cc.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "bind/bind.h"
#include "core/cpu.h"
#include "core/float_mode.h"
#include "kernels/rotary.h"

namespace nb = nanobind;

namespace finback {
namespace {

using nb::literals::operator""_a;

template <class T, int Dimensions>
using Input = nb::ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Floats = Input<float, 1>;
using FloatRows = Input<float, 2>;
using Bytes = Input<uint8_t, 1>;
using ByteRows = Input<uint8_t, 2>;
using Doubles = Input<double, 1>;
using Positions = Input<int64_t, 1>;

// A new NumPy array of the given shape; `data` is where to write, `array` is what to return and owns the
// memory.
template <class T>
struct Fresh {
    T* data;
    nb::ndarray<nb::numpy, T> array;
    explicit Fresh(std::initializer_list<size_t> shape) {
        size_t count = 1;
        for (size_t n : shape) count *= n;
        data = new T[count]();
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
        array = nb::ndarray<nb::numpy, T>(data, shape, owner);
    }
};

// The table of a level this machine can run; raises ValueError with the reason otherwise.
const Table& level_table(const std::string& level) {
    std::string why;
    const Table* table = select_table(level, &why);
    if (!table) throw nb::value_error(why.c_str());
    return *table;
}

void check(bool good, const char* sentence) {
    if (!good) throw nb::value_error(sentence);
}

int64_t size(const Floats& x) { return static_cast<int64_t>(x.shape(0)); }
int64_t rows(const FloatRows& x) { return static_cast<int64_t>(x.shape(0)); }
int64_t cols(const FloatRows& x) { return static_cast<int64_t>(x.shape(1)); }

Fresh<float> copy(const Floats& x) {
    Fresh<float> out({x.shape(0)});
    std::copy_n(x.data(), x.shape(0), out.data);
    return out;
}

template <class F>
uint64_t address(F function) {
    return reinterpret_cast<uint64_t>(function);
}

// ---- levels and sizes

nb::dict functions(const std::string& level) {
    const Table& t = level_table(level);
    nb::dict found;
    const std::pair<const char*, uint64_t> floats[] = {
        {"rms", address(t.rms)},
        {"scale_rows", address(t.scale_rows)},
        {"hyper_mix", address(t.hyper_mix)},
        {"hyper_pre", address(t.hyper_pre)},
        {"collapse", address(t.collapse)},
        {"expand", address(t.expand)},
        {"add", address(t.add)},
        {"rotate", address(t.rotate)},
        {"encode_row", address(t.encode_row)},
        {"decode_cache_row", address(t.decode_cache_row)},
        {"hadamard", address(t.hadamard)},
        {"pool_add", address(t.pool_add)},
        {"pool_close", address(t.pool_close)},
        {"index_scores", address(t.index_scores)},
        {"attend", address(t.attend)},
        {"router_scores", address(t.router_scores)},
        {"sum16", address(t.sum16)},
        {"swiglu", address(t.swiglu)},
        {"exp_shifted", address(t.exp_shifted)},
        {"max_value", address(t.max_value)},
    };
    for (const auto& [name, at] : floats) found[name] = at;
    return found;
}

RowShape row_shape(int32_t width, int32_t rotary, bool rounded) {
    check(width > 0 && width <= 65536, "width is out of range 1 .. 65536");
    check(rotary >= 0 && rotary <= width, "rotary is out of range 0 .. width");
    return {width, rotary, rounded ? 1 : 0};
}

void bind_levels(nb::module_& m) {
    m.def(
        "select", [](const std::string& isa) { return std::string(level_table(isa).level); }, "isa"_a,
        "The level that isa means on this machine; raises ValueError with the reason if it cannot be used.");
    m.def(
        "missing_for",
        [](const std::string& level, uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint32_t leaf7_ecx,
           uint32_t xcr0,
           uint64_t hwcap) { return missing_for(level, {leaf1_ecx, leaf7_ebx, leaf7_ecx, xcr0, hwcap}); },
        "level"_a, "leaf1_ecx"_a = 0, "leaf7_ebx"_a = 0, "leaf7_ecx"_a = 0, "xcr0"_a = 0, "hwcap"_a = 0,
        "What a processor with these words lacks for a level, whichever processor this is.");
    m.def("functions", &functions, "level"_a, "Address of every float function of a level's table, by name.");
    m.def(
        "cache_row_bytes",
        [](int32_t width, int32_t rotary, bool rounded) {
            return cache_row_bytes(row_shape(width, rotary, rounded));
        },
        "width"_a, "rotary"_a, "rounded"_a);
    m.def(
        "rotary_table",
        [](Doubles freq, Positions positions) {
            const size_t pairs = freq.shape(0), n = positions.shape(0);
            Fresh<float> cos({n, pairs}), sin({n, pairs});
            const FloatMode mode;
            rotary_table(freq.data(), static_cast<int32_t>(pairs), positions.data(), static_cast<int64_t>(n),
                         cos.data, sin.data);
            return std::make_pair(cos.array, sin.array);
        },
        "freq"_a.noconvert(), "positions"_a.noconvert(), "cos, sin: f32 [positions, freq].");
    m.def(
        "exact_ln",
        [](Doubles x) {
            Fresh<double> out({x.shape(0)});
            const FloatMode mode;
            std::transform(x.data(), x.data() + x.shape(0), out.data, exact_ln);
            return out.array;
        },
        "x"_a.noconvert());
}

// ---- norms and hyper-connections

void bind_hyper(nb::module_& m) {
    m.def(
        "rms",
        [](const std::string& level, Floats x, float eps) {
            const FloatMode mode;
            return level_table(level).rms(x.data(), size(x), eps);
        },
        "level"_a, "x"_a.noconvert(), "eps"_a);
    m.def(
        "scale_rows",
        [](const std::string& level, Floats x, float inv, std::optional<Floats> w) {
            check(!w || w->shape(0) == x.shape(0), "w and x differ in length");
            Fresh<float> out({x.shape(0)});
            const FloatMode mode;
            level_table(level).scale_rows(x.data(), inv, w ? w->data() : nullptr, size(x), out.data);
            return out.array;
        },
        "level"_a, "x"_a.noconvert(), "inv"_a, "w"_a.noconvert().none());
    m.def(
        "hyper_mix",
        [](const std::string& level, Floats mix, float inv, Floats scale, Floats base, int32_t n,
           int32_t iters, float hc_eps) {
            check(n >= 1 && n <= 8, "n_streams is out of range 1 .. 8");
            check(iters >= 1 && scale.shape(0) == 3, "iters is below 1, or scale does not hold three values");
            check(size(mix) == (2 + n) * n && size(base) == (2 + n) * n,
                  "m or base does not hold (2 + N) * N values");
            const size_t streams = static_cast<size_t>(n);
            Fresh<float> pre({streams}), post({streams}), comb({streams, streams});
            const FloatMode mode;
            level_table(level).hyper_mix(mix.data(), inv, scale.data(), base.data(), n, iters, hc_eps,
                                         pre.data, post.data, comb.data);
            return std::make_tuple(pre.array, post.array, comb.array);
        },
        "level"_a, "m"_a.noconvert(), "inv"_a, "scale"_a.noconvert(), "base"_a.noconvert(), "n_streams"_a,
        "iters"_a, "hc_eps"_a);
    m.def(
        "hyper_pre",
        [](const std::string& level, Floats mix, float inv, Floats scale, Floats base, float hc_eps) {
            check(size(mix) >= 1 && size(mix) <= 8 && scale.shape(0) >= 1,
                  "m is not 1 .. 8 values, or scale is empty");
            check(base.shape(0) == mix.shape(0), "m and base differ in length");
            Fresh<float> pre({mix.shape(0)});
            const FloatMode mode;
            level_table(level).hyper_pre(mix.data(), inv, scale.data(), base.data(),
                                         static_cast<int32_t>(size(mix)), hc_eps, pre.data);
            return pre.array;
        },
        "level"_a, "m"_a.noconvert(), "inv"_a, "scale"_a.noconvert(), "base"_a.noconvert(), "hc_eps"_a);
    m.def(
        "collapse",
        [](const std::string& level, FloatRows streams, Floats pre) {
            check(rows(streams) == size(pre), "pre does not hold one value per stream");
            Fresh<float> out({streams.shape(1)});
            const FloatMode mode;
            level_table(level).collapse(streams.data(), pre.data(), static_cast<int32_t>(rows(streams)),
                                        cols(streams), out.data);
            return out.array;
        },
        "level"_a, "streams"_a.noconvert(), "pre"_a.noconvert());
    m.def(
        "expand",
        [](const std::string& level, FloatRows streams, Floats y, Floats post, FloatRows comb) {
            const size_t n = streams.shape(0), d = streams.shape(1);
            check(y.shape(0) == d && post.shape(0) == n, "y or post does not fit the streams");
            check(comb.shape(0) == n && comb.shape(1) == n, "comb is not [N, N]");
            Fresh<float> out({n, d});
            const FloatMode mode;
            level_table(level).expand(streams.data(), y.data(), post.data(), comb.data(),
                                      static_cast<int32_t>(n), static_cast<int64_t>(d), out.data);
            return out.array;
        },
        "level"_a, "streams"_a.noconvert(), "y"_a.noconvert(), "post"_a.noconvert(), "comb"_a.noconvert());
    m.def(
        "add",
        [](const std::string& level, Floats a, Floats b) {
            check(a.shape(0) == b.shape(0), "a and b differ in length");
            Fresh<float> out({a.shape(0)});
            const FloatMode mode;
            level_table(level).add(a.data(), b.data(), size(a), out.data);
            return out.array;
        },
        "level"_a, "a"_a.noconvert(), "b"_a.noconvert());
}

// ---- rotary and cache rows

void bind_rows(nb::module_& m) {
    m.def(
        "rotate",
        [](const std::string& level, Floats x, Floats cos, Floats sin, bool inverse) {
            check(cos.shape(0) == sin.shape(0) && 2 * size(cos) <= size(x), "cos and sin do not fit the row");
            Fresh<float> out = copy(x);
            const FloatMode mode;
            level_table(level).rotate(out.data, size(x), {cos.data(), sin.data()}, size(cos), inverse);
            return out.array;
        },
        "level"_a, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "inverse"_a);
    m.def(
        "encode_row",
        [](const std::string& level, Floats x, int32_t rotary, bool rounded) {
            const RowShape shape = row_shape(static_cast<int32_t>(size(x)), rotary, rounded);
            Fresh<uint8_t> out({static_cast<size_t>(cache_row_bytes(shape))});
            const FloatMode mode;
            level_table(level).encode_row(x.data(), shape, out.data);
            return out.array;
        },
        "level"_a, "x"_a.noconvert(), "rotary"_a, "rounded"_a);
    m.def(
        "decode_cache_row",
        [](const std::string& level, Bytes row, int32_t width, int32_t rotary, bool rounded) {
            const RowShape shape = row_shape(width, rotary, rounded);
            check(static_cast<int64_t>(row.shape(0)) == cache_row_bytes(shape),
                  "row is not cache_row_bytes long");
            Fresh<float> out({static_cast<size_t>(width)});
            const FloatMode mode;
            level_table(level).decode_cache_row(row.data(), shape, out.data);
            return out.array;
        },
        "level"_a, "row"_a.noconvert(), "width"_a, "rotary"_a, "rounded"_a);
    m.def(
        "hadamard",
        [](const std::string& level, Floats x) {
            check(size(x) > 0 && (size(x) & (size(x) - 1)) == 0, "the length of x is not a power of two");
            Fresh<float> out = copy(x);
            const FloatMode mode;
            level_table(level).hadamard(out.data, size(x));
            return out.array;
        },
        "level"_a, "x"_a.noconvert());
}

// ---- pooling, indexer, attention

void bind_attention(nb::module_& m) {
    m.def(
        "pool_add",
        [](const std::string& level, Floats top, Floats l, Floats a, Floats kv, Floats gate, Floats ape) {
            for (const Floats& x : {l, a, kv, gate, ape}) check(x.shape(0) == top.shape(0), "lengths differ");
            Fresh<float> m2 = copy(top), l2 = copy(l), a2 = copy(a);
            const FloatMode mode;
            level_table(level).pool_add(m2.data, l2.data, a2.data, kv.data(), gate.data(), ape.data(),
                                        size(top));
            return std::make_tuple(m2.array, l2.array, a2.array);
        },
        "level"_a, "m"_a.noconvert(), "l"_a.noconvert(), "a"_a.noconvert(), "kv"_a.noconvert(),
        "gate"_a.noconvert(), "ape"_a.noconvert());
    m.def(
        "pool_close",
        [](const std::string& level, Floats l, Floats a) {
            check(l.shape(0) == a.shape(0), "lengths differ");
            Fresh<float> row({l.shape(0)});
            const FloatMode mode;
            level_table(level).pool_close(l.data(), a.data(), size(l), row.data);
            return row.array;
        },
        "level"_a, "l"_a.noconvert(), "a"_a.noconvert());
    m.def(
        "index_scores",
        [](const std::string& level, ByteRows q, Floats w, int32_t width, bool rounded, ByteRows keys) {
            const RowShape shape = row_shape(width, 0, rounded);
            const size_t bytes = static_cast<size_t>(cache_row_bytes(shape));
            check(!rounded || width <= kMaxIndexWidth,
                  "an indexer row of codes is wider than the kernels take");
            check(q.shape(1) >= bytes && keys.shape(1) >= bytes, "a row is shorter than cache_row_bytes");
            check(rounded || (q.shape(1) % 4 == 0 && keys.shape(1) % 4 == 0),
                  "f32 rows are not whole floats");
            check(w.shape(0) == q.shape(0), "w does not hold one value per head");
            std::vector<const uint8_t*> at;
            for (size_t i = 0; i < keys.shape(0); ++i) at.push_back(keys.data() + i * keys.shape(1));
            Fresh<float> score({keys.shape(0)});
            const FloatMode mode;
            level_table(level).index_scores(q.data(), static_cast<int64_t>(q.shape(1)), w.data(),
                                            static_cast<int32_t>(q.shape(0)), shape, at.data(),
                                            static_cast<int64_t>(at.size()), score.data);
            return score.array;
        },
        "level"_a, "q"_a.noconvert(), "w"_a.noconvert(), "width"_a, "rounded"_a, "keys"_a.noconvert());
    m.def(
        "attend",
        [](const std::string& level, FloatRows q, float scale, FloatRows keys, Floats sink) {
            check(keys.shape(1) == q.shape(1), "keys and q differ in width");
            check(sink.shape(0) == q.shape(0), "sink does not hold one value per head");
            std::vector<const float*> at;
            for (int64_t i = 0; i < rows(keys); ++i) at.push_back(keys.data() + i * cols(keys));
            const int64_t stride = rows(keys) + 3;  // odd on purpose: the kernel may not count on alignment
            std::vector<float> scores(q.shape(0) * static_cast<size_t>(stride));
            Fresh<float> out({q.shape(0), q.shape(1)});
            const FloatMode mode;
            level_table(level).attend(q.data(), static_cast<int32_t>(rows(q)), cols(q), scale, at.data(),
                                      rows(keys), sink.data(), scores.data(), stride, out.data);
            return out.array;
        },
        "level"_a, "q"_a.noconvert(), "scale"_a, "keys"_a.noconvert(), "sink"_a.noconvert());
}

// ---- router, experts, sampling

void bind_rest(nb::module_& m) {
    m.def(
        "router_scores",
        [](const std::string& level, Floats logits) {
            Fresh<float> s({logits.shape(0)});
            const FloatMode mode;
            level_table(level).router_scores(logits.data(), size(logits), s.data);
            return s.array;
        },
        "level"_a, "logits"_a.noconvert());
    m.def(
        "sum16",
        [](const std::string& level, Floats x) {
            const FloatMode mode;
            return level_table(level).sum16(x.data(), size(x));
        },
        "level"_a, "x"_a.noconvert());
    m.def(
        "swiglu",
        [](const std::string& level, Floats gate, Floats up, float limit, std::optional<float> weight) {
            check(gate.shape(0) == up.shape(0), "gate and up differ in length");
            Fresh<float> out({gate.shape(0)});
            const FloatMode mode;
            level_table(level).swiglu(gate.data(), up.data(), size(gate), limit, weight ? &*weight : nullptr,
                                      out.data);
            return out.array;
        },
        "level"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "limit"_a, "weight"_a.none());
    m.def(
        "exp_shifted",
        [](const std::string& level, Floats z, float shift) {
            Fresh<float> e({z.shape(0)});
            const FloatMode mode;
            level_table(level).exp_shifted(z.data(), shift, size(z), e.data, 0);
            return e.array;
        },
        "level"_a, "z"_a.noconvert(), "shift"_a);
    m.def(
        "max_value",
        [](const std::string& level, Floats x) {
            bool finite = false;
            const FloatMode mode;
            const float top = level_table(level).max_value(x.data(), size(x), &finite);
            return std::make_pair(top, finite);
        },
        "level"_a, "x"_a.noconvert(), "(greatest value, whether all are finite)");
}

}  // namespace

void bind_kernels(nb::module_& parent) {
    nb::module_ m =
        parent.def_submodule("kernels", "The kernels of one level on arrays, for tests and diagnosis.");
    bind_levels(m);
    bind_hyper(m);
    bind_rows(m);
    bind_attention(m);
    bind_rest(m);
}

}  // namespace finback
