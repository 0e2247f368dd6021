// One pool of worker threads per process; programs run on it one after another. Owns threads, their
// floating-point mode and the meeting points between operations. Refuses to run in a forked child (threads do
// not survive a fork) and to run two programs at once (callers queue on a mutex).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace finback {

// A team of `size` threads executing the same function; thread 0 is the caller.
class Team {
  public:
    explicit Team(int size);
    int size() const { return size_; }
    // All threads of the team meet here. Spins briefly, then sleeps. Memory written before is visible after.
    void barrier();

  private:
    const int size_;
    const bool spins_;  // false when the team has more threads than the process has CPUs
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
};

// Runs body(team, id) on `threads` threads, id 0 on the caller's. Grows the pool as needed, never shrinks it.
// Every thread runs in round-to-nearest with subnormals on; the caller's mode is restored. Exceptions must
// not leave body, and body must not call run_team. Returns false, having run nothing, in a forked child.
bool run_team(int threads, const std::function<void(Team&, int)>& body);

// Starts the threads that run_team(threads, ...) needs, so that a machine that refuses them says so at load.
// Throws std::system_error. Claims the pool for this process (see pool_owner) even when no thread is needed.
void grow_pool(int threads);

// Contiguous share of [0, n) for `id` of `size`, in units of `grain`.
struct Range {
    int64_t begin, end;
};
Range share(int64_t n, int id, int size, int64_t grain = 1);

// How many threads a team may use is decided in Python (finback.settings), where it can be tested as a pure
// function; here only the pool.

// Process id that created the pool, 0 if none yet. A different getpid() means we are a forked child.
int pool_owner();

// How often the system took the core from the calling thread so far; always 0 where it does not tell. What
// was timed while this changed says nothing about the code.
int64_t preemptions();

// Seconds that the calling thread has had a core.
double core_seconds();

// Workers started so far, the callers' own threads not counted.
int pool_workers();

}  // namespace finback
