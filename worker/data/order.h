// The order in which training visits sequences: a pure function of seed,
// number of sequences and position, so that a resumed job needs nothing but the
// position, and every rank can work out its own part.
//
// Each epoch visits every sequence exactly once. Position p belongs to epoch
// p div n; within an epoch a keyed bijection of [0, n) takes the place of a
// stored permutation: a Feistel network (Luby & Rackoff 1988) on the smallest
// even number of bits that holds n, its round function a Philox word of (half,
// round, epoch), applied again until the result is below n (cycle walking,
// Black & Rogaway 2002). Without shuffling the order is that of the files.
#pragma once

#include <cstdint>

namespace ebb {

class SequenceOrder {
 public:
  // num_sequences >= 1.
  SequenceOrder(uint64_t seed, int64_t num_sequences, bool shuffle);

  // Sequence at a position >= 0 of the endless training order. Takes fewer
  // than four walks of the network on average.
  int64_t At(int64_t position) const;

 private:
  uint64_t key_;
  int64_t num_sequences_;
  bool shuffle_;
  int half_bits_;
};

}  // namespace ebb
