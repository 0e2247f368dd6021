// Stored cache rows: encoding, decoding, the Hadamard transform and the indexer's scores over them. Owns the
// shapes of rows: the checkpoint's, widths that end inside a block, plain f32.
#include <vector>

#include "digest/digest.h"

namespace finback::digest {
namespace {

constexpr RowShape kShapes[] = {
    {512, 64, 1}, {128, 32, 1}, {72, 8, 1}, {101, 34, 1}, {17, 2, 1},    // main rows
    {128, 0, 1},  {32, 0, 1},   {40, 0, 1}, {100, 0, 1},  {1024, 0, 1},  // indexer rows
    {128, 0, 0},  {37, 4, 0},                                            // not rounded
};

const char* kind_of(RowShape s) { return !s.rounded ? "f32" : s.rotary ? "main" : "indexer"; }

void digest_rows_of(const Table& t, RowShape s) {
    for (int kind = 0; kind < kKinds; kind++) {
        Random random(static_cast<uint64_t>(5000 + 10 * s.width + kind));
        const Values x(random, static_cast<Kind>(kind), s.width);
        const Memory stored(cache_row_bytes(s)), back(4 * s.width);
        t.encode_row(x.floats(), s, stored.bytes());
        Hash hash;
        hash.bytes(stored.bytes(), stored.size());
        line("encode_row", "cache", kind_of(s), shape(s.width, s.rotary), kind, hash);
        t.decode_cache_row(stored.bytes(), s, back.floats());
        Hash decoded;
        decoded.all(back);
        line("decode_cache_row", "cache", kind_of(s), shape(s.width, s.rotary), kind, decoded);
    }
}

void digest_hadamard(const Table& t) {
    for (int64_t n = 1; n <= 1024; n *= 2) {
        for (int kind = 0; kind < kKinds; kind++) {
            Random random(static_cast<uint64_t>(6000 + 10 * n + kind));
            const Values x(random, static_cast<Kind>(kind), n);
            t.hadamard(x.floats(), n);
            Hash hash;
            hash.all(x);
            line("hadamard", "F32", "-", shape(n), kind, hash);
        }
    }
}

void digest_index(const Table& t, RowShape s, int32_t heads, int64_t n) {
    for (int kind = 0; kind < kKinds; kind++) {
        Random random(static_cast<uint64_t>(7000 + 100 * s.width + 10 * heads + kind));
        const int64_t bytes = cache_row_bytes(s), stride = bytes + (s.rounded ? 5 : 8);
        const Memory q(stride * heads), rows(bytes * n), score(4 * n);
        const Values w(random, Kind::PLAIN, heads);
        for (int32_t h = 0; h < heads; h++) {
            const Values x(random, Kind::PLAIN, s.width);
            t.encode_row(x.floats(), s, q.bytes() + h * stride);
        }
        std::vector<const uint8_t*> keys;
        for (int64_t i = 0; i < n; i++) {
            const Values x(random, static_cast<Kind>(kind), s.width);
            keys.push_back(rows.bytes() + i * bytes);
            t.encode_row(x.floats(), s, rows.bytes() + i * bytes);
        }
        t.index_scores(q.bytes(), stride, w.floats(), heads, s, keys.data(), n, score.floats());
        Hash hash;
        hash.all(score);
        line("index_scores", "cache", kind_of(s), shape(s.width, heads, n), kind, hash);
    }
}

}  // namespace

void digest_rows(const Table& table) {
    for (const RowShape& s : kShapes) digest_rows_of(table, s);
    digest_hadamard(table);
    for (const RowShape& s : kShapes) {
        if (s.rotary) continue;
        digest_index(table, s, 1, 1);
        digest_index(table, s, 3, 15);
        digest_index(table, s, 17, 33);
        digest_index(table, s, 64, 50);
    }
}

}  // namespace finback::digest
