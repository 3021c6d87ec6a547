// What the passes that put copies into a draft do to its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "worker/program/draft.h"

namespace ebb {

// Instructions to be put before position `at` of a block, in this order: what
// begins early goes first, what waits last.
enum class Order : uint8_t { kBegin, kWait };

// Collects what goes into one block; positions are those of the block as it is.
class Insertions {
 public:
  // Of instructions that wait at one position with equal iterations and group
  // one is made.
  void Add(size_t at, Order order, DraftInstruction instruction);
  void ApplyTo(DraftBlock& block) &&;

 private:
  std::map<std::pair<size_t, Order>, std::vector<DraftInstruction>> lists_;
};

// Positions in a block between which a storage is used: [begin, end), row
// loops whole.
struct Use {
  size_t begin = 0;
  size_t end = 0;
  bool found = false;
};

// `storage` -1: there is none.
Use FindUse(const DraftBlock& block, int storage, bool written_only);

// All of a storage, as one dense tensor.
DraftOperand BindWhole(int slot, int storage, const TensorType& type,
                       bool written);

}  // namespace ebb
