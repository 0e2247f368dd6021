// Detection of instruction-set levels: CPUID for what an x86-64 processor has, XGETBV for the registers the
// operating system saves, the auxiliary vector on aarch64. Owns the list of levels of this build and the
// sentences of a refusal. Refuses to guess: a level is offered only when every feature its unit was compiled
// with is there.
#include "core/cpu.h"

#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

namespace finback {
namespace {

// One feature a level needs: all bits of `mask` in one word.
struct Feature {
    const char* name;
    uint64_t CpuWords::* word;
    uint64_t mask;
};
constexpr uint64_t bit(int n) { return uint64_t{1} << n; }

constexpr Feature kAvx2[] = {
    {"AVX2", &CpuWords::leaf7_ebx, bit(5)},
    {"FMA", &CpuWords::leaf1_ecx, bit(12)},
    {"F16C", &CpuWords::leaf1_ecx, bit(29)},
};
constexpr Feature kAvx512[] = {
    {"AVX512F", &CpuWords::leaf7_ebx, bit(16)},     {"AVX512DQ", &CpuWords::leaf7_ebx, bit(17)},
    {"AVX512BW", &CpuWords::leaf7_ebx, bit(30)},    {"AVX512VL", &CpuWords::leaf7_ebx, bit(31)},
    {"AVX512_VNNI", &CpuWords::leaf7_ecx, bit(11)},
};
constexpr Feature kSaves256 = {"256-bit registers saved by the operating system", &CpuWords::xcr0, 0x06};
constexpr Feature kSaves512 = {"512-bit registers saved by the operating system", &CpuWords::xcr0, 0xe6};
// The unit is compiled for ARMv8.2; its parts that Linux names are checked with the dot product.
constexpr Feature kNeon[] = {
    {"asimd", &CpuWords::hwcap, bit(1)},    {"crc32", &CpuWords::hwcap, bit(7)},
    {"atomics", &CpuWords::hwcap, bit(8)},  {"asimdrdm", &CpuWords::hwcap, bit(12)},
    {"asimddp", &CpuWords::hwcap, bit(20)},
};

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
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        words.leaf7_ebx = b;
        words.leaf7_ecx = c;
    }
    return words;
}
#elif defined(__APPLE__)
// Every part is in the first processor macOS runs on, except perhaps the dot product, which it names.
CpuWords read_cpu() {
    int has = 0;
    size_t size = sizeof(has);
    if (sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) != 0) has = 0;
    return {0, 0, 0, 0, bit(1) | bit(7) | bit(8) | bit(12) | (has ? bit(20) : 0)};
}
#else
CpuWords read_cpu() { return {0, 0, 0, 0, getauxval(AT_HWCAP)}; }
#endif

#if defined(__x86_64__)
// `own` with what it leaves out taken from `base`, a level that its processors have as well.
Table laid_over(const Table& base, Table own) {
    const auto complete = [](auto& entries, const auto& from) {
        for (size_t i = 0; i < std::size(entries); i++) {
            if (!entries[i]) entries[i] = from[i];
        }
    };
    complete(own.pack, base.pack);
    complete(own.linear, base.linear);
    complete(own.linear_tiles, base.linear_tiles);
    complete(own.make_resident, base.make_resident);
    complete(own.decode_row, base.decode_row);
    return own;
}
#endif

std::vector<Level> find_levels() {
    const CpuWords cpu = read_cpu();
    std::vector<Level> found;
    const auto add = [&](const char* name, const Table* table) {
        const std::string missing = missing_for(name, cpu);
        found.push_back({name, table, missing.empty(), missing});
    };
    add("scalar", table_scalar());
#if defined(__x86_64__)
    add("avx2", table_avx2());
    static const Table avx512 = laid_over(*table_avx2(), *table_avx512());
    add("avx512", &avx512);
#else
    add("neon", table_neon());
#endif
    return found;
}

}  // namespace

std::string missing_for(const std::string& level, const CpuWords& cpu) {
    std::vector<std::string> missing;
    const auto need = [&](const Feature& f) {
        if ((cpu.*f.word & f.mask) != f.mask) missing.push_back(f.name);
    };
    if (level == "avx2" || level == "avx512") {
        for (const Feature& f : kAvx2) need(f);
    }
    if (level == "avx512") {
        for (const Feature& f : kAvx512) need(f);
    }
    if (level == "avx2") need(kSaves256);
    if (level == "avx512") need(kSaves512);
    if (level == "neon") {
        for (const Feature& f : kNeon) need(f);
    }
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
