// AlgorithmTable: by which algorithm a device's libraries compute each product, convolution or attention of 16 bits. Algorithms differ in
// the last bits, and which one a library takes is its own choice.
//
// A choice is made once in a process, for each device: a checkpoint makes it for a run that is resumed, else the library does when a kernel
// is first prepared. Checkpoints keep the table.

#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "graph/error_type.h"

namespace ort_train {

// What is computed -> the algorithm, both in words of what calls the library.
using Algorithms = std::map<std::string, std::string>;

// For several threads.
class AlgorithmTable {
 public:
  std::optional<std::string> find(const std::string& computed) const;
  void choose(const std::string& computed, const std::string& algorithm);
  // Those of a checkpoint. Throws Error(usage), and changes nothing, where this process has computed something by another one.
  void choose(const Algorithms& saved);
  Algorithms all() const;

 private:
  mutable std::mutex mutex_;
  Algorithms chosen_;
};

// Error(device): what a library says to an algorithm of the table that it doesn't have.
Error unknown_algorithm(const std::string& library, const std::string& computed, const std::string& algorithm);

}  // namespace ort_train
