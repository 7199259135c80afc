#include "frontend/event_file.h"

#include <nmmintrin.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "graph/error.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventPrefix = "events.out.tfevents.";

// A key of the log's line, and the tag that Hugging Face's Trainer gives such a number, or would.
struct EventTag {
  const char *key, *tag;
};
constexpr EventTag kEventTags[] = {
    {"loss", "train/loss"},   {"grad_norm", "train/grad_norm"},   {"learning_rate", "train/learning_rate"},
    {"epoch", "train/epoch"}, {"loss_scale", "train/loss_scale"}, {"tokens_per_second", "train/tokens_per_second"}};

// --- Protobuf's encoding: a field is its number and kind, then its bytes (protobuf.dev/programming-guides/encoding) ----------------------

template <typename Number> std::string little_endian(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}

std::string key_of(uint32_t field, uint32_t kind) { return varint(field << 3 | kind); }
std::string whole_field(uint32_t field, int64_t number) { return key_of(field, 0) + varint(static_cast<uint64_t>(number)); }
std::string double_field(uint32_t field, double number) { return key_of(field, 1) + little_endian(number); }
std::string float_field(uint32_t field, float number) { return key_of(field, 5) + little_endian(number); }
std::string bytes_field(uint32_t field, std::string_view bytes) { return key_of(field, 2) + varint(bytes.size()) + std::string(bytes); }

// --- TensorFlow's messages (tensorflow/core/util/event.proto, framework/summary.proto) ---------------------------------------------------

// Event {double wall_time = 1; int64 step = 2; …}
std::string event_of(int64_t step, const std::string& what) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return double_field(1, std::chrono::duration<double>(now).count()) + whole_field(2, step) + what;
}
// Event.file_version = 3
std::string version_of_file() { return bytes_field(3, "brain.Event:2"); }
// Event.session_log = 7: SessionLog {SessionStatus status = 1}, of which START is 1
std::string start_of_session() { return bytes_field(7, whole_field(1, 1)); }
// Summary.value = 1: Value {string tag = 1; float simple_value = 2}
std::string scalar_of(std::string_view tag, double number) {
  return bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(number)));
}
// Event.summary = 5
std::string summary_of(const std::string& values) { return bytes_field(5, values); }

// --- records (tensorflow/core/lib/io/record_writer.h) ------------------------------------------------------------------------------------

uint32_t masked_checksum(const std::string& bytes) {
  const uint32_t sum = crc32c(std::as_bytes(std::span(bytes)));
  return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

std::string record_of(const std::string& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  return length + little_endian(masked_checksum(length)) + event + little_endian(masked_checksum(event));
}

// --- names -------------------------------------------------------------------------------------------------------------------------------

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::string host = name.data();
  std::replace(host.begin(), host.end(), '/', '_');
  return host;
}

// Seconds since 1970, and later than what the names of the folder's other files say, whatever the clock does: the order of names is that
// of runs.
int64_t time_in_name(const std::string& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  int64_t time = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kEventPrefix)) continue;
    constexpr int64_t kLatest = 9'999'999'998;  // of ten digits, which sort as numbers do
    int64_t other = 0;
    std::from_chars(name.data() + kEventPrefix.size(), name.data() + name.size(), other);
    if (other <= kLatest) time = std::max(time, other + 1);
  }
  return time;
}

}  // namespace

std::string event_folder(const Options& options) {
  if (!options.report_to.empty() && options.report_to != "tensorboard" && options.report_to != "none")
    throw error(ErrorCode::usage, "`report_to` {}: is not known: tensorboard (event files in `logging_dir`) or none", options.report_to);
  if (options.report_to == "none" || (options.report_to.empty() && options.logging_dir.empty())) return {};
  return options.logging_dir.empty() ? (fs::path(options.output_dir) / "runs").string() : options.logging_dir;
}

// By the processor's instruction, which all processors with AVX2 have.
uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t sum = ~0u;
  for (const std::byte byte : bytes) sum = _mm_crc32_u8(sum, static_cast<unsigned char>(byte));
  return ~sum;
}

EventFile::EventFile(const std::string& folder, int64_t first_step) {
  if (folder.empty()) return;
  try {
    make_folders(folder);
    const std::string name = fmt::format("{}{:010}.{}.{}", kEventPrefix, time_in_name(folder), host_name(), ::getpid());
    file_.emplace(File::create((fs::path(folder) / name).string()));
  } catch (const Error& problem) {
    throw error(ErrorCode::io, "`logging_dir` {}: no events can be written there: {}", folder, problem.what());
  }
  append(event_of(first_step, version_of_file()));
  append(event_of(first_step, start_of_session()));
  if (!failure_.empty()) throw error(ErrorCode::io, "`logging_dir` {}: {}", folder, failure_);
}

void EventFile::append(const std::string& event) {
  if (!file_ || !failure_.empty()) return;
  const std::string record = record_of(event);
  try {
    file_->write(end_, std::as_bytes(std::span(record)));
  } catch (const Error& problem) {
    failure_ = fmt::format("TensorBoard's events can't be written: {}", problem.what());
    return;
  }
  end_ += static_cast<int64_t>(record.size());
}

void EventFile::step(const std::string& line, std::optional<double> eval_loss, int64_t resident_bytes) {
  if (!file_) return;
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return;  // it is from a checkpoint
  std::string values;
  for (const EventTag& of : kEventTags) {
    const auto found = json.find(of.key);
    if (found == json.end()) continue;
    values += scalar_of(of.tag, found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN());
  }
  values += scalar_of("train/memory_bytes", static_cast<double>(resident_bytes));
  if (eval_loss) values += scalar_of("eval/loss", *eval_loss);
  append(event_of(json["step"].get<int64_t>(), summary_of(values)));
}

}  // namespace ort_train
