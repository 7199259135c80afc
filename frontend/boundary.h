// The boundary between the library and the program that embeds it. Inside, numbers are rounded as the library wants it
// (exec/float_environment.h). Out come an Error, or what one of the program's callbacks threw, and nothing else.

#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "exec/float_environment.h"
#include "frontend/ort_train.h"

namespace ort_train {

// Throws the exception that is being handled as an Error: std::bad_alloc, std::filesystem::filesystem_error and whatever else.
[[noreturn]] void rethrow_as_error();

// A public call without callbacks.
template <typename Body> auto in_library(Body&& body) -> decltype(body()) {
  const FloatEnvironment environment;
  try {
    return body();
  } catch (...) {
    rethrow_as_error();
  }
}

// The calls of one Trainer, and the callbacks that they make. One thread at a time; a callback may make calls.
class Boundary {
 public:
  // As the library calls them: with the program's own rounding, and what they throw is told from what the library throws.
  Callbacks guarded(Callbacks callbacks) {
    return {.on_step = guarded(std::move(callbacks.on_step)),
            .on_eval = guarded(std::move(callbacks.on_eval)),
            .on_note = guarded(std::move(callbacks.on_note))};
  }

  template <typename Body> auto call(Body&& body) -> decltype(body()) {
    const FloatEnvironment environment;
    const Nesting nesting{*this, std::exchange(caller_, environment.before())};
    if (calls_++ == 0) thrown_ = nullptr;  // nothing that an earlier call dealt with
    try {
      return body();
    } catch (...) {
      // A failure since then, such as that of a last checkpoint, is what has to be told.
      if (const std::exception_ptr theirs = std::exchange(thrown_, nullptr); theirs == std::current_exception()) throw;
      rethrow_as_error();
    }
  }

 private:
  struct Nesting {
    Boundary& boundary;
    FloatEnvironment::Setting outer;
    ~Nesting() {
      boundary.caller_ = outer;
      --boundary.calls_;
    }
  };

  template <typename Report> std::function<void(const Report&)> guarded(std::function<void(const Report&)> callback) {
    if (!callback) return {};
    return [this, callback = std::move(callback)](const Report& report) {
      const FloatEnvironment theirs(caller_);
      try {
        callback(report);
      } catch (...) {
        if (!thrown_) thrown_ = std::current_exception();
        throw;
      }
    };
  }

  FloatEnvironment::Setting caller_{};  // the program's, in the call that is under way
  std::exception_ptr thrown_{};         // by a callback, on its way out
  int calls_ = 0;                       // under way, one in the other
};

}  // namespace ort_train
