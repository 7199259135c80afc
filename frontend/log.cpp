#include "frontend/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Json = nlohmann::ordered_json;  // numbers are written as the shortest text that reads back as the same double

constexpr size_t kLongestLine = 1 << 16;

// Of what a stream couldn't do, errno having been 0 before.
std::string log_failure(const std::string& path, const char* what) {
  return fmt::format("{}: the log can't be {}: {}", path, what, errno != 0 ? std::strerror(errno) : "the system doesn't say why");
}

// Opening a pipe waits until somebody reads it, which may be never. This one stays open until the stream is, so that the reader sees no
// end. Below 0: the path is no pipe.
int open_pipe(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::is_fifo(path, code)) return -1;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0 && errno == ENXIO)
    throw error(ErrorCode::io, "{}: is a pipe that nobody reads: start its reader first, or choose another `log_file`", path);
  return descriptor;
}

// Where the lines of the first `done` steps end, and the last one's step.
struct LogEnd {
  int64_t bytes = 0, step = 0;
};
LogEnd end_of_step(const std::string& path, int64_t done) {
  std::ifstream file(path, std::ios::binary);
  LogEnd end;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = json.is_object() ? json.find("step") : json.end();
    if (!json.is_object() || step == json.end() || !step->is_number_integer() || step->get<int64_t>() > done) break;
    end.bytes += static_cast<int64_t>(line.size()) + 1;
    end.step = step->get<int64_t>();
  }
  return end;
}

}  // namespace

StepLog::StepLog(const std::string& path, int64_t done, bool last_follows) : path_(path) {
  if (path.empty()) return;
  make_folders(folder_of(path));
  std::error_code code;
  const int64_t written = done - (last_follows ? 1 : 0);
  LogEnd end;
  if (done > 0 && std::filesystem::is_regular_file(path, code)) {
    end = end_of_step(path, written);
    std::filesystem::resize_file(path, static_cast<uintmax_t>(end.bytes), code);
    if (code) throw error(ErrorCode::io, "{}: can't be shortened: {}", path, code.message());
  }
  skips_next_ = last_follows && end.step != written;
  const int pipe = open_pipe(path);
  errno = 0;
  file_.open(path, std::ios::binary | (done > 0 ? std::ios::app : std::ios::trunc));
  const int failure = errno;
  if (pipe >= 0) ::close(pipe);
  errno = failure;
  if (!file_) throw Error(ErrorCode::io, log_failure(path, "written"));
}

void StepLog::refuse_foreign(const std::string& path) {
  std::error_code code;
  if (path.empty() || !std::filesystem::is_regular_file(path, code) || std::filesystem::file_size(path, code) == 0)
    return;  // a device, too
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::io, log_failure(path, "read"));
  std::string line(kLongestLine, '\0');
  file.getline(line.data(), static_cast<std::streamsize>(line.size()));
  const Json json = Json::parse(line.c_str(), nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && ((json.contains("step") && json.contains("grad_norm")) || json.contains("summary"))) return;
  throw error(ErrorCode::usage, "{}: is there already and is no log of ort-train: move it away, or choose another `log_file`", path);
}

void StepLog::line(const std::string& text) {
  if (path_.empty() || !failure_.empty()) return;
  errno = 0;
  file_ << text << '\n' << std::flush;
  if (!file_) failure_ = log_failure(path_, "written");
}

std::string StepLog::line_of(const StepReport& report) {
  Json json{{"step", report.step},
            {"total_steps", report.total_steps},
            {"epoch", report.epoch},
            {"loss", report.loss},
            {"grad_norm", report.grad_norm},
            {"learning_rate", report.learning_rate},
            {"ms", report.milliseconds},
            {"tokens_per_second", report.tokens_per_second},
            {"computing_ms", report.computing_milliseconds},
            {"waiting_ms", report.waiting_milliseconds},
            {"remaining_seconds", report.seconds_left}};
  if (report.loss_scale > 0) {
    json["loss_scale"] = report.loss_scale;
    json["skipped"] = report.skipped;
  }
  return json.dump();
}

void StepLog::step(const std::string& line_of_step, std::optional<double> eval_loss) {
  if (std::exchange(skips_next_, false)) return;
  if (!eval_loss) return line(line_of_step);
  Json json = Json::parse(line_of_step, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;  // it is from a checkpoint
  json["eval_loss"] = *eval_loss;
  line(json.dump());
}

void StepLog::summary(const Summary& summary) {
  Json planned{{"RAM", summary.planned_peak_bytes}, {"NVMe", summary.planned_disk_bytes}}, measured{{"RAM", summary.measured_peak_bytes}};
  if (summary.planned_device_bytes > 0) {
    planned = {{"GPU", summary.planned_device_bytes}, {"RAM", summary.planned_host_bytes}, {"NVMe", summary.planned_disk_bytes}};
    measured = {{"GPU", summary.measured_device_bytes}};
  }
  line(Json{{"summary",
             {{"planned_peak_bytes", std::move(planned)},
              {"measured_peak_bytes", std::move(measured)},
              {"planned_ms_per_step", summary.predicted_milliseconds},
              {"planned_disk_per_step", {{"read", summary.planned_read_per_step}, {"written", summary.planned_written_per_step}}},
              {"disk_per_step", {{"read", summary.read_per_step}, {"written", summary.written_per_step}}},
              {"disk_bytes_read", summary.disk_bytes_read},
              {"disk_bytes_written", summary.disk_bytes_written},
              {"pinned_bytes", summary.pinned_bytes},
              {"rss_peak_bytes", summary.rss_peak_bytes},
              {"minimum_budget_bytes", summary.minimum_budget_bytes},
              {"weights_hash", summary.weights_hash},
              {"steps", summary.steps},
              {"skipped_steps", summary.skipped_steps},
              {"loss_scale", summary.loss_scale},
              {"stopped", summary.stopped},
              {"early_stopped", summary.early_stopped},
              {"first_loss", summary.first_loss},
              {"last_loss", summary.last_loss},
              {"eval_loss", summary.eval_loss},
              {"best_eval_loss", summary.best_eval_loss},
              {"best_step", summary.best_step},
              {"seconds", summary.seconds},
              {"ms_per_step", summary.milliseconds_per_step},
              {"computing_ms_per_step", summary.computing_milliseconds},
              {"waiting_ms_per_step", summary.waiting_milliseconds},
              {"median_ms_per_step", summary.median_milliseconds}}}}
           .dump());
}

}  // namespace ort_train
