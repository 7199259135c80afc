// Error and its codes, on the standard library alone: programs that embed ort-train include this through frontend/ort_train.h.

#pragma once

#include <stdexcept>
#include <string>

#if defined(__GNUC__)
#define ORT_TRAIN_API __attribute__((visibility("default")))
#else
#define ORT_TRAIN_API
#endif

namespace ort_train {

// The values are the exit codes of the command line.
enum class ErrorCode { internal = 1, usage = 2, unsupported = 3, budget = 4, data = 5, io = 6, diverged = 7, corrupt = 8, device = 9 };

class ORT_TRAIN_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ort_train
