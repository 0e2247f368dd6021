// experts: gated networks of the chosen experts and of the shared one, summed per row (docs/exactness.md
// section 13).
//
// The work is a list of *entries*, one per (row, chosen expert), and one per row for the shared expert, which
// counts as the expert after the last. Sorted by expert they make *groups*: all rows of one expert. So that
// the f32 results between the matrices stay bounded, the list is taken in *slices* of at most 1024 entries,
// cut between groups where possible. Per slice:
//
//     up      per group:  u = swiglu(w1 x, w3 x) * weight     threads own output rows of w1 and w3 of every
//     expert meet pack    per entry:  u -> the encoding of w2              threads own entries meet down per
//     group:  out[row] += w2 u                     threads own output rows of w2 of every expert
//
// Since every expert is split over all threads, one decoding row keeps all of them busy, and every expert's
// matrices come from memory once a step (an expert with more than 1024 rows: once per 1024 rows, which is
// nothing beside the arithmetic on them). Since slices and groups come in ascending order and a thread owns
// its columns of out, each sum runs in the order of the row's list, the shared expert last, whatever the
// slices. No meeting follows down: the next slice's up does not touch what down reads, and its pack comes
// after a meeting.
#include <stdexcept>

#include "ops/work.h"

namespace finback {
namespace {

constexpr int64_t kSliceEntries = 1024;
// Values of one matrix's results on the stack: 16384 rows x 1 input .. 256 x 64.
constexpr int64_t kTemporary = 16384;
static_assert(kTemporary / kInputTile >= kRowGrain);

// Scratch: u and its packed form for the entries of a slice; for each thread its own copy of the sorted list
// (cheaper to make than a meeting), and where each group starts.
struct Scratch {
    Scratch(const ExpertShape& s, Encoding inner, Encoding shared_inner, int64_t rows, int64_t threads) {
        const int64_t groups = s.experts + (s.shared_inner ? 1 : 0);
        const int64_t entries = rows * (s.chosen + (s.shared_inner ? 1 : 0));
        const int64_t slice = std::min(entries, kSliceEntries);
        u_bytes = pad64(std::max(s.inner, s.shared_inner) * 4);
        code_bytes = packed_bytes(inner, s.inner);
        if (s.shared_inner) code_bytes = std::max(code_bytes, packed_bytes(shared_inner, s.shared_inner));
        codes = slice * u_bytes;
        lists = codes + slice * code_bytes;
        starts = pad64(entries * 4);
        thread_bytes = starts + pad64((groups + 2) * 4);
        bytes = lists + threads * thread_bytes;
    }
    int64_t u_bytes, code_bytes;
    int64_t codes, lists;          // offsets; u comes first
    int64_t starts, thread_bytes;  // in a thread's region
    int64_t bytes;
};

// The sorted entries. An entry is row * stride + place in the row's list; the shared expert's place is the
// last.
struct Entries {
    int32_t* list;
    int32_t* starts;  // group e: list[starts[e]] .. list[starts[e + 1] - 1]
    int32_t groups, stride;
    int64_t total() const { return starts[groups]; }
    int64_t row(int64_t i) const { return list[i] / stride; }
    int32_t place(int64_t i) const { return list[i] % stride; }

    // Where the slice from `begin` ends: at the last start of a group within reach, or in the middle of a
    // very large group.
    int64_t slice_end(int64_t begin) const {
        const int64_t limit = begin + kSliceEntries;
        if (limit >= total()) return total();
        const int64_t start = *(std::upper_bound(starts, starts + groups, static_cast<int32_t>(limit)) - 1);
        return start > begin ? start : limit;
    }
};

class Experts final : public Op {
  public:
    Experts(Value packed, Value packed_shared, Value routing, Value out, Value scratch, ExpertMatrices routed,
            ExpertMatrices shared, ExpertShape s)
        : packed_(packed),
          packed_shared_(packed_shared),
          routing_(routing),
          out_(out),
          scratch_(scratch),
          s_(s),
          m_(std::move(routed)) {
        check(m_, static_cast<size_t>(s.experts), s.inner);
        if (s.shared_inner) check(shared, 1, s.shared_inner);
        inner_ = encoding_of(m_.w2[0].format);
        shared_inner_ = s.shared_inner ? encoding_of(shared.w2[0].format) : inner_;
        // The shared expert's matrices follow those of the routed ones.
        m_.w1.insert(m_.w1.end(), shared.w1.begin(), shared.w1.end());
        m_.w3.insert(m_.w3.end(), shared.w3.begin(), shared.w3.end());
        m_.w2.insert(m_.w2.end(), shared.w2.begin(), shared.w2.end());
    }
    const char* name() const override { return "experts"; }
    int64_t weight_bytes() const override {
        const auto bytes = [this](size_t e) {
            const Matrix* const all[] = {&m_.w1[e], &m_.w3[e], &m_.w2[e]};
            int64_t sum = 0;
            for (const Matrix* w : all) sum += w->rows * w->row_bytes;
            return sum;
        };
        const bool shared = m_.w1.size() > static_cast<size_t>(s_.experts);
        return s_.chosen * bytes(0) + (shared ? bytes(m_.w1.size() - 1) : 0);
    }

    void run(const Step& step, Team& team, int id) const override {
        const Scratch plan(s_, inner_, shared_inner_, step.batch->n_rows, team.size());
        const Entries entries = sort_entries(step, plan, id);
        const Range columns = share(s_.hidden, id, team.size(), kRowGrain);
        for (int64_t t = 0; t < step.batch->n_rows; t++) {
            std::fill(step.f32(out_, t) + columns.begin, step.f32(out_, t) + columns.end, 0.0f);
        }
        for (int64_t begin = 0; begin < entries.total();) {
            const Range slice{begin, entries.slice_end(begin)};
            for_groups(entries, slice, [&](int32_t e, Range group) {
                up(step, plan, entries, e, group, slice.begin, share(inner(e), id, team.size(), kRowGrain));
            });
            team.barrier();
            pack(step, plan, entries, slice, share(slice.end - slice.begin, id, team.size()));
            team.barrier();
            for_groups(entries, slice, [&](int32_t e, Range group) {
                down(step, plan, entries, e, group, slice.begin, columns);
            });
            begin = slice.end;
        }
    }

  private:
    void check(const ExpertMatrices& m, size_t n, int64_t inner) const {
        if (m.w1.size() != n || m.w3.size() != n || m.w2.size() != n) {
            throw std::invalid_argument("experts need matrices w1, w3 and w2 for every expert");
        }
        for (size_t e = 0; e < n; e++) {
            const Matrix &w1 = m.w1[e], &w3 = m.w3[e], &w2 = m.w2[e];
            if (w1.rows != inner || w1.cols != s_.hidden || w3.rows != inner || w3.cols != s_.hidden ||
                w2.rows != s_.hidden || w2.cols != inner) {
                throw std::invalid_argument("an expert's matrix does not have the shape of the model");
            }
            if (encoding_of(w1.format) != encoding_of(w3.format) ||
                encoding_of(w1.format) != encoding_of(m.w1[0].format) ||
                encoding_of(w2.format) != encoding_of(m.w2[0].format)) {
                throw std::invalid_argument("matrices of experts that read the same input need one encoding");
            }
        }
    }

    bool is_shared(int32_t e) const { return e == s_.experts; }
    int64_t inner(int32_t e) const { return is_shared(e) ? s_.shared_inner : s_.inner; }
    const int32_t* chosen(const Step& step, int64_t row) const {
        return reinterpret_cast<const int32_t*>(step.bytes(routing_, row));
    }

    // Counting sort by expert, rows ascending within one. starts[e + 1] runs through group e while it is
    // being filled.
    Entries sort_entries(const Step& step, const Scratch& plan, int id) const {
        uint8_t* own = step.arena + scratch_.offset + plan.lists + id * plan.thread_bytes;
        const int32_t shared = s_.shared_inner ? 1 : 0, rows = step.batch->n_rows;
        const Entries out{reinterpret_cast<int32_t*>(own), reinterpret_cast<int32_t*>(own + plan.starts),
                          s_.experts + shared, s_.chosen + shared};
        const auto group = [&](int32_t row, int32_t i) {
            return i < s_.chosen ? chosen(step, row)[i] : s_.experts;
        };
        std::fill_n(out.starts, out.groups + 2, 0);
        for (int32_t row = 0; row < rows; row++) {
            for (int32_t i = 0; i < out.stride; i++) out.starts[group(row, i) + 2]++;
        }
        for (int32_t e = 2; e < out.groups + 2; e++) out.starts[e] += out.starts[e - 1];
        for (int32_t row = 0; row < rows; row++) {
            for (int32_t i = 0; i < out.stride; i++) {
                out.list[out.starts[group(row, i) + 1]++] = row * out.stride + i;
            }
        }
        return out;
    }

    // visit(expert, its entries) for the groups that reach into the slice, ascending.
    template <class Visit>
    static void for_groups(const Entries& entries, Range slice, const Visit& visit) {
        for (int32_t e = 0; e < entries.groups; e++) {
            const Range group{std::max<int64_t>(entries.starts[e], slice.begin),
                              std::min<int64_t>(entries.starts[e + 1], slice.end)};
            if (group.begin < group.end) visit(e, group);
        }
    }

    // visit(output rows, entries) over rows x group in blocks whose results fit a temporary.
    template <class Visit>
    static void for_blocks(Range rows, Range group, const Visit& visit) {
        const int64_t tile = std::min(group.end - group.begin, kInputTile);
        const int64_t block = kTemporary / tile / kRowGrain * kRowGrain;
        for (int64_t r = rows.begin; r < rows.end; r += block) {
            for (int64_t i = group.begin; i < group.end; i += tile) {
                visit(Range{r, std::min(r + block, rows.end)}, Range{i, std::min(i + tile, group.end)});
            }
        }
    }

    float* u(const Step& step, const Scratch& plan, int64_t i) const {  // of the i-th entry of the slice
        return reinterpret_cast<float*>(step.arena + scratch_.offset + i * plan.u_bytes);
    }
    uint8_t* codes(const Step& step, const Scratch& plan, int64_t i) const {
        return step.arena + scratch_.offset + plan.codes + i * plan.code_bytes;
    }

    void up(const Step& step, const Scratch& plan, const Entries& entries, int32_t e, Range group,
            int64_t slice, Range rows) const {
        const Value& packed = is_shared(e) ? packed_shared_ : packed_;
        float gate[kTemporary], value[kTemporary];
        for_blocks(rows, group, [&](Range r, Range some) {
            const int64_t n = some.end - some.begin, height = r.end - r.begin;
            const auto in = [&](int64_t i) { return step.bytes(packed, entries.row(some.begin + i)); };
            multiply(*step.table, m_.w1[static_cast<size_t>(e)], r, n, in,
                     [&](int64_t i) { return gate + i * height; });
            multiply(*step.table, m_.w3[static_cast<size_t>(e)], r, n, in,
                     [&](int64_t i) { return value + i * height; });
            for (int64_t i = 0; i < n; i++) {
                const int64_t entry = some.begin + i;
                const auto* weights =
                    reinterpret_cast<const float*>(chosen(step, entries.row(entry)) + s_.chosen);
                const float* weight = is_shared(e) ? nullptr : weights + entries.place(entry);
                step.table->swiglu(gate + i * height, value + i * height, height, s_.limit, weight,
                                   u(step, plan, entry - slice) + r.begin);
            }
        });
    }

    void pack(const Step& step, const Scratch& plan, const Entries& entries, Range slice, Range mine) const {
        for (int64_t i = mine.begin; i < mine.end; i++) {
            const bool shared = entries.place(slice.begin + i) == s_.chosen;
            const auto pack = step.table->pack[static_cast<int>(shared ? shared_inner_ : inner_)];
            if (!pack(u(step, plan, i), shared ? s_.shared_inner : s_.inner, codes(step, plan, i))) {
                mark_bad(step, entries.row(slice.begin + i));
            }
        }
    }

    void down(const Step& step, const Scratch& plan, const Entries& entries, int32_t e, Range group,
              int64_t slice, Range columns) const {
        float part[kTemporary];
        for_blocks(columns, group, [&](Range r, Range some) {
            const int64_t n = some.end - some.begin, height = r.end - r.begin;
            const auto in = [&](int64_t i) { return codes(step, plan, some.begin + i - slice); };
            multiply(*step.table, m_.w2[static_cast<size_t>(e)], r, n, in,
                     [&](int64_t i) { return part + i * height; });
            for (int64_t i = 0; i < n; i++) {
                float* out = step.f32(out_, entries.row(some.begin + i)) + r.begin;
                step.table->add(out, part + i * height, height, out);
            }
        });
    }

    const Value packed_, packed_shared_, routing_, out_, scratch_;
    const ExpertShape s_;
    ExpertMatrices m_;
    Encoding inner_, shared_inner_;
};

}  // namespace

int64_t experts_scratch_bytes(const ExpertShape& s, Encoding inner, Encoding shared_inner, int32_t max_rows,
                              int32_t threads) {
    return Scratch(s, inner, shared_inner, max_rows, threads).bytes;
}

OpPtr make_experts(Value packed, Value packed_shared, Value routing, Value out, Value scratch,
                   ExpertMatrices routed, ExpertMatrices shared, ExpertShape s) {
    return std::make_unique<Experts>(packed, packed_shared, routing, out, scratch, std::move(routed),
                                     std::move(shared), s);
}

}  // namespace finback
