#include "frontend/boundary.h"

#include <cxxabi.h>

#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "graph/error.h"

namespace ort_train {

// The program's own source of samples.
class Boundary::Source : public SampleSource {
 public:
  Source(const Boundary& boundary, std::shared_ptr<SampleSource> source, const char* option)
      : boundary_(boundary), source_(std::move(source)), option_(option) {}

  std::vector<SampleField> fields() const override {
    return in_program("its fields", [&] { return source_->fields(); });
  }
  int64_t size() const override {
    return in_program("its size", [&] { return source_->size(); });
  }
  void read(size_t field, int64_t sample, std::span<std::byte> to) override {
    in_program(fmt::format("sample {}", sample), [&] { source_->read(field, sample, to); });
  }
  std::string content_hash() const override {
    return in_program("its hash", [&] { return source_->content_hash(); });
  }

 private:
  template <typename Body> auto in_program(std::string_view what, Body&& body) const -> decltype(body()) {
    const FloatEnvironment theirs(boundary_.caller_);
    try {
      return body();
    } catch (const std::exception& problem) {
      throw error(ErrorCode::data, "`{}`: {} can't be had: {}", option_, what, problem.what());
    }
  }

  const Boundary& boundary_;
  const std::shared_ptr<SampleSource> source_;
  const char* const option_;
};

Options Boundary::guarded(Options options) {
  if (options.train_samples) options.train_samples = std::make_shared<Source>(*this, options.train_samples, "train_samples");
  if (options.eval_samples) options.eval_samples = std::make_shared<Source>(*this, options.eval_samples, "eval_samples");
  return options;
}

void rethrow_as_error() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const abi::__forced_unwind&) {  // a thread that is cancelled
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::budget,
                "the machine has no memory left for what the job needs: end other programs, or choose a smaller `budget`");
  } catch (const std::filesystem::filesystem_error& problem) {
    if (problem.path1().empty()) throw error(ErrorCode::io, "a file can't be used: {}", problem.code().message());
    throw error(ErrorCode::io, "{}: can't be used: {}", problem.path1().string(), problem.code().message());
  } catch (const std::system_error& problem) {
    throw error(ErrorCode::device, "the system refuses what the job needs: {}", problem.what());
  } catch (const std::exception& problem) {
    if (std::string_view(problem.what()).starts_with("pthread_create"))  // oneTBB's
      throw error(ErrorCode::device,
                  "the system refuses the program more threads: choose fewer `threads`, or raise the limit of processes (`ulimit -u`, or "
                  "pids.max of the cgroup)");
    throw internal_error("{}", problem.what());
  } catch (...) {
    throw internal_error("an exception of an unknown type");
  }
}

}  // namespace ort_train
