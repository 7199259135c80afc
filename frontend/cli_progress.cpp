#include "frontend/cli_progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "frontend/units.h"

namespace ort_train {
namespace {

constexpr int kBarCells = 16;

std::string bar(double share) {
  const int halves = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * 2 * kBarCells));
  std::string text;
  for (int cell = 0; cell < kBarCells; ++cell) text += halves >= 2 * cell + 2 ? "━" : halves == 2 * cell + 1 ? "╸" : "─";
  return text;
}

// Which bit a NaN has as its sign says nothing.
double unsigned_nan(double number) { return std::isnan(number) ? std::abs(number) : number; }

std::string clock(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// A terminal that can't write a line anew.
bool is_dumb() {
  const char* const kind = std::getenv("TERM");
  return kind != nullptr && std::string_view(kind) == "dumb";
}

// As many characters of UTF-8 text as the terminal has columns, so that a line stays one.
std::string cut_to_terminal(const std::string& text) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text;
  size_t columns = 0, at = 0;
  for (; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;  // a character
    if (begins && columns++ == size.ws_col) break;
  }
  return text.substr(0, at);
}

}  // namespace

std::string megabytes(int64_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  if (megabytes >= 1000) return fmt::format("{:.2f} GB", megabytes / 1000);
  return megabytes >= 10 ? fmt::format("{:.0f} MB", megabytes) : fmt::format("{:.1f} MB", megabytes);
}

Progress::Progress(int64_t budget, int64_t logging_steps)
    : budget_(budget), logging_steps_(logging_steps), terminal_(::isatty(STDOUT_FILENO) == 1 && !is_dumb()) {}

void Progress::step(const StepReport& report, const std::string& rate) {
  if (!terminal_ && report.step % logging_steps_ != 0 && report.step != 1 && report.step != report.total_steps) return;
  const int width = static_cast<int>(std::to_string(report.total_steps).size());
  std::string text = fmt::format("step {:>{}}/{}", report.step, width, report.total_steps);
  if (terminal_) text += " " + bar(static_cast<double>(report.step) / static_cast<double>(report.total_steps));
  text += fmt::format(" loss {:.4g}  |g| {:.3g}  lr {:.1e}  {}  {} {}", unsigned_nan(report.loss), unsigned_nan(report.grad_norm),
                      report.learning_rate, shown_duration(report.milliseconds),
                      grouped(static_cast<int64_t>(std::llround(report.tokens_per_second))), rate);
  if (report.loss_scale > 0) text += fmt::format("  scale {:.4g}{}", report.loss_scale, report.skipped ? " (overflow, skipped)" : "");
  if (report.peak_share > 0) text += fmt::format("  {:.0f} % of peak", 100 * report.peak_share);
  text += "  RAM " +
          (budget_ > 0 ? fmt::format("{} of {}", megabytes(report.resident_bytes), megabytes(budget_)) : megabytes(report.resident_bytes));
  text += fmt::format("  {} left", clock(report.seconds_left));
  print(terminal_ ? "\r\033[K" + cut_to_terminal(text) : text + "\n");
  open_ = terminal_;
}

void Progress::eval(const EvalReport& report) {
  line("held-out", fmt::format("loss {:.4g} after step {}", unsigned_nan(report.loss), report.step));
}

void Progress::note(const std::string& text) { line("note", text); }

void Progress::line(const std::string& label, const std::string& text) {
  end();
  print(fmt::format("{:<11} {}\n", label, text));
}

void Progress::end() {
  if (open_) print("\n");
  open_ = false;
}

void Progress::print(const std::string& text) {
  if (failure_.empty()) failure_ = write_out(text);
}

std::string write_out(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
  return std::string("the output can't be written: ") + (errno != 0 ? std::strerror(errno) : "writing failed");
}

}  // namespace ort_train
