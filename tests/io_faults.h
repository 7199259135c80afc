// Faults in file operations, for tests of what must survive them: the calls of the library to libc go through here (io_faults.cpp), as the
// test program's own pwrite, fsync, rename ... come before libc's. What goes through io_uring is caught on its way into the ring and out.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/error_type.h"

namespace ort_train {

enum class Fault {
  none,
  error,        // the call fails with EIO
  full,         // the call fails with ENOSPC
  kill,         // the process ends, as by kill -9
  short_write,  // a write moves half of its bytes
  interrupt,    // the call fails with EINTR, once
  read_error,   // these two count reads in place of changes: a read fails with EIO
  short_read,   // a read moves half of its bytes
  name_error,   // this one counts what makes, links, removes or resizes files and folders in place of changes: it fails with EIO
};

class IoFaults {
 public:
  // From now on the n-th call (from 1) that changes something on disk has this fault; later ones are well again, unless it lasts. Any
  // thread's calls. Of direct I/O, a block has no half: a short one is the n-th of several blocks.
  IoFaults(Fault fault, int64_t n, bool lasts = false);
  ~IoFaults();  // all is well again
  IoFaults(const IoFaults&) = delete;
  IoFaults& operator=(const IoFaults&) = delete;

  bool happened() const;
  // Since this object was made: "write PATH", "fsync PATH", "rename FROM TO", "reserve PATH"; where reads count "read PATH"; where names
  // count "create PATH", "mkdir PATH", "link TO", "unlink PATH", "rmdir PATH", "resize PATH".
  static const std::vector<std::string>& trace();
};

// What came of something whose n-th call had a fault.
struct Struck {
  std::optional<Error> problem{};
  bool happened = false;
};
template <typename Body> Struck with_fault(Fault fault, int64_t n, Body&& body) {
  const IoFaults faults(fault, n);
  Struck struck;
  try {
    body();
  } catch (const Error& caught) {
    struck.problem = caught;
  }
  struck.happened = faults.happened();
  return struck;
}

// While it lives, the kernel refuses io_uring with this errno.
class UringRefused {
 public:
  explicit UringRefused(int code);
  ~UringRefused();
  UringRefused(const UringRefused&) = delete;
  UringRefused& operator=(const UringRefused&) = delete;
};

// While it lives, every file system says that it has so many bytes left.
class FreeSpace {
 public:
  explicit FreeSpace(int64_t bytes);
  ~FreeSpace();
  FreeSpace(const FreeSpace&) = delete;
  FreeSpace& operator=(const FreeSpace&) = delete;
};

// While it lives, the kernel takes nothing from any ring, with this errno.
class UringBroken {
 public:
  explicit UringBroken(int code);
  ~UringBroken();
  UringBroken(const UringBroken&) = delete;
  UringBroken& operator=(const UringBroken&) = delete;
};

// Told of calls that were made, where somebody listens (disk_record.h).
struct CallListener {
  void (*write)(int descriptor, const void* from, int64_t bytes, int64_t offset) = nullptr;
  void (*resize)(int descriptor, int64_t bytes, bool only_grow) = nullptr;
  void (*hole)(int descriptor, int64_t offset, int64_t bytes) = nullptr;
  void (*sync)(int descriptor) = nullptr;
  void (*rename)(const char* from, const char* to) = nullptr;
};
extern CallListener call_listener;

// While it lives, no file gets another name, as between two file systems.
class LinksRefused {
 public:
  explicit LinksRefused(bool refuse);
  ~LinksRefused();
  LinksRefused(const LinksRefused&) = delete;
  LinksRefused& operator=(const LinksRefused&) = delete;
};
bool links_refused();

// For disk_record.cpp, which these calls come by: whether this one shall fail (errno is set).
bool name_call_fails(const char* what, const std::string& where);

}  // namespace ort_train
