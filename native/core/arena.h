// Zeroed anonymous memory for everything finback allocates in bulk: the arena of a program's values, pages,
// frontiers. Owns the mapping and an exact count of the bytes held this way by the process. Buffers of 2 MB
// and more start at a multiple of 2 MB and ask for huge pages, which a walk over a large region notices.
// Refuses nothing by itself: what may be allocated is the ledger's decision (finback/weights/ledger.py).
#pragma once
#include <cstdint>

namespace finback {

// Which pages of the system a large buffer asks for. SMALL: those a mapped file has, for measuring.
enum class Pages { HUGE, SMALL };

class Buffer {
  public:
    // `size` > 0 bytes, rounded up to the system's pages. Throws std::bad_alloc.
    explicit Buffer(int64_t size, Pages pages = Pages::HUGE);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint8_t* data() const { return data_; }
    int64_t size() const { return size_; }

    // Bytes held by all buffers of the process.
    static int64_t total();

  private:
    uint8_t* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace finback
