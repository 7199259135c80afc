#include "tests/io_faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <filesystem>

namespace ort_train {
namespace {

Fault fault = Fault::none;
int64_t left = 0;
bool armed = false, done = false;
std::vector<std::string> calls;

std::string path_of(int descriptor) {
  std::error_code code;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), code).string();
}

// Whether this call is the one; what fails sets errno.
bool strikes(const std::string& call) {
  if (!armed) return false;
  calls.push_back(call);
  if (fault == Fault::none || --left != 0) return false;
  done = true;
  if (fault == Fault::kill) _exit(77);
  errno = fault == Fault::full ? ENOSPC : fault == Fault::interrupt ? EINTR : EIO;
  return true;
}

template <typename Function> Function* real(const char* name) { return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name)); }

}  // namespace

IoFaults::IoFaults(Fault which, int64_t n) {
  fault = which;
  left = n;
  done = false;
  calls.clear();
  armed = true;
}

IoFaults::~IoFaults() {
  armed = false;
  fault = Fault::none;
}

bool IoFaults::happened() const { return done; }
const std::vector<std::string>& IoFaults::trace() { return calls; }

}  // namespace ort_train

extern "C" {

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static auto* const call = ort_train::real<decltype(pwrite)>("pwrite");
  if (ort_train::strikes("write " + ort_train::path_of(descriptor))) {
    if (ort_train::fault != ort_train::Fault::short_write) return -1;
    bytes = (bytes + 1) / 2;
  }
  return call(descriptor, from, bytes, offset);
}

int fsync(int descriptor) {
  static auto* const call = ort_train::real<decltype(fsync)>("fsync");
  if (ort_train::strikes("fsync " + ort_train::path_of(descriptor)) && ort_train::fault != ort_train::Fault::interrupt &&
      ort_train::fault != ort_train::Fault::short_write) {
    return -1;
  }
  return call(descriptor);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const call = ort_train::real<int(const char*, const char*)>("rename");
  if (ort_train::strikes(std::string("rename ") + from + " " + to) && ort_train::fault != ort_train::Fault::interrupt &&
      ort_train::fault != ort_train::Fault::short_write) {
    return -1;
  }
  return call(from, to);
}

int posix_fallocate(int descriptor, off_t offset, off_t bytes) {
  static auto* const call = ort_train::real<decltype(posix_fallocate)>("posix_fallocate");
  if (ort_train::strikes("reserve " + ort_train::path_of(descriptor)) && ort_train::fault != ort_train::Fault::short_write) return errno;
  return call(descriptor, offset, bytes);
}

}  // extern "C"
