// What a run works on: the layout of a sequence's memory, sequences over pooled pages, and batches of their
// rows. Checks that everything a layout points at lies within the frontier or the page, and that a batch's
// rows are what the operations assume: ids in the vocabulary, one run of consecutive positions per sequence.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bench/fill.h"
#include "bind/bind.h"
#include "core/cpu.h"
#include "core/float_mode.h"

namespace nb = nanobind;

namespace finback {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kMaxPosition = int64_t{1} << 31;

void check_shape(RowShape s) {
    if (s.width < 1 || s.rotary < 0 || s.rotary > s.width || (s.rounded != 0 && s.rounded != 1)) {
        refuse("a cache row has a wrong shape");
    }
}

void check_span(int64_t offset, int64_t size, int64_t total, const char* what) {
    if (offset < 0 || size < 0 || offset % 4 || offset > total || size > total - offset) {
        refuse(std::string(what) + " do not lie in their memory");
    }
}

void check_stream(const StreamLayout& s, const LayerLayout& l, const KvLayout& k) {
    check_shape(s.shape);
    if (s.shape.width != s.width || s.open < 1 || s.open > 2 ||
        s.slot_bytes < int64_t{s.open} * 3 * s.width * 4) {
        refuse("open groups have a wrong size");
    }
    if (s.row_bytes < cache_row_bytes(s.shape)) refuse("compressed rows are too short");
    check_span(s.slot_offset, k.slots * s.slot_bytes, k.frontier_bytes, "open groups");
    check_span(s.page_offset, l.rows_per_page * s.row_bytes, k.page_bytes, "compressed rows");
}

void check_layout(const KvLayout& k) {
    if (k.window < 1 || k.ring_depth < k.window || k.slots != k.ring_depth - k.window + 1 ||
        k.layers.empty()) {
        refuse("ring_depth must be window + max_draft, slots max_draft + 1, and there must be layers");
    }
    for (const LayerLayout& l : k.layers) {
        check_shape(l.ring_shape);
        if (l.ring_row_bytes < cache_row_bytes(l.ring_shape)) refuse("window rows are too short");
        check_span(l.ring_offset, k.ring_depth * l.ring_row_bytes, k.frontier_bytes, "window rows");
        if (l.ratio == 0) {
            if (l.main.width || l.index.width) refuse("a window-only layer has no compressed rows");
            continue;
        }
        if (l.ratio < 1 || k.page_span < 1 || k.page_span % l.ratio ||
            l.rows_per_page != k.page_span / l.ratio) {
            refuse("page_span must be rows_per_page * ratio");
        }
        check_stream(l.main, l, k);
        if (l.index.width) check_stream(l.index, l, k);
    }
}

// Pages needed before the row at position `length - 1` can be written.
int64_t pages_for(const KvLayout& k, int64_t length) {
    return k.page_bytes == 0 ? 0 : (length + k.page_span - 1) / k.page_span;
}

uint8_t* writable(nb::handle buffer, int64_t offset, int64_t size, const char* what) {
    const auto& b = nb::cast<const Buffer&>(buffer);
    if (offset < 0 || offset % 64 || offset > b.size() || size > b.size() - offset) {
        refuse(std::string(what) + " does not lie in its buffer");
    }
    return b.data() + offset;
}

void check_idle(int running, const char* what) {
    if (running) refuse(std::string(what) + " is in use by a run");
}

void init_sequence(BoundSequence* self, nb::object layout, nb::object frontier, int64_t offset) {
    const auto& k = nb::cast<const KvLayout&>(layout);
    Sequence s;
    s.layout = &k;
    s.frontier = writable(frontier, offset, k.frontier_bytes, "the frontier");
    new (self) BoundSequence{std::move(s), std::move(layout), std::move(frontier), {}, 0};
}

void add_page(BoundSequence& self, nb::object buffer, int64_t offset) {
    check_idle(self.running, "the sequence");
    self.sequence.pages.push_back(writable(buffer, offset, self.sequence.layout->page_bytes, "the page"));
    self.pages.push_back(std::move(buffer));
}

void keep_pages(BoundSequence& self, size_t n) {
    check_idle(self.running, "the sequence");
    if (n > self.pages.size()) refuse("the sequence has fewer pages");
    self.sequence.pages.resize(n);
    self.pages.resize(n);
}

void fill(BoundSequence& self, const std::string& isa, int64_t length, uint64_t seed) {
    check_idle(self.running, "the sequence");
    std::string why;
    const Table* table = select_table(isa, &why);
    if (!table) refuse(why);
    if (length < 1 || length > kMaxPosition) refuse("length out of range");
    if (pages_for(*self.sequence.layout, length) > static_cast<int64_t>(self.pages.size()))
        refuse("the sequence lacks pages for this length");
    const FloatMode mode;
    fill_sequence(*table, self.sequence, length, seed);
}

void init_batch(BoundBatch* self, int32_t max_rows, int32_t max_logit_rows, int32_t vocab) {
    if (max_rows < 1 || max_logit_rows < 1 || vocab < 1) refuse("limits of a batch must be at least 1");
    new (self) BoundBatch;
    self->max_rows = max_rows;
    self->max_logit_rows = max_logit_rows;
    self->vocab = vocab;
    // All memory a batch will ever need: filling it between steps allocates nothing.
    const auto n = static_cast<size_t>(max_rows);
    self->batch.ids.reserve(n);
    self->batch.positions.reserve(n);
    self->batch.segments.reserve(n);
    self->sequences.reserve(n);
    self->batch.logit_rows.reserve(static_cast<size_t>(max_logit_rows));
}

void clear_batch(BoundBatch& self) {
    check_idle(self.running, "the batch");
    self.batch.n_rows = 0;
    self.batch.ids.clear();
    self.batch.positions.clear();
    self.batch.segments.clear();
    self.batch.logit_rows.clear();
    self.sequences.clear();
}

int32_t add_rows(BoundBatch& self, nb::object object, int64_t position, const Ids& ids) {
    check_idle(self.running, "the batch");
    auto& bound = nb::cast<BoundSequence&>(object);
    const auto n = static_cast<int64_t>(ids.shape(0));
    const int32_t row0 = self.batch.n_rows;
    if (n < 1 || n > self.max_rows - row0) refuse("the batch has no room for these rows");
    if (position < 0 || position > kMaxPosition - n) refuse("position out of range");
    for (const nb::object& other : self.sequences) {
        if (other.is(object)) refuse("a sequence has one run of positions in a batch");
    }
    for (int64_t i = 0; i < n; i++) {
        if (ids.data()[i] < 0 || ids.data()[i] >= self.vocab) {
            refuse("token id " + std::to_string(ids.data()[i]) + " is not in the vocabulary of " +
                   std::to_string(self.vocab));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        self.batch.ids.push_back(ids.data()[i]);
        self.batch.positions.push_back(position + i);
    }
    self.batch.segments.push_back({&bound.sequence, row0, static_cast<int32_t>(n), position});
    self.sequences.push_back(std::move(object));
    self.batch.n_rows += static_cast<int32_t>(n);
    return row0;
}

void want_logits(BoundBatch& self, const Ids& rows) {
    check_idle(self.running, "the batch");
    if (rows.shape(0) > static_cast<size_t>(self.max_logit_rows))
        refuse("more rows of logits than the engine's limit");
    for (size_t i = 0; i < rows.shape(0); i++) {
        const int32_t row = rows.data()[i];
        if (row < 0 || row >= self.batch.n_rows || (i > 0 && row <= rows.data()[i - 1])) {
            refuse("rows of logits must be rows of the batch, ascending");
        }
    }
    self.batch.logit_rows.assign(rows.data(), rows.data() + rows.shape(0));
}

void bind_layout(nb::module_& m) {
    nb::class_<RowShape>(m, "RowShape")
        .def(
            "__init__",
            [](RowShape* self, int32_t width, int32_t rotary, bool rounded) {
                new (self) RowShape{width, rotary, rounded ? 1 : 0};
                check_shape(*self);
            },
            nb::arg("width"), nb::arg("rotary"), nb::arg("rounded"));
    m.def("cache_row_bytes", &cache_row_bytes, nb::arg("shape"));
    nb::class_<StreamLayout>(m, "StreamLayout")
        .def(
            "__init__",
            [](StreamLayout* self, int32_t open, int64_t slot_offset, int64_t slot_bytes, int64_t page_offset,
               int64_t row_bytes, RowShape shape) {
                new (self)
                    StreamLayout{shape.width, open, slot_offset, slot_bytes, page_offset, row_bytes, shape};
            },
            nb::arg("open"), nb::arg("slot_offset"), nb::arg("slot_bytes"), nb::arg("page_offset"),
            nb::arg("row_bytes"), nb::arg("shape"));
    nb::class_<LayerLayout>(m, "LayerLayout")
        .def(
            "__init__",
            [](LayerLayout* self, int32_t ratio, bool overlapped, int64_t ring_offset, int64_t ring_row_bytes,
               RowShape ring_shape, int32_t rows_per_page, std::optional<StreamLayout> main,
               std::optional<StreamLayout> index) {
                new (self) LayerLayout{ratio,
                                       overlapped ? 1 : 0,
                                       ring_offset,
                                       ring_row_bytes,
                                       ring_shape,
                                       rows_per_page,
                                       main.value_or(StreamLayout{}),
                                       index.value_or(StreamLayout{})};
            },
            nb::arg("ratio"), nb::arg("overlapped"), nb::arg("ring_offset"), nb::arg("ring_row_bytes"),
            nb::arg("ring_shape"), nb::arg("rows_per_page"), nb::arg("main").none() = nb::none(),
            nb::arg("index").none() = nb::none());
    nb::class_<KvLayout>(m, "KvLayout")
        .def(
            "__init__",
            [](KvLayout* self, std::vector<LayerLayout> layers, int32_t window, int32_t ring_depth,
               int32_t slots, int32_t page_span, int64_t frontier_bytes, int64_t page_bytes) {
                KvLayout k{std::move(layers), window,         ring_depth, slots,
                           page_span,         frontier_bytes, page_bytes};
                check_layout(k);
                new (self) KvLayout(std::move(k));
            },
            nb::arg("layers"), nb::arg("window"), nb::arg("ring_depth"), nb::arg("slots"),
            nb::arg("page_span"), nb::arg("frontier_bytes"), nb::arg("page_bytes"))
        .def_ro("frontier_bytes", &KvLayout::frontier_bytes)
        .def_ro("page_bytes", &KvLayout::page_bytes)
        .def_ro("page_span", &KvLayout::page_span);
}

}  // namespace

void check_runnable(const BoundBatch& b, const KvLayout* layout, int64_t max_context) {
    for (const Segment& s : b.batch.segments) {
        const int64_t length = s.pos0 + s.n;
        if (s.sequence->layout != layout) refuse("a sequence of the batch has another model's layout");
        if (length > max_context) refuse("a position is beyond the engine's context");
        if (pages_for(*layout, length) > static_cast<int64_t>(s.sequence->pages.size())) {
            refuse("a sequence of the batch lacks pages for its positions");
        }
    }
}

void bind_sequence(nb::module_& m) {
    bind_layout(m);
    nb::class_<BoundSequence>(m, "Sequence")
        .def("__init__", &init_sequence, nb::arg("layout"), nb::arg("frontier"), nb::arg("offset"))
        .def("add_page", &add_page, nb::arg("buffer"), nb::arg("offset"))
        .def("keep_pages", &keep_pages, nb::arg("n"))
        .def("fill", &fill, nb::arg("isa"), nb::arg("length"), nb::arg("seed"))
        .def_prop_ro("pages", [](const BoundSequence& s) { return s.pages.size(); });
    nb::class_<BoundBatch>(m, "Batch")
        .def("__init__", &init_batch, nb::arg("max_rows"), nb::arg("max_logit_rows"), nb::arg("vocab"))
        .def("clear", &clear_batch)
        .def("add", &add_rows, nb::arg("sequence"), nb::arg("position"), nb::arg("ids"))
        .def("want_logits", &want_logits, nb::arg("rows"))
        .def_prop_ro("rows", [](const BoundBatch& b) { return b.batch.n_rows; })
        .def_prop_ro("logit_rows", [](const BoundBatch& b) { return b.batch.logit_rows; })
        .def(
            "position_of",
            [](const BoundBatch& b, int32_t row) {
                if (row < 0 || row >= b.batch.n_rows) refuse("no such row");
                return b.batch.positions[static_cast<size_t>(row)];
            },
            nb::arg("row"));
}

}  // namespace finback
