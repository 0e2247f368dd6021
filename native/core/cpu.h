// What this processor and this operating system can run. Owns detection; refuses nothing itself: the caller turns
// `missing` into a sentence.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace finback {

struct Level {
    const char* name;      // "scalar", "avx2"
    const Table* table;
    bool supported;        // CPU and OS state
    std::string missing;   // which features are missing, when not supported
};

// All levels this build contains, lowest first.
const std::vector<Level>& levels();

// The best supported level, or the named one. Returns null and sets `why` (a full sentence) if it cannot be used.
const Table* select_table(const std::string& isa, std::string* why);

}  // namespace finback
