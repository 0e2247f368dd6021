// Attention, pooling of compressed rows and indexer scores: docs/exactness.md sections 10, 11, 12. Owns the
// tiles: which heads and key rows share a pass. Tiles decide only what is loaded together; each sum keeps its
// own accumulator and its order, so no tile size shows in the bits. Included by float_ops.inl. Refuses to
// know pages and positions: a query comes with the list of its key rows.

// ---- section 10

void pool_add(float* m, float* l, float* a, const float* kv, const float* gate, const float* ape, int64_t n) {
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 g = load_some(gate + i, lanes) + load_some(ape + i, lanes);
        const f32x16 old = load_some(m + i, lanes);
        const f32x16 top = max(old, g);
        const f32x16 c = exp(old - top), e = exp(g - top);
        store_some(l + i, fma(load_some(l + i, lanes), c, e), lanes);
        store_some(a + i, fma(load_some(a + i, lanes), c, e * load_some(kv + i, lanes)), lanes);
        store_some(m + i, top, lanes);
    }
}

void pool_close(const float* l, const float* a, int64_t n, float* row) {
    FINBACK_FOR_LANES (i, lanes, n)
        store_some(row + i, load_some(a + i, lanes) / load_some(l + i, lanes), lanes);
}

// ---- dot products of several rows with several rows

// out[h * out_stride + k] = dot16(x_h, y[k]) for H rows x (at stride x_stride) and K rows y. One part of the
// lanes after the other, H * K sums side by side: one sum alone would wait for the latency of every fma.
template <int H, int K>
FINBACK_INLINE void dot_tile(const float* x, int64_t x_stride, const float* const* y, int64_t d, float* out,
                             int64_t out_stride) {
    float lane[H][K][16];
    const int64_t whole = d / 16 * 16;
    for (int part = 0; part < kParts; ++part) {
        const int at = part * kPartLanes;
        Part sum[H][K];
        for (int h = 0; h < H; ++h)
            for (int k = 0; k < K; ++k) sum[h][k] = part_zero();
        for (int64_t c = at; c < whole; c += 16) {
            Part right[K];
            for (int k = 0; k < K; ++k) right[k] = part_load(y[k] + c);
            for (int h = 0; h < H; ++h) {
                const Part left = part_load(x + h * x_stride + c);
                for (int k = 0; k < K; ++k) sum[h][k] = part_fma(left, right[k], sum[h][k]);
            }
        }
        for (int h = 0; h < H; ++h)
            for (int k = 0; k < K; ++k) part_store(lane[h][k] + at, sum[h][k]);
    }
    for (int h = 0; h < H; ++h)
        for (int k = 0; k < K; ++k)
            out[h * out_stride + k] = tree16(dot_tail(load(lane[h][k]), x + h * x_stride, y[k], whole, d));
}

// dot_tile for any number of rows y.
template <int H>
void dot_block(const float* x, int64_t x_stride, const float* const* y, int64_t n, int64_t d, float* out,
               int64_t out_stride) {
    int64_t i = 0;
    for (; i + kDotKeys <= n; i += kDotKeys)
        dot_tile<H, kDotKeys>(x, x_stride, y + i, d, out + i, out_stride);
    for (; i < n; ++i) dot_tile<H, 1>(x, x_stride, y + i, d, out + i, out_stride);
}

// out[h * out_stride + i] = dot16(x_h, y[i]). A block of key rows stays in the first-level cache while the
// heads pass over it, so each key row comes from memory once for all heads.
void dot_rows(const float* x, int64_t x_stride, int64_t heads, const float* const* y, int64_t n, int64_t d,
              float* out, int64_t out_stride) {
    constexpr int64_t kKeyBlock = 2 * kDotKeys;
    for (int64_t i = 0; i < n; i += kKeyBlock) {
        const int64_t rows = n - i < kKeyBlock ? n - i : kKeyBlock;
        int64_t h = 0;
        for (; h + kDotHeads <= heads; h += kDotHeads)
            dot_block<kDotHeads>(x + h * x_stride, x_stride, y + i, rows, d, out + h * out_stride + i,
                                 out_stride);
        for (; h + 2 <= heads; h += 2)
            dot_block<2>(x + h * x_stride, x_stride, y + i, rows, d, out + h * out_stride + i, out_stride);
        for (; h < heads; ++h)
            dot_block<1>(x + h * x_stride, x_stride, y + i, rows, d, out + h * out_stride + i, out_stride);
    }
}

// ---- section 12

constexpr int64_t kHeadGroup = 64;  // heads whose denominators are kept on the stack at once
constexpr int64_t kValueRows = 64, kValueChannels = 64;  // of one pass of the value sums: 16 KB

// Turns one head's products into exp weights, in place, and returns the denominator.
FINBACK_INLINE float exp_weights(float* t, int64_t n, float scale, float sink) {
    const f32x16 factor = broadcast(scale);
    f32x16 top = broadcast(sink);
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 x = load_some(t + i, lanes) * factor;
        top = max(lanes == 16 ? x : select(first_lanes(lanes), x, top), top);
        store_some(t + i, x, lanes);
    }
    const f32x16 most = broadcast(max16(top));
    f32x16 lane = broadcast(0.0f);
    FINBACK_FOR_LANES (i, lanes, n) {
        const f32x16 e = exp(load_some(t + i, lanes) - most);
        store_some(t + i, e, lanes);
        lane = lane + (lanes == 16 ? e : select(first_lanes(lanes), e, broadcast(0.0f)));
    }
    float last[16];
    store(last, exp(broadcast(sink) - most));
    return tree16(lane) + last[0];
}

// Continues the value sums of H heads over key rows [0, n) for 16 * V channels from c on: H * V accumulators,
// each running down the rows in list order. e, out: rows of the H heads at their strides.
template <int H, int V>
FINBACK_INLINE void value_tile(const float* e, int64_t e_stride, const float* const* keys, int64_t n,
                               int64_t d, int64_t c, float* out) {
    f32x16 acc[H][V];
    for (int h = 0; h < H; ++h)
        for (int v = 0; v < V; ++v) acc[h][v] = load(out + h * d + c + 16 * v);
    for (int64_t i = 0; i < n; ++i)
        for (int v = 0; v < V; ++v) {
            const f32x16 key = load(keys[i] + c + 16 * v);
            for (int h = 0; h < H; ++h) acc[h][v] = fma(broadcast(e[h * e_stride + i]), key, acc[h][v]);
        }
    for (int h = 0; h < H; ++h)
        for (int v = 0; v < V; ++v) store(out + h * d + c + 16 * v, acc[h][v]);
}

// value_tile for channels [c, end) of H heads. Fewer heads take more channels at once, so the number of sums
// stays.
template <int H>
void add_values(const float* e, int64_t e_stride, const float* const* keys, int64_t n, int64_t d, int64_t c,
                int64_t end, float* out) {
    constexpr int kWide = kValueHeads / H;
    for (; c + 16 * kWide <= end; c += 16 * kWide) value_tile<H, kWide>(e, e_stride, keys, n, d, c, out);
    for (; c + 16 <= end; c += 16) value_tile<H, 1>(e, e_stride, keys, n, d, c, out);
    const int64_t rest = end - c;
    for (int h = 0; h < H && rest > 0; ++h) {
        f32x16 acc = load_tail(out + h * d + c, rest);
        for (int64_t i = 0; i < n; ++i)
            acc = fma(broadcast(e[h * e_stride + i]), load_tail(keys[i] + c, rest), acc);
        store_tail(out + h * d + c, acc, rest);
    }
}

// out_h = sum of e[h][i] * keys[i], in list order. A block of key rows, cut to some channels, stays in the
// first-level cache while the heads pass over it, and a sum stays in its register for all rows of the block.
void value_rows(const float* e, int64_t e_stride, int64_t heads, const float* const* keys, int64_t n,
                int64_t d, float* out) {
    memset(out, 0, static_cast<size_t>(heads * d) * sizeof(float));
    for (int64_t i = 0; i < n; i += kValueRows) {
        const int64_t rows = n - i < kValueRows ? n - i : kValueRows;
        for (int64_t c = 0; c < d; c += kValueChannels) {
            const int64_t end = d - c < kValueChannels ? d : c + kValueChannels;
            int64_t h = 0;
            for (; h + kValueHeads <= heads; h += kValueHeads)
                add_values<kValueHeads>(e + h * e_stride + i, e_stride, keys + i, rows, d, c, end,
                                        out + h * d);
            for (; h + 2 <= heads; h += 2)
                add_values<2>(e + h * e_stride + i, e_stride, keys + i, rows, d, c, end, out + h * d);
            for (; h < heads; ++h)
                add_values<1>(e + h * e_stride + i, e_stride, keys + i, rows, d, c, end, out + h * d);
        }
    }
}

void attend(const float* q, int32_t heads, int64_t d, float scale, const float* const* keys, int64_t n,
            const float* sink, float* scores, int64_t stride, float* out) {
    float den[kHeadGroup];
    for (int64_t first = 0; first < heads; first += kHeadGroup) {
        const int64_t group = heads - first < kHeadGroup ? heads - first : kHeadGroup;
        float* e = scores + first * stride;
        float* o = out + first * d;
        dot_rows(q + first * d, d, group, keys, n, d, e, stride);
        for (int64_t h = 0; h < group; ++h) den[h] = exp_weights(e + h * stride, n, scale, sink[first + h]);
        value_rows(e, stride, group, keys, n, d, o);
        for (int64_t h = 0; h < group; ++h) {
            const f32x16 divisor = broadcast(den[h]);
            FINBACK_FOR_LANES (c, lanes, d)
                store_some(o + h * d + c, load_some(o + h * d + c, lanes) / divisor, lanes);
        }
    }
}

// ---- section 11

constexpr int kFp4Bytes = kFp4Block / 2;  // codes under one scale
constexpr int64_t kMaxIndexBlocks = kMaxIndexWidth / kFp4Block;
constexpr int64_t kQueryBlocks = 512;  // blocks of query heads held at once: 16 KB of values
constexpr int kQuadGroups = kFp4Block / 4, kQuadBytes = kQuadGroups * 64;  // one block of sixteen keys

// Query heads ready for quad_dot: doubled values -12 .. 12 in the channel order of quads_of_codes, head after
// head.
struct QueryBlocks {
    int8_t value[kQueryBlocks][kFp4Block];
    int32_t offset[kQueryBlocks];  // 12 * sum of the block's values: what the + 12 of the key side adds
    float scale[kQueryBlocks];     // s_q * 0.25
};

// Sixteen keys, transposed: lane i of every quad group and scale belongs to key i.
struct KeyBlocks {
    alignas(64) uint8_t quads[kMaxIndexBlocks][kQuadBytes];
    float scale[kMaxIndexBlocks][16];
};

// The values of sixteen words of codes as they lie in a row of `width` channels, from byte `at` on; codes
// past the row are zeros.
struct SixteenWords {
    alignas(64) uint8_t quads[2][64];  // even channels of each word, then odd ones: doubled, + 12
    float sum[16];                     // of each word's eight
    SixteenWords(const uint8_t* row, int64_t width, int64_t at) {
        const int64_t left = (width + 1) / 2 - at;
        uint8_t words[64] = {};
        memcpy(words, row + at, static_cast<size_t>(left < 64 ? left : 64));
        quads_of_codes(words, quads[0], quads[1]);
        const int8_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        store(sum, to_floats(quad_dot(quads[0], ones, 2) - broadcast(8 * 12)));
    }
};

// All blocks of one head, to q.value[to] and on.
void unpack_query(const uint8_t* row, int64_t width, int64_t blocks, QueryBlocks& q, int64_t to) {
    constexpr int kWords = kFp4Bytes / 4;  // of a block
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t scale = row[(width + 1) / 2 + b];
        q.scale[to + b] = e8m0(scale) * 0.25f;
    }
    for (int64_t b0 = 0; b0 < blocks; b0 += 16 / kWords) {
        SixteenWords w(row, width, b0 * kFp4Bytes);
        for (uint8_t& value : w.quads[0]) value = static_cast<uint8_t>(value - 12);
        for (uint8_t& value : w.quads[1]) value = static_cast<uint8_t>(value - 12);
        const int64_t n = blocks - b0 < 16 / kWords ? blocks - b0 : 16 / kWords;
        for (int64_t i = 0; i < n * kWords; ++i) {
            int8_t* value = q.value[to + b0 + i / kWords] + i % kWords * 8;
            memcpy(value, w.quads[0] + 4 * i, 4);
            memcpy(value + 4, w.quads[1] + 4 * i, 4);
        }
        for (int64_t b = 0; b < n; ++b) {
            const float* sum = w.sum + b * kWords;  // small integers: exact
            q.offset[to + b0 + b] = 12 * static_cast<int32_t>(sum[0] + sum[1] + sum[2] + sum[3]);
        }
    }
}

// Block b of n <= 16 keys; the keys that are missing count as zeros.
void unpack_keys(const uint8_t* const* rows, int64_t n, int64_t width, int64_t b, KeyBlocks& keys) {
    const int64_t at = b * kFp4Bytes, left = (width + 1) / 2 - at;
    alignas(64) uint8_t words[4][64];
    uint8_t scales[16] = {};
    if (n < 16) memset(words, 0, sizeof(words));
    for (int64_t i = 0; i < n; ++i) {
        uint8_t rest[kFp4Bytes] = {};
        const uint8_t* block = rows[i] + at;
        if (left < kFp4Bytes)
            block = static_cast<const uint8_t*>(memcpy(rest, block, static_cast<size_t>(left)));
        for (int word = 0; word < 4; ++word) memcpy(words[word] + 4 * i, block + 4 * word, 4);
        scales[i] = rows[i][(width + 1) / 2 + b];
    }
    const i32x16 exponent = load_bytes(scales);
    const i32x16 least = broadcast(0x00400000);  // the subnormal 2^-127, as e8m0() has it
    store(keys.scale[b], as_floats(select(less(exponent, broadcast(1)), least, shift_left<23>(exponent))));
    for (int word = 0; word < 4; ++word)
        quads_of_codes(words[word], keys.quads[b] + 128 * word, keys.quads[b] + 128 * word + 64);
}

// One head against sixteen keys. Keys in the lanes: the chain over blocks runs down the register.
FINBACK_INLINE f32x16 code_dot(const QueryBlocks& q, int64_t at, const KeyBlocks& keys, int64_t blocks) {
    f32x16 dot = broadcast(0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
        const i32x16 sum =
            quad_dot(keys.quads[b], q.value[at + b], kQuadGroups) - broadcast(q.offset[at + b]);
        dot = fma(to_floats(sum), broadcast(q.scale[at + b]) * load(keys.scale[b]), dot);
    }
    return dot;
}

// Continues the chain over heads for rows of codes.
void index_codes(const uint8_t* q, int64_t q_stride, const float* w, int64_t heads, int64_t width,
                 const uint8_t* const* rows, int64_t n, float* score) {
    const int64_t blocks = (width + kFp4Block - 1) / kFp4Block;
    QueryBlocks query;
    KeyBlocks keys;
    for (int64_t h = 0; h < heads; ++h) unpack_query(q + h * q_stride, width, blocks, query, h * blocks);
    FINBACK_FOR_LANES (i, lanes, n) {
        for (int64_t b = 0; b < blocks; ++b) unpack_keys(rows + i, lanes, width, b, keys);
        f32x16 acc = load_some(score + i, lanes);
        for (int64_t h = 0; h < heads; ++h)
            acc = fma(broadcast(w[h]), max(code_dot(query, h * blocks, keys, blocks), broadcast(0.0f)), acc);
        store_some(score + i, acc, lanes);
    }
}

// The same for rows of f32.
void index_floats(const float* q, int64_t q_stride, const float* w, int64_t heads, int64_t width,
                  const uint8_t* const* rows, int64_t n, float* score) {
    float dot[kHeadGroup][16];
    FINBACK_FOR_LANES (i, lanes, n) {
        const float* keys[16];
        for (int64_t k = 0; k < lanes; ++k) keys[k] = reinterpret_cast<const float*>(rows[i + k]);
        dot_rows(q, q_stride, heads, keys, lanes, width, dot[0], 16);
        f32x16 acc = load_some(score + i, lanes);
        for (int64_t h = 0; h < heads; ++h)
            acc = fma(broadcast(w[h]), max(load_tail(dot[h], lanes), broadcast(0.0f)), acc);
        store_some(score + i, acc, lanes);
    }
}

void index_scores(const uint8_t* q, int64_t q_stride, const float* w, int32_t heads, RowShape shape,
                  const uint8_t* const* rows, int64_t n, float* score) {
    const int64_t blocks = (shape.width + kFp4Block - 1) / kFp4Block;
    const int64_t most = shape.rounded ? kQueryBlocks / blocks : kHeadGroup;  // heads of one pass
    memset(score, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t h = 0; h < heads; h += most) {
        const int64_t some = heads - h < most ? heads - h : most;
        const uint8_t* from = q + h * q_stride;
        if (shape.rounded)
            index_codes(from, q_stride, w + h, some, shape.width, rows, n, score);
        else
            index_floats(reinterpret_cast<const float*>(from), q_stride / static_cast<int64_t>(sizeof(float)),
                         w + h, some, shape.width, rows, n, score);
    }
}
