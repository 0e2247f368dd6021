#include "tests/world.h"

namespace finback::test {

OwnedMatrix make_matrix(Random& random, Format format, int64_t rows, int64_t cols) {
    OwnedMatrix out;
    const int64_t row_bytes = format == Format::Q8_0 ? cols / 32 * 34 : cols * 4;
    out.bytes.resize(static_cast<size_t>(rows * row_bytes));
    if (format == Format::Q8_0) {
        for (int64_t i = 0; i < rows * cols / 32; i++) {
            BlockQ8_0 block;
            block.d = static_cast<uint16_t>(0x2000 + random.below(0x400));  // f16 near 2^-7
            for (int8_t& q : block.q) q = static_cast<int8_t>(random.below(255) - 127);
            std::memcpy(out.bytes.data() + i * 34, &block, sizeof(block));
        }
    } else {
        const std::vector<float> x = random.vector(rows * cols);
        std::memcpy(out.bytes.data(), x.data(), x.size() * 4);
    }
    out.m = {format, Layout::ROWS, ScaleKind::NONE, rows, cols, out.bytes.data(), row_bytes, nullptr, 0, 1,
             1};
    return out;
}

std::vector<uint8_t> run(const Table& table, const Op& op, const Batch& batch, int threads) {
    std::vector<uint8_t> bad(static_cast<size_t>(batch.n_rows), 0);
    const Step step{&table, &batch, Arena::base(), bad.data()};
    CHECK(run_team(threads, [&](Team& team, int id) { op.run(step, team, id); }));
    return bad;
}

static StreamLayout make_stream(RowShape shape, int32_t open, int32_t slots, int32_t rows_per_page,
                                int64_t* frontier, int64_t* page) {
    StreamLayout s;
    s.width = shape.width;
    s.open = open;
    s.shape = shape;
    s.slot_offset = *frontier;
    s.slot_bytes = int64_t{open} * 3 * shape.width * 4;
    *frontier += pad64(slots * s.slot_bytes);
    s.page_offset = *page;
    s.row_bytes = cache_row_bytes(shape);
    *page += pad64(rows_per_page * s.row_bytes);
    return s;
}

KvLayout make_layout(const LayoutSpec& spec) {
    KvLayout out;
    out.window = spec.window;
    out.ring_depth = spec.window + spec.max_draft;
    out.slots = spec.max_draft + 1;
    out.page_span = spec.page_span;
    LayerLayout layer;
    layer.ratio = spec.ratio;
    layer.overlapped = spec.overlapped;
    layer.ring_shape = {spec.d, spec.rotary, spec.rounded};
    layer.ring_row_bytes = cache_row_bytes(layer.ring_shape);
    int64_t frontier = pad64(out.ring_depth * layer.ring_row_bytes), page = 0;
    if (spec.ratio) {
        const int32_t open = spec.overlapped ? 2 : 1;
        layer.rows_per_page = spec.page_span / spec.ratio;
        layer.main = make_stream(layer.ring_shape, open, out.slots, layer.rows_per_page, &frontier, &page);
        if (spec.overlapped) {
            const RowShape shape{spec.index_d, 0, spec.rounded};
            layer.index = make_stream(shape, open, out.slots, layer.rows_per_page, &frontier, &page);
        }
    }
    out.layers.push_back(layer);
    out.frontier_bytes = frontier;
    out.page_bytes = page;
    return out;
}

OwnedSequence::OwnedSequence(const KvLayout& layout, int64_t tokens)
    : frontier_(static_cast<size_t>(layout.frontier_bytes), 0xFF) {
    sequence.layout = &layout;
    sequence.frontier = frontier_.data();
    for (int64_t p = 0; p < tokens; p += layout.page_span) {
        sequence.pages.push_back(
            pages_.emplace_back(static_cast<size_t>(std::max<int64_t>(layout.page_bytes, 1)), 0xFF).data());
    }
}

Batch make_batch(const std::vector<Part>& parts) {
    Batch out;
    for (const Part& part : parts) {
        out.segments.push_back({part.sequence, out.n_rows, part.n, part.pos0});
        for (int32_t i = 0; i < part.n; i++) {
            out.ids.push_back(0);
            out.positions.push_back(part.pos0 + i);
        }
        out.n_rows += part.n;
    }
    return out;
}

}  // namespace finback::test
