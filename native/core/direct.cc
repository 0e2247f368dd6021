#include "core/direct.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace finback {
namespace {

// Reads up to `size` bytes; how many there were, or -1.
int64_t read_at(int fd, uint8_t* to, int64_t size, int64_t offset) {
    int64_t done = 0;
    while (done < size) {
        const ssize_t got = pread(fd, to + done, static_cast<size_t>(size - done), offset + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += got;
    }
    return done;
}

}  // namespace

DirectFile::DirectFile(const FileMap& map) : map_(map) {
#if defined(O_DIRECT)
    // By the descriptor, not by the path, which may name another file by now.
    const std::string same = "/proc/self/fd/" + std::to_string(map.fd());
    fd_ = open(same.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd_ < 0) buffered_ = errno;
#else
    buffered_ = ENOTSUP;
#endif
}

DirectFile::~DirectFile() {
    if (fd_ >= 0) close(fd_);
}

const uint8_t* DirectFile::read(int64_t offset, int64_t size, uint8_t* to) const {
    const int64_t first = offset / kAlign * kAlign, before = offset - first;
    if (!buffered()) {
        const int64_t whole = (before + size + kAlign - 1) / kAlign * kAlign;
        // At the end of the file there is less; what comes after is not asked for.
        const int64_t got = read_at(fd_, to, whole, first);
        if (got >= before + size) return to + before;
        if (got < 0) buffered_ = errno;  // a file system may take the flag and refuse the reads
    }
    return read_at(map_.fd(), to, size, offset) == size ? to : nullptr;
}

}  // namespace finback
