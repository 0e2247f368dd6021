#include "program.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace finback {
namespace {

// Ctrl-C is felt at once by a person, and asking costs a lock of the caller's (Python's GIL).
constexpr auto kPollEvery = std::chrono::milliseconds(20);

// Weights that one thread multiplies with one row in about a millisecond.
constexpr int64_t kThreadBytes = int64_t{8} << 20;

}  // namespace

Program::Program(const Table* table, int threads, int32_t max_rows)
    : table_(table), threads_(threads), bad_rows_(static_cast<size_t>(max_rows)) {
    grow_pool(threads);
}

int Program::team_size(int64_t n_rows) const {
    const int64_t wanted = 1 + weight_bytes_ * n_rows / kThreadBytes;
    return static_cast<int>(std::min<int64_t>(wanted, threads_));
}

// The decision to stop has to be the same in every thread. Thread 0 asks before the barrier of operation i
// and leaves i in `stop_after`; after that barrier everyone compares it with i. A plain flag would not do:
// thread 0 may run ahead and raise it for operation i + 1 while a slow thread still reads it for i and leaves
// alone.
RunResult Program::run(const Batch& batch, uint8_t* arena, bool (*poll)(),
                       std::vector<int32_t>* bad_rows) const {
    constexpr size_t kNever = SIZE_MAX;
    std::atomic<size_t> stop_after{kNever};
    const Step step{table_, &batch, arena, bad_rows_.data()};
    const auto body = [&](Team& team, int id) {
        auto next_poll = std::chrono::steady_clock::now() + kPollEvery;
        // Cleared and read inside the team's turn: another caller of this program waits outside of it.
        if (id == 0) std::memset(step.bad_rows, 0, static_cast<size_t>(batch.n_rows));
        team.barrier();
        for (size_t i = 0; i < ops_.size(); i++) {
            ops_[i]->run(step, team, id);
            if (id == 0 && poll) {
                const auto now = std::chrono::steady_clock::now();
                if (now >= next_poll) {
                    if (poll()) stop_after.store(i, std::memory_order_relaxed);
                    next_poll = now + kPollEvery;
                }
            }
            team.barrier();
            if (stop_after.load(std::memory_order_relaxed) == i) return;
        }
        if (id != 0) return;
        for (int32_t row = 0; row < batch.n_rows; row++) {
            if (step.bad_rows[row]) bad_rows->push_back(row);
        }
    };
    bad_rows->clear();
    // std::ref: the closure is larger than what std::function keeps without allocating.
    if (!run_team(team_size(batch.n_rows), std::ref(body))) return RunResult::FORKED;
    if (stop_after.load() != kNever) return RunResult::INTERRUPTED;
    return bad_rows->empty() ? RunResult::OK : RunResult::BAD_ROW;
}

}  // namespace finback
