#include "offload/disk_queue.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "graph/error.h"
#include "offload/checksum.h"

namespace ort_train {
namespace {

constexpr int kRetries = 100;

bool at_sector(int64_t value) { return value % kDiskAlignment == 0; }

Error failure_of(const DiskRequest& request, const DiskBlock& block) {
  const int64_t at = block.offset + block.done, missing = block.bytes - block.done;
  const std::string& path = request.file->path();
  if (block.code != 0) {
    return error(ErrorCode::io, "can't {} {} bytes of '{}' at byte {}: {}", block.write ? "write" : "read", missing, path, at,
                 std::generic_category().message(block.code));
  }
  if (block.write) return error(ErrorCode::io, "can't write {} bytes of '{}' at byte {}: nothing was taken", missing, path, at);
  return error(ErrorCode::io, "'{}' ends at byte {}: {} bytes are missing", path, at, missing);
}

}  // namespace

DiskQueue::DiskQueue(const DiskOptions& options) : block_bytes_(options.block_bytes), slots_(static_cast<size_t>(options.requests)) {
  for (Line& line : lines_) line.ring.resize(slots_.size());
}

DiskTicket DiskQueue::submit(const DiskRequest& request, bool& wake) {
  require(request.file != nullptr && request.data != nullptr && request.offset >= 0 && request.bytes > 0, "a disk request has bytes");
  require(!request.file->direct() || (at_sector(request.offset) && at_sector(request.bytes) &&
                                      reinterpret_cast<uintptr_t>(request.data) % static_cast<uintptr_t>(kDiskAlignment) == 0),
          "direct I/O is aligned");
  const std::lock_guard one_at_a_time(submitting_);  // so that the lines are in the order of tickets
  std::unique_lock lock(mutex_);
  const DiskTicket ticket = last_ + 1;
  const size_t index = ticket % slots_.size();
  Slot& slot = slots_[index];
  over_.wait(lock, [&] { return slot.over; });
  last_ = ticket;
  slot = {.request = request, .ticket = ticket, .issued = 0, .in_flight = 0, .sum = 0, .over = false, .error = nullptr, .begun = {}};
  wake = false;
  if (ticket > failed_from_) {
    slot.error = first_error_;
    complete(slot);
    return ticket;
  }
  Line& line = lines_[request.write];
  line.ring[(line.first + line.count++) % line.ring.size()] = index;
  wake = std::exchange(line.starved, false);
  line.work.notify_all();
  return ticket;
}

void DiskQueue::wait(DiskTicket ticket) {
  std::unique_lock lock(mutex_);
  require(ticket > 0 && ticket <= last_, "one waits for a disk request that was submitted");
  const Slot& slot = slots_[ticket % slots_.size()];
  over_.wait(lock, [&] { return slot.ticket > ticket || (slot.ticket == ticket && slot.over); });
  std::exception_ptr error = slot.ticket == ticket ? slot.error : nullptr;
  if (!error && ticket >= failed_from_) error = first_error_;
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void DiskQueue::drain() {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [&] { return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.over; }); });
  const std::exception_ptr error = first_error_;
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void DiskQueue::record(bool on) {
  const std::lock_guard lock(mutex_);
  records_requests_ = on;
}

std::vector<TransferRecord> DiskQueue::take_records() {
  const std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

void DiskQueue::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Line& line : lines_) line.work.notify_all();
}

bool DiskQueue::stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

bool DiskQueue::take(bool write, DiskBlock& block) {
  const std::lock_guard lock(mutex_);
  return take_locked(lines_[write], block);
}

bool DiskQueue::take_waiting(bool write, DiskBlock& block) {
  std::unique_lock lock(mutex_);
  Line& line = lines_[write];
  line.work.wait(lock, [&] { return stopped_ || line.count > 0; });
  return take_locked(line, block);
}

bool DiskQueue::take_locked(Line& line, DiskBlock& block) {
  if (stopped_ || line.count == 0) {
    line.starved = true;
    return false;
  }
  const size_t index = line.ring[line.first];
  Slot& slot = slots_[index];
  const DiskRequest& request = slot.request;
  if (records_requests_ && slot.issued == 0) slot.begun = RunClock::now();
  block = {.slot = index,
           .descriptor = request.file->descriptor(),
           .write = request.write,
           .direct = request.file->direct(),
           .hashed = request.checksum != nullptr,
           .data = request.data + slot.issued,
           .offset = request.offset + slot.issued,
           .bytes = std::min(block_bytes_, request.bytes - slot.issued),
           .first_piece = static_cast<uint64_t>(slot.issued / kChecksumPiece)};
  slot.issued += block.bytes;
  ++slot.in_flight;
  if (slot.issued == request.bytes) {
    line.first = (line.first + 1) % line.ring.size();
    --line.count;
  }
  return true;
}

bool DiskQueue::advance(DiskBlock& block, int64_t result) {
  if ((result == -EINTR || result == -EAGAIN) && ++block.retries < kRetries) return false;
  if (result > 0) {
    block.done += result;
    if (block.done == block.bytes) return true;
    // What is asked for next must be aligned again; less than that is no progress.
    if (block.direct && !at_sector(block.done)) {
      block.done -= block.done % kDiskAlignment;
      if (result < kDiskAlignment) result = 0;
    }
    if (result > 0) return false;
  }
  block.failed = true;
  block.code = static_cast<int>(-result);
  return true;
}

void DiskQueue::finish(const DiskBlock& block) {
  const uint64_t sum =
      block.hashed && !block.failed ? checksum({block.data, static_cast<size_t>(block.bytes)}, block.first_piece) : uint64_t{0};
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[block.slot];
  slot.sum += sum;
  --slot.in_flight;
  if (block.failed) fail(slot, failure_of(slot.request, block));
  if (slot.in_flight > 0 || (slot.issued < slot.request.bytes && !slot.error)) return;
  if (block.hashed && !slot.error) {
    const DiskRequest& request = slot.request;
    if (request.write) {
      *request.checksum = slot.sum;
    } else if (*request.checksum != slot.sum) {
      fail(slot, error(ErrorCode::io, "the disk returned other bytes than were written: '{}', {} bytes at byte {}", request.file->path(),
                       request.bytes, request.offset));
    }
  }
  complete(slot);
}

void DiskQueue::complete(Slot& slot) {
  if (!slot.error && slot.begun != RunClock::time_point{})
    records_.push_back({.ticket = slot.ticket,
                        .write = slot.request.write,
                        .bytes = slot.request.bytes,
                        .span = {.begin = slot.begun, .end = RunClock::now()}});
  slot.over = true;
  over_.notify_all();
}

void DiskQueue::fail(Slot& slot, const Error& failure) {
  if (slot.error) return;
  slot.error = std::make_exception_ptr(failure);
  if (!first_error_) first_error_ = slot.error;
  failed_from_ = std::min(failed_from_, slot.ticket);
  abandon(slot.ticket);
}

// Takes the failed request and those after it out of the lines; they have the failed one's error or the first.
void DiskQueue::abandon(DiskTicket after) {
  for (Line& line : lines_) {
    while (line.count > 0) {
      Slot& slot = slots_[line.ring[(line.first + line.count - 1) % line.ring.size()]];
      if (slot.ticket < after) break;
      --line.count;
      if (!slot.error) slot.error = first_error_;
      if (slot.in_flight == 0 && slot.ticket != after) complete(slot);
    }
  }
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace ort_train
