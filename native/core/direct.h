// Reading a mapped file past the page cache, for bytes that are read once and kept in another form. Owns a
// second descriptor of the file and the fall back to ordinary reads where the system or the file system has
// no direct ones. Refuses to return less than was asked for.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "core/map.h"

namespace finback {

class DirectFile {
  public:
    // What a buffer for `size` bytes must hold: direct reads begin and end at multiples of kAlign.
    static constexpr int64_t kAlign = 4096;
    static int64_t room(int64_t size) { return size + 2 * kAlign; }

    // `map` must outlive it.
    explicit DirectFile(const FileMap& map);
    ~DirectFile();
    DirectFile(const DirectFile&) = delete;
    DirectFile& operator=(const DirectFile&) = delete;

    const FileMap& map() const { return map_; }

    // Why reads are ordinary ones; 0 while they are direct. An errno.
    int buffered() const { return buffered_.load(std::memory_order_relaxed); }

    // Bytes [offset, offset + size) of the file, somewhere in `to`, which is aligned to kAlign and has room
    // for them; null if they cannot be had any more. From any thread.
    const uint8_t* read(int64_t offset, int64_t size, uint8_t* to) const;

  private:
    const FileMap& map_;
    int fd_ = -1;
    mutable std::atomic<int> buffered_{0};
};

}  // namespace finback
