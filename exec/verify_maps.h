// What the verifier remembers of each space's bytes and of the order of an entry's instructions. Private to exec/verify*.cpp.

#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "exec/program.h"

namespace ort_train::verifying {

using Content = int64_t;
constexpr Content kGarbage = -1, kUnknown = -2;

// What the bytes of a space hold.
class ByteMap {
 public:
  void write(const Place& place, Content content) {
    if (place.bytes == 0) return;
    cut(place.offset);
    cut(place.end());
    const auto begin = ranges_.lower_bound(place.offset), end = ranges_.lower_bound(place.end());
    const auto hint = ranges_.erase(begin, end);
    ranges_.emplace_hint(hint, place.offset, Range{place.end(), content});
  }
  // What the place holds as a whole; kGarbage where that is nothing or pieces.
  Content content(const Place& place) const {
    const auto at = ranges_.find(place.offset);
    return at != ranges_.end() && at->second.end == place.end() ? at->second.content : kGarbage;
  }
  bool is_free(const Place& place) const {
    auto at = ranges_.lower_bound(place.end());
    return at == ranges_.begin() || std::prev(at)->second.end <= place.offset;
  }

 private:
  struct Range {
    int64_t end;
    Content content;
  };
  // Makes a range that covers `offset` end there; its pieces are whole no more.
  void cut(int64_t offset) {
    auto at = ranges_.lower_bound(offset);
    if (at == ranges_.begin()) return;
    --at;
    if (at->second.end <= offset) return;
    const int64_t end = at->second.end;
    at->second = {offset, kGarbage};
    ranges_.emplace_hint(std::next(at), offset, Range{end, kGarbage});
  }
  std::map<int64_t, Range> ranges_;
};

// Which instructions of a queue are known to be complete, by their number on it: those below a number, and some more.
class Completed {
 public:
  bool has(int32_t number) const { return number < below_ || std::binary_search(more_.begin(), more_.end(), number); }
  void add(int32_t number) {
    if (has(number)) return;
    more_.insert(std::lower_bound(more_.begin(), more_.end(), number), number);
    absorb();
  }
  void add_until(int32_t number) {  // and all before it
    below_ = std::max(below_, number + 1);
    absorb();
  }
  void add(const Completed& other) {
    below_ = std::max(below_, other.below_);
    if (!other.more_.empty()) {
      std::vector<int32_t> both;
      std::set_union(more_.begin(), more_.end(), other.more_.begin(), other.more_.end(), std::back_inserter(both));
      more_ = std::move(both);
    }
    absorb();
  }

 private:
  void absorb() {
    auto at = std::lower_bound(more_.begin(), more_.end(), below_);
    for (; at != more_.end() && *at == below_; ++at) ++below_;
    more_.erase(more_.begin(), at);
  }
  int32_t below_ = 0;
  std::vector<int32_t> more_;  // ascending, none below
};
using Clock = std::vector<Completed>;  // by queue

// Of each instruction of an entry, what it knows to be complete when it begins.
class HappensBefore {
 public:
  HappensBefore(const std::vector<Queue>& queues, const std::vector<Instruction>& code)
      : queues_(queues), code_(code), number_(code.size()), clocks_(code.size(), Clock(queues.size())) {
    std::vector<int32_t> latest(queues.size(), -1), count(queues.size());
    for (size_t i = 0; i < code.size(); ++i) {
      const QueueId queue = code[i].queue;
      number_[i] = count[queue]++;
      Clock& clock = clocks_[i];
      if (latest[queue] >= 0) {
        clock = clocks_[static_cast<size_t>(latest[queue])];  // it has begun
        if (queues_[queue].ordered) clock[queue].add_until(number_[i] - 1);
      }
      for (const int32_t earlier : code[i].waits) add_complete(clock, static_cast<size_t>(earlier));
      latest[queue] = static_cast<int32_t>(i);
    }
  }

  // Whether `earlier` is complete whenever `later` begins.
  bool knows(size_t later, int32_t earlier) const {
    const auto at = static_cast<size_t>(earlier);
    return at == later || clocks_[later][code_[at].queue].has(number_[at]);
  }

 private:
  void add_complete(Clock& clock, size_t earlier) const {
    for (size_t queue = 0; queue < clock.size(); ++queue) clock[queue].add(clocks_[earlier][queue]);
    const QueueId queue = code_[earlier].queue;
    if (queues_[queue].ordered)
      clock[queue].add_until(number_[earlier]);
    else
      clock[queue].add(number_[earlier]);
  }
  const std::vector<Queue>& queues_;
  const std::vector<Instruction>& code_;
  std::vector<int32_t> number_;  // of each instruction, on its queue
  std::vector<Clock> clocks_;
};

// Who last wrote each byte of a space, and who has read it since.
class AccessMap {
 public:
  // An instruction that isn't known to be complete when `reader` reads the place, or kNobody.
  int32_t read(const Place& place, int32_t reader, const HappensBefore& before) {
    return visit(place, [&](Access& access) {
      if (!before.knows(static_cast<size_t>(reader), access.writer_or(reader))) return access.writer;
      std::erase_if(access.readers, [&](int32_t earlier) { return before.knows(static_cast<size_t>(reader), earlier); });
      access.readers.push_back(reader);
      return kNobody;
    });
  }
  int32_t write(const Place& place, int32_t writer, const HappensBefore& before) {
    const int32_t found = visit(place, [&](Access& access) {
      if (!before.knows(static_cast<size_t>(writer), access.writer_or(writer))) return access.writer;
      for (const int32_t reader : access.readers) {
        if (!before.knows(static_cast<size_t>(writer), reader)) return reader;
      }
      return kNobody;
    });
    if (place.bytes > 0) {  // one range again
      ranges_.erase(ranges_.lower_bound(place.offset), ranges_.lower_bound(place.end()));
      ranges_.emplace(place.offset, Access{.end = place.end(), .writer = writer, .readers = {}});
    }
    return found;
  }
  static constexpr int32_t kNobody = -1;

 private:
  struct Access {
    int64_t end = 0;
    int32_t writer = kNobody;
    std::vector<int32_t> readers;
    int32_t writer_or(int32_t self) const { return writer == kNobody ? self : writer; }
  };

  // Calls body for each range of the place, until one returns something else than kNobody.
  template <typename Body> int32_t visit(const Place& place, Body body) {
    if (place.bytes == 0) return kNobody;
    cut(place.offset);
    cut(place.end());
    for (int64_t at = place.offset; at < place.end();) {
      auto range = ranges_.lower_bound(at);
      if (range == ranges_.end() || range->first > at) {  // nobody was there
        const int64_t end = range == ranges_.end() ? place.end() : std::min(place.end(), range->first);
        range = ranges_.emplace_hint(range, at, Access{.end = end, .writer = kNobody, .readers = {}});
      }
      if (const int32_t found = body(range->second); found != kNobody) return found;
      at = range->second.end;
    }
    return kNobody;
  }
  void cut(int64_t offset) {
    auto at = ranges_.lower_bound(offset);
    if (at == ranges_.begin() || (at != ranges_.end() && at->first == offset)) return;
    --at;
    if (at->second.end <= offset) return;
    Access behind = at->second;
    at->second.end = offset;
    ranges_.emplace(offset, std::move(behind));
  }
  std::map<int64_t, Access> ranges_;
};

}  // namespace ort_train::verifying
