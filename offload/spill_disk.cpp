#include "offload/spill_disk.h"

#include <algorithm>
#include <cstring>

#include "graph/error.h"
#include "offload/checksum.h"

namespace ort_train {
namespace {

constexpr int64_t kDone = 0;  // a ticket that needs no waiting; the engine's count from 1

}  // namespace

SpillDisk::SpillDisk(const SpillOptions& options, int64_t bytes) : SpillDisk(options, bytes, 0, nullptr, {}) {}

SpillDisk::SpillDisk(const SpillOptions& options, int64_t bytes, int64_t state_bytes, std::unique_ptr<StateFile> state,
                     const std::vector<StateHome>& homes)
    : checksums_(options.checksums),
      state_bytes_(state_bytes),
      state_(std::move(state)),
      file_(options.folder, bytes - state_bytes, options.direct),
      engine_(options.engine) {
  for (const StateHome& home : homes) homes_.emplace(home.offset, state_->number_of(home.name));
}

int64_t SpillDisk::read(int64_t offset, std::byte* to, int64_t bytes) {
  if (offset < state_bytes_) {
    const SlotEntry& entry = state_->entry(homes_.at(offset));
    if (entry.current < 0) {
      std::memset(to, 0, static_cast<size_t>(bytes));
      return kDone;
    }
    bytes_read_ += bytes;
    return static_cast<int64_t>(engine_.submit({.write = false,
                                                .file = &state_->file(),
                                                .offset = entry.slots[static_cast<size_t>(entry.current)],
                                                .data = to,
                                                .bytes = bytes,
                                                .checksum = checksums_ ? const_cast<uint64_t*>(&entry.sum) : nullptr}));  // only read
  }
  bytes_read_ += bytes;
  const auto sum = sums_.find(offset);
  return static_cast<int64_t>(engine_.submit({.write = false,
                                              .file = &file_.file(),
                                              .offset = offset - state_bytes_,
                                              .data = to,
                                              .bytes = bytes,
                                              .checksum = sum == sums_.end() ? nullptr : &sum->second}));
}

int64_t SpillDisk::write(int64_t offset, const std::byte* from, int64_t bytes) {
  DiskRequest request{.write = true,
                      .file = &file_.file(),
                      .offset = offset - state_bytes_,
                      .data = const_cast<std::byte*>(from),  // a write only reads it
                      .bytes = bytes,
                      .checksum = nullptr};
  if (offset < state_bytes_) {
    request.file = &state_->file();
    request.offset = state_->write_to(homes_.at(offset), request.checksum);  // checkpoints need its checksum in any case
  } else if (checksums_) {
    request.checksum = &sums_[offset];
  }
  bytes_written_ += bytes;
  return static_cast<int64_t>(engine_.submit(request));
}

void SpillDisk::wait(int64_t ticket) {
  if (ticket != kDone) engine_.wait(static_cast<DiskTicket>(ticket));
}

void SpillDisk::drain() noexcept {
  try {
    engine_.drain();
  } catch (...) {  // whoever waits for the transfer that failed is told
  }
}

void SpillDisk::write_state(const std::string& name, std::span<const std::byte> bytes, std::span<std::byte> staging) {
  const auto half_bytes = static_cast<int64_t>(staging.size()) / 2 / kDiskAlignment * kDiskAlignment;
  require(half_bytes > 0, "memory for staging is two blocks at least");
  const int64_t whole = (static_cast<int64_t>(bytes.size()) + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
  uint64_t* sum = nullptr;
  int64_t to = state_->write_to(state_->number_of(name), sum);
  *sum = checksum_with_zeros(bytes, whole);
  for (int64_t left = whole; left > 0; half_ = 1 - half_) {
    if (staged_[half_] != 0) engine_.wait(staged_[half_]);
    const auto half = staging.subspan(half_ * static_cast<size_t>(half_bytes), static_cast<size_t>(std::min(left, half_bytes)));
    const size_t here = std::min(half.size(), bytes.size());
    std::memcpy(half.data(), bytes.data(), here);
    std::memset(half.data() + here, 0, half.size() - here);
    bytes = bytes.subspan(here);
    const auto count = static_cast<int64_t>(half.size());
    staged_[half_] = engine_.submit({.write = true, .file = &state_->file(), .offset = to, .data = half.data(), .bytes = count});
    bytes_written_ += count;
    to += count;
    left -= count;
  }
}

void SpillDisk::finish() {
  engine_.drain();
  staged_[0] = staged_[1] = 0;
}

std::string SpillDisk::note() const {
  std::string text;
  const auto add = [&](const std::string& sentences) {
    if (!sentences.empty()) text += (text.empty() ? "" : "\n") + sentences;
  };
  add(state_ ? state_->note() : file_.note());  // both lie in one folder
  add(engine_.note());
  return text;
}

}  // namespace ort_train
