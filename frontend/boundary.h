// The boundary between the library and the program that embeds it. Inside, numbers are rounded as the library wants it
// (exec/float_environment.h). Out come an Error, or what one of the program's callbacks threw, and nothing else.

#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

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

// The calls of one Trainer, and the callbacks and the program's samples that they ask for. One thread at a time; a callback may make calls.
class Boundary {
 public:
  // As the library calls them: with the program's own rounding, and what they throw is told from what the library throws.
  Callbacks guarded(Callbacks callbacks) {
    return {.on_step = guarded(std::move(callbacks.on_step)),
            .on_eval = guarded(std::move(callbacks.on_eval)),
            .on_note = guarded(std::move(callbacks.on_note))};
  }
  // The same of the samples that the program gives; but what these throw becomes an Error(data).
  Options guarded(Options options);

  template <typename Body> auto call(Body&& body) -> decltype(body()) {
    const FloatEnvironment environment;
    const size_t earlier = thrown_.size();
    const Nesting nesting{*this, std::exchange(caller_, environment.before()), earlier};
    try {
      return body();
    } catch (...) {
      // Of several the first. A failure of another kind since then, such as that of a last checkpoint, is what has to be told.
      const auto theirs = thrown_.begin() + static_cast<ptrdiff_t>(earlier);
      if (std::find(theirs, thrown_.end(), std::current_exception()) != thrown_.end()) std::rethrow_exception(*theirs);
      rethrow_as_error();
    }
  }

 private:
  class Source;
  struct Nesting {
    Boundary& boundary;
    FloatEnvironment::Setting outer;
    size_t thrown;  // by callbacks before the call
    ~Nesting() {
      boundary.caller_ = outer;
      boundary.thrown_.resize(thrown);  // what was thrown within the call is dealt with, or on its way out
    }
  };

  template <typename Report> std::function<void(const Report&)> guarded(std::function<void(const Report&)> callback) {
    if (!callback) return {};
    return [this, callback = std::move(callback)](const Report& report) {
      const FloatEnvironment theirs(caller_);
      try {
        callback(report);
      } catch (...) {
        thrown_.push_back(std::current_exception());
        throw;
      }
    };
  }

  FloatEnvironment::Setting caller_{};        // the program's, in the call that is under way
  std::vector<std::exception_ptr> thrown_{};  // by callbacks, in the calls that are under way
};

}  // namespace ort_train
