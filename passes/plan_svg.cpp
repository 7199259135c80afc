// The picture of a plan. Above: live bytes by purpose, stacked, over the instructions of the entry with the peak, or the seconds of the
// one that has a timeline; then, with a disk, when it computes, waits, reads and writes, and how full the disk is; below: who has which
// addresses of the arena when. Colours are Okabe and Ito's, which people with any colour vision can tell apart.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>

#include "graph/utf8.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

constexpr double kWidth = 1240, kLeft = 92, kRight = 1004, kTop = 96, kPanel = 340, kGap = 72;
constexpr double kLaneTop = kTop + kPanel + kGap;  // of the disk's, where there is one
constexpr double kLane = 46, kLaneGap = 14, kLanes = 4;
// What doesn't change over a run is drawn as bands of at most this height, not to scale: the rest is what one looks at.
constexpr double kReserveBand = 22, kPersistentBand = 92;
constexpr size_t kMaxRectangles = 6000, kMaxTooltips = 1200;

struct Style {
  Purpose purpose;
  const char* colour;
};
// From the bottom of the stack to its top.
constexpr Style kStack[] = {{Purpose::weights, "#0072b2"},  {Purpose::optimizer, "#56b4e9"}, {Purpose::constants, "#8c8c8c"},
                            {Purpose::inputs, "#cc79a7"},   {Purpose::gradients, "#e69f00"}, {Purpose::activations, "#009e73"},
                            {Purpose::workspace, "#d55e00"}};
constexpr const char* kReserveColour = "#d5d5d5";

// Names come from the model's file: what isn't UTF-8 becomes '?'.
std::string escaped(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    char32_t character = 0;
    int bytes = decode_utf8(text.substr(at), character);
    if (character == 0xfffe || character == 0xffff) bytes = 0;  // which XML doesn't have
    if (bytes > 1) {
      result += text.substr(at, static_cast<size_t>(bytes));
      at += static_cast<size_t>(bytes);
      continue;
    }
    const char c = bytes == 1 ? text[at] : '?';
    ++at;
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

// At most `length` characters (not bytes: names are UTF-8).
std::string shortened(const std::string& text, size_t length) {
  std::string result;
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (starts && ++characters > length) return result + "…";
    result += text[i];
  }
  return result;
}

std::string megabytes(int64_t bytes) {
  const double mb = static_cast<double>(bytes) / 1e6;
  if (bytes == 0) return "0";
  if (mb >= 1000) return fmt::format("{:.2f} GB", mb / 1e3);
  return mb >= 100 ? fmt::format("{:.0f} MB", mb) : mb >= 1 ? fmt::format("{:.1f} MB", mb) : fmt::format("{:.1f} kB", mb * 1e3);
}

// 1, 2 or 5 times a power of ten, so that `range` has four to ten of it.
double tick_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(std::max(range, 1.0) / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (range / (factor * power) >= 4) return factor * power;
  }
  return power;
}

class Picture {
 public:
  Picture(const Program& program, const std::vector<const Graph*>& graphs, const MemoryFrame& frame)
      : program_(program),
        frame_(frame),
        time_(frame.timeline),
        peak_(frame.timeline ? peak_of(program, graphs, frame.entry) : memory_peak(program, graphs)),
        entry_(program.entries[peak_.entry]),
        graph_(*graphs[peak_.entry]) {
    instructions_ = std::max<double>(1, static_cast<double>(entry_.code.size()));
    map_at_ = kLaneTop + (time_ ? kLanes * (kLane + kLaneGap) + kGap - kLaneGap : 0);
    height_ = map_at_ + kPanel + 46;
    const auto arena = static_cast<double>(std::max<int64_t>({program_.memory().bytes, peak_.live, 1}));
    const auto allowed = static_cast<double>(frame_.budget - frame_.reserve);
    budget_in_sight_ = frame_.budget > 0 && allowed < 1.5 * arena;
    top_ = 1.05 * (budget_in_sight_ ? std::max(arena, allowed) : arena);
    floor_ = kTop + kPanel - (frame_.reserve > 0 ? kReserveBand : 0);
    // The map is linear in two pieces: what lives across steps, and the rest.
    const auto persistent = static_cast<double>(program_.memory().persistent_bytes);
    persistent_band_ = std::min(kPersistentBand, kPanel * persistent / arena);
    map_top_ = std::max(1.0, (static_cast<double>(program_.memory().bytes) - persistent) * 1.03);
  }

  std::string draw() {
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif" font-size="12" fill="#222">)",
        kWidth, height_);
    svg_ += "<desc>ort-train: where a plan's bytes lie</desc>\n";
    put(R"(<rect width="{}" height="{}" fill="#fff"/>)", kWidth, height_);
    draw_title();
    draw_stages();
    draw_stack();
    if (time_) draw_lanes();
    draw_map();
    draw_legend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <typename... Args> void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
    svg_ += '\n';
  }
  // The entry's own peak as one of a program that has no other.
  static MemoryPeak peak_of(const Program& program, const std::vector<const Graph*>& graphs, size_t entry) {
    Program alone = program;
    alone.entries = {program.entries[entry]};
    MemoryPeak peak = memory_peak(alone, {graphs[entry]});
    peak.entry = entry;
    return peak;
  }
  double x_at(double seconds) const { return kLeft + (kRight - kLeft) * seconds / std::max(time_->seconds(), 1e-9); }
  double x_of(double instruction) const {
    if (!time_) return kLeft + (kRight - kLeft) * instruction / instructions_;
    const auto at = std::min(static_cast<size_t>(std::max(0.0, instruction)), time_->begin.size() - 1);
    return x_at(time_->begin[at]);
  }
  double stack_y(double bytes) const { return floor_ - (floor_ - kTop) * bytes / top_; }
  double map_y(double offset) const {
    const auto persistent = static_cast<double>(program_.memory().persistent_bytes);
    if (offset < persistent) return map_at_ + kPanel - persistent_band_ * offset / persistent;
    return map_at_ + (kPanel - persistent_band_) * (1 - (offset - persistent) / map_top_);
  }

  void draw_title() {
    const double gaps = peak_.live > 0 ? 100.0 * static_cast<double>(peak_.gaps) / static_cast<double>(peak_.live) : 0;
    put(R"(<text x="{}" y="30" font-size="20" font-weight="600">{}</text>)", kLeft,
        escaped(shortened(frame_.title.empty() ? graph_.name : frame_.title, 80)));
    std::string line = fmt::format("arena {} · lives across steps {} · peak of '{}' at instruction {} of {} · gaps {:.1f} %",
                                   megabytes(program_.memory().bytes), megabytes(program_.memory().persistent_bytes), entry_.name,
                                   peak_.instruction, entry_.code.size(), gaps);
    for (const Entry& other : program_.entries) {
      if (&other != &entry_ && line.size() < 150) line += fmt::format(" · {} {}", other.name, megabytes(other.peak().bytes));
    }
    put(R"(<text x="{}" y="52" fill="#555">{}</text>)", kLeft, escaped(line));
  }

  // Runs of instructions of one stage; short ones belong to their neighbourhood.
  void draw_stages() {
    struct Band {
      size_t begin, end;
      size_t count[3];
    };
    constexpr const char* kNames[] = {"forward", "backward", "update"};
    std::vector<Band> bands;
    const size_t n = entry_.code.size();
    const size_t shortest = std::max<size_t>(1, n / 14);  // room for a label
    for (size_t at = 0; at < n; ++at) {
      const auto stage = static_cast<size_t>(stage_at(at));
      const auto main_stage = [](const Band& b) { return std::max_element(b.count, b.count + 3) - b.count; };
      if (bands.empty() || (main_stage(bands.back()) != static_cast<std::ptrdiff_t>(stage) && run_length(at) >= shortest))
        bands.push_back({at, at, {}});
      bands.back().end = at + 1;
      ++bands.back().count[stage];
    }
    for (size_t i = 0; i < bands.size(); ++i) {
      const Band& band = bands[i];
      const double left = x_of(static_cast<double>(band.begin)), width = x_of(static_cast<double>(band.end)) - left;
      std::string label;
      for (size_t stage = 0; stage < 3; ++stage) {
        if (band.count[stage] * 20 >= band.end - band.begin) label += (label.empty() ? "" : " + ") + std::string(kNames[stage]);
      }
      for (const double y : {kTop, map_at_})
        put(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" fill="{}"/>)", left, y, width, kPanel, i % 2 ? "#f0f2f5" : "#f8f9fb");
      if (width > 7.5 * static_cast<double>(label.size()))
        put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#555" font-weight="600">{}</text>)", left + width / 2, kTop - 8,
            label);
      if (i > 0)
        put(R"(<path d="M{0:.1f} {1:.1f}V{2:.1f}M{0:.1f} {3:.1f}V{4:.1f}" stroke="#b8bec6" stroke-dasharray="3 3"/>)", left, kTop - 20,
            kTop + kPanel, map_at_, map_at_ + kPanel);
    }
  }
  Stage stage_at(size_t at) const { return graph_.node(node_at(entry_, at)).stage; }
  size_t run_length(size_t at) const {
    const Stage stage = stage_at(at);
    size_t end = at;
    while (end < entry_.code.size() && stage_at(end) == stage) ++end;
    return end - at;
  }

  // Ticks from `first` bytes at y0 upwards to `range` more.
  void draw_axis(double first, double range, double y0, double y1, double middle, const char* title) {
    const bool kilo = first + range < 2e6, giga = first + range >= 5e9;
    const double unit = kilo ? 1e3 : giga ? 1e9 : 1e6;
    const double tick = tick_of(range / unit) * unit;
    for (double value = std::ceil(first / tick) * tick; value <= first + range; value += tick) {
      const double y = y0 + (y1 - y0) * (value - first) / range;
      put(R"(<path d="M{} {:.1f}H{}" stroke="#dfe3e8" stroke-width="0.8"/><text x="{}" y="{:.1f}" text-anchor="end" fill="#555">{:g} {}</text>)",
          kLeft, y, kRight, kLeft - 8, y + 4, value / unit,
          kilo   ? "kB"
          : giga ? "GB"
                 : "MB");
    }
    put(R"svg(<text x="18" y="{0:.1f}" transform="rotate(-90 18 {0:.1f})" text-anchor="middle" fill="#555">{1}</text>)svg", middle, title);
  }

  void draw_stack() {
    draw_axis(0, top_, floor_, kTop, kTop + kPanel / 2, "live bytes in the arena");
    if (frame_.reserve > 0) {
      put(R"(<rect x="{0}" y="{1:.1f}" width="{2}" height="{3}" fill="{4}"/><text x="{5}" y="{6:.1f}" font-size="11" fill="#444">program {7} (not to scale)</text>)",
          kLeft, floor_, kRight - kLeft, kReserveBand, kReserveColour, kLeft + 6, floor_ + 15, megabytes(frame_.reserve));
    }
    const std::vector<PurposeBytes> live = live_bytes(program_, entry_);
    // At most one column a pixel: the fullest instruction of those that share one.
    const auto total = [&](size_t i) { return std::accumulate(live[i].begin(), live[i].end(), int64_t{0}); };
    const size_t columns = time_ ? static_cast<size_t>(kRight - kLeft) : std::min(live.size(), static_cast<size_t>(kRight - kLeft));
    std::vector<size_t> shown;
    size_t next = 0;
    for (size_t column = 0; column < columns; ++column) {
      const double end = kLeft + (kRight - kLeft) * static_cast<double>(column + 1) / static_cast<double>(columns);
      size_t best = std::min(next > 0 ? next - 1 : 0, live.size() - 1);  // that which is still running, or the first
      for (bool first = !time_;
           next < live.size() && (time_ ? x_of(static_cast<double>(next)) < end : next < (column + 1) * live.size() / columns);
           ++next, first = false) {
        if (first || total(next) > total(best)) best = next;
      }
      shown.push_back(best);
    }
    std::vector<double> below(columns, 0);
    for (const Style& style : kStack) {
      std::vector<double> above = below;
      for (size_t i = 0; i < columns; ++i) above[i] += static_cast<double>(live[shown[i]][static_cast<size_t>(style.purpose)]);
      if (above != below)
        put(R"(<path d="{}" fill="{}"><title>{}</title></path>)", area(below, above), style.colour, to_string(style.purpose));
      below = std::move(above);
    }
    draw_budget();
    draw_peak();
    put(R"(<path d="M{0} {1:.1f}H{2}" stroke="#555"/>)", kLeft, kTop + kPanel, kRight);
    draw_axis_below(kTop + kPanel);
  }

  // The outline between two heights, each a step function over the columns.
  std::string area(const std::vector<double>& below, const std::vector<double>& above) const {
    const double width = (kRight - kLeft) / static_cast<double>(below.size());
    std::string path = fmt::format("M{} {:.1f}", kLeft, stack_y(above[0]));
    const auto step_to = [&](size_t i, double bytes) {
      fmt::format_to(std::back_inserter(path), "H{:.1f}V{:.1f}", kLeft + width * static_cast<double>(i), stack_y(bytes));
    };
    for (size_t i = 1; i < above.size(); ++i) {
      if (above[i] != above[i - 1]) step_to(i, above[i]);
    }
    step_to(below.size(), below.back());
    for (size_t i = below.size() - 1; i > 0; --i) {
      if (below[i] != below[i - 1]) step_to(i, below[i - 1]);
    }
    return path + fmt::format("H{}Z", kLeft);
  }

  void draw_budget() {
    if (frame_.budget <= 0) return;
    const double y = budget_in_sight_ ? stack_y(static_cast<double>(frame_.budget - frame_.reserve)) : kTop;
    if (budget_in_sight_) put(R"(<path d="M{} {:.1f}H{}" stroke="#b00020" stroke-width="1.6" stroke-dasharray="7 4"/>)", kLeft, y, kRight);
    put(R"(<text x="{}" y="{:.1f}" fill="#b00020" font-weight="600">{}budget {}</text>)", kRight + 10, y + 4, budget_in_sight_ ? "" : "↑ ",
        megabytes(frame_.budget));
  }

  void draw_peak() {
    const double x = x_of(peak_.instruction + 0.5), y = stack_y(static_cast<double>(peak_.live));
    const bool to_left = x > (kLeft + kRight) / 2;
    const std::string label = fmt::format("peak {} at {}", megabytes(peak_.live), shortened(peak_.op, 52));
    const double width = 7.6 * static_cast<double>(label.size()) + 12, box_y = std::min(y + 16, floor_ - 34);
    const double box_x = to_left ? std::max(kLeft + 2, x - width - 10) : std::min(x + 10, kRight - width - 2);
    put(R"(<path d="M{0:.1f} {1:.1f}V{2:.1f}" stroke="#222" stroke-width="1.2"/><circle cx="{0:.1f}" cy="{1:.1f}" r="4" fill="#fff" stroke="#222" stroke-width="1.6"/>)",
        x, y, floor_);
    put(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="23" rx="3" fill="#fff" fill-opacity="0.93" stroke="#222" stroke-width="0.8"/>)",
        box_x, box_y, width);
    put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" font-weight="600">{}</text>)", box_x + width / 2, box_y + 16, escaped(label));
  }

  void draw_axis_below(double y) {
    const auto mark = [&](double x, const std::string& text) {
      put(R"(<path d="M{0:.1f} {1:.1f}v5" stroke="#555"/><text x="{0:.1f}" y="{2:.1f}" text-anchor="middle" fill="#555">{3}</text>)", x, y,
          y + 18, text);
    };
    if (time_) {
      const double unit = time_->seconds() < 2 ? 1e-3 : 1, tick = tick_of(time_->seconds() / unit);
      for (double at = 0; at * unit <= time_->seconds(); at += tick) mark(x_at(at * unit), fmt::format("{:g}", at));
    } else {
      const double tick = std::max(1.0, tick_of(instructions_));
      for (double at = 0; at <= instructions_; at += tick) mark(x_of(at), fmt::format("{:.0f}", at));
    }
    put(R"(<text x="{}" y="{:.1f}" text-anchor="middle" fill="#555">{}</text>)", (kLeft + kRight) / 2, y + 33,
        !time_                 ? "instruction"
        : time_->seconds() < 2 ? "milliseconds"
                               : "seconds");
  }

  // What is under way when: of each stretch of time its share, by what it is for.
  void draw_lanes() {
    const size_t bins = static_cast<size_t>(kRight - kLeft) / 2;
    const double width = time_->seconds() / static_cast<double>(bins);
    using Bins = std::vector<std::array<double, kPurposes>>;
    const auto spread = [&](Bins& to, double begin, double end, size_t row) {
      for (auto bin = static_cast<size_t>(begin / width); bin < bins && static_cast<double>(bin) * width < end; ++bin) {
        const double from = std::max(begin, static_cast<double>(bin) * width), upto = std::min(end, static_cast<double>(bin + 1) * width);
        if (upto > from) to[bin][row] += (upto - from) / width;
      }
    };
    Bins computes(bins), lanes[2] = {Bins(bins), Bins(bins)};
    double waited = 0, busy[2] = {0, 0};
    int64_t bytes[2] = {0, 0};
    for (const auto& [begin, end] : time_->waits) {
      spread(computes, begin, end, 0);
      waited += end - begin;
    }
    for (const TimelineTransfer& transfer : time_->transfers) {
      spread(lanes[transfer.write], transfer.begin, transfer.end, static_cast<size_t>(transfer.purpose));
      busy[transfer.write] += transfer.end - transfer.begin;
      bytes[transfer.write] += transfer.bytes;
    }
    const auto lane = [&](int number, const char* name, const std::string& first, const std::string& second) {
      const double y = kLaneTop + number * (kLane + kLaneGap);
      put(R"(<rect x="{}" y="{:.1f}" width="{}" height="{}" fill="#f5f6f8"/>)", kLeft, y, kRight - kLeft, kLane);
      put(R"(<text x="{}" y="{:.1f}" text-anchor="end" fill="#555">{}</text>)", kLeft - 8, y + kLane / 2 + 4, name);
      put(R"(<text x="{}" y="{:.1f}" font-weight="600">{}</text><text x="{}" y="{:.1f}" fill="#555">{}</text>)", kRight + 10,
          y + kLane / 2 - 4, first, kRight + 10, y + kLane / 2 + 13, second);
      return y;
    };
    const auto bar = [&](size_t bin, double y, double below, double share, const char* colour) {
      if (share * kLane < 0.05) return;
      put(R"(<rect x="{}" y="{:.1f}" width="2" height="{:.1f}" fill="{}"/>)", kLeft + 2 * static_cast<double>(bin),
          y + kLane * (1 - std::min(1.0, below + share)), kLane * std::min(share, 1 - below), colour);
    };
    put(R"(<text x="{}" y="{:.1f}" fill="#555">share of the time in which</text>)", kLeft, kLaneTop - 8);
    const auto seconds = [](double s) { return s < 2 ? fmt::format("{:.3g} ms", s * 1e3) : fmt::format("{:.3g} s", s); };
    double y = lane(0, "it computes", "waits " + seconds(waited), "computes " + seconds(time_->seconds() - waited));
    for (size_t bin = 0; bin < bins; ++bin) {
      bar(bin, y, 0, 1 - computes[bin][0], "#bcc6d2");
      bar(bin, y, 1 - computes[bin][0], computes[bin][0], "#b00020");
    }
    for (int write = 0; write < 2; ++write) {
      y = lane(1 + write, write ? "it writes" : "it reads", fmt::format("{} {}", write ? "writes" : "reads", megabytes(bytes[write])),
               "in " + seconds(busy[write]));
      for (size_t bin = 0; bin < bins; ++bin) {
        double below = 0;
        for (const Style& style : kStack) {
          const double share = lanes[write][bin][static_cast<size_t>(style.purpose)];
          bar(bin, y, below, share, style.colour);
          below += share;
        }
      }
    }
    const std::map<int32_t, int64_t> levels = disk_levels(program_, entry_);
    const auto fuller = [](const auto& a, const auto& b) { return a.second < b.second; };
    const int64_t most = std::max_element(levels.begin(), levels.end(), fuller)->second;
    y = lane(3, "the disk", "holds " + megabytes(most), "of these " + megabytes(levels.at(0)) + " always");
    std::string path = fmt::format("M{} {:.1f}", kLeft, y + kLane);
    for (const auto& [at, bytes] : levels) {
      const double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(most, 1));
      fmt::format_to(std::back_inserter(path), "H{:.1f}V{:.1f}", x_of(at), y + kLane * (1 - share));
    }
    put(R"(<path d="{}H{}V{:.1f}Z" fill="#8c8c8c"/>)", path, kRight, y + kLane);
    draw_axis_below(kLaneTop + kLanes * (kLane + kLaneGap) - kLaneGap);
  }

  struct Rectangle {
    const std::string* name;
    Purpose purpose;
    Place place;
    double x, y, width, height;
    int32_t first, last;
    double area() const { return width * height; }
  };
  Rectangle rectangle(const std::string& name, Purpose purpose, const Place& place, int32_t first, int32_t last) const {
    const double x = x_of(first), y = map_y(static_cast<double>(place.end()));
    return {&name, purpose, place, x, y, x_of(last + 1.0) - x, map_y(static_cast<double>(place.offset)) - y, first, last};
  }

  void draw_map() {
    draw_axis(static_cast<double>(program_.memory().persistent_bytes), map_top_, map_at_ + kPanel - persistent_band_, map_at_,
              map_at_ + kPanel / 2, "address in the arena");
    const auto end = static_cast<int32_t>(entry_.code.size()) - 1;
    std::vector<Rectangle> all;
    draw_persistent_band();
    for (const Persistent& value : program_.persistent) {
      if (is_in_file(value)) continue;
      const Rectangle r = rectangle(value.name, value.purpose, value.home, 0, std::max(end, 0));
      if (r.height >= 14) all.push_back(r);  // the rest has no room for a name of its own
    }
    for (const Storage& storage : entry_.storages)
      all.push_back(rectangle(storage.name, storage.purpose, storage.place, storage.first, storage.last));
    std::stable_sort(all.begin(), all.end(), [](const Rectangle& a, const Rectangle& b) { return a.area() > b.area(); });
    if (all.size() > kMaxRectangles) all.resize(kMaxRectangles);
    for (size_t i = 0; i < all.size(); ++i) draw_rectangle(all[i], i < kMaxTooltips);
    for (const Rectangle& r : all) name_rectangle(r);
    const double x = x_of(peak_.instruction + 0.5);
    put(R"(<path d="M{0:.1f} {1:.1f}V{2:.1f}" stroke="#222" stroke-width="1.2"/>)", x, map_at_, map_at_ + kPanel);
    put(R"(<path d="M{0} {1:.1f}H{2}" stroke="#222" stroke-width="1.2"/>)", kLeft, map_y(static_cast<double>(program_.memory().bytes)),
        kRight);
    put(R"(<text x="{}" y="{:.1f}" font-weight="600">arena {}</text>)", kRight + 10,
        map_y(static_cast<double>(program_.memory().bytes)) + 4, megabytes(program_.memory().bytes));
    put(R"(<path d="M{0} {1:.1f}H{2}" stroke="#555"/>)", kLeft, map_at_ + kPanel, kRight);
    draw_axis_below(map_at_ + kPanel);
  }

  // Neighbours of one purpose as one rectangle.
  void draw_persistent_band() {
    std::vector<Persistent> values;
    for (const Persistent& value : program_.persistent) {
      if (!is_in_file(value)) values.push_back(value);
    }
    for (size_t begin = 0, end = 0; begin < values.size(); begin = end) {
      while (end < values.size() && values[end].purpose == values[begin].purpose) ++end;
      const double top = map_y(static_cast<double>(values[end - 1].home.end())),
                   bottom = map_y(static_cast<double>(values[begin].home.offset));
      put(R"(<rect x="{}" y="{:.1f}" width="{}" height="{:.1f}" fill="{}"/>)", kLeft, top, kRight - kLeft, bottom - top,
          colour_of(values[begin].purpose));
      if (bottom - top < 11) continue;
      int64_t bytes = 0;
      for (size_t i = begin; i < end; ++i) bytes += aligned(values[i].home.bytes);
      put(R"(<text x="{}" y="{:.1f}" text-anchor="end" font-size="11" fill="{}">{} {} in {}</text>)", kRight - 6, (top + bottom) / 2 + 4,
          values[begin].purpose == Purpose::weights ? "#fff" : "#111", to_string(values[begin].purpose), megabytes(bytes), end - begin);
    }
    const double y = map_at_ + kPanel - persistent_band_;
    const bool compressed =
        persistent_band_ < (kPanel - persistent_band_) * static_cast<double>(program_.memory().persistent_bytes) / map_top_;
    if (persistent_band_ < 4) return;
    put(R"(<path d="M{0} {1:.1f}H{2}" stroke="#555" stroke-dasharray="2 3"/>)", kLeft, y, kRight);
    put(R"(<text x="{0}" y="{1:.1f}" fill="#555">lives across steps: {2}</text>)", kRight + 10, y + 14,
        megabytes(program_.memory().persistent_bytes));
    if (compressed) put(R"(<text x="{}" y="{:.1f}" fill="#555">(not to scale)</text>)", kRight + 10, y + 30);
  }

  static const char* colour_of(Purpose purpose) {
    for (const Style& style : kStack) {
      if (style.purpose == purpose) return style.colour;
    }
    return kReserveColour;
  }

  void draw_rectangle(const Rectangle& r, bool with_tooltip) {
    if (r.height < 0.02) return;  // thousands of scalars that nobody could see
    // Hairlines between neighbours, where there is room for them.
    const char* outline = r.height >= 5 && r.width >= 6 ? R"( stroke="#fff" stroke-width="0.6")" : "";
    fmt::format_to(std::back_inserter(svg_), R"(<rect x="{:.1f}" y="{:.2f}" width="{:.1f}" height="{:.2f}" fill="{}"{})", r.x, r.y,
                   std::max(r.width, 0.2), std::max(r.height, 0.1), colour_of(r.purpose), outline);
    if (!with_tooltip) {
      svg_ += "/>\n";
      return;
    }
    put("><title>{} · {} · {} at {} · instructions {} to {}</title></rect>", escaped(shortened(*r.name, 60)), to_string(r.purpose),
        megabytes(r.place.bytes), r.place.offset, r.first, r.last);
  }

  void name_rectangle(const Rectangle& r) {
    if (r.height < 8 || r.width < 40) return;
    const std::string size = "  " + megabytes(r.place.bytes);
    const auto room = static_cast<size_t>((r.width - 8) / 5.6);
    std::string label = shortened(*r.name, 40);
    if (label.size() + size.size() <= room)
      label += size;
    else if (label.size() > room)
      label = room > 6 ? shortened(*r.name, room - 1) : "";
    if (label.empty()) return;
    const double font = std::min(10.0, r.height - 1);
    put(R"(<text x="{:.1f}" y="{:.1f}" font-size="{:.1f}" fill="{}">{}</text>)", r.x + 4, r.y + r.height / 2 + 0.35 * font, font,
        r.purpose == Purpose::weights || r.purpose == Purpose::workspace ? "#fff" : "#111", escaped(label));
  }

  void draw_legend() {
    const double x = kRight + 10;
    double y = kTop + 40;
    put(R"(<text x="{}" y="{:.1f}" font-weight="600">at the peak</text>)", x, y);
    const auto row = [&](std::string_view name, const char* colour, int64_t bytes) {
      y += 21;
      if (colour) put(R"(<rect x="{}" y="{:.1f}" width="13" height="13" rx="2" fill="{}"/>)", x, y - 11, colour);
      put(R"(<text x="{}" y="{:.1f}"{}>{}</text><text x="{}" y="{:.1f}" text-anchor="end"{}>{}</text>)", x + (colour ? 20 : 0), y,
          colour ? "" : R"( font-weight="600")", name, kWidth - 22, y, colour ? "" : R"( font-weight="600")", megabytes(bytes));
    };
    for (size_t i = std::size(kStack); i-- > 0;) {
      const int64_t bytes = peak_.bytes[static_cast<size_t>(kStack[i].purpose)];
      if (bytes > 0) row(to_string(kStack[i].purpose), kStack[i].colour, bytes);
    }
    if (frame_.reserve > 0) row("program", kReserveColour, frame_.reserve);
    row("total", nullptr, frame_.reserve + peak_.live);
  }

  const Program& program_;
  const MemoryFrame& frame_;
  const Timeline* time_;  // null: over instructions
  const MemoryPeak peak_;
  const Entry& entry_;
  const Graph& graph_;
  double instructions_ = 1;
  double map_at_ = 0, height_ = 0;            // y of the map, and of the picture's lower edge
  double top_ = 1, floor_ = 0;                // of the stack: bytes at its upper edge, y of its lower
  double map_top_ = 1, persistent_band_ = 0;  // of the map: bytes of its upper piece, height of its lower
  bool budget_in_sight_ = false;
  std::string svg_;
};

}  // namespace

std::string memory_svg(const Program& program, const std::vector<const Graph*>& graphs, const MemoryFrame& frame) {
  if (program.entries.empty()) throw error(ErrorCode::usage, "a program without entry points has no picture");
  return Picture(program, graphs, frame).draw();
}

}  // namespace ort_train
