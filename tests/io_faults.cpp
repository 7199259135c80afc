#include "tests/io_faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <type_traits>

namespace ort_train {
namespace {

std::atomic<Fault> fault = Fault::none;
constexpr size_t kBlock = 4096;  // of direct I/O
std::atomic<bool> armed = false, done = false;
std::mutex mutex;  // of what follows
int64_t left = 0;
bool lasting = false;
std::vector<std::string> calls;
std::map<std::pair<io_uring*, uint64_t>, int> spoilt;  // completions to come, by user data: what they shall say
std::atomic<int> uring_refused = 0, uring_broken = 0;
std::atomic<int64_t> bytes_left = -1;
std::atomic<bool> no_links = false;

std::string path_of(int descriptor) {
  std::error_code code;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), code).string();
}

enum class CountedCalls { changes, reads, names };
CountedCalls counted(Fault which) {
  if (which == Fault::name_error) return CountedCalls::names;
  return which == Fault::read_error || which == Fault::short_read ? CountedCalls::reads : CountedCalls::changes;
}
bool halves(Fault which) { return which == Fault::short_read || which == Fault::short_write; }

size_t half_of(int descriptor, size_t bytes) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0 ? bytes / 2 / kBlock * kBlock : (bytes + 1) / 2;
}

// Whether this call is the one; what fails sets errno.
bool strikes(const char* what, const std::string& where, CountedCalls kind = CountedCalls::changes) {
  if (!armed || kind != counted(fault)) return false;
  const std::lock_guard lock(mutex);
  calls.push_back(std::string(what) + " " + where);
  if (fault == Fault::none || (--left != 0 && !(lasting && done))) return false;
  done = true;
  if (fault == Fault::kill) _exit(77);
  errno = fault == Fault::full ? ENOSPC : fault == Fault::interrupt ? EINTR : EIO;
  return true;
}

// A read or a write.
bool strikes_transfer(bool read, int descriptor, size_t bytes) {
  if (!armed || (halves(fault) && half_of(descriptor, bytes) == 0)) return false;
  const std::string path = path_of(descriptor);
  return path.starts_with('/') &&
         strikes(read ? "read" : "write", path, read ? CountedCalls::reads : CountedCalls::changes);  // events have no path
}

// Reads and writes that are about to go into the ring: short ones really are. Those that fail become what the kernel does at once, so that
// their completion is there when the call returns, and can't come between this look at the ring and the library's.
void spoil_submissions(io_uring* ring) {
  if (!armed) return;
  for (unsigned at = ring->sq.sqe_head; at != ring->sq.sqe_tail; ++at) {
    io_uring_sqe& entry = ring->sq.sqes[at & ring->sq.ring_mask];
    const bool read = entry.opcode == IORING_OP_READ || entry.opcode == IORING_OP_READ_FIXED;
    if (!strikes_transfer(read, entry.fd, entry.len)) continue;
    if (halves(fault)) {
      entry.len = static_cast<unsigned>(half_of(entry.fd, entry.len));
    } else {
      const std::lock_guard lock(mutex);
      const uint64_t data = entry.user_data;
      spoilt[{ring, data}] = -errno;
      io_uring_prep_nop(&entry);
      entry.user_data = data;
    }
  }
}

void spoil_completions(io_uring* ring) {
  if (!armed) return;
  const std::lock_guard lock(mutex);
  unsigned head;
  io_uring_cqe* entry;
  io_uring_for_each_cqe(ring, head, entry) {
    const auto found = spoilt.find({ring, entry->user_data});
    if (found == spoilt.end()) continue;
    entry->res = found->second;
    spoilt.erase(found);
  }
}

template <typename Function> Function* real(const char* name) { return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name)); }

}  // namespace

IoFaults::IoFaults(Fault which, int64_t n, bool lasts) {
  const std::lock_guard lock(mutex);
  fault = which;
  left = n;
  lasting = lasts;
  done = false;
  calls.clear();
  spoilt.clear();
  armed = true;
}

IoFaults::~IoFaults() {
  armed = false;
  fault = Fault::none;
}

bool IoFaults::happened() const { return done; }
const std::vector<std::string>& IoFaults::trace() { return calls; }

UringRefused::UringRefused(int code) { uring_refused = code; }
UringRefused::~UringRefused() { uring_refused = 0; }

FreeSpace::FreeSpace(int64_t bytes) { bytes_left = bytes; }
FreeSpace::~FreeSpace() { bytes_left = -1; }

CallListener call_listener;

template <typename... Arguments> void tell(void (*listener)(Arguments...), std::type_identity_t<Arguments>... arguments) {
  if (listener != nullptr) listener(arguments...);
}

LinksRefused::LinksRefused(bool refuse) { no_links = refuse; }
LinksRefused::~LinksRefused() { no_links = false; }
bool links_refused() { return no_links; }

bool name_call_fails(const char* what, const std::string& where) { return strikes(what, where, CountedCalls::names); }

UringBroken::UringBroken(int code) { uring_broken = code; }
UringBroken::~UringBroken() { uring_broken = 0; }

}  // namespace ort_train

#pragma GCC visibility push(default)  // the C++ library's own calls come by, too
extern "C" {

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static auto* const call = ort_train::real<decltype(pwrite)>("pwrite");
  if (ort_train::strikes_transfer(false, descriptor, bytes)) {
    if (!ort_train::halves(ort_train::fault)) return -1;
    bytes = ort_train::half_of(descriptor, bytes);
  }
  const ssize_t put = call(descriptor, from, bytes, offset);
  if (put > 0) ort_train::tell(ort_train::call_listener.write, descriptor, from, put, offset);
  return put;
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  static auto* const call = ort_train::real<decltype(pread)>("pread");
  if (ort_train::strikes_transfer(true, descriptor, bytes)) {
    if (!ort_train::halves(ort_train::fault)) return -1;
    bytes = ort_train::half_of(descriptor, bytes);
  }
  return call(descriptor, to, bytes, offset);
}

int fsync(int descriptor) {
  static auto* const call = ort_train::real<decltype(fsync)>("fsync");
  if (ort_train::strikes("fsync", ort_train::path_of(descriptor)) && ort_train::fault != ort_train::Fault::interrupt &&
      ort_train::fault != ort_train::Fault::short_write) {
    return -1;
  }
  const int result = call(descriptor);
  if (result == 0) ort_train::tell(ort_train::call_listener.sync, descriptor);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const call = ort_train::real<int(const char*, const char*)>("rename");
  if (ort_train::strikes("rename", std::string(from) + " " + to) && ort_train::fault != ort_train::Fault::interrupt &&
      ort_train::fault != ort_train::Fault::short_write) {
    return -1;
  }
  const int result = call(from, to);
  if (result == 0) ort_train::tell(ort_train::call_listener.rename, from, to);
  return result;
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  static auto* const call = ort_train::real<decltype(fallocate)>("fallocate");
  if (ort_train::strikes("reserve", ort_train::path_of(descriptor)) && ort_train::fault != ort_train::Fault::short_write) return -1;
  const int result = call(descriptor, mode, offset, bytes);
  if (result == 0 && (mode & FALLOC_FL_PUNCH_HOLE) != 0) ort_train::tell(ort_train::call_listener.hole, descriptor, offset, bytes);
  if (result == 0 && mode == 0) ort_train::tell(ort_train::call_listener.resize, descriptor, offset + bytes, true);
  return result;
}

int statvfs(const char* path, struct statvfs* status) noexcept {
  static auto* const call = ort_train::real<int(const char*, struct statvfs*)>("statvfs");
  const int result = call(path, status);
  if (result == 0 && ort_train::bytes_left >= 0) {
    status->f_frsize = 1;
    status->f_bavail = static_cast<fsblkcnt_t>(ort_train::bytes_left);
  }
  return result;
}

int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  static auto* const call = ort_train::real<decltype(io_uring_queue_init)>("io_uring_queue_init");
  if (ort_train::uring_refused != 0) return -ort_train::uring_refused;
  return call(entries, ring, flags);
}

int io_uring_submit(io_uring* ring) {
  static auto* const call = ort_train::real<decltype(io_uring_submit)>("io_uring_submit");
  if (ort_train::uring_broken != 0) return -ort_train::uring_broken;
  ort_train::spoil_submissions(ring);
  const int result = call(ring);
  ort_train::spoil_completions(ring);
  return result;
}

int io_uring_submit_and_wait(io_uring* ring, unsigned count) {
  static auto* const call = ort_train::real<decltype(io_uring_submit_and_wait)>("io_uring_submit_and_wait");
  if (ort_train::uring_broken != 0) return -ort_train::uring_broken;
  ort_train::spoil_submissions(ring);
  const int result = call(ring, count);
  ort_train::spoil_completions(ring);
  return result;
}

}  // extern "C"
#pragma GCC visibility pop
