// Detection of instruction-set levels: CPUID for what the processor has, XGETBV for the registers the
// operating system saves. Owns the list of levels of this build and the sentences of a refusal. Refuses to
// guess: a level is offered only when every feature its unit was compiled with is there.
#include "core/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace finback {
namespace {

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

#if defined(__x86_64__)
CpuWords read_cpu() {
    CpuWords words{};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return words;
    words.leaf1_ecx = c;
    if (c >> 27 & 1) {  // OSXSAVE: XGETBV exists and tells what the system saves
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        words.xcr0 = low;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) words.leaf7_ebx = b;
    return words;
}
#endif

std::vector<Level> find_levels() {
    std::vector<Level> found = {{"scalar", table_scalar(), true, ""}};
#if defined(__x86_64__)
    const std::string missing = missing_for_avx2(read_cpu());
    found.push_back({"avx2", table_avx2(), missing.empty(), missing});
#endif
    return found;
}

}  // namespace

std::string missing_for_avx2(CpuWords cpu) {
    std::vector<std::string> missing;
    if (!(cpu.leaf7_ebx >> 5 & 1)) missing.push_back("AVX2");
    if (!(cpu.leaf1_ecx >> 12 & 1)) missing.push_back("FMA");
    if (!(cpu.leaf1_ecx >> 29 & 1)) missing.push_back("F16C");
    const bool saves = (cpu.leaf1_ecx >> 27 & 1) && (cpu.xcr0 & 6) == 6;  // xmm and ymm
    if (!saves) missing.push_back("256-bit registers saved by the operating system");
    return joined(missing);
}

const std::vector<Level>& levels() {
    static const std::vector<Level> found = find_levels();
    return found;
}

const Table* select_table(const std::string& isa, std::string* why) {
    std::vector<std::string> names;
    const Level* best = nullptr;
    for (const Level& level : levels()) {
        if (level.supported) best = &level;
        names.push_back(level.name);
        if (isa != level.name) continue;
        if (level.supported) return level.table;
        *why = "isa='" + isa + "' cannot run on this machine, which lacks: " + level.missing +
               "; leave isa unset for the best level it has.";
        return nullptr;
    }
    if (isa.empty() || isa == "auto") return best->table;
    *why = "isa='" + isa + "' is not a level of this build; levels here: " + joined(names) + ".";
    return nullptr;
}

}  // namespace finback
