// Products of matrices in tiles, one source for every level: docs/exactness.md section 5 over the types of
// codes_*.h. Owns the two walks. A single input meets the codes in registers, as they are read. More inputs
// share them: a chunk of sixteen rows is read once into the first-level cache, and inputs, a few at a time,
// pass over it; they were laid side by side before (`Panel`), so that a pass reads one stream. Every (row,
// input) has its own accumulator, touched in the order of the columns; between slabs of columns it rests in
// the output. Refuses nothing.

namespace tiled {

using namespace tiles;

constexpr int64_t kStepColumns = 32, kChunkColumns = 512, kChunkSteps = kChunkColumns / kStepColumns;
constexpr int64_t kMostInputs = 64;  // of a pass over the weights
constexpr int64_t kPanelBytes =
    256 << 10;  // inputs of a pass side by side: half of the smallest second-level cache

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class F>
constexpr int bias_of() {
    return F::kMaxCode == 255 ? kWideBias : F::kBias;
}
template <class F>
constexpr blocks::Int8Layout layout_of(int64_t cols) {
    return F::kColumns == 32 ? blocks::layout_a8x32(cols) : blocks::layout_a8x256(cols);
}

// ---- rows of a tile that are wanted

// Lanes [first, last) of a tile against row0 of the outputs.
struct Rows {
    int64_t tile;  // index of the tile
    int64_t first, last;
    float* at(float* out, int64_t row0) const { return out + (tile * kTileRows + first - row0); }
    bool whole() const { return first == 0 && last == kTileRows; }
};
inline Rows rows_of_tile(int64_t tile, int64_t row0, int64_t row1) {
    const int64_t begin = tile * kTileRows;
    return {tile, row0 > begin ? row0 - begin : 0, smaller(row1 - begin, kTileRows)};
}
inline void put_rows(f32x16 v, Rows rows, int64_t row0, float* out) {
    float* to = rows.at(out, row0);
    if (rows.whole()) {
        store(to, v);
        return;
    }
    alignas(64) float lane[kTileRows];
    store(lane, v);
    for (int64_t i = rows.first; i < rows.last; i++) to[i - rows.first] = lane[i];
}
inline f32x16 get_rows(Rows rows, int64_t row0, float* out) {
    const float* from = rows.at(out, row0);
    if (rows.whole()) return load(from);
    alignas(64) float lane[kTileRows] = {};
    for (int64_t i = rows.first; i < rows.last; i++) lane[i] = from[i - rows.first];
    return load(lane);
}

template <class F>
struct Tile {
    const uint8_t *heads = nullptr, *codes = nullptr;
    Tile() = default;
    Tile(const Matrix& w, int64_t tile) {
        constexpr TileShape shape = tile_shape(F::kFormat);
        heads = w.data + tile * tile_bytes(shape, w.cols);
        codes = heads + tile_codes(shape, w.cols);
    }
    const uint8_t* head(int64_t block) const { return heads + block * tile_shape(F::kFormat).head; }
    const uint8_t* step(int64_t s) const { return codes + s * F::kStep; }
};

// use.template operator()<i>() for i = 0 .. n-1, written out.
template <int n, int i = 0, class Use>
FINBACK_HOT void each(Use use) {
    if constexpr (i < n) {
        use.template operator()<i>();
        each<n, i + 1>(use);
    }
}

// ---- one input

// Adds the products of one step of 32 columns, number p of its block, to `total`.
template <class F, int p>
FINBACK_HOT i32x16 add_step(const uint8_t* head, const uint8_t* q, const int8_t* a, i32x16 total) {
    constexpr int kWhole = F::kGroup == 16 ? 4 : 8;  // registers under one scale
    if constexpr (F::kMaxCode == 255) {
        i32x16 part = broadcast(0);
        F::codes_of(q, [&](int i, codes c) FINBACK_HOT_LAMBDA {
            i32x16& to = F::kGroup ? part : total;
            to = dot(to, wide_of(c), four_of(a + 4 * i));
        });
        if constexpr (F::kGroup == 32) total = add_scaled(total, part, F::template scale<p>(head));
        return total;
    } else {
        constexpr int kFit = dots_in_sum(F::kMaxCode), kRun = kFit > kWhole ? kWhole
                                                              : kFit >= 4   ? 4
                                                              : kFit >= 2   ? 2
                                                                            : 1;
        sum s{};
        F::codes_of(q, [&](int i, codes c) FINBACK_HOT_LAMBDA {
            s = i % kRun == 0 ? dot(c, four_of(a + 4 * i)) : dot(s, c, four_of(a + 4 * i));
            if (i % kRun != kRun - 1) return;
            if constexpr (F::kGroup == 0) total = add_sum(total, s);
            if constexpr (F::kGroup == 32) total = add_scaled(total, s, F::template scale<p>(head));
            if constexpr (F::kGroup == 16) {
                total = i < 4 ? add_scaled(total, s, F::template scale<2 * p>(head))
                              : add_scaled(total, s, F::template scale<2 * p + 1>(head));
            }
        });
        return total;
    }
}

// Adds, for step p, the activation sums times what stands for a constant in the codes: the minimums, or the
// scales (for the bias). `pair`: the sums of both halves of the step.
template <class F, int p>
FINBACK_HOT i32x16 add_constant(const uint8_t* head, int32_t pair, i32x16 total) {
    if constexpr (F::kMinimums && F::kGroup == 32) {
        const scales m = F::template minimum<p>(head);
        return add_pair(total, m, m, pair);
    } else if constexpr (F::kMinimums) {
        return add_pair(total, F::template minimum<2 * p>(head), F::template minimum<2 * p + 1>(head), pair);
    } else if constexpr (F::kGroup == 32) {
        const scales f = F::template scale<p>(head);
        return add_pair(total, f, f, pair);
    } else {
        return add_pair(total, F::template scale<2 * p>(head), F::template scale<2 * p + 1>(head), pair);
    }
}

// acc = fma(f32(I), d * da, acc)
FINBACK_HOT f32x16 chain(i32x16 total, f32x16 d, float da, f32x16 acc) {
    return fma(to_floats(total), d * broadcast(da), acc);
}

FINBACK_HOT f32x16 negative(f32x16 x) { return broadcast(-0.0f) - x; }

inline int32_t word_at(const uint8_t* p) { return blocks::load<int32_t>(p); }

// Tiles that advance together, a step of each in turn: one stream of memory is not enough for a core, and
// with a block at a time a processor would not see from one stream into the next.
constexpr int64_t kStreams = 4;

template <class F>
void add_tiles(const Tile<F>* tile, int64_t tiles, int64_t width, const uint8_t* x,
               const blocks::Int8Layout& layout, f32x16* acc) {
    const float* factors = reinterpret_cast<const float*>(x + layout.d);
    for (int64_t b = 0; b < width; b++) {
        const int8_t* a = reinterpret_cast<const int8_t*>(x) + b * F::kColumns;
        const uint8_t* sums = x + layout.sum + b * (F::kColumns / 8);
        if constexpr (F::kColumns == 32) {
            const i32x16 bias = broadcast(-bias_of<F>() * word_at(sums));
            for (int64_t i = 0; i < tiles; i++) {
                const i32x16 products = add_step<F, 0>(tile[i].head(b), tile[i].step(b), a, bias);
                acc[i] = chain(products, F::d(tile[i].head(b)), factors[b], acc[i]);
            }
        } else {
            i32x16 products[kStreams], constants[kStreams];
            for (int i = 0; i < kStreams; i++) products[i] = constants[i] = broadcast(0);
            each<8>([&]<int p>() FINBACK_HOT_LAMBDA {
                for (int64_t i = 0; i < tiles; i++) {
                    const uint8_t* head = tile[i].head(b);
                    products[i] = add_step<F, p>(head, tile[i].step(8 * b + p), a + 32 * p, products[i]);
                    constants[i] = add_constant<F, p>(head, word_at(sums + 4 * p), constants[i]);
                }
            });
            for (int64_t i = 0; i < tiles; i++) {
                const uint8_t* head = tile[i].head(b);
                if constexpr (!F::kMinimums) products[i] = products[i] - multiply(constants[i], bias_of<F>());
                acc[i] = chain(products[i], F::d(head), factors[b], acc[i]);
                if constexpr (F::kMinimums)
                    acc[i] = chain(constants[i], negative(F::dmin(head)), factors[b], acc[i]);
            }
        }
    }
}

template <class F>
void tiles_for_one(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* x, float* out) {
    const int64_t end = (row1 + kTileRows - 1) / kTileRows;
    for (int64_t t = row0 / kTileRows; t < end; t += kStreams) {
        const int64_t tiles = smaller(kStreams, end - t);
        Tile<F> tile[kStreams];
        f32x16 acc[kStreams];
        for (int64_t i = 0; i < tiles; i++) {
            tile[i] = Tile<F>(w, t + i);
            acc[i] = broadcast(0.0f);
        }
        add_tiles<F>(tile, tiles, w.cols / F::kColumns, x, layout_of<F>(w.cols), acc);
        for (int64_t i = 0; i < tiles; i++) put_rows(acc[i], rows_of_tile(t + i, row0, row1), row0, out);
    }
}

// ---- many inputs

// Inputs of a pass share registers in groups of a size the level has code for, the largest first.
constexpr int64_t share_of(int64_t left) {
    int i = 0;
    while (kShares[i] > left) i++;
    return kShares[i];
}

// Inputs of a pass side by side, group after group, T to a group: for each step of 32
// columns, eight times T words of four codes; T words of sums; for each block T factors. One slab of columns.
class Panel {
  public:
    template <class F>
    void fill(const uint8_t* const* x, int64_t n, int64_t cols, int64_t c0, int64_t c1) {
        const blocks::Int8Layout layout = layout_of<F>(cols);
        const int64_t steps = (c1 - c0) / kStepColumns, factors = (c1 - c0) / F::kColumns;
        sums_ = 8 * steps;
        factors_ = sums_ + steps;
        words_ = factors_ + factors;
        for (int64_t g = 0, share; g < n; g += share) {
            share = share_of(n - g);
            int32_t* to = words(g);
            for (int64_t t = 0; t < share; t++) {
                const uint8_t* from = x[g + t];
                spread(from + c0, 8 * steps, to + t, share);
                // sums: of 32 codes as one number, or of 16 and 16 as two
                spread(from + layout.sum + 4 * (c0 / kStepColumns), steps, to + sums_ * share + t, share);
                spread(from + layout.d + 4 * (c0 / F::kColumns), factors, to + factors_ * share + t, share);
            }
        }
    }
    // Of the group that starts at input g, from step s (or block b) of the slab.
    const int8_t* codes(int64_t g, int64_t share, int64_t s) const {
        return reinterpret_cast<const int8_t*>(words(g) + 8 * s * share);
    }
    const int32_t* sums(int64_t g, int64_t share, int64_t s) const { return words(g) + (sums_ + s) * share; }
    const float* factors(int64_t g, int64_t share, int64_t b) const {
        return reinterpret_cast<const float*>(words(g) + (factors_ + b) * share);
    }

  private:
    static void spread(const uint8_t* from, int64_t n, int32_t* to, int64_t stride) {
        for (int64_t i = 0; i < n; i++) to[i * stride] = word_at(from + 4 * i);
    }
    int32_t* words(int64_t g) { return word_ + g * words_; }
    const int32_t* words(int64_t g) const { return word_ + g * words_; }

    int64_t sums_ = 0, factors_ = 0, words_ = 0;  // of one input
    alignas(64) int32_t word_[kPanelBytes / 4];
};

// Columns of a slab, a multiple of the chunk, so that n inputs fit the panel: 32 columns take 8 words of
// codes, one of sums and at most one factor.
inline int64_t slab_columns(int64_t cols, int64_t n) {
    const int64_t most = kPanelBytes / 4 / (10 * n) * kStepColumns / kChunkColumns * kChunkColumns;
    const int64_t slabs = (cols + most - 1) / most;
    return ((cols + slabs - 1) / slabs + kChunkColumns - 1) / kChunkColumns * kChunkColumns;
}
static_assert(kPanelBytes / 4 / (10 * kMostInputs) * kStepColumns >= kChunkColumns);

// What the inner loop needs to know of a format: formats that agree here share its code.
template <int columns, int group, int run, bool is_wide, bool minimums>
struct Inner {
    static constexpr int kColumns = columns, kGroup = group, kRun = run;
    static constexpr bool kWide = is_wide, kMinimums = minimums;
    static constexpr int64_t kBlocks = kChunkColumns / kColumns;
    static constexpr int64_t kScales = group ? kChunkColumns / group : 1;
};
template <class F>
struct InnerOf {
    static constexpr int kWhole = F::kGroup == 16 ? 4 : 8;
    static constexpr int kFit = F::kMaxCode == 255 ? 8 : dots_in_sum(F::kMaxCode);
    static constexpr int kRun = kFit > kWhole ? kWhole : kFit >= 4 ? (kFit >= 8 ? 8 : 4) : kFit >= 2 ? 2 : 1;
    using type = Inner<F::kColumns, F::kGroup, kRun, F::kMaxCode == 255, F::kMinimums>;
};

// Sixteen rows of up to 512 columns, ready for many inputs.
template <class I>
struct Chunk {
    const uint8_t* code;  // [steps][8][64]: into `read`, or where they lie in the tile
    f32x16 d[I::kBlocks];
    f32x16 dmin[I::kMinimums ? I::kBlocks : 1];  // negative
    scales scale[I::kScales], minimum[I::kMinimums ? I::kScales : 1];
    alignas(64) uint8_t read[kChunkSteps * 512];
};

// The scales of block b of a chunk, from its head.
template <class F, class I>
FINBACK_HOT void read_head(const uint8_t* head, int64_t b, Chunk<I>& c) {
    c.d[b] = F::d(head);
    if constexpr (F::kMinimums) c.dmin[b] = negative(F::dmin(head));
    if constexpr (F::kGroup != 0) {
        constexpr int kGroups = 256 / F::kGroup;
        each<kGroups>([&]<int g>() FINBACK_HOT_LAMBDA {
            c.scale[kGroups * b + g] = F::template scale<g>(head);
            if constexpr (F::kMinimums) c.minimum[kGroups * b + g] = F::template minimum<g>(head);
        });
    }
}

// Where chunks come from: `read` makes one of tile `tile`, `steps` steps from `step` on.

template <class F>
struct FromTiles {
    template <class I>
    FINBACK_HOT static void read(const Matrix& w, int64_t tile, int64_t step, int64_t steps, Chunk<I>& c) {
        constexpr int64_t kSteps = F::kColumns / kStepColumns;
        const Tile<F> from(w, tile);
        if constexpr (F::kStep == 512) {
            c.code = from.step(step);
        } else {
            c.code = c.read;
            for (int64_t s = 0; s < steps; s++) {
                F::codes_of(from.step(step + s), [&](int i, codes u) FINBACK_HOT_LAMBDA {
                    store_codes(c.read + 512 * s + 64 * i, u);
                });
            }
        }
        for (int64_t b = 0; b < steps / kSteps; b++) read_head<F>(from.head(step / kSteps + b), b, c);
    }
};

// A matrix in rows, unpacked on the way.
template <class F, class Unpack>
struct FromRows {
    template <class I>
    static void read(const Matrix& w, int64_t tile, int64_t step, int64_t steps, Chunk<I>& c) {
        constexpr int64_t kSteps = F::kColumns / kStepColumns;
        c.code = c.read;
        for (int64_t b = 0; b < steps / kSteps; b++) {
            alignas(64) uint8_t rows[kTileRows][F::kColumns];
            alignas(64) uint8_t head[tile_shape(F::kFormat).head];
            make::read_rows<F, Unpack>(w, tile * kTileRows, step / kSteps + b, rows, head);
            for (int s = 0; s < kSteps; s++)
                make::turn<F::kColumns>(rows, s, c.read + 512 * (kSteps * b + s));
            read_head<F>(head, b, c);
        }
    }
};

// Products of step s of the chunk with T inputs, added to `total`.
template <class I, int T>
FINBACK_HOT void add_products(const Chunk<I>& c, int64_t s, const int8_t* a, i32x16* total) {
    constexpr int kWhole = I::kGroup == 16 ? 4 : 8;
    const uint8_t* code = c.code + 512 * s;
    if constexpr (I::kWide) {
        i32x16 part[T];
        for (int t = 0; t < T; t++) part[t] = I::kGroup ? broadcast(0) : total[t];
        for (int i = 0; i < 8; i++) {
            const wide w = wide_of(load_codes(code + 64 * i));
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) part[t] = dot(part[t], w, four_of(a + 4 * (i * T + t)));
        }
        for (int t = 0; t < T; t++)
            total[t] = I::kGroup ? add_scaled(total[t], part[t], c.scale[s]) : part[t];
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i += I::kRun) {
            sum part[T];
#pragma GCC unroll 8
            for (int j = i; j < i + I::kRun; j++) {
                const codes w = load_codes(code + 64 * j);
#pragma GCC unroll 16
                for (int t = 0; t < T; t++) {
                    const four x = four_of(a + 4 * (j * T + t));
                    part[t] = j == i ? dot(w, x) : dot(part[t], w, x);
                }
            }
#pragma GCC unroll 16
            for (int t = 0; t < T; t++) {
                if constexpr (I::kGroup == 0) total[t] = add_sum(total[t], part[t]);
                if constexpr (I::kGroup != 0)
                    total[t] = add_scaled(total[t], part[t], c.scale[8 / kWhole * s + i / kWhole]);
            }
        }
    }
}

// `steps` steps of a chunk for T inputs. a, sums, factors: the panel's, from the chunk's first column on.
template <class I, int T>
[[gnu::noinline]] void add_chunk(const Chunk<I>& c, int64_t steps, const int8_t* a, const int32_t* sums,
                                 const float* factors, int bias, f32x16* acc) {
    constexpr int64_t kSteps = I::kColumns / kStepColumns;
    f32x16 local[T];
    for (int t = 0; t < T; t++) local[t] = acc[t];
    for (int64_t s = 0, b = 0; s < steps; b++) {
        i32x16 total[T], constant[I::kGroup ? T : 1];
        for (int t = 0; t < T; t++) {
            total[t] = broadcast(I::kGroup ? 0 : -bias * sums[s * T + t]);
            if constexpr (I::kGroup != 0) constant[t] = broadcast(0);
        }
        for (int64_t end = s + kSteps; s < end; s++) {
            add_products<I, T>(c, s, a + 32 * T * s, total);
            if constexpr (I::kGroup != 0) {
                const scales* by = I::kMinimums ? c.minimum : c.scale;
                const int64_t first = I::kGroup == 16 ? 2 * s : s, second = I::kGroup == 16 ? 2 * s + 1 : s;
                for (int t = 0; t < T; t++)
                    constant[t] = add_pair(constant[t], by[first], by[second], sums[s * T + t]);
            }
        }
        for (int t = 0; t < T; t++) {
            if constexpr (I::kGroup != 0 && !I::kMinimums) total[t] = total[t] - multiply(constant[t], bias);
            local[t] = chain(total[t], c.d[b], factors[b * T + t], local[t]);
            if constexpr (I::kMinimums)
                local[t] = chain(constant[t], c.dmin[b], factors[b * T + t], local[t]);
        }
    }
    for (int t = 0; t < T; t++) acc[t] = local[t];
}

// The inputs of one group of the panel.
template <class I, int kind = 0>
void add_group(const Chunk<I>& c, int64_t steps, const Panel& x, int64_t g, int64_t share, int64_t s,
               int bias, f32x16* acc) {
    constexpr int T = kShares[kind];
    if constexpr (T > 1) {
        if (share < T) return add_group<I, kind + 1>(c, steps, x, g, share, s, bias, acc);
    }
    add_chunk<I, T>(c, steps, x.codes(g, T, s), x.sums(g, T, s),
                    x.factors(g, T, s / (I::kColumns / kStepColumns)), bias, acc);
}

// At most kMostInputs inputs.
template <class F, class From>
void tiles_for_many(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                    float* const* out) {
    using I = typename InnerOf<F>::type;
    const int64_t slab = slab_columns(w.cols, n);
    Panel panel;
    for (int64_t c0 = 0; c0 < w.cols; c0 += slab) {
        const int64_t c1 = smaller(c0 + slab, w.cols);
        panel.fill<F>(x, n, w.cols, c0, c1);
        for (int64_t t = row0 / kTileRows; t * kTileRows < row1; t++) {
            const Rows rows = rows_of_tile(t, row0, row1);
            f32x16 acc[kMostInputs];
            for (int64_t i = 0; i < n; i++) acc[i] = c0 ? get_rows(rows, row0, out[i]) : broadcast(0.0f);
            for (int64_t c = c0; c < c1; c += kChunkColumns) {
                const int64_t steps = smaller(kChunkColumns, c1 - c) / kStepColumns;
                Chunk<I> chunk;
                From::read(w, t, c / kStepColumns, steps, chunk);
                for (int64_t g = 0, share; g < n; g += share) {
                    share = share_of(n - g);
                    add_group<I>(chunk, steps, panel, g, share, (c - c0) / kStepColumns, bias_of<F>(),
                                 acc + g);
                }
            }
            for (int64_t i = 0; i < n; i++) put_rows(acc[i], rows, row0, out[i]);
        }
    }
}

template <class F>
void linear_tiles(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                  float* const* out) {
    if (row0 >= row1) return;
    if constexpr (kShares[0] > 1) {
        if (n == 1) return tiles_for_one<F>(w, row0, row1, x[0], out[0]);
    }
    for (int64_t i = 0; i < n; i += kMostInputs) {
        tiles_for_many<F, FromTiles<F>>(w, row0, row1, x + i, smaller(kMostInputs, n - i), out + i);
    }
}

// The same for a matrix in rows of a format that has no walk over many rows; `One` is the level's for a
// single input, or void.
template <class F, class Unpack, class One>
void linear_rows(const Matrix& w, int64_t row0, int64_t row1, const uint8_t* const* x, int64_t n,
                 float* const* out) {
    if (row0 >= row1) return;
    if constexpr (!__is_same(One, void)) {
        if (n == 1) return One::walk(w, row0, row1, x[0], out[0]);
    }
    for (int64_t i = 0; i < n; i += kMostInputs) {
        tiles_for_many<F, FromRows<F, Unpack>>(w, row0, row1, x + i, smaller(kMostInputs, n - i), out + i);
    }
}

}  // namespace tiled

constexpr void fill_tiles(Table& t) {
    const auto set = [&t](auto... formats) {
        (..., (t.linear_tiles[static_cast<int>(decltype(formats)::kFormat)] =
                   tiled::linear_tiles<decltype(formats)>));
    };
    set(tiles::Q8_0{}, tiles::Q4_0{}, tiles::MXFP4{}, tiles::IQ4_NL{});
    set(tiles::Q2_K{}, tiles::Q3_K{}, tiles::Q4_K{}, tiles::Q5_K{}, tiles::Q6_K{});
    set(tiles::IQ1_S{}, tiles::IQ1_M{}, tiles::IQ2_XXS{}, tiles::IQ2_XS{}, tiles::IQ2_S{});
    set(tiles::IQ3_XXS{}, tiles::IQ3_S{}, tiles::IQ4_XS{});
    t.linear_tiles[static_cast<int>(Format::MXFP4_PAIRS)] = tiled::linear_tiles<tiles::MXFP4>;
}

// Rows of formats that a level has no kernel of its own for, by way of the inner loop of tiles.
template <class F, class Unpack>
constexpr void set_rows(Table& t, F, Unpack) {
    using One = typename blocks::OneInput<Unpack>::type;
    t.linear[static_cast<int>(F::kFormat)] = tiled::linear_rows<F, Unpack, One>;
}

// Those that every level goes this way for, except the scalar one, which has the plain products.
constexpr void fill_rows(Table& t) {
    set_rows(t, tiles::Q2_K{}, blocks::UnpackQ2_K{});
    set_rows(t, tiles::Q3_K{}, blocks::UnpackQ3_K{});
    set_rows(t, tiles::Q5_K{}, blocks::UnpackQ5_K{});
    set_rows(t, tiles::IQ1_S{}, blocks::UnpackIQ1_S{});
    set_rows(t, tiles::IQ1_M{}, blocks::UnpackIQ1_M{});
    set_rows(t, tiles::IQ2_XXS{}, blocks::UnpackIQ2_XXS{});
    set_rows(t, tiles::IQ2_XS{}, blocks::UnpackIQ2_XS{});
    set_rows(t, tiles::IQ2_S{}, blocks::UnpackIQ2_S{});
    set_rows(t, tiles::IQ3_XXS{}, blocks::UnpackIQ3_XXS{});
    set_rows(t, tiles::IQ3_S{}, blocks::UnpackIQ3_S{});
    set_rows(t, tiles::IQ4_NL{}, blocks::UnpackIQ4_NL{});
    set_rows(t, tiles::IQ4_XS{}, blocks::UnpackIQ4_XS{});
}
