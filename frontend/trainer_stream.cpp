// Plans with a disk: which updates wait, how many micro-batches go together, what is recomputed.

#include <algorithm>
#include <cmath>
#include <future>

#include "frontend/both.h"
#include "frontend/file.h"
#include "frontend/trainer_impl.h"
#include "frontend/units.h"
#include "graph/error.h"

namespace ort_train {
namespace {

// Whether there is anything whose update could wait for the next step.
bool has_weights_used_late(const Graph& forward) {
  const std::set<std::string> soon = used_soon(forward);
  const std::vector<ValueId> parameters = forward.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](ValueId id) { return forward.value(id).trainable && !soon.contains(forward.value(id).name); });
}

// Skip candidates whose bound is within 0.2 % of the best plan's seconds, and prefer the plain way within as much.
constexpr double kClose = 0.998;

}  // namespace

// The search for one. Where there is little memory beside a plan, each choice is made again when it is needed again.
class Trainer::Impl::Streaming {
 public:
  explicit Streaming(Impl& trainer) : t_(trainer), before_(trainer.options.nvme_budget > 0 ? trainer.state_before() : StateBefore{}) {}

  void plan(std::unique_ptr<Planner> planner);
  Least least() const { return least_with_disk().run(); }

 private:
  // What the entries are like.
  struct Way {
    Deferral defer = Deferral::none;
    int64_t together = 1;
    bool operator==(const Way&) const = default;
  };
  struct Variant {
    Way way{};
    std::vector<std::unique_ptr<JobEntry>> entries{};
    std::vector<Graph> drafts{};
  };
  struct Choice {
    Way way{};
    RecomputeChoice rung{};
    Trial trial{};  // none where there is no room to keep it
    int64_t instructions = 0;
    double expected = INFINITY;  // seconds of an optimizer step
    double seconds = INFINITY;   // the same; infinite where it takes too much of the disk
    int64_t disk_bytes = 0;
    bool is_plain() const { return way.defer == Deferral::none && way.together == 1; }
    double rank() const { return is_plain() ? kClose * seconds : seconds; }
  };
  // The smallest budget. Knows nothing of the machine, so that it is the same everywhere; refers to nothing of the trainer's.
  struct LeastSearch {
    struct Candidate {
      Trial trial;
      int64_t besides = 0;  // bytes besides the arena
    };
    int64_t planning = 0;                            // bytes that plans are made in; no budget is less
    std::multimap<int64_t, Candidate> candidates{};  // by a budget that is not above what they take
    Least run() const;
  };

  Way present() const { return {.defer = present_, .together = t_.together}; }
  Variant make(const Way& way);
  Variant& find(const Way& way);
  void exchange(Variant& other);
  void turn_to(const Way& way);
  template <typename Body> void with(const Way& way, Body&& body);

  void look_at_ways();
  std::vector<RecomputeChoice> rungs() const;
  double look_at(const std::vector<RecomputeChoice>& rungs, bool in_memory);
  void sort_choices();
  bool use_best();
  void use_least();
  void dump_problem(const Planner& planner, int64_t limit) const;
  int64_t bytes_there(const DiskNeed& need) const;
  bool has_room(int64_t disk_bytes) const { return t_.options.nvme_budget == 0 || disk_bytes <= t_.options.nvme_budget; }
  [[noreturn]] void refuse_disk(int64_t disk_bytes) const;

  bool is_roomy(int64_t planning) const;
  bool plans_two() const { return t_.roomy && t_.workers.threads() > 1; }  // at once
  void plan_pinning();
  void settle_pinning();
  LeastSearch least_with_disk() const;

  Impl& t_;
  const StateBefore before_;           // what the checkpoints in the output folder have on the disk
  Deferral present_ = Deferral::none;  // of the trainer's entries
  std::vector<Choice> choices_;
  std::vector<Variant> kept_;
};

void Trainer::Impl::stream(std::unique_ptr<Planner> planner) { Streaming(*this).plan(std::move(planner)); }
Trainer::Impl::Least Trainer::Impl::least_with_disk() { return Streaming(*this).least(); }

// A smaller arena, and a disk for the rest, where the budget asks for it.
void Trainer::Impl::Streaming::plan(std::unique_ptr<Planner> planner) {
  t_.settle_reserve(/*with_disk=*/true);
  planner.reset();
  t_.least.budget = t_.reserve + whole_pages(t_.program.memory().bytes);
  const int64_t budget = t_.options.budget;
  const bool fits = budget == 0 || budget - t_.reserve >= t_.program.memory().bytes;
  LeastSearch search = least_with_disk();
  // Where a refusal is unlikely, the smallest budget is looked for beside the plan.
  constexpr double kAmple = 1.25, kRoomy = 1.05;
  const double share = static_cast<double>(budget) / static_cast<double>(search.candidates.begin()->first);
  t_.roomy = is_roomy(search.planning);
  const bool is_beside = !fits && plans_two() && share >= kAmple;
  std::future<Least> searched = std::async(is_beside ? std::launch::async : std::launch::deferred, [&] { return search.run(); });
  const auto is_refused = [&] {
    if (Least with_disk = searched.get(); with_disk.budget < t_.least.budget) t_.least = std::move(with_disk);
    search.candidates.clear();
    return budget > 0 && budget < t_.least.budget;
  };
  if (!is_beside && (is_refused() || fits)) return;
  if (share >= kRoomy) plan_pinning();
  t_.measure_disk_of_job();

  t_.executor.reset();
  const Way usual = present();
  t_.recompute_entries(t_.recompute_choice);
  look_at_ways();
  if (is_beside && is_refused()) {
    turn_to(usual);
    return t_.use(t_.adopt_first()->resident());
  }
  if (!use_best()) use_least();
}

// --- other entries ------------------------------------------------------------------------------------------------------------

Trainer::Impl::Streaming::Variant Trainer::Impl::Streaming::make(const Way& way) {
  Variant variant;
  exchange(variant);
  t_.build_entries(way.defer);
  present_ = way.defer;
  if (way.together > 1) t_.add_together(way.together);
  for (const auto& entry : t_.entries) t_.drafts.push_back(entry->job.graph);
  exchange(variant);
  return variant;
}

// The trainer's entries against others.
void Trainer::Impl::Streaming::exchange(Variant& other) {
  const Way before = std::exchange(other.way, present());
  std::swap(t_.entries, other.entries);
  std::swap(t_.drafts, other.drafts);
  present_ = before.defer;
  t_.deferred = before.defer != Deferral::none;
  t_.together = before.together;
}

// Such entries, made where they aren't kept.
Trainer::Impl::Streaming::Variant& Trainer::Impl::Streaming::find(const Way& way) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Variant& variant) { return variant.way == way; });
  return found == kept_.end() ? kept_.emplace_back(make(way)) : *found;
}

void Trainer::Impl::Streaming::turn_to(const Way& way) {
  if (way == present()) return;
  Variant& found = find(way);
  t_.executor.reset();  // it refers to the graphs
  exchange(found);
  if (!t_.roomy) kept_.clear();
}

// Calls it with such entries in the place of the trainer's.
template <typename Body> void Trainer::Impl::Streaming::with(const Way& way, Body&& body) {
  if (way == present()) return body();
  Variant& found = find(way);
  exchange(found);
  body();
  exchange(found);
  if (!t_.roomy) kept_.clear();
}

// --- choices ----------------------------------------------------------------------------------------------------------------------------

// Updates that wait, micro-batches together, each with what is recomputed.
void Trainer::Impl::Streaming::look_at_ways() {
  const int64_t state = t_.program.memory().persistent_bytes;  // which every plan without a disk holds
  std::vector<Way> ways;
  // An update behind its step waits for the disk; before the next step's uses it hides behind computing.
  const int64_t most = t_.options.micro_batches == "horizontal" ? 1 : t_.most_together();
  if (t_.options.gradient_accumulation_steps == 1) {
    const bool keeps_all = !t_.options.save_gradients.empty();
    if (!keeps_all && has_weights_used_late(t_.forwards.at(t_.binding.batch))) ways.push_back({Deferral::most, 1});
    ways.push_back({Deferral::all, 1});
  } else {
    if (most > t_.together) ways.push_back({Deferral::none, most});
    // These are planned where memory is left for it.
    const auto batch = static_cast<int64_t>(t_.drafts[0].order().size());
    JobSize planned = t_.job_size;
    planned.instructions = t_.instructions() + most * batch;
    const auto add_deferred = [&](int64_t joined, int64_t batches) {
      planned.instructions += batches * batch;
      if (planning_need(planned) <= t_.options.budget) ways.push_back({Deferral::all, joined});
    };
    if (t_.together == 1) add_deferred(1, 1);
    if (most > 1) add_deferred(most, 1 + 2 * most);
  }
  // The plain one comes last: mostly it is not the best, and of what is worse little has to be looked at.
  ways.push_back(present());
  std::vector<double> bounds;  // with the first rung: on the others of the best one time is spent
  for (const Way& way : ways) with(way, [&] { bounds.push_back(look_at({rungs().front()}, /*in_memory=*/false)); });
  const auto best = static_cast<size_t>(std::min_element(bounds.begin(), bounds.end()) - bounds.begin());
  for (size_t i = 0; i < ways.size(); ++i) {
    const bool is_best = i == best || bounds[best] == INFINITY, is_plain = i + 1 == ways.size();
    if (!is_best && (!is_plain || state > t_.options.budget - t_.reserve)) continue;
    with(ways[i], [&] {
      std::vector<RecomputeChoice> others = rungs();
      others.erase(others.begin());
      look_at(others, /*in_memory=*/!is_best);
    });
  }
  sort_choices();
}

// What is recomputed needn't be moved: a few rungs of the ladder.
std::vector<RecomputeChoice> Trainer::Impl::Streaming::rungs() const {
  constexpr size_t kParts = 4;
  if (t_.options.recompute != "auto") return {t_.recompute_choice};
  const std::vector<RecomputeChoice> ladder = recompute_ladder(t_.drafts[0]);
  std::vector<RecomputeChoice> rungs;
  for (const size_t rung : sampled_rungs(ladder, kParts)) rungs.push_back(ladder[rung]);
  return rungs;
}

// With the entries as they are, of these rungs those whose step may take less than that of all choices so far; with `in_memory` those that
// need no disk. Where the bound says that it can't, or the disk has no room, a choice's time is infinite. Returns the least bound of those
// that need a disk.
double Trainer::Impl::Streaming::look_at(const std::vector<RecomputeChoice>& rungs, bool in_memory) {
  // What is better by less than a little isn't worth looking at; the plain may be worse by that.
  const auto to_beat = [&](const Choice& choice) {
    double beat = INFINITY;
    for (const Choice& other : choices_)
      beat = std::min(beat, choice.is_plain() && !other.is_plain() ? other.seconds / kClose : kClose * other.seconds);
    return beat;
  };
  const auto look = [&](Choice& choice, double& least) {
    const double beat = to_beat(choice);
    choice.trial = t_.try_out(choice.rung, beat);
    choice.instructions = choice.trial.instructions;
    if (!choice.trial.planner) return;
    const int64_t limit = t_.options.budget - t_.reserve_with(choice.instructions);
    if (choice.trial.planner->resident_bytes() <= limit) {
      choice.expected = choice.seconds = choice.trial.seconds;
    } else if (!in_memory) {
      const StreamOutlook outlook = choice.trial.planner->outlook(limit, t_.device.rates, t_.stream_rates(), beat);
      least = outlook.bound;
      choice.expected = outlook.seconds;
      choice.disk_bytes = bytes_there(disk_need(outlook, t_.program, t_.state_slots()));
      if (has_room(choice.disk_bytes)) choice.seconds = outlook.seconds;
    }
    if (!t_.roomy) choice.trial = {};
  };
  double bound = INFINITY;
  for (size_t i = 0; i < rungs.size(); i += 2) {  // of two that are looked at together neither knows of the other
    Choice two[2];
    double least[2] = {INFINITY, INFINITY};
    const size_t count = std::min<size_t>(2, rungs.size() - i);
    for (size_t of = 0; of < count; ++of) two[of].way = present(), two[of].rung = rungs[i + of];
    call_both(
        plans_two() && count > 1, [&] { look(two[0], least[0]); },
        [&] {
          if (count > 1) look(two[1], least[1]);
        });
    for (size_t of = 0; of < count; ++of) {
      bound = std::min(bound, least[of]);
      if (two[of].expected < to_beat(two[of])) choices_.push_back(std::move(two[of]));
    }
  }
  return bound;
}

void Trainer::Impl::Streaming::sort_choices() {
  std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.rank() < b.rank(); });
}

// With addresses: the first that finds room in memory. False where none does; throws Error(budget) where the disk has no room for those.
bool Trainer::Impl::Streaming::use_best() {
  int64_t disk_bytes = 0;
  for (Choice& choice : choices_) {
    if (choice.seconds < INFINITY) {
      Trial trial = std::move(choice.trial);
      if (!trial.planner) with(choice.way, [&] { trial = t_.try_out(choice.rung); });
      const int64_t limit = t_.options.budget - t_.reserve_with(choice.instructions);
      StreamedProgram made;
      if (trial.planner->resident_bytes() <= limit) made.program = trial.planner->resident();
      if (made.program.entries.empty() || made.program.memory().bytes > limit)
        made = trial.planner->streamed(limit, t_.device.rates, t_.stream_rates());
      if (made.program.memory().bytes > limit) continue;
      dump_problem(*trial.planner, limit);
      choice.disk_bytes = bytes_there(disk_need(made.program, t_.state_slots()));
      if (has_room(choice.disk_bytes)) {
        turn_to(choice.way);
        t_.adopt_as(trial);
        t_.use(std::move(made));
        settle_pinning();
        return true;
      }
    }
    disk_bytes = disk_bytes > 0 ? std::min(disk_bytes, choice.disk_bytes) : choice.disk_bytes;
  }
  if (disk_bytes > 0) refuse_disk(disk_bytes);
  return false;
}

// What the smallest budget was computed from.
void Trainer::Impl::Streaming::use_least() {
  std::unique_ptr<Planner> planner = t_.adopt(t_.least.recompute);
  dump_problem(*planner, t_.options.budget - t_.reserve_with(t_.instructions()));
  StreamedProgram made = planner->streamed(0, t_.device.rates, t_.stream_rates());
  planner.reset();
  if (const int64_t disk_bytes = bytes_there(disk_need(made.program, t_.state_slots())); !has_room(disk_bytes)) refuse_disk(disk_bytes);
  t_.reserve = t_.reserve_with(t_.instructions());
  t_.use(std::move(made));
  settle_pinning();
}

void Trainer::Impl::Streaming::dump_problem(const Planner& planner, int64_t limit) const {
  if (t_.options.dump_problem.empty()) return;
  make_folders(folder_of(t_.options.dump_problem));
  replace_file(t_.options.dump_problem, planning::to_json(planner.problem(limit, t_.device.rates, t_.stream_rates())));
}

// What a plan takes at most in the folder of the disk tier. A run that is resumed goes on in its checkpoint's state file; any other makes a
// new one, and the old one stays until a checkpoint refers to the new one.
int64_t Trainer::Impl::Streaming::bytes_there(const DiskNeed& need) const {
  const bool goes_on = need.state > 0 && need.state == before_.size && t_.is_resumed() && !t_.is_branch;
  return need.total() + (goes_on ? 0 : before_.held);
}

void Trainer::Impl::Streaming::refuse_disk(int64_t disk_bytes) const {
  const std::string fewer = t_.state_slots() > 2
                                ? fmt::format(" (`save_total_limit` {}: {} slots for each weight and its optimizer state; 1 takes two)",
                                              t_.options.save_total_limit, t_.state_slots())
                                : "";
  const std::string old = before_.held > 0 ? fmt::format(", of which {} hold the checkpoints in '{}' until the next one is saved",
                                                         grouped(before_.held), t_.options.output_dir)
                                           : std::string();
  throw error(ErrorCode::budget, "within {} bytes of memory this job takes up to {} bytes on the disk{}, more than `nvme_budget` {}{}",
              grouped(t_.options.budget), grouped(disk_bytes), old, t_.options.nvme_budget, fewer);
}

// --- memory -----------------------------------------------------------------------------------------------------------------------------

// Whether there is memory for more than one plan at a time: `planning` is what one takes.
bool Trainer::Impl::Streaming::is_roomy(int64_t planning) const {
  constexpr int64_t kMuch = 4;
  return t_.options.budget / kMuch >= planning;
}

// Sets aside what the kernel takes to pin the arena, where it may be pinned.
void Trainer::Impl::Streaming::plan_pinning() {
  const int64_t memory = t_.options.budget - t_.reserve;
  if (!may_pin(memory)) return;
  t_.pinning = whole_pages(pinning_bytes(memory));
  t_.reserve += t_.pinning;
}

// The plan doesn't need it after all, or has no room for it.
void Trainer::Impl::Streaming::settle_pinning() {
  if (t_.program.file().bytes > 0 && t_.program.memory().bytes <= t_.options.budget - t_.reserve) return;
  t_.reserve -= t_.pinning;
  t_.pinning = 0;
}

// With the entries as they are.
Trainer::Impl::Streaming::LeastSearch Trainer::Impl::Streaming::least_with_disk() const {
  constexpr double kNear = 1.05;  // with addresses none takes so much more than its floor
  LeastSearch search;
  std::vector<RecomputeChoice> choices{t_.recompute_choice};
  if (t_.options.recompute == "auto") choices = {recompute_mode("none"), recompute_mode("all")};
  std::vector<Trial> trials(choices.size());
  call_both(
      choices.size() > 1 && t_.workers.threads() > 1 && is_roomy(planning_need(t_.job_size)),
      [&] { trials.front() = t_.try_out(choices.front()); },
      [&] {
        if (choices.size() > 1) trials.back() = t_.try_out(choices.back());
      });
  JobSize planned = t_.job_size;  // with what comes where updates wait, or micro-batches go together
  const auto batch = static_cast<int64_t>(t_.drafts[0].order().size());
  planned.instructions = trials.front().instructions;
  if (t_.options.gradient_accumulation_steps == 1)
    planned.instructions += 2 * batch;
  else if (t_.options.micro_batches != "horizontal")
    planned.instructions += t_.most_together() * batch;
  search.planning = planning_need(planned);
  for (Trial& trial : trials) {
    const int64_t besides = t_.reserve_with(trial.instructions);
    const int64_t floor = std::max(search.planning, besides + whole_pages(trial.planner->least_bytes()));
    search.candidates.emplace(floor, LeastSearch::Candidate{.trial = std::move(trial), .besides = besides});
  }
  const auto most = static_cast<int64_t>(kNear * static_cast<double>(search.candidates.begin()->first));
  search.candidates.erase(search.candidates.upper_bound(most), search.candidates.end());
  return search;
}

Trainer::Impl::Least Trainer::Impl::Streaming::LeastSearch::run() const {
  Least smallest{.budget = INT64_MAX};
  for (const auto& [floor, of] : candidates) {
    if (floor >= smallest.budget) break;
    const Program made = of.trial.planner->streamed(0, ComputeRates{}, StreamRates{}).program;
    const int64_t run = of.besides + whole_pages(made.memory().bytes), budget = std::max(planning, run);
    if (budget >= smallest.budget) continue;
    smallest = least_of(budget, made, of.trial.pointers());
    if (planning > run) smallest.op = "what it takes to make the plan", smallest.entry.clear();
    smallest.recompute = of.trial.recompute;
  }
  return smallest;
}

}  // namespace ort_train
