// What this processor and this operating system can run. Owns detection; refuses nothing itself: the caller
// turns `missing` into a sentence.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace finback {

struct Level {
    const char* name;  // "scalar", "avx2", "avx512", "neon"
    const Table* table;
    bool supported;       // CPU and OS state
    std::string missing;  // which features are missing, when not supported
};

// The words that decide: CPUID and XGETBV on x86-64, the auxiliary vector on aarch64. 0 on other processors.
struct CpuWords {
    uint64_t leaf1_ecx, leaf7_ebx, leaf7_ecx, xcr0, hwcap;
};

// What a processor with these words lacks for a level, comma-separated; empty if nothing.
std::string missing_for(const std::string& level, const CpuWords& cpu);

// All levels this build contains, lowest first.
const std::vector<Level>& levels();

// The best supported level (isa empty or "auto"), or the named one. Returns null and sets `why` (a full
// sentence) if it cannot be used.
const Table* select_table(const std::string& isa, std::string* why);

}  // namespace finback
