// What the parts of kernel_digest share: the same pseudo-random numbers on every machine, buffers that show a
// write past their end, a hash, a line of output. Owns no arithmetic beyond that of the generator, which is
// integers and exact conversions. Refuses the C library's random numbers.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/table.h"

namespace finback::digest {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(state_ >> 32);
    }
    int32_t below(int32_t n) {
        return static_cast<int32_t>(uint64_t{bits()} * static_cast<uint64_t>(n) >> 32);
    }
    float uniform() { return static_cast<float>(static_cast<int32_t>(bits()) >> 8) * 0x1p-23f; }  // [-1, 1)
    float power(int low, int high);  // 2^k, low <= k < high

  private:
    uint64_t state_;
};

// What values look like. PLAIN: in [-1, 1). WIDE: over 2^-40 .. 2^20. TINY: subnormals and their neighbours.
// SPARSE: mostly zeros of both signs. EQUAL: plus or minus one number, so that every code sits at its clamp.
enum class Kind { PLAIN, WIDE, TINY, SPARSE, EQUAL, COUNT };
constexpr int kKinds = static_cast<int>(Kind::COUNT);

void fill(Random& random, Kind kind, float* x, int64_t n);

// Memory with a fence behind it. Aligned to 64 bytes, or `shift` bytes off; every byte starts as 0xA5, so a
// value that nobody wrote is the same wrong number everywhere.
class Memory {
  public:
    explicit Memory(int64_t bytes, int64_t shift = 0);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    uint8_t* bytes() const { return block_ + shift_; }
    float* floats() const { return reinterpret_cast<float*>(bytes()); }
    int64_t size() const { return size_; }

  private:
    int64_t size_, shift_;
    uint8_t* block_;
};

// A block of floats filled with values of one kind.
class Values : public Memory {
  public:
    Values(Random& random, Kind kind, int64_t n) : Memory(4 * n) { fill(random, kind, floats(), n); }
};

// FNV-1a over bytes; floats count by their bits, except that every NaN is one NaN: which one a processor
// makes is no part of the promise (docs/exactness.md section 15).
class Hash {
  public:
    void bytes(const void* p, int64_t n);
    void floats(const float* x, int64_t n);
    void value(float x) { floats(&x, 1); }
    void number(int64_t x) { bytes(&x, sizeof(x)); }
    void all(const Memory& m) { floats(m.floats(), m.size() / 4); }
    uint64_t result() const { return state_; }

  private:
    uint64_t state_ = 14695981039346656037ull;
};

// One line: op, format, layout, shape, seed, hash. "-" stands for what an operation has not.
void line(const char* op, const char* format, const char* layout, const std::string& shape, int seed,
          const Hash& hash);

// "a x b x c"
template <class... Numbers>
std::string shape(Numbers... numbers) {
    std::string text;
    ((text += (text.empty() ? "" : "x") + std::to_string(numbers)), ...);
    return text;
}

void digest_matrices(const Table& table);
void digest_floats(const Table& table);
void digest_rows(const Table& table);

}  // namespace finback::digest
