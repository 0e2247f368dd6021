// Numbers, memory and hashes of kernel_digest; digest.h says what they are for.
#include "digest/digest.h"

namespace finback::digest {
namespace {

constexpr int64_t kFence = 64;

float power_of_two(int k) {
    const uint32_t bits = static_cast<uint32_t>(k + 127) << 23;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

float draw(Random& random, Kind kind) {
    switch (kind) {
        case Kind::WIDE:
            return random.uniform() * random.power(-40, 20);
        case Kind::TINY:
            return random.uniform() * 0x1p-63f * random.power(-70, -60);
        case Kind::SPARSE:
            return random.below(4) ? (random.below(2) ? 0.0f : -0.0f) : random.uniform();
        case Kind::EQUAL:
            return random.below(2) ? 3.5f : -3.5f;
        case Kind::PLAIN:
        case Kind::COUNT:
            break;
    }
    return random.uniform();
}

}  // namespace

float Random::power(int low, int high) { return power_of_two(low + below(high - low)); }

void fill(Random& random, Kind kind, float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = draw(random, kind);
}

Memory::Memory(int64_t bytes, int64_t shift) : size_(bytes), shift_(shift) {
    const int64_t whole = pad64(bytes + shift + kFence);
    block_ = static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(whole)));
    if (!block_) std::abort();
    std::memset(block_, 0xA5, static_cast<size_t>(whole));
}

Memory::~Memory() {
    for (int64_t i = 0; i < kFence; i++) {
        if (this->bytes()[size_ + i] == 0xA5) continue;
        std::fprintf(stderr, "a kernel wrote past the end of its result; its line is the last one printed\n");
        std::fflush(stdout);
        std::abort();
    }
    std::free(block_);
}

void Hash::bytes(const void* p, int64_t n) {
    const uint8_t* b = static_cast<const uint8_t*>(p);
    for (int64_t i = 0; i < n; i++) state_ = (state_ ^ b[i]) * 1099511628211ull;
}

void Hash::floats(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
        bytes(&bits, sizeof(bits));
    }
}

void line(const char* op, const char* format, const char* layout, const std::string& shape, int seed,
          const Hash& hash) {
    std::printf("%s %s %s %s %d %016llx\n", op, format, layout, shape.c_str(), seed,
                static_cast<unsigned long long>(hash.result()));
}

}  // namespace finback::digest
