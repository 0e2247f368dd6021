#include "core/threads.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "core/float_mode.h"

namespace finback {
namespace {

// How long a thread looks for the others before it sleeps. A futex wake and its answer cost about 24 us, a
// spinning meeting 0.07 us (measured, 2 cores), and operations leave their threads tens of microseconds
// apart. Spinning for two wakes loses at most as much again as sleeping would have; a partner that was
// preempted is away for milliseconds, and then we sleep.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kSpinsPerLook = 64;  // pauses between two looks at the clock

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#else
    __asm__ volatile("yield");
#endif
}

// Waits until `word` is no longer `old`. `spins`: whether a partner can be running meanwhile.
void await_change(const std::atomic<uint32_t>& word, uint32_t old, bool spins) {
    if (spins) {
        const auto stop = std::chrono::steady_clock::now() + kSpinTime;
        do {
            for (int i = 0; i < kSpinsPerLook; i++) {
                if (word.load(std::memory_order_acquire) != old) return;
                pause_cpu();
            }
        } while (std::chrono::steady_clock::now() < stop);
    }
    word.wait(old,
              std::memory_order_acquire);  // returns at once if it changed; looks again after spurious wakes
}

// CPUs in the affinity mask when the library was loaded.
int cpus() {
    static const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return n;
}

struct alignas(64) Worker {
    std::atomic<uint32_t> starts{0};  // one more for each job
};

// Signals are for the application's threads: Python's main thread must see EINTR. Faults stay deliverable, so
// that a handler such as faulthandler can report one that happens in a worker.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &saved_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

  private:
    sigset_t saved_;
};

class Pool {
  public:
    void run(int threads, const std::function<void(Team&, int)>& body);
    void grow(int threads);
    int workers() const { return n_workers_.load(std::memory_order_relaxed); }

  private:
    void serve(Worker* me, int id);
    void grow_locked(int threads);

    std::mutex turn_;             // held by the caller whose team is running, or that grows the pool
    std::deque<Worker> workers_;  // worker i has id i + 1; addresses are stable
    std::atomic<int> n_workers_{0};
    // The job, written under turn_ before its workers are started:
    Team* team_ = nullptr;
    const std::function<void(Team&, int)>* body_ = nullptr;
    alignas(64) std::atomic<uint32_t> running_{0};  // workers that have not finished the job
};

void Pool::serve(Worker* me, int id) {
    const FloatMode mode;
    for (uint32_t seen = 0;; seen++) {
        await_change(me->starts, seen, workers() < cpus());
        (*body_)(*team_, id);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
}

void Pool::grow_locked(int threads) {
    const BlockedSignals blocked;  // inherited by the new threads, as is the CPU affinity
    while (static_cast<int>(workers_.size()) < threads - 1) {
        const int id = static_cast<int>(workers_.size()) + 1;
        Worker* worker = &workers_.emplace_back();
        try {
            std::thread thread(&Pool::serve, this, worker, id);
#if defined(__linux__)
            pthread_setname_np(thread.native_handle(), ("finback-" + std::to_string(id)).c_str());
#endif
            thread.detach();
        } catch (...) {
            workers_.pop_back();
            throw;
        }
        n_workers_.store(id, std::memory_order_relaxed);
    }
}

void Pool::grow(int threads) {
    const std::lock_guard<std::mutex> lock(turn_);
    grow_locked(threads);
}

void Pool::run(int threads, const std::function<void(Team&, int)>& body) {
    const std::lock_guard<std::mutex> lock(turn_);
    grow_locked(threads);
    Team team(threads);
    team_ = &team;
    body_ = &body;
    running_.store(static_cast<uint32_t>(threads - 1), std::memory_order_relaxed);
    for (int i = 0; i < threads - 1; i++) {
        Worker& worker = workers_[static_cast<size_t>(i)];
        worker.starts.fetch_add(1, std::memory_order_release);
        worker.starts.notify_one();
    }
    {
        const FloatMode mode;
        body(team, 0);
    }
    // The team and the body live in this frame: nobody may still be inside.
    for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) {
        await_change(running_, left, threads <= cpus());
    }
}

std::atomic<int> owner{0};

// Created on first use and never destroyed: at process exit its threads sleep in the kernel and touch nothing
// that static destructors take away, which neither joining nor detaching a destroyed pool could promise.
Pool& pool() {
    static Pool* const leaked = new Pool;
    return *leaked;
}

// False in a forked child. The owner is set before any lock is taken, so that a child forked in the middle of
// the pool's creation, whose copy of a lock may be held for ever, never asks for it.
bool claim_pool() {
    const int me = static_cast<int>(getpid());
    int expected = 0;
    return owner.compare_exchange_strong(expected, me) || expected == me;
}

}  // namespace

Team::Team(int size) : size_(size), spins_(size <= cpus()) {}

// The last to arrive opens the next round; the others wait for the round to change. `arrived_` is reset
// before the round opens, so a fast thread may enter the next barrier while slow ones are still leaving this
// one.
void Team::barrier() {
    if (size_ == 1) return;
    const uint32_t round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_all();
    } else {
        await_change(round_, round, spins_);
    }
}

bool run_team(int threads, const std::function<void(Team&, int)>& body) {
    if (!claim_pool()) return false;
    pool().run(threads, body);
    return true;
}

void grow_pool(int threads) {
    if (claim_pool()) pool().grow(threads);
}

Range share(int64_t n, int id, int size, int64_t grain) {
    const int64_t units = (n + grain - 1) / grain;
    const int64_t low = units / size, more = units % size;  // the first `more` threads take one unit more
    const int64_t first = id * low + std::min<int64_t>(id, more);
    const int64_t count = low + (id < more ? 1 : 0);
    return {std::min(n, first * grain), std::min(n, (first + count) * grain)};
}

int pool_owner() { return owner.load(); }

int64_t preemptions() {
#if defined(RUSAGE_THREAD)
    rusage usage{};
    if (getrusage(RUSAGE_THREAD, &usage) == 0) return usage.ru_nivcsw;
#endif
    return 0;
}

double core_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

int pool_workers() { return pool_owner() == static_cast<int>(getpid()) ? pool().workers() : 0; }

}  // namespace finback
