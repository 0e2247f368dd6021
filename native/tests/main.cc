// finback_tests [NAME ...] | --list: what Python cannot reach of the native operations, on every instruction
// set this machine runs. Without names all tests run. Prints a line per test and level, and exits with 1 if a
// check failed, 2 if there is no such test.
//
// Built by the option FINBACK_TESTS; with both sanitizers:
//     cmake -S . -B build/sanitize -DFINBACK_TESTS=ON -DFINBACK_SANITIZE=ON
//     cmake --build build/sanitize -t finback_tests && build/sanitize/finback_tests
#include <algorithm>

#include "core/cpu.h"
#include "tests/world.h"

namespace finback::test {

void test_top(const Table&);
void test_linear(const Table&);
void test_rows(const Table&);
void test_hyper(const Table&);
void test_route(const Table&);
void test_qkv_finish(const Table&);
void test_compress(const Table&);
void test_index_select(const Table&);
void test_attend(const Table&);
void test_experts(const Table&);
void test_clamp(const Table&);

namespace {

struct Test {
    const char* name;
    void (*body)(const Table&);
};
constexpr Test kTests[] = {
    {"top", test_top},           {"linear", test_linear},
    {"rows", test_rows},         {"hyper", test_hyper},
    {"route", test_route},       {"qkv_finish", test_qkv_finish},
    {"compress", test_compress}, {"index_select", test_index_select},
    {"attend", test_attend},     {"experts", test_experts},
    {"clamp", test_clamp},
};

int run_tests(const std::vector<std::string>& wanted) {
    if (wanted == std::vector<std::string>{"--list"}) {
        for (const Test& test : kTests) std::printf("%s\n", test.name);
        return 0;
    }
    for (const std::string& name : wanted) {
        if (std::none_of(std::begin(kTests), std::end(kTests),
                         [&](const Test& t) { return name == t.name; })) {
            std::fprintf(stderr, "no test is called %s\n", name.c_str());
            return 2;
        }
    }
    for (const Test& test : kTests) {
        if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), test.name) == wanted.end()) continue;
        for (const Level& level : levels()) {
            if (!level.supported) continue;
            const int before = failures;
            test.body(*level.table);
            std::printf("%s %s %s\n", failures == before ? "ok  " : "FAIL", test.name, level.name);
        }
    }
    return failures ? 1 : 0;
}

}  // namespace
}  // namespace finback::test

int main(int argc, char** argv) { return finback::test::run_tests({argv + 1, argv + argc}); }
