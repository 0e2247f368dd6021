// One pool of worker threads per process; programs run on it one after another. Owns threads, their floating-point mode
// and the meeting points between operations. Refuses to run in a forked child (threads do not survive a fork) and to
// run two programs at once (callers queue on a mutex).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace finback {

// A team of `size` threads executing the same function; thread 0 is the caller.
class Team {
  public:
    Team(int size) : size_(size) {}
    int size() const { return size_; }
    // All threads of the team meet here. Spins briefly, then sleeps. Memory written before is visible after.
    void barrier();

  private:
    const int size_;
    std::atomic<int> arrived_{0};
    std::atomic<uint32_t> round_{0};
};

// Runs body(team, id) on `threads` threads, id 0 on the caller's. Grows the pool as needed, never shrinks it. Every thread
// runs in round-to-nearest with subnormals on; the caller's mode is restored. Exceptions must not leave body.
void run_team(int threads, const std::function<void(Team&, int)>& body);

// Contiguous share of [0, n) for `id` of `size`, in units of `grain`.
struct Range { int64_t begin, end; };
Range share(int64_t n, int id, int size, int64_t grain = 1);

// Threads this process may use: by CPU quota (cgroup v1, v2, nested) and affinity mask, physical cores. Computed in Python
// (finback.settings) so that it can be tested as a pure function; here only the pool.

// Process id that created the pool, 0 if none yet. A different getpid() means we are a forked child.
int pool_owner();

}  // namespace finback
