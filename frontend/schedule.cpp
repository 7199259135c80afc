#include "frontend/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "graph/error.h"
#include "graph/names.h"

namespace ort_train {
namespace {

bool is_share(double x) { return x >= 0 && x <= 1; }
bool is_whole(double x) { return x >= 0 && x == std::floor(x); }
bool is_positive_whole(double x) { return x >= 1 && is_whole(x); }
bool is_not_negative(double x) { return x >= 0; }
bool is_positive(double x) { return x > 0; }
constexpr std::string_view kWrongWhole = "is no whole number of 0 or more", kWrongPositiveWhole = "is no whole number of 1 or more";
constexpr std::string_view kWrongShare = "has to lie in [0, 1]", kNegative = "is negative", kNotPositive = "is not positive";

// --- shapes ---------------------------------------------------------------------------------------------------------------------------

bool in_warmup(const Schedule& s, double step) { return step < s.warmup_steps; }
double warmed(const Schedule& s, double step) { return step / std::max(1.0, s.warmup_steps); }
// How much of what comes after the warm-up is over.
double progress(const Schedule& s, double step) { return (step - s.warmup_steps) / std::max(1.0, s.total_steps - s.warmup_steps); }
double wave(double cycles, double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress)); }
double raised(double factor, double least) { return std::max(0.0, factor * (1.0 - least) + least); }

double linear(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  return std::max(0.0, (s.total_steps - step) / std::max(1.0, s.total_steps - s.warmup_steps));
}

double cosine(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  return std::max(0.0, wave(s.value("num_cycles"), progress(s, step)));
}

double cosine_with_restarts(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  const double done = progress(s, step);
  if (done >= 1) return 0;
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(s.value("num_cycles") * done, 1.0))));
}

double least_factor(const Schedule& s) { return s.given("min_lr") ? s.value("min_lr") / s.learning_rate : s.value("min_lr_rate"); }

double cosine_with_min_lr(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  return raised(wave(s.value("num_cycles"), progress(s, step)), least_factor(s));
}

// Its first step isn't at 0, and its last is at the minimum.
double cosine_warmup_with_min_lr(const Schedule& s, double step) {
  if (in_warmup(s, step)) {
    if (!s.given("warmup_lr_rate")) return (step + 1.0) / std::max(1.0, s.warmup_steps);
    const double first = s.value("warmup_lr_rate");
    return first + (1.0 - first) * step / std::max(1.0, s.warmup_steps - 1);
  }
  return raised(wave(s.value("num_cycles"), progress(s, step + 1.0)), least_factor(s));
}

std::string check_min_lr(const Schedule& s) {
  if (s.given("min_lr") == s.given("min_lr_rate"))
    return fmt::format("needs {} of min_lr (a learning rate) and min_lr_rate (a share of the highest)",
                       s.given("min_lr") ? "only one" : "one");
  if (s.given("min_lr") && !(s.learning_rate > 0)) return "has a min_lr, a learning rate above `learning_rate` 0: give min_lr_rate";
  return {};
}

double constant(const Schedule&, double) { return 1; }
double constant_with_warmup(const Schedule& s, double step) { return in_warmup(s, step) ? warmed(s, step) : 1; }

double polynomial(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  const double end = s.value("lr_end");
  if (step > s.total_steps) return end / s.learning_rate;
  const double left = 1 - progress(s, step);
  return ((s.learning_rate - end) * std::pow(left, s.value("power")) + end) / s.learning_rate;
}

std::string check_polynomial(const Schedule& s) {
  if (s.learning_rate > s.value("lr_end")) return {};
  return fmt::format("ends at lr_end {}, which isn't below `learning_rate` {}", s.value("lr_end"), s.learning_rate);
}

double inverse_sqrt(const Schedule& s, double step) {
  if (in_warmup(s, step)) return warmed(s, step);
  constexpr double kTimescale = 10'000;
  const double timescale = s.given("timescale") ? s.value("timescale") : s.warmup_steps > 0 ? s.warmup_steps : kTimescale;
  return 1.0 / std::sqrt((step + (timescale - s.warmup_steps)) / timescale);
}

// --- warm-up, stable, decay -----------------------------------------------------------------------------------------------------------

enum Curve : int { kLinear, kCosine, kOneMinusRoot };
const std::vector<std::string_view> kCurves{"linear", "cosine", "1-sqrt"};  // by Curve

double stable_steps(const Schedule& s) {
  return s.given("num_stable_steps") ? s.value("num_stable_steps") : s.total_steps - s.warmup_steps - s.value("num_decay_steps");
}

double warmup_stable_decay(const Schedule& s, double step) {
  const double least = s.value("min_lr_ratio"), decay = s.value("num_decay_steps"), begin = s.warmup_steps + stable_steps(s);
  if (in_warmup(s, step)) {
    const double done = warmed(s, step);
    const auto curve = static_cast<Curve>(s.value("warmup_type"));
    return raised(curve == kLinear   ? done
                  : curve == kCosine ? 0.5 * (1.0 - std::cos(std::numbers::pi * done))
                                     : 1.0 - std::sqrt(1.0 - done),
                  least);
  }
  if (step < begin) return 1;
  if (step >= begin + decay) return least;
  const double done = (step - s.warmup_steps - stable_steps(s)) / std::max(1.0, decay);
  const auto curve = static_cast<Curve>(s.value("decay_type"));
  return raised(curve == kLinear ? 1.0 - done : curve == kCosine ? wave(s.value("num_cycles"), done) : 1.0 - std::sqrt(done), least);
}

std::string check_warmup_stable_decay(const Schedule& s) {
  if (!s.given("num_decay_steps")) return "needs num_decay_steps, the length of its decay";
  if (stable_steps(s) >= 0 || s.is_over) return {};
  return fmt::format("has {} steps of warm-up and {} of decay, more than the {} of the whole run", s.warmup_steps,
                     s.value("num_decay_steps"), s.total_steps);
}

// --- the held-out loss decides (torch.optim.lr_scheduler.ReduceLROnPlateau) -----------------------------------------------------------

enum Threshold : int { kRelative, kAbsolute };

void observe_plateau(const Schedule& s, ScheduleState& state, double loss) {
  const double best = state.best.value_or(std::numeric_limits<double>::infinity()), threshold = s.value("threshold");
  const bool relative = static_cast<Threshold>(s.value("threshold_mode")) == kRelative;
  if (loss < (relative ? best * (1.0 - threshold) : best - threshold)) {
    state.best = loss;
    state.bad = 0;
  } else {
    ++state.bad;
  }
  if (state.cooldown > 0) {
    --state.cooldown;
    state.bad = 0;
  }
  if (static_cast<double>(state.bad) <= s.value("patience")) return;
  ++state.reductions;
  state.cooldown = static_cast<int64_t>(s.value("cooldown"));
  state.bad = 0;
}

double reduced_by_plateau(const Schedule& s, const ScheduleState& state, double rate) {
  const double factor = s.value("factor"), least = s.value("min_lr"), eps = s.value("eps");
  for (int64_t i = 0; i < state.reductions; ++i) {
    const double next = std::max(rate * factor, least);
    if (!(rate - next > eps)) break;  // nor will it change any more
    rate = next;
  }
  return rate;
}

// --- the table ------------------------------------------------------------------------------------------------------------------------

const ScheduleArgument kCycles{.name = "num_cycles",
                               .help = "waves of the cosine; 0.5: from the highest to the lowest",
                               .value = 0.5,
                               .fits = is_not_negative,
                               .wrong = kNegative};
const ScheduleArgument kMinLr{.name = "min_lr", .help = "the learning rate at the end", .fits = is_not_negative, .wrong = kNegative};
const ScheduleArgument kMinLrRate{
    .name = "min_lr_rate", .help = "the same as a share of the highest", .fits = is_not_negative, .wrong = kNegative};

}  // namespace

const std::vector<ScheduleDef>& all_schedules() {
  static const std::vector<ScheduleDef> list{
      {.name = "linear", .factor = linear},
      {.name = "cosine", .arguments = {kCycles}, .factor = cosine},
      {.name = "cosine_with_restarts",
       .synonyms = {"cosine_with_hard_restarts"},
       .arguments = {{.name = "num_cycles",
                      .help = "how often it falls from the highest to 0",
                      .value = 1,
                      .fits = is_positive_whole,
                      .wrong = kWrongPositiveWhole}},
       .factor = cosine_with_restarts},
      {.name = "cosine_with_min_lr", .arguments = {kMinLr, kMinLrRate, kCycles}, .factor = cosine_with_min_lr, .check = check_min_lr},
      {.name = "cosine_warmup_with_min_lr",
       .arguments = {kMinLr,
                     kMinLrRate,
                     kCycles,
                     {.name = "warmup_lr_rate",
                      .help = "the share of the highest at which warm-up begins; by default 1 / warm-up steps",
                      .fits = is_not_negative,
                      .wrong = kNegative}},
       .factor = cosine_warmup_with_min_lr,
       .check = check_min_lr},
      {.name = "constant", .warms_up = false, .factor = constant},
      {.name = "constant_with_warmup", .factor = constant_with_warmup},
      {.name = "polynomial",
       .arguments = {{.name = "lr_end", .help = "the learning rate at the end", .value = 1e-7, .fits = is_not_negative, .wrong = kNegative},
                     {.name = "power", .help = "1: a straight line", .value = 1, .fits = is_positive, .wrong = kNotPositive}},
       .factor = polynomial,
       .check = check_polynomial},
      {.name = "inverse_sqrt",
       .arguments = {{.name = "timescale",
                      .help = "steps after which it is 1 / sqrt(2) of the highest; by default those of the warm-up, or 10,000 without one",
                      .fits = is_positive_whole,
                      .wrong = kWrongPositiveWhole}},
       .factor = inverse_sqrt},
      {.name = "warmup_stable_decay",
       .synonyms = {"wsd"},
       .arguments =
           {{.name = "num_decay_steps", .help = "the length of the decay; has to be given", .fits = is_whole, .wrong = kWrongWhole},
            {.name = "num_stable_steps",
             .help = "the length of the constant stretch; by default what warm-up and decay leave of the run",
             .fits = is_whole,
             .wrong = kWrongWhole},
            {.name = "warmup_type", .help = "curve of the warm-up", .value = kLinear, .words = kCurves},
            {.name = "decay_type", .help = "curve of the decay", .value = kCosine, .words = kCurves},
            {.name = "min_lr_ratio",
             .help = "the share of the highest from which warm-up begins and at which the decay ends",
             .value = 0,
             .fits = is_share,
             .wrong = kWrongShare},
            kCycles},
       .factor = warmup_stable_decay,
       .check = check_warmup_stable_decay},
      {.name = "reduce_lr_on_plateau",
       .synonyms = {"reduce_on_plateau"},
       .arguments =
           {{.name = "factor",
             .help = "what the learning rate is multiplied by",
             .value = 0.1,
             .fits = [](double x) { return x > 0 && x < 1; },
             .wrong = "has to lie between 0 and 1"},
            {.name = "patience",
             .help = "evaluations without a better loss that are let pass",
             .value = 10,
             .fits = is_whole,
             .wrong = kWrongWhole},
            {.name = "threshold",
             .help = "by how much a better loss is better",
             .value = 1e-4,
             .fits = is_not_negative,
             .wrong = kNegative},
            {.name = "threshold_mode", .help = "a share of the best loss, or a difference", .value = kRelative, .words = {"rel", "abs"}},
            {.name = "cooldown",
             .help = "evaluations after a reduction that don't count",
             .value = 0,
             .fits = is_whole,
             .wrong = kWrongWhole},
            {.name = "min_lr", .help = "the lowest learning rate", .value = 0, .fits = is_not_negative, .wrong = kNegative},
            {.name = "eps", .help = "smaller reductions are left out", .value = 1e-8, .fits = is_not_negative, .wrong = kNegative},
            {.name = "mode", .help = "a loss is better where it is lower", .value = 0, .words = {"min"}}},
       .warms_up = false,
       .observe = observe_plateau,
       .reduced = reduced_by_plateau},
  };
  return list;
}

std::string default_text(const ScheduleArgument& argument) {
  if (std::isnan(argument.value)) return {};
  return argument.words.empty() ? fmt::format("{}", argument.value) : std::string(argument.words.at(static_cast<size_t>(argument.value)));
}

// --- schedules by name ----------------------------------------------------------------------------------------------------------------

namespace {

const ScheduleDef& find_schedule(std::string_view type) {
  std::vector<std::string_view> names;
  for (const ScheduleDef& def : all_schedules()) {
    if (def.name == type || std::find(def.synonyms.begin(), def.synonyms.end(), type) != def.synonyms.end()) return def;
    names.push_back(def.name);
  }
  throw error(ErrorCode::usage, "`lr_scheduler_type` {} is not known: {}", type, alternatives(names));
}

double parse_argument(const ScheduleDef& def, const ScheduleArgument& argument, const std::string& text) {
  const auto refuse = [&](std::string_view why) {
    return error(ErrorCode::usage, "`lr_scheduler_kwargs` {}={} of {}: {}", argument.name, text, def.name, why);
  };
  if (!argument.words.empty()) {
    const auto found = std::find(argument.words.begin(), argument.words.end(), text);
    if (found == argument.words.end()) throw refuse(fmt::format("has to be {}", alternatives(argument.words)));
    return static_cast<double>(found - argument.words.begin());
  }
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, wrong] = std::from_chars(text.data(), end, number);
  if (wrong != std::errc() || at != end || !std::isfinite(number)) throw refuse("is no number");
  if (!argument.fits(number)) throw refuse(argument.wrong);
  return number;
}

}  // namespace

Schedule make_schedule(std::string_view type, const std::map<std::string, std::string>& arguments) {
  const ScheduleDef& def = find_schedule(type);
  Schedule schedule{.def = &def};
  std::vector<std::string> known;
  for (const ScheduleArgument& argument : def.arguments) {
    known.emplace_back(argument.name);
    const auto given = arguments.find(known.back());
    schedule.values.push_back(given == arguments.end() ? argument.value : parse_argument(def, argument, given->second));
  }
  for (const auto& [name, text] : arguments) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw error(ErrorCode::usage, "`lr_scheduler_kwargs` {}={}: {} has no such argument; {}", name, text, def.name,
                known.empty() ? std::string("it has none") : fmt::format("it has {}", fmt::join(known, ", ")));
  }
  return schedule;
}

double Schedule::value(std::string_view argument) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (def->arguments[i].name == argument) return values[i];
  }
  throw internal_error("the schedule {} has no argument {}", def->name, argument);
}

bool Schedule::given(std::string_view argument) const { return !std::isnan(value(argument)); }

void Schedule::begin(double rate, double warmup, int64_t total, bool over) {
  if (!(warmup >= 0) || !std::isfinite(warmup)) throw error(ErrorCode::usage, "`warmup_steps` {} is not 0 or more", warmup);
  learning_rate = rate;
  total_steps = static_cast<double>(total);
  is_over = over;
  warmup_steps = warmup >= 1 ? std::floor(warmup) : std::ceil(total_steps * warmup);
  const std::string wrong = def->check != nullptr ? def->check(*this) : std::string();
  if (!wrong.empty()) throw error(ErrorCode::usage, "`lr_scheduler_type` {} {} (`lr_scheduler_kwargs`)", def->name, wrong);
}

double Schedule::at(int64_t updates, double rate, const ScheduleState& state) const {
  return def->factor != nullptr ? rate * def->factor(*this, static_cast<double>(updates)) : def->reduced(*this, state, rate);
}

}  // namespace ort_train
