// Sequences that look as if a model had computed them: for timing a step far into a context. Owns what random
// rows of every kind are: finite, of the size norms leave, encoded like computed ones. Refuses nothing: the
// binding checked that the pages are there.
#pragma once
#include <cstdint>

#include "kv.h"

namespace finback {

// Everything the operations look at after `length` tokens: window rows, compressed rows, open groups. The
// same bytes for the same seed at every level.
void fill_sequence(const Table& table, const Sequence& sequence, int64_t length, uint64_t seed);

}  // namespace finback
