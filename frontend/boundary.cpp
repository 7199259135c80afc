#include "frontend/boundary.h"

#include <cxxabi.h>

#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "graph/error.h"

namespace ort_train {

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
