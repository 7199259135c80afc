#include "frontend/report_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "frontend/event_file.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

struct Report {
  const char* option;
  std::string path;
  std::string_view begin;                 // what such a file begins with
  std::vector<std::string_view> marks{};  // and what else it has in its first bytes
  bool into_any = true;                   // it may also go into what is no regular file
};

std::vector<Report> reports_of(const Options& options) {
  static const std::string kGradientsMark = fmt::format("\"{}\":\"{}\"", kContentKey, kGradients),
                           kStateMark = fmt::format("\"{}\":\"{}\"", kContentKey, kOptimizerState);
  std::vector<Report> reports{{"plan_json", options.plan_json, "{", {"\"model\":", "\"budget_bytes\":"}},
                              {"plan_svg", options.plan_svg, "<svg ", {"<desc>ort-train"}},
                              {"dump_problem", options.dump_problem, "{\"version\":", {"\"memory\":"}},
                              {"op_times", options.op_times, "{", {"\"entries\": ["}},
                              {"timeline", options.timeline, "{\"otherData\":{\"producer\":\"ort-train\"", {"\"traceEvents\":["}},
                              {"save_gradients", options.save_gradients, "", {"__metadata__", kGradientsMark}, false},
                              {"save_optimizer_state", options.save_optimizer_state, "", {"__metadata__", kStateMark}, false},
                              {"profile", options.profile, "{", {"\"machine\":"}}};
  for (const auto& [pass, path] : options.dump_after)  // an ONNX file's producer_name
    reports.push_back({"dump_after", path, "\x08", {"\x12\tort-train"}});
  std::erase_if(reports, [](const Report& report) { return report.path.empty(); });
  return reports;
}

// An absolute path without links, also of a file that isn't there.
fs::path canonical(const std::string& path) {
  std::error_code code;
  fs::path found = fs::weakly_canonical(fs::absolute(path, code), code);
  return code ? fs::path(path) : found;
}

// The first bytes of a file; none where it can't be read.
std::optional<std::string> head_of(const std::string& path) {
  constexpr std::streamsize kHead = 8192;  // with a model's path in it
  std::ifstream file(path, std::ios::binary);
  std::string head(static_cast<size_t>(kHead), '\0');
  file.read(head.data(), kHead);
  head.resize(static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad()) return std::nullopt;
  return head;
}

bool is_regular_or_new(const std::string& path) {
  std::error_code code;
  return !fs::exists(path, code) || fs::is_regular_file(path, code);
}

// The folder is there and may be written, or can be made.
void check_event_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::string there = canonical(folder).string();
  while (!exists(there) && folder_of(there) != there) there = folder_of(there);
  std::error_code code;
  if (!fs::is_directory(there, code))
    throw error(ErrorCode::usage, "`logging_dir` {}: '{}' is no folder; choose another one", folder, there);
  if (::faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    throw error(ErrorCode::io, "`logging_dir` {}: '{}' can't be written: {}; choose another one", folder, there, reason(errno));
}

}  // namespace

void refuse_foreign_reports(const Options& options) {
  struct Other {
    fs::path path;
    const char* what;
  };
  std::vector<Other> others;
  for (const std::string* const input : {&options.model, &options.data, &options.teacher, &options.loss_model}) {
    if (!input->empty()) others.push_back({canonical(*input), "is read by this run"});
  }
  for (const char* const name :
       {"model.onnx", "adapter_model.safetensors", "adapter_config.json", ".ort-train-lock", ".ort-train-model.json"})
    others.push_back({canonical((fs::path(options.output_dir) / name).string()), "is where the run's result goes"});
  if (!options.log_file.empty()) {
    for (const Other& other : others) {
      if (other.path == canonical(options.log_file))
        throw error(ErrorCode::usage, "`log_file` {}: {}; choose another file", options.log_file, other.what);
    }
    others.push_back({canonical(options.log_file), "is the run's log"});
  }
  // What saving makes or renames.
  const auto is_checkpoint = [&](const fs::path& path) {
    const fs::path below = path.lexically_relative(canonical(options.output_dir));
    const std::string name = below.empty() ? std::string() : below.begin()->string();
    return name.starts_with("checkpoint-") || name.starts_with(".tmp-");
  };
  if (!options.log_file.empty() && is_checkpoint(canonical(options.log_file)))
    throw error(ErrorCode::usage, "`log_file` {}: is where checkpoints go; choose another file", options.log_file);
  if (const std::string events = event_folder(options); !events.empty()) {
    if (is_checkpoint(canonical(events)))
      throw error(ErrorCode::usage, "`logging_dir` {}: is where checkpoints go; choose another folder", events);
    check_event_folder(events);
  }
  for (const Report& report : reports_of(options)) {
    const auto refuse = [&](std::string_view why) {
      return error(ErrorCode::usage, "`{}` {}: {}; choose another file", report.option, report.path, why);
    };
    const fs::path path = canonical(report.path);
    if (is_checkpoint(path)) throw refuse("is where checkpoints go");
    std::error_code code;
    const bool is_there = fs::exists(path, code), is_regular = fs::is_regular_file(path, code);
    if (is_there && fs::is_directory(path, code)) throw refuse("is a folder");
    if (is_there && !is_regular) {
      if (!report.into_any) throw refuse("is no regular file, and tensors are written to one");
      continue;
    }
    for (const Other& other : others) {
      if (other.path == path) throw refuse(other.what);
    }
    others.push_back({path, "is named by another option, too"});
    if (!is_there) continue;
    const std::optional<std::string> head = head_of(report.path);
    const auto has = [&](std::string_view mark) { return head->find(mark) != std::string::npos; };
    if (!head) throw refuse("is there already and can't be read");
    if (!head->empty() && !(head->starts_with(report.begin) && std::all_of(report.marks.begin(), report.marks.end(), has)))
      throw refuse("is there already and isn't known as such a file of ort-train: move it away");
  }
}

std::string report_target(const std::string& path) {
  const std::string target = canonical(path).string();
  make_folders(folder_of(target));
  return target;
}

void write_report(const std::string& path, std::string_view text) {
  ReportFile file(path);
  file.append(text);
  file.publish();
}

ReportFile::ReportFile(const std::string& path) : path_(path) {
  if (is_regular_or_new(path))
    file_.emplace(report_target(path));
  else
    into_.open(path, std::ios::binary);
}

void ReportFile::append(std::string_view text) {
  if (file_)
    file_->file().write(bytes_, std::as_bytes(std::span(text)));
  else if (!into_.write(text.data(), static_cast<std::streamsize>(text.size())).flush())
    throw error(ErrorCode::io, "'{}' can't be written", path_);
  bytes_ += static_cast<int64_t>(text.size());
}

void ReportFile::publish() {
  if (file_) file_->publish();
}

}  // namespace ort_train
