// Waits: what each instruction of an entry has to wait for: whatever touched the same bytes before it, where one of the two writes them.
//
// A queue that is ordered waits for itself. What an earlier instruction of a queue has waited for is complete for all later ones. Of copies
// each is waited for by itself: until then its places are taken.

#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "exec/program.h"

namespace ort_train {

class Waits {
 public:
  struct Touch {
    Place place;
    bool writes = false;
  };
  // Of programs with these queues; they must outlive it.
  explicit Waits(const std::vector<Queue>& queues) : queues_(queues), known_(queues.size()) {}

  // The next instruction, its queue, what it touches, and earlier ones that it waits for besides. Sets what it waits for.
  void add(Instruction& instruction, std::span<const Touch> touches, std::span<const int32_t> besides);

 private:
  struct Segment {
    int64_t end = 0;
    int32_t writer = -1;
    std::vector<int32_t> readers{};  // since then
  };
  using Segments = std::map<int64_t, Segment>;  // by their beginning
  struct Known {
    std::map<QueueId, int32_t> until{};  // of computing queues: all up to this instruction
    std::set<int32_t> copies{};
  };
  static void split(Segments& segments, int64_t at);
  void touch(const Touch& touch, std::vector<int32_t>& met);
  void add_reader(std::vector<int32_t>& readers, int32_t reader) const;

  const std::vector<Queue>& queues_;
  std::vector<QueueId> queue_of_;  // by instruction
  std::map<SpaceId, Segments> spaces_;
  std::vector<Known> known_;  // by queue: what is complete when its next instruction begins
};

}  // namespace ort_train
