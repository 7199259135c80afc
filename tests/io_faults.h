// Faults in file operations, for tests of what must survive them: the calls of the library to libc go through here (io_faults.cpp), as the
// test program's own pwrite, fsync, rename ... come before libc's.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ort_train {

enum class Fault {
  none,
  error,        // the call fails with EIO
  full,         // the call fails with ENOSPC
  kill,         // the process ends, as by kill -9
  short_write,  // a write moves half of its bytes
  interrupt,    // the call fails with EINTR, once
};

class IoFaults {
 public:
  // From now on the n-th call (from 1) that changes something on disk has this fault; later ones are well again.
  IoFaults(Fault fault, int64_t n);
  ~IoFaults();  // all is well again
  IoFaults(const IoFaults&) = delete;
  IoFaults& operator=(const IoFaults&) = delete;

  bool happened() const;
  // "write PATH", "fsync PATH", "rename FROM TO": since this object was made.
  static const std::vector<std::string>& trace();
};

}  // namespace ort_train
