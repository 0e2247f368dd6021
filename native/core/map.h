// Read-only mappings of model files. Owns the file descriptor, the mapping and the memory of what the file
// looked like when it was mapped. Refuses what is not a regular file with bytes in it, and tells when the
// file has been cut or written to since: reading a page that the file no longer has kills the process with
// SIGBUS, so callers ask changed() before every run. A file cut *during* a run is the remaining race
// (docs/memory.md); replacing a file by renaming another over it is safe, for the mapping keeps the old one.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace finback {

class FileMap {
  public:
    // Maps the whole file. Returns null and sets `why`, a clause that follows the file's name, if that cannot
    // be done.
    static std::unique_ptr<FileMap> open(const std::string& path, std::string* why);
    ~FileMap();
    FileMap(const FileMap&) = delete;
    FileMap& operator=(const FileMap&) = delete;

    const std::string& path() const { return path_; }
    const uint8_t* data() const { return data_; }
    int64_t size() const { return size_; }
    int fd() const { return fd_; }

    // Whether the file differs from what was mapped; if so, sets `why` as above. One fstat call, no
    // allocation when not.
    bool changed(std::string* why) const;

  private:
    FileMap() = default;

    std::string path_;
    int fd_ = -1;
    const uint8_t* data_ = nullptr;
    int64_t size_ = 0;
    int64_t mtime_ns_ = 0;
};

}  // namespace finback
