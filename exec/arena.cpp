#include "exec/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "graph/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C libraries don't name it
#endif

namespace ort_train {
namespace {

size_t mapped_bytes(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return static_cast<size_t>((bytes + page - 1) / page * page);
}

// Faults in every page; errno's value, 0 if all is well.
int populate(std::byte* data, size_t bytes) {
  int result;
  do {
    result = madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // An older kernel: one write a page. A lack of memory then shows as a signal, as with any program.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{0};
  return 0;
}

[[noreturn]] void fail(int64_t bytes, int number) {
  throw error(ErrorCode::budget,
              "the machine can't give the {} bytes of memory that the plan needs ({}): end other programs or choose a smaller `budget`, "
              "beside a GPU a smaller `host_budget`",
              bytes, std::strerror(number));
}

}  // namespace

Arena::Arena(int64_t bytes) : Memory(bytes) {
  if (bytes <= 0) return;
  const size_t mapped = mapped_bytes(bytes);
  void* const data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail(bytes, errno);
  madvise(data, mapped, MADV_HUGEPAGE);  // a wish: without huge pages it is only slower
  if (const int failed = populate(static_cast<std::byte*>(data), mapped)) {
    munmap(data, mapped);
    fail(bytes, failed);
  }
  data_ = static_cast<std::byte*>(data);
}

Arena::~Arena() {
  if (data_) munmap(data_, mapped_bytes(bytes_));
}

Arena::Arena(Arena&& other) noexcept : Memory(std::exchange(other.bytes_, 0)) { data_ = std::exchange(other.data_, nullptr); }

}  // namespace ort_train
