// The float kernels of every level, written once over sixteen lanes: norms, hyper-connections, rotary,
// experts, sampling here; cache rows in cache_rows.inl; attention, pooling and the indexer in attention.inl.
// Owns the order of every operation of docs/exactness.md sections 7, 8, 13 and 14. Refuses to allocate, to
// keep state and to check: callers did.
//
// Rows need not be a multiple of sixteen. A tail loads +0 in the missing lanes and stores only the real ones;
// where a missing lane could change a sum (fma of zeros would turn a lane of -0 into +0) the lane is kept by
// `select`.

// Calls step(i, lanes) for i = 0, 16, 32 ...: 16 lanes each, the rest in the last.
#define FINBACK_FOR_LANES(i, lanes, n) \
    for (int64_t i = 0, lanes; lanes = (n) - i < 16 ? (n) - i : 16, i < (n); i += 16)

FINBACK_INLINE f32x16 load_some(const float* p, int64_t lanes) {
    return lanes == 16 ? load(p) : load_tail(p, lanes);
}
FINBACK_INLINE void store_some(float* p, f32x16 x, int64_t lanes) {
    if (lanes == 16)
        store(p, x);
    else
        store_tail(p, x, lanes);
}

// ---- section 2

// The step of a dot product over items whole .. n - 1, fewer than sixteen. Lanes without an item are kept.
FINBACK_INLINE f32x16 dot_tail(f32x16 lane, const float* x, const float* y, int64_t whole, int64_t n) {
    const int64_t rest = n - whole;
    if (rest == 0) return lane;
    return select(first_lanes(rest), fma(load_tail(x + whole, rest), load_tail(y + whole, rest), lane), lane);
}

FINBACK_INLINE float dot16(const float* x, const float* y, int64_t n) {
    const int64_t whole = n / 16 * 16;
    f32x16 lane = broadcast(0.0f);
    for (int64_t i = 0; i < whole; i += 16) lane = fma(load(x + i), load(y + i), lane);
    return tree16(dot_tail(lane, x, y, whole, n));
}

// A lane of sums is never -0 (it starts from +0), so the +0 of a tail changes nothing.
float sum16(const float* x, int64_t n) {
    f32x16 lane = broadcast(0.0f);
    FINBACK_FOR_LANES (i, lanes, n) lane = lane + load_some(x + i, lanes);
    return tree16(lane);
}

// ---- section 7

float rms(const float* x, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(dot16(x, x, n) / static_cast<float>(n) + eps);
}

void scale_rows(const float* x, float inv, const float* w, int64_t n, float* out) {
    const f32x16 factor = broadcast(inv);
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 y = load_some(x + i, lanes) * factor;
        store_some(out + i, w ? y * load_some(w + i, lanes) : y, lanes);
    }
}

// fma(m * inv, scale, base) of `lanes` mixing values.
FINBACK_INLINE f32x16 mixing_value(const float* m, float inv, float scale, const float* base, int64_t lanes) {
    return fma(load_tail(m, lanes) * broadcast(inv), broadcast(scale), load_tail(base, lanes));
}

void hyper_pre(const float* m, float inv, const float* scale, const float* base, int32_t n_streams,
               float hc_eps, float* pre) {
    const f32x16 x = mixing_value(m, inv, scale[0], base, n_streams);
    store_tail(pre, sigmoid(x) + broadcast(hc_eps), n_streams);
}

constexpr int kMaxStreams = 8;

// M_jk / (sum16 over k + eps) for every row. Lanes past the row hold zeros and stay zeros.
FINBACK_INLINE void divide_rows(f32x16* row, int n, float eps) {
    const m32x16 real = first_lanes(n);
    for (int j = 0; j < n; ++j)
        row[j] = select(real, row[j] / broadcast(tree16(row[j]) + eps), broadcast(0.0f));
}

// M_jk / (sum16 over j + eps): the tree of section 2 on whole rows. Its items 8 .. 15 are +0 and the others
// are never -0, so the first step of the tree changes nothing.
FINBACK_INLINE void divide_columns(f32x16* row, int n, float eps) {
    f32x16 sum[kMaxStreams];
    for (int j = 0; j < kMaxStreams; ++j) sum[j] = row[j];
    for (int width = kMaxStreams / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) sum[j] = sum[j] + sum[j + width];
    const f32x16 divisor = sum[0] + broadcast(eps);
    const m32x16 real = first_lanes(n);
    for (int j = 0; j < n; ++j) row[j] = select(real, row[j] / divisor, broadcast(0.0f));
}

void hyper_mix(const float* m, float inv, const float* scale, const float* base, int32_t n_streams,
               int32_t iters, float hc_eps, float* pre, float* post, float* comb) {
    const int n = n_streams;
    hyper_pre(m, inv, scale, base, n, hc_eps, pre);
    const f32x16 late = mixing_value(m + n, inv, scale[1], base + n, n);
    store_tail(post, broadcast(2.0f) * sigmoid(late), n);

    const m32x16 real = first_lanes(n);
    f32x16 row[kMaxStreams];
    for (int j = n; j < kMaxStreams; ++j) row[j] = broadcast(0.0f);
    for (int j = 0; j < n; ++j) {
        const int at = (2 + j) * n;
        const f32x16 a = mixing_value(m + at, inv, scale[2], base + at, n);
        const float top = max16(select(real, a, broadcast(-__builtin_inff())));
        const f32x16 e = select(real, exp(a - broadcast(top)), broadcast(0.0f));
        row[j] = select(real, e / broadcast(tree16(e)) + broadcast(hc_eps), broadcast(0.0f));
    }
    divide_columns(row, n, hc_eps);
    for (int i = 1; i < iters; ++i) {
        divide_rows(row, n, hc_eps);
        divide_columns(row, n, hc_eps);
    }
    for (int j = 0; j < n; ++j) store_tail(comb + j * n, row[j], n);
}

void collapse(const float* streams, const float* pre, int32_t n_streams, int64_t d, float* out) {
    FINBACK_FOR_LANES (c, lanes, d) {
        f32x16 acc = broadcast(0.0f);
        for (int j = 0; j < n_streams; ++j)
            acc = fma(broadcast(pre[j]), load_some(streams + j * d + c, lanes), acc);
        store_some(out + c, acc, lanes);
    }
}

void expand(const float* streams, const float* y, const float* post, const float* comb, int32_t n_streams,
            int64_t d, float* out) {
    FINBACK_FOR_LANES (c, lanes, d) {
        const f32x16 fresh = load_some(y + c, lanes);
        for (int k = 0; k < n_streams; ++k) {
            f32x16 acc = broadcast(post[k]) * fresh;
            for (int j = 0; j < n_streams; ++j)
                acc = fma(broadcast(comb[j * n_streams + k]), load_some(streams + j * d + c, lanes), acc);
            store_some(out + k * d + c, acc, lanes);
        }
    }
}

void add(const float* a, const float* b, int64_t n, float* out) {
    FINBACK_FOR_LANES (i, lanes, n)
        store_some(out + i, load_some(a + i, lanes) + load_some(b + i, lanes), lanes);
}

// ---- section 8

FINBACK_INLINE void rotate_pairs(float* x, f32x16 cos, f32x16 sin) {
    f32x16 a, b;
    load_pairs(x, a, b);
    store_pairs(x, fma(a, cos, negate(b * sin)), fma(a, sin, b * cos));
}

void rotate(float* x, int64_t width, Rotation rot, int64_t pairs, bool inverse) {
    float* p = x + width - 2 * pairs;
    const i32x16 turn = broadcast(inverse ? INT32_MIN : 0);  // added to the bits: turns the sign
    int64_t i = 0;
    for (; i + 16 <= pairs; i += 16)
        rotate_pairs(p + 2 * i, load(rot.cos + i), as_floats(as_bits(load(rot.sin + i)) + turn));
    if (i < pairs) {
        const int64_t rest = pairs - i;
        float some[32] = {};
        memcpy(some, p + 2 * i, static_cast<size_t>(rest) * 2 * sizeof(float));
        rotate_pairs(some, load_tail(rot.cos + i, rest),
                     as_floats(as_bits(load_tail(rot.sin + i, rest)) + turn));
        memcpy(p + 2 * i, some, static_cast<size_t>(rest) * 2 * sizeof(float));
    }
}

// ---- section 13

void router_scores(const float* logits, int64_t n, float* s) {
    FINBACK_FOR_LANES (i, lanes, n) store_some(s + i, sqrt(softplus(load_some(logits + i, lanes))), lanes);
}

void swiglu(const float* gate, const float* up, int64_t n, float limit, const float* weight, float* out) {
    // No clamp is a clamp at infinity: no finite value is changed by it.
    const f32x16 top = broadcast(limit > 0 ? limit : __builtin_inff()), bottom = negate(top);
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 a = min(top, load_some(gate + i, lanes));
        const f32x16 b = max(bottom, min(top, load_some(up + i, lanes)));
        const f32x16 u = silu(a) * b;
        store_some(out + i, weight ? u * broadcast(*weight) : u, lanes);
    }
}

// ---- section 14

// The chain of additions waits three cycles for each item; the exponentials of the next ones run meanwhile.
double exp_shifted(const float* z, float shift, int64_t n, float* e, double sum) {
    const f32x16 by = broadcast(shift);
    FINBACK_FOR_LANES (i, lanes, n) {
        store_some(e + i, exp(load_some(z + i, lanes) - by), lanes);
        for (int64_t k = i; k < i + lanes; ++k) sum += static_cast<double>(e[k]);
    }
    return sum;
}

float max_value(const float* x, int64_t n, bool* finite) {
    const i32x16 field = broadcast(0x7F800000);
    f32x16 top = broadcast(-__builtin_inff());
    i32x16 largest = broadcast(0);  // greatest magnitude seen, as bits: reaches the field only if not finite
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 v = load_some(x + i, lanes);
        const i32x16 bits = as_bits(magnitude(v));
        largest = select(less(largest, bits), bits, largest);
        top = max(lanes == 16 ? v : select(first_lanes(lanes), v, top), top);
    }
    *finite = !any(less(field - broadcast(1), largest));
    return max16(top) + 0.0f;  // a maximum of zero is +0, whichever zero a lane met first
}

// clang-format off: attention.inl reads the block scales of cache_rows.inl
#include "kernels/cache_rows.inl"
#include "kernels/attention.inl"
// clang-format on

constexpr void fill_float_ops(Table& t) {
    t.rms = rms;
    t.scale_rows = scale_rows;
    t.hyper_mix = hyper_mix;
    t.hyper_pre = hyper_pre;
    t.collapse = collapse;
    t.expand = expand;
    t.add = add;
    t.rotate = rotate;
    t.encode_row = encode_row;
    t.decode_cache_row = decode_cache_row;
    t.hadamard = hadamard;
    t.pool_add = pool_add;
    t.pool_close = pool_close;
    t.index_scores = index_scores;
    t.attend = attend;
    t.router_scores = router_scores;
    t.sum16 = sum16;
    t.swiglu = swiglu;
    t.exp_shifted = exp_shifted;
    t.max_value = max_value;
}

#undef FINBACK_FOR_LANES
