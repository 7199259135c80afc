// AlgorithmTable: by which algorithm a device's libraries compute each product, convolution or attention of 16 bits. Algorithms differ in
// the last bits, and which one a library takes is its own choice.
//
// A choice is made once in a process, for each device: a checkpoint makes it for a run that is resumed, else the library does when a kernel
// is first prepared, or planned where its workspace depends on the algorithm. Checkpoints keep the table.

#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "graph/error_type.h"

namespace ort_train {

// Problem, what is to be computed -> the algorithm, both in words of what calls the library.
using Algorithms = std::map<std::string, std::string>;

// The algorithm of what the libraries have no way to compute.
inline constexpr const char* kOwnKernels = "kernels of ort-train";

// For several threads.
class AlgorithmTable {
 public:
  std::optional<std::string> find(const std::string& problem) const;
  // Unless there is one already. Returns the one that counts.
  std::string choose(const std::string& problem, const std::string& algorithm);
  // A checkpoint's. Throws Error(usage), and changes nothing, where this process has chosen another one.
  void restore(const Algorithms& saved);
  // Of one that the library turns out not to have: forgets it, and returns what is to be thrown, Error(device).
  Error refuse(const std::string& library, const std::string& problem);
  Algorithms all() const;

 private:
  mutable std::mutex mutex_;
  Algorithms chosen_;
};

}  // namespace ort_train
