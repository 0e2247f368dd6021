#include "core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace finback {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<int64_t> held{0};

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

uint8_t* map_anonymous(size_t size) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return static_cast<uint8_t*>(at);
}

// mmap aligns to small pages only: ask for one huge page more and give back what lies outside the aligned
// part.
uint8_t* map_aligned(size_t size) {
    uint8_t* raw = map_anonymous(size + kHugePage);
    const size_t address = reinterpret_cast<size_t>(raw);
    const size_t before = round_up(address, kHugePage) - address;
    if (before > 0) munmap(raw, before);
    munmap(raw + before + size, kHugePage - before);
    return raw + before;
}

}  // namespace

Buffer::Buffer(int64_t size, Pages pages) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (size <= 0 || size > INT64_MAX / 2) throw std::bad_alloc();
    const size_t bytes = round_up(static_cast<size_t>(size), page);
    data_ = bytes >= kHugePage ? map_aligned(bytes) : map_anonymous(bytes);
    size_ = static_cast<int64_t>(bytes);
#if defined(MADV_HUGEPAGE)
    // Advice only: a kernel without transparent huge pages refuses it, and the buffer is then merely a little
    // slower.
    const int advice = pages == Pages::HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
    if (bytes >= kHugePage) static_cast<void>(madvise(data_, bytes, advice));
#endif
    held.fetch_add(size_, std::memory_order_relaxed);
}

Buffer::~Buffer() {
    munmap(data_, static_cast<size_t>(size_));
    held.fetch_sub(size_, std::memory_order_relaxed);
}

int64_t Buffer::total() { return held.load(std::memory_order_relaxed); }

}  // namespace finback
