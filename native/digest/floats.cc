// The functions over plain f32 values: norms, hyper-connections, rotary, experts, sampling, attention. Owns
// the sizes: around the sixteen lanes, around the tiles of heads and keys, one large.
#include <vector>

#include "digest/digest.h"

namespace finback::digest {
namespace {

constexpr int64_t kSizes[] = {1, 2, 4, 5, 8, 15, 16, 17, 31, 33, 48, 100, 577};

// Calls use(n, kind, random) for every size and kind of values.
template <class Use>
void each(uint64_t seed, Use use) {
    for (int64_t n : kSizes) {
        for (int kind = 0; kind < kKinds; kind++) {
            Random random(seed * 100003 + static_cast<uint64_t>(n * kKinds + kind));
            use(n, static_cast<Kind>(kind), random);
        }
    }
}

Hash hash_of(const Memory& m) {
    Hash hash;
    hash.all(m);
    return hash;
}

void emit(const char* op, int64_t n, Kind kind, const Hash& hash) {
    line(op, "F32", "-", shape(n), static_cast<int>(kind), hash);
}

void digest_sums(const Table& t) {
    each(1, [&](int64_t n, Kind kind, Random& random) {
        const Values x(random, kind, n);
        Hash hash;
        hash.value(t.rms(x.floats(), n, 1e-6f));
        emit("rms", n, kind, hash);
    });
    each(2, [&](int64_t n, Kind kind, Random& random) {
        const Values x(random, kind, n);
        Hash hash;
        hash.value(t.sum16(x.floats(), n));
        emit("sum16", n, kind, hash);
    });
    each(3, [&](int64_t n, Kind kind, Random& random) {
        const Values x(random, kind, n);
        Hash hash;
        bool finite = false;
        hash.value(t.max_value(x.floats(), n, &finite));
        hash.number(finite);
        for (const float odd : {__builtin_inff(), -__builtin_inff(), __builtin_nanf("")}) {
            x.floats()[random.below(static_cast<int32_t>(n))] = odd;
            t.max_value(x.floats(), n, &finite);
            hash.number(finite);
        }
        emit("max_value", n, kind, hash);
    });
}

void digest_elements(const Table& t) {
    each(4, [&](int64_t n, Kind kind, Random& random) {
        const Values x(random, kind, n), w(random, Kind::PLAIN, n);
        const Memory with(4 * n), without(4 * n);
        t.scale_rows(x.floats(), 0.7f, w.floats(), n, with.floats());
        t.scale_rows(x.floats(), 0.7f, nullptr, n, without.floats());
        Hash hash = hash_of(with);
        hash.all(without);
        emit("scale_rows", n, kind, hash);
    });
    each(5, [&](int64_t n, Kind kind, Random& random) {
        const Values a(random, kind, n), b(random, Kind::PLAIN, n);
        const Memory out(4 * n);
        t.add(a.floats(), b.floats(), n, out.floats());
        emit("add", n, kind, hash_of(out));
    });
    each(6, [&](int64_t n, Kind kind, Random& random) {
        const Values x(random, kind, n);
        const Memory out(4 * n);
        t.router_scores(x.floats(), n, out.floats());
        emit("router_scores", n, kind, hash_of(out));
    });
    each(7, [&](int64_t n, Kind kind, Random& random) {
        const Values gate(random, kind, n), up(random, Kind::WIDE, n);
        const float weight = random.uniform();
        for (int64_t i = 0; i < n; i += 3) gate.floats()[i] *= 60;  // both ends of exp
        Hash hash;
        for (const float limit : {0.0f, 7.0f}) {
            for (const float* factor : {static_cast<const float*>(nullptr), &weight}) {
                const Memory out(4 * n);
                t.swiglu(gate.floats(), up.floats(), n, limit, factor, out.floats());
                hash.all(out);
            }
        }
        emit("swiglu", n, kind, hash);
    });
    each(8, [&](int64_t n, Kind kind, Random& random) {
        const Values z(random, kind, n);
        for (int64_t i = 0; i < n; i += 2) z.floats()[i] *= 95;
        Hash hash;
        for (const float shift : {0.0f, 1.5f, -88.0f}) {
            const Memory e(4 * n);
            const double sum = t.exp_shifted(z.floats(), shift, n, e.floats(), 0);
            hash.bytes(&sum, sizeof(sum));
            hash.all(e);
        }
        emit("exp_shifted", n, kind, hash);
    });
}

void digest_hyper(const Table& t) {
    for (int n = 1; n <= 8; n++) {
        for (int kind = 0; kind < kKinds; kind++) {
            Random random(static_cast<uint64_t>(900 + 10 * n + kind));
            const int64_t count = 2 * n + n * n;
            const Values m(random, static_cast<Kind>(kind), count), base(random, Kind::PLAIN, count);
            const Values scale(random, Kind::PLAIN, 3);
            const Memory pre(4 * n), post(4 * n), comb(4 * n * n), head(4 * n);
            t.hyper_mix(m.floats(), 0.8f, scale.floats(), base.floats(), n, 20, 1e-6f, pre.floats(),
                        post.floats(), comb.floats());
            Hash hash = hash_of(pre);
            hash.all(post);
            hash.all(comb);
            line("hyper_mix", "F32", "-", shape(n), kind, hash);
            t.hyper_pre(m.floats(), 0.8f, scale.floats(), base.floats(), n, 1e-6f, head.floats());
            line("hyper_pre", "F32", "-", shape(n), kind, hash_of(head));
            for (int64_t d : {1, 16, 37, 260}) {
                const Values streams(random, static_cast<Kind>(kind), n * d), y(random, Kind::PLAIN, d);
                const Memory collapsed(4 * d), expanded(4 * n * d);
                t.collapse(streams.floats(), pre.floats(), n, d, collapsed.floats());
                line("collapse", "F32", "-", shape(n, d), kind, hash_of(collapsed));
                t.expand(streams.floats(), y.floats(), post.floats(), comb.floats(), n, d, expanded.floats());
                line("expand", "F32", "-", shape(n, d), kind, hash_of(expanded));
            }
        }
    }
}

void digest_rotary(const Table& t) {
    const int64_t shapes[][2] = {{2, 1}, {7, 3}, {64, 16}, {64, 32}, {130, 33}, {512, 32}};
    for (const auto& [width, pairs] : shapes) {
        for (int kind = 0; kind < kKinds; kind++) {
            Random random(static_cast<uint64_t>(1100 + 10 * width + kind));
            const Values cos(random, Kind::PLAIN, pairs), sin(random, Kind::PLAIN, pairs);
            const Values x(random, static_cast<Kind>(kind), width);
            Hash hash;
            for (const bool inverse : {false, true}) {
                t.rotate(x.floats(), width, {cos.floats(), sin.floats()}, pairs, inverse);
                hash.all(x);
            }
            line("rotate", "F32", "-", shape(width, pairs), kind, hash);
        }
    }
}

void digest_pooling(const Table& t) {
    each(12, [&](int64_t n, Kind kind, Random& random) {
        const Memory m(4 * n), l(4 * n), a(4 * n), row(4 * n);
        for (int64_t i = 0; i < n; i++) {
            m.floats()[i] = -__builtin_inff();
            l.floats()[i] = a.floats()[i] = 0;
        }
        const Values ape(random, Kind::PLAIN, n);
        Hash hash;
        for (int token = 0; token < 6; token++) {
            const Values kv(random, kind, n), gate(random, token % 2 ? kind : Kind::PLAIN, n);
            t.pool_add(m.floats(), l.floats(), a.floats(), kv.floats(), gate.floats(), ape.floats(), n);
            hash.all(m);
            hash.all(l);
            hash.all(a);
        }
        emit("pool_add", n, kind, hash);
        t.pool_close(l.floats(), a.floats(), n, row.floats());
        emit("pool_close", n, kind, hash_of(row));
    });
}

void digest_attention(const Table& t) {
    struct Case {
        int32_t heads;
        int64_t d, n;
    };
    const Case cases[] = {{1, 16, 1}, {1, 40, 9},    {2, 8, 17},   {3, 33, 5},    {5, 64, 7},
                          {8, 72, 8}, {16, 128, 33}, {21, 48, 12}, {64, 512, 40}, {67, 24, 3}};
    for (const Case& c : cases) {
        for (int kind = 0; kind < kKinds; kind++) {
            Random random(static_cast<uint64_t>(1300 + 1000 * c.heads + kind));
            const Values q(random, Kind::PLAIN, c.heads * c.d), sink(random, Kind::PLAIN, c.heads);
            const Values rows(random, static_cast<Kind>(kind), c.n * c.d);
            const int64_t stride = c.n + c.n % 3;
            const Memory scores(4 * c.heads * stride), out(4 * c.heads * c.d);
            std::vector<const float*> keys;
            for (int64_t i = 0; i < c.n; i++) keys.push_back(rows.floats() + i * c.d);
            t.attend(q.floats(), c.heads, c.d, 0.125f, keys.data(), c.n, sink.floats(), scores.floats(),
                     stride, out.floats());
            line("attend", "F32", "-", shape(c.heads, c.d, c.n), kind, hash_of(out));
        }
    }
}

}  // namespace

void digest_floats(const Table& table) {
    digest_sums(table);
    digest_elements(table);
    digest_hyper(table);
    digest_rotary(table);
    digest_pooling(table);
    digest_attention(table);
}

}  // namespace finback::digest
