#include "passes/plan/waits.h"

#include <map>
#include <set>
#include <utility>

namespace ort_train {
namespace {

class Waits {
 public:
  struct Touch {
    Place place;
    bool writes = false;
  };
  // For programs with these queues, which must outlive it.
  explicit Waits(const std::vector<Queue>& queues) : queues_(queues), known_(queues.size()) {}

  // The next instruction, what it touches, and earlier ones that it waits for besides. Sets what it waits for.
  void add(Instruction& instruction, const std::vector<Touch>& touches, const std::vector<int32_t>& besides) {
    const auto self = static_cast<int32_t>(queue_of_.size());
    queue_of_.push_back(instruction.queue);
    std::set<int32_t> met(besides.begin(), besides.end());
    for (const Touch& of : touches) touch(of, met);
    met.erase(self);
    Known& known = known_[instruction.queue];
    std::map<QueueId, int32_t> last;  // of computing queues
    for (const int32_t other : met) {
      const QueueId queue = queue_of_[static_cast<size_t>(other)];
      const bool is_node = queues_[queue].ordered && queues_[queue].computes();
      if (is_node && queue == instruction.queue) continue;
      if (is_node)
        last[queue] = other;
      else if (known.copies.insert(other).second)
        instruction.waits.push_back(other);
    }
    for (const auto& [queue, other] : last) {
      int32_t& until = known.until.try_emplace(queue, -1).first->second;
      if (other <= until) continue;
      until = other;
      instruction.waits.push_back(other);
    }
  }

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

  static void split(Segments& segments, int64_t at) {
    auto found = segments.upper_bound(at);
    if (found == segments.begin()) return;
    --found;
    if (found->first == at || found->second.end <= at) return;
    Segment rest = found->second;
    found->second.end = at;
    segments.emplace(at, std::move(rest));
  }

  // An ordered queue has completed all readers when it has completed the last one.
  void add_reader(std::vector<int32_t>& readers, int32_t reader) const {
    const QueueId queue = queue_of_[static_cast<size_t>(reader)];
    for (int32_t& other : readers) {
      if (queue_of_[static_cast<size_t>(other)] == queue && queues_[queue].ordered) {
        other = reader;
        return;
      }
    }
    readers.push_back(reader);
  }

  void touch(const Touch& touch, std::set<int32_t>& met) {
    const int64_t begin = touch.place.offset, end = touch.place.end();
    if (begin >= end) return;
    const auto self = static_cast<int32_t>(queue_of_.size()) - 1;
    Segments& segments = spaces_[touch.place.space];
    split(segments, begin);
    split(segments, end);
    int64_t at = begin;  // of a read: until here there are segments
    for (auto i = segments.lower_bound(begin); i != segments.end() && i->first < end;) {
      Segment& segment = i->second;
      if (segment.writer >= 0) met.insert(segment.writer);
      if (touch.writes) {
        met.insert(segment.readers.begin(), segment.readers.end());
        i = segments.erase(i);
        continue;
      }
      if (at < i->first) segments.emplace(at, Segment{.end = i->first, .readers = {self}});
      add_reader(segment.readers, self);
      at = segment.end;
      ++i;
    }
    if (touch.writes)
      segments.emplace(begin, Segment{.end = end, .writer = self});
    else if (at < end)
      segments.emplace(at, Segment{.end = end, .readers = {self}});
  }

  const std::vector<Queue>& queues_;
  std::vector<QueueId> queue_of_;  // by instruction
  std::map<SpaceId, Segments> spaces_;
  std::vector<Known> known_;  // by queue: what is complete when its next instruction begins
};

}  // namespace

void add_waits(std::vector<Instruction>& code, const std::vector<Queue>& queues, const std::vector<WaitsBesides>& besides) {
  Waits waits(queues);
  std::vector<Waits::Touch> touches;
  for (size_t at = 0; at < code.size(); ++at) {
    Instruction& instruction = code[at];
    touches.clear();
    const auto touch = [&](Place place, bool writes) {
      if (uses_file(instruction)) place.bytes = whole_sectors(place.bytes);
      touches.push_back({place, writes});
    };
    if (is_copy(instruction)) touch(instruction.from, false), touch(instruction.to, true);
    for (const Place& place : instruction.inputs) touch(place, false);
    for (const Place& place : instruction.outputs) touch(place, true);
    touch(instruction.workspace, true);
    for (const Place& place : besides[at].writes) touch(place, true);
    waits.add(instruction, touches, besides[at].earlier);
  }
}

}  // namespace ort_train
