// The smallest test framework that says where and what: CHECK records a failure and goes on, main.cc counts.
// Owns the list of failures, nothing else; a test is a function that main.cc names.
#pragma once
#include <cstdint>
#include <cstdio>

namespace finback::test {

inline int failures = 0;

inline bool check(bool ok, const char* what, const char* file, int line, int64_t detail) {
    if (ok) return true;
    failures++;
    if (failures <= 40) {
        std::fprintf(stderr, "%s:%d: %s (%lld)\n", file, line, what, static_cast<long long>(detail));
    }
    return false;
}

}  // namespace finback::test

// CHECK(condition) or CHECK(condition, number that helps: a row, a thread count).
#define CHECK(condition, ...) \
    ::finback::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__, int64_t{__VA_ARGS__})
