// kernel_digest LEVEL | --list: a hash of what every function of a level's table returns on fixed inputs, one
// line per operation, format, layout, shape and seed. Two levels are the same to the bit when their lines
// are. Needs no Python and no model, so that it runs on any processor and under an emulator of one.
// Exits with 2 and the reason if this processor cannot run the level.
#include "core/cpu.h"
#include "core/float_mode.h"
#include "digest/digest.h"

namespace {

int list() {
    for (const finback::Level& level : finback::levels()) {
        std::printf("%s %s\n", level.name,
                    level.supported ? "usable" : ("not usable: " + level.missing).c_str());
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace finback;
    const std::string wanted = argc == 2 ? argv[1] : "";
    if (wanted == "--list") return list();
    if (wanted.empty()) {
        std::fprintf(stderr, "usage: kernel_digest LEVEL | --list\n");
        return 2;
    }
    std::string why;
    const Table* table = select_table(wanted, &why);
#ifdef FINBACK_EMULATED  // the AVX-512 unit is made of AVX2: what the processor lacks is no matter
    for (const Level& level : levels()) {
        if (wanted == level.name) table = level.table;
    }
#endif
    if (!table) {
        std::fprintf(stderr, "%s\n", why.c_str());
        return 2;
    }
    const FloatMode mode;
    digest::digest_matrices(*table);
    digest::digest_floats(*table);
    digest::digest_rows(*table);
    return 0;
}
