#include "bench/clock.h"

#include <algorithm>
#include <chrono>

namespace finback {
namespace {

using Clock = std::chrono::steady_clock;

// Long beside a meeting of threads (0.07 us), short beside the time slices of a scheduler (3 ms), so that on
// a machine with other work some windows are whole.
constexpr double kWindowSeconds = 0.001;
constexpr size_t kLeastWindows = 3;
// The first window is of one unit and tells how many fill a window; the second meets the caches as the later
// ones do.
constexpr size_t kWarmUps = 2;
constexpr double kMostSkew = 0.03;  // of a window: threads that begin further apart did not work together

// A thread's own account of a window.
struct alignas(64) Shift {
    Clock::time_point begun, ended;
    double core_seconds;
    bool lost_core;
};

Window window_of(const std::vector<Shift>& shifts, int64_t units) {
    if (shifts.size() == 1) return {shifts[0].core_seconds, units, shifts[0].lost_core};
    Clock::time_point first = shifts[0].begun, last_begun = first, ended = shifts[0].ended;
    bool disturbed = false;
    for (const Shift& s : shifts) {
        first = std::min(first, s.begun);
        last_begun = std::max(last_begun, s.begun);
        ended = std::max(ended, s.ended);
        disturbed = disturbed || s.lost_core;
    }
    const double seconds = std::chrono::duration<double>(ended - first).count();
    const double skew = std::chrono::duration<double>(last_begun - first).count();
    return {seconds, units, disturbed || skew > kMostSkew * seconds};
}

struct Track {
    Walk* walk;
    int64_t at = 0, count = 1;  // the next unit, and how many a window has
};

// Thread 0's: decides what the next window is and keeps the results.
class Schedule {
  public:
    Schedule(const std::vector<Walk*>& walks, double seconds, std::vector<std::vector<Window>>* windows)
        : seconds_(seconds), windows_(windows) {
        for (Walk* walk : walks) tracks_.push_back({walk});
        windows->assign(walks.size(), {});
    }
    // The track whose window comes next; null: all is done.
    Track* next() {
        if (turn_ == kWarmUps * tracks_.size()) begun_ = Clock::now();
        const bool measured = turn_ >= (kWarmUps + kLeastWindows) * tracks_.size();
        if (measured && turn_ % tracks_.size() == 0 && Clock::now() - begun_ >= seconds_) return nullptr;
        return &tracks_[turn_ % tracks_.size()];
    }
    void ended(Track& track, const std::vector<Shift>& shifts) {
        const size_t index = turn_ % tracks_.size(), round = turn_ / tracks_.size();
        const Window window = window_of(shifts, track.count);
        track.at = (track.at + track.count) % track.walk->units();
        if (round >= kWarmUps) (*windows_)[index].push_back(window);
        if (round < kWarmUps || !window.disturbed) {
            const double unit = std::max(window.seconds / static_cast<double>(track.count), 1e-9);
            track.count = std::max<int64_t>(1, static_cast<int64_t>(kWindowSeconds / unit));
        }
        turn_++;
    }

  private:
    const std::chrono::duration<double> seconds_;
    std::vector<std::vector<Window>>* const windows_;
    std::vector<Track> tracks_;
    Clock::time_point begun_{};
    size_t turn_ = 0;
};

}  // namespace

bool time_in_turn(const std::vector<Walk*>& walks, int threads, double seconds,
                  std::vector<std::vector<Window>>* windows) {
    Schedule schedule(walks, seconds, windows);
    std::vector<Shift> shifts(static_cast<size_t>(threads));
    Track* current = nullptr;  // written by thread 0 before the meeting that opens a window
    const auto body = [&](Team& team, int id) {
        Shift& mine = shifts[static_cast<size_t>(id)];
        for (;;) {
            if (id == 0) current = schedule.next();
            team.barrier();
            if (!current) return;
            const int64_t before = preemptions();
            const double had = core_seconds();
            mine.begun = Clock::now();
            for (int64_t i = 0; i < current->count; i++) {
                current->walk->run(team, id, (current->at + i) % current->walk->units());
            }
            mine.ended = Clock::now();
            mine.core_seconds = core_seconds() - had;
            mine.lost_core = preemptions() != before;
            team.barrier();
            if (id == 0) schedule.ended(*current, shifts);
            team.barrier();  // nobody looks at `current` while it is decided anew
        }
    };
    return run_team(threads, body);
}

}  // namespace finback
