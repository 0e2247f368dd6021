// Timing of work that a team of threads does in memory, without a caller in the loop. Owns the windows: how
// long they are, their order, and which of them the system disturbed. Refuses to judge: medians and what is
// left out are decided where the windows are read (finback/tools/bench_kernels.py).
#pragma once
#include <cstdint>
#include <vector>

#include "core/threads.h"

namespace finback {

// Work in equal units, which a team does together one after another, over and over. It does not fit the
// caches, so that by the time a unit comes again its memory is cold.
class Walk {
  public:
    virtual ~Walk() = default;
    virtual int64_t units() const = 0;
    // Thread `id`'s part of a unit. May meet the others any number of times, all the same.
    virtual void run(Team& team, int id, int64_t unit) = 0;
};

// One thread is timed by the time it had a core, which is all that a busy machine leaves to be measured;
// several from the first that began to the last that ended.
struct Window {
    double seconds;
    int64_t units;
    bool disturbed;  // a thread of the team lost its core meanwhile, or came late
};

// Windows of each walk in turn, a few milliseconds each and at least one unit, until `seconds` are over and
// every walk has had at least three. What comes first warms up and is not among them. Returns false, having
// timed nothing, in a forked child.
bool time_in_turn(const std::vector<Walk*>& walks, int threads, double seconds,
                  std::vector<std::vector<Window>>* windows);

}  // namespace finback
