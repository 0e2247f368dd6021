// What this processor and this operating system can run. Owns detection; refuses nothing itself: the caller
// turns `missing` into a sentence.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace finback {

struct Level {
    const char* name;  // "scalar", "avx2"
    const Table* table;
    bool supported;       // CPU and OS state
    std::string missing;  // which features are missing, when not supported
};

// The words of CPUID and XGETBV that decide (all 0 on other processors).
struct CpuWords {
    uint32_t leaf1_ecx, leaf7_ebx, xcr0;
};

// What an x86-64 processor with these words lacks for the avx2 level, comma-separated; empty if nothing.
std::string missing_for_avx2(CpuWords cpu);

// All levels this build contains, lowest first.
const std::vector<Level>& levels();

// The best supported level (isa empty or "auto"), or the named one. Returns null and sets `why` (a full
// sentence) if it cannot be used.
const Table* select_table(const std::string& isa, std::string* why);

}  // namespace finback
