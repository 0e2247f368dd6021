// What a sequence holds, as the operations see it (docs/architecture.md section 5): a frontier block (window
// rings and open compressor groups, mutable) and a list of pages (append-only compressed rows and index
// rows). Layout numbers are computed once in Python (finback/kv/layout.py) and are the same for every
// sequence of an engine.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace finback {

// One compressed stream of a layer: "main" (KV rows) or "index" (indexer keys).
//
// Open groups live in `slots` slots of the frontier; slot p mod slots holds the state AFTER position p, so
// taking back up to slots - 1 tokens is setting a length. A slot holds `open` accumulators (CSA: current
// group, then next group; HCA: one), each m [width], l [width], a [width] f32 (docs/exactness.md section 10).
// At position 0 the state before is empty. Closed row w (tokens w * ratio ..) lies in page (w * ratio) /
// page_span at page_offset + (w mod rows_per_page) * row_bytes.
struct StreamLayout {
    int32_t width = 0;        // channels of a row; 0: the layer has no such stream
    int32_t open = 0;         // open groups: 2 for CSA, 1 for HCA
    int64_t slot_offset = 0;  // in the frontier
    int64_t slot_bytes = 0;   // open * 3 * width * 4
    int64_t page_offset = 0;  // in a page
    int64_t row_bytes = 0;
    RowShape shape{};
};

struct LayerLayout {
    int32_t ratio = 0;       // 0: window only
    int32_t overlapped = 0;  // 1: CSA
    int64_t ring_offset =
        0;  // in the frontier: row of position p at ring_offset + (p mod ring_depth) * ring_row_bytes
    int64_t ring_row_bytes = 0;
    RowShape ring_shape{};
    int32_t rows_per_page = 0;  // page_span / ratio
    StreamLayout main, index;
};

struct KvLayout {
    std::vector<LayerLayout> layers;  // MTP layers follow the main ones
    int32_t window = 0;
    int32_t ring_depth = 0;  // window + max_draft
    int32_t slots = 0;       // max_draft + 1
    int32_t page_span = 0;   // tokens per page, a multiple of every ratio
    int64_t frontier_bytes = 0;
    int64_t page_bytes = 0;
};

// Memory is borrowed from the pool that made it; the caller guarantees pages for every position of a step.
struct Sequence {
    const KvLayout* layout = nullptr;
    uint8_t* frontier = nullptr;
    std::vector<uint8_t*> pages;
    uint8_t* row(const StreamLayout& s, const LayerLayout& l, int64_t w) const {
        return pages[static_cast<size_t>(w / l.rows_per_page)] + s.page_offset +
               (w % l.rows_per_page) * s.row_bytes;
    }
    uint8_t* ring_row(const LayerLayout& l, int64_t pos) const {
        return frontier + l.ring_offset + (pos % layout->ring_depth) * l.ring_row_bytes;
    }
};

}  // namespace finback
