#include "passes/plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "passes/both.h"
#include "passes/plan_draft.h"
#include "passes/plan_entry.h"
#include "passes/stream_fit.h"
#include "passes/stream_spread.h"

namespace ort_train {

struct Planner::Impl {
  explicit Impl(const PlanOptions& given) : options(given), kernels(cpu_kernels(), given.threads) {}

  PlanOptions options;
  KernelSpecs kernels;
  PersistentValues persistents;
  std::vector<Draft> drafts;

  // What may move, and what each entry asks of the memory.
  struct Streams {
    std::vector<StreamDraft> drafts;
    std::vector<StreamEntry> entries;
    std::vector<bool> movable;  // by persistent value
  };
  Streams streams(const ComputeRates& compute) const {
    Streams result;
    result.movable.assign(persistents.size(), false);
    for (const Draft& draft : drafts) {
      result.drafts.push_back(make_stream_draft(draft, persistents, options.threads, compute));
      for (const StreamPiece& piece : result.drafts.back().entry.pieces) {
        if (piece.persistent >= 0) result.movable[static_cast<size_t>(piece.persistent)] = true;
      }
      result.entries.push_back(result.drafts.back().entry);
    }
    int64_t always = 0;  // persistent values that never leave
    for (size_t i = 0; i < result.movable.size(); ++i) always += result.movable[i] ? 0 : aligned(persistents[i].type.bytes());
    for (StreamEntry& entry : result.entries) {
      for (int64_t& bytes : entry.fixed) bytes += whole_sectors(always);
    }
    return result;
  }

  // What was found out for one memory and one disk: outlook() and streamed() of these share it.
  struct Search {
    int64_t limit;
    ComputeRates compute;
    StreamRates disk;
    int planners;
    std::shared_ptr<const Streams> kept;
    const Streams& streams = *kept;
    int64_t floor = stream_floor(kept->entries);
    std::unique_ptr<Streamer> streamer;

    // Null where the limit is below the floor. Made when it is asked for: its linear program takes time.
    // `enough`: of a bound; no higher one is looked for.
    Streamer* find_streamer(double enough) {
      if (!streamer && limit >= floor)
        streamer = std::make_unique<Streamer>(streams.entries, streams.movable.size(), limit, disk, enough, planners);
      return streamer.get();
    }

    // Of an optimizer step, if the disk took no time.
    double computing() const {
      double seconds = 0;
      for (const StreamEntry& entry : streams.entries) {
        if (entry.weight >= kRarely) seconds += entry.weight * std::accumulate(entry.seconds.begin(), entry.seconds.end(), 0.0);
      }
      return seconds;
    }

    // How many plans besides the fastest are worth their packing, whose time goes with the square of the nodes.
    size_t others() const {
      constexpr double kWork = 3e7;
      return static_cast<size_t>(kWork / (nodes() * nodes() + 1));
    }

    // How many may be made of one kind.
    int64_t packings() const {
      constexpr double kWork = 2e9;
      return std::clamp(static_cast<int64_t>(kWork / (nodes() * nodes() + 1)), int64_t{16}, int64_t{160});
    }
    double nodes() const {
      double nodes = 0;
      for (const StreamEntry& entry : streams.entries) nodes += static_cast<double>(entry.seconds.size());
      return nodes;
    }

    // Of an optimizer step.
    double seconds_of(const StreamPlan& plan) const {
      double seconds = 0;
      for (size_t e = 0; e < streams.entries.size(); ++e) {
        if (streams.entries[e].weight >= kRarely) seconds += streams.entries[e].weight * plan.forecasts[e].seconds;
      }
      return seconds;
    }
  };
  std::unique_ptr<Search> last_search;

  Search& search(int64_t limit, const ComputeRates& compute, const StreamRates& disk) {
    if (last_search && last_search->limit == limit && last_search->compute == compute && last_search->disk == disk) return *last_search;
    last_search = std::make_unique<Search>(Search{.limit = limit,
                                                  .compute = compute,
                                                  .disk = disk,
                                                  .planners = options.planners,
                                                  .kept = std::make_shared<const Streams>(streams(compute))});
    return *last_search;
  }

  struct Made {
    Program program{};
    StreamPlan plan{};
  };

  // What was made of a plan before some entries' transfers changed, in time: the other entries stay as they are, and these where they are.
  struct Earlier {
    Program program{};
    std::vector<bool> changed{};  // of its entries
    bool stays = false;           // at its addresses
  };

  std::vector<bool> on_disk(const Streams& streams, const StreamPlan& plan) const {
    std::vector<bool> result(streams.movable.size());
    for (size_t i = 0; i < result.size(); ++i) result[i] = streams.movable[i] && !plan.resident[i];
    return result;
  }

  Program make(const Streams& streams, const StreamPlan& plan, const PackOptions& packing, Earlier earlier) const {
    return make(on_disk(streams, plan), &streams.drafts, &plan, packing, std::move(earlier));
  }

  // With addresses, for which transfers get less time where there is no other way, and then what they leave; the plan is then that one. Not
  // at any price, unless it is the `last` plan that is tried; not where it takes `least` seconds then. Counts the `packings` that are left.
  Program make_within(const Search& search, StreamPlan& plan, int64_t limit, double least, bool last, bool at_once,
                      int64_t& packings) const {
    constexpr int kRounds = 12, kStuck = 4;  // so many rounds that gain nothing lead nowhere
    constexpr double kNear = 1.03;           // of the limit
    constexpr double kDear = 1.01;           // of the time at first
    const PackOptions packing{.enough = limit, .at_once = at_once};
    Program program = make(search.streams, plan, packing, {});
    --packings;
    const bool is_costly = search.others() == 0 && !last;
    if (is_costly && static_cast<double>(program.memory().bytes) > kNear * static_cast<double>(limit)) return program;
    if (is_costly) least = std::min(least, kDear * search.seconds_of(plan));
    int64_t lowest = program.memory().bytes;
    int stuck = 0;
    for (int round = 0; round < kRounds && program.memory().bytes > limit && packings > 0 && (stuck < kStuck || last); ++round) {
      std::vector<bool> changed(program.entries.size());
      bool any = false;
      for (const bool around : {false, true}) {
        if (any || (around && !last && static_cast<double>(program.memory().bytes) > kNear * static_cast<double>(limit))) continue;
        for (size_t e = 0; e < program.entries.size(); ++e) {  // up to the first that takes too much
          if (!shorten(program.entries[e], limit, around, plan.visits[e])) continue;
          any = changed[e] = true;
          plan.forecasts[e] = simulate(search.streams.entries[e], plan.visits[e], search.disk);
        }
      }
      if (!any || search.seconds_of(plan) >= least) break;
      program = make(search.streams, plan, packing, {.program = std::move(program), .changed = std::move(changed)});
      --packings;
      stuck = program.memory().bytes < lowest ? 0 : stuck + 1;
      lowest = std::min(lowest, program.memory().bytes);
    }
    if (program.memory().bytes > limit) return program;
    std::vector<bool> changed(program.entries.size());
    for (size_t e = 0; e < program.entries.size(); ++e)
      changed[e] = search.streams.entries[e].weight >= kRarely &&
                   stretch(program.entries[e], search.streams.entries[e], search.disk, plan.visits[e], plan.forecasts[e]);
    if (std::none_of(changed.begin(), changed.end(), [](bool c) { return c; })) return program;
    return make(search.streams, plan, packing, {.program = std::move(program), .changed = std::move(changed), .stays = true});
  }

  // With addresses, plans within `target` bytes whose reads begin so `early`: what takes less than `least` seconds takes its place. Sets
  // what the first was expected to take; says whether there was room for one.
  bool pack_some(const Search& search, Streamer& streamer, double early, int64_t target, int64_t& packings, double& foreseen, Made& result,
                 double& least) const {
    std::vector<StreamPlan> plans = streamer.plans(target, early);
    foreseen = search.seconds_of(plans[0]);
    for (size_t i = 0; i < std::min(plans.size(), 1 + search.others()) && packings > 0; ++i) {  // one may be packed better than another
      if (search.seconds_of(plans[i]) >= least) break;
      Program program = make_within(search, plans[i], search.limit, least, target == search.floor, streamer.planners() > 1, packings);
      if (program.memory().bytes > search.limit) continue;
      const double seconds = search.seconds_of(plans[i]);
      if (seconds < least) {
        least = seconds;
        result.program = std::move(program);
        result.plan = std::move(plans[i]);
      }
      return true;
    }
    return false;
  }

  // Addresses take more than live bytes, or all the time that transfers had: another plan, for less, may be packed better. Begins with
  // those for `target` bytes, and says for how many there was room.
  void pack_plans(const Search& search, Streamer& streamer, double early, int64_t& target, Made& result, double& least) const {
    constexpr int kTries = 12, kEnough = 3;
    constexpr double kClose = 1.02;  // times the first plan's seconds
    const int64_t step = search.limit / 50;
    int64_t packings = search.packings(), within = target;
    int found = 0;
    double first = 0, foreseen = 0;
    for (int round = 0; round < kTries && found < kEnough && packings > 0; ++round) {
      if (pack_some(search, streamer, early, within, packings, foreseen, result, least)) {
        ++found;
        if (found == 1 && round > 0) pack_some(search, streamer, early, within + step / 2, packings, foreseen, result, least);
      }
      if (round == 0) first = foreseen;
      if (found > 0 && least <= kClose * first) target = within;
      if (within == search.floor || least <= kClose * first) break;
      within = std::max(search.floor, within - step);
    }
  }

  // What the plan takes with this search's disk.
  void forecast(const Search& search, StreamPlan& plan) const {
    plan.forecasts.clear();
    for (size_t e = 0; e < plan.visits.size(); ++e)
      plan.forecasts.push_back(simulate(search.streams.entries[e], plan.visits[e], search.disk));
  }

  // Many plans take about the least time. Drives pause, and share with others: this is one for a slower disk, where it takes about as long
  // as any while the disk is as fast as it was measured. Sets what it takes then.
  Made pack_careful(const Search& search, double early, double& least) const {
    constexpr double kSlower = 0.8;
    constexpr double kNear = 1.01;  // of the bound: a slower disk must make so little of a difference
    Search careful{.limit = search.limit, .compute = search.compute, .disk = search.disk, .planners = search.planners, .kept = search.kept};
    careful.disk.read *= kSlower;
    careful.disk.write *= kSlower;
    const double enough = kNear * search.streamer->bound();
    Made made;
    if (!careful.find_streamer(enough) || careful.streamer->bound() >= enough) return made;
    double seconds = std::numeric_limits<double>::infinity();
    int64_t target = search.limit;
    pack_plans(careful, *careful.streamer, early, target, made, seconds);
    if (made.program.entries.empty()) return made;
    forecast(search, made.plan);
    least = search.seconds_of(made.plan);
    return made;
  }

  // Plans that hold no more than they must, whatever time their packing takes: mostly there is room where none was found above.
  bool pack_least(const Search& search, double early, Made& result) const {
    constexpr size_t kTries = 2;
    int64_t packings = std::numeric_limits<int64_t>::max();
    std::vector<StreamPlan> plans = search.streamer->plans(search.floor, early);
    for (size_t i = 0; i < std::min(kTries, plans.size()); ++i) {
      Program program = make_within(search, plans[i], search.limit, std::numeric_limits<double>::infinity(), /*last=*/true,
                                    search.planners > 1, packings);
      if (program.memory().bytes > search.limit) continue;
      result.program = std::move(program);
      result.plan = std::move(plans[i]);
      return true;
    }
    return false;
  }

  // Sets the bytes on the disk.
  void count_disk(const Streams& streams, const StreamPlan& plan, StreamOutlook& result) const {
    int64_t most = 0;
    const std::vector<bool> moved = on_disk(streams, plan);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!moved[i]) continue;
      const int64_t bytes = whole_sectors(persistents[i].type.bytes());
      result.disk_bytes += bytes;
      if (persistents[i].purpose == Purpose::weights || persistents[i].purpose == Purpose::optimizer) result.state_bytes += bytes;
    }
    for (size_t e = 0; e < streams.entries.size(); ++e) {
      std::set<uint32_t> pieces;
      for (const Visit& visit : plan.visits[e]) {
        if (visit.written >= 0 && streams.entries[e].pieces[visit.piece].persistent < 0) pieces.insert(visit.piece);
      }
      int64_t bytes = 0;
      for (const uint32_t piece : pieces) bytes += streams.entries[e].pieces[piece].bytes;
      most = std::max(most, bytes);
    }
    result.disk_bytes += most;
  }

  // Of a few plans that hold little the one whose addresses take least.
  Program least(const Streams& streams, StreamPlan& plan) const {
    constexpr int64_t kMore[] = {-1, 0, 2};  // percent above the floor; -1: nothing is held
    constexpr double kLittle = 1.002;        // times the floor: there is hardly less
    const int64_t floor = stream_floor(streams.entries);
    Program best;
    for (const int64_t more : kMore) {
      if (!best.entries.empty() && static_cast<double>(best.memory().bytes) <= kLittle * static_cast<double>(floor)) break;
      StreamPlan other = least_streams(streams.entries, streams.movable.size(), more < 0 ? 0 : floor + floor * more / 100);
      Program program = make(streams, other, {}, {});
      if (!best.entries.empty() && program.memory().bytes >= best.memory().bytes) continue;
      best = std::move(program);
      plan = std::move(other);
    }
    return best;
  }

  // With `packing.enough` bytes, not 0, no less is looked for; a program that takes more is left unfinished.
  // Between runs a tensor of the disk is looked at above what always stays; of accumulators, two.
  static void add_desks(const std::vector<Persistent>& values, Program& program) {
    int64_t largest = 0, accumulator = 0;
    for (const Persistent& value : values) {
      largest = std::max(largest, file_bytes(value));
      if (value.purpose == Purpose::gradients) accumulator = std::max(accumulator, file_bytes(value));
    }
    const int64_t begin = whole_sectors(program.memory().persistent_bytes);
    program.desks[0] = {.offset = begin, .bytes = largest};
    program.desks[1] = {.offset = begin + accumulator, .bytes = accumulator};
    for (const Place& desk : program.desks) program.memory().bytes = std::max(program.memory().bytes, desk.bytes > 0 ? desk.end() : 0);
    program.spare = {.offset = begin, .bytes = std::max<int64_t>(0, program.memory().bytes - begin) / kSector * kSector};
  }

  Program make(const std::vector<bool>& on_disk, const std::vector<StreamDraft>* streams, const StreamPlan* streamed,
               const PackOptions& packing, Earlier earlier) const {
    Program program;
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(on_disk, program);
    if (streams) program.memory().persistent_bytes = whole_sectors(program.memory().persistent_bytes);
    program.memory().bytes = program.memory().persistent_bytes;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (i < earlier.changed.size() && !earlier.changed[i]) {
        program.entries.push_back(std::move(earlier.program.entries[i]));
        program.file().bytes = std::max(program.file().bytes, earlier.program.file().bytes);
      } else {
        program.entries.push_back(make_entry(drafts[i], values, streams ? &(*streams)[i] : nullptr,
                                             streamed ? &streamed->visits[i] : nullptr, packing,
                                             earlier.stays ? &earlier.program.entries[i] : nullptr, program));
      }
      for (const Storage& storage : program.entries.back().storages)
        program.memory().bytes = std::max(program.memory().bytes, aligned(storage.place.end()));
      if (packing.enough > 0 && program.memory().bytes > packing.enough) return program;  // the others can't help it
    }
    add_desks(values, program);
    const auto memory_offset = [](const Persistent& value) { return is_in_file(value) ? 0 : value.home.offset; };
    std::stable_sort(values.begin(), values.end(),
                     [&](const Persistent& a, const Persistent& b) { return memory_offset(a) < memory_offset(b); });
    program.persistent = std::move(values);
    return program;
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options) : impl_(std::make_unique<Impl>(options)) {
  for (const PlanEntry& entry : entries) {
    Draft draft = make_draft(entry, impl_->kernels);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? impl_->persistents.add(entry.name, entry.graph->value(c.root)) : 0);
      if (c.persistent && c.kept) impl_->persistents.keep(draft.persistent_of_class.back());
    }
    impl_->drafts.push_back(std::move(draft));
  }
}
Planner::~Planner() = default;

Program Planner::resident() const { return impl_->make(std::vector<bool>(impl_->persistents.size(), false), nullptr, nullptr, {}, {}); }

int64_t Planner::resident_bytes() const {
  int64_t persistent = 0, most = 0;
  for (size_t i = 0; i < impl_->persistents.size(); ++i) persistent += aligned(impl_->persistents[i].type.bytes());
  for (const Draft& draft : impl_->drafts) most = std::max(most, simulate(draft.model, draft.order).bytes);
  return persistent + most;
}

int64_t Planner::least_bytes() const { return stream_floor(impl_->streams(ComputeRates{}).entries); }

StreamOutlook Planner::outlook(int64_t limit, const ComputeRates& compute, const StreamRates& disk, double beat) const {
  constexpr double kPacked = 0.98;  // of the limit, that live bytes can have: addresses take a little more
  constexpr double kWorth = 0.998;  // of what is to be beaten
  Impl::Search& search = impl_->search(limit, compute, disk);
  StreamOutlook result;
  if (limit < search.floor) return result;
  result.bound = search.computing();
  if (result.bound >= kWorth * beat || !search.find_streamer(kWorth * beat)) return result;
  result.bound = search.streamer->bound();
  if (result.bound >= kWorth * beat) return result;
  const StreamPlan plan = search.streamer->outlook(std::max(search.floor, static_cast<int64_t>(kPacked * static_cast<double>(limit))));
  result.seconds = search.seconds_of(plan);
  impl_->count_disk(search.streams, plan, result);
  return result;
}

StreamedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  constexpr double kGood = 1.002;  // times the bound
  // How early reads may begin, in the time in which all of the memory could be read: the earlier, the less is waited for, and the less
  // memory do addresses leave.
  constexpr double kEarly[] = {0.12, 0.25, 0.5, 1, 0.03};
  constexpr double kLeastEarly = 0.01;  // seconds: a system's hiccup
  Impl::Search& search = impl_->search(limit, compute, disk);
  StreamedProgram result;
  Impl::Made made;
  if (search.find_streamer(std::numeric_limits<double>::infinity())) {
    result.bound = search.streamer->bound();
    double least = std::numeric_limits<double>::infinity();  // seconds
    const auto early = [&](double share) { return std::max(kLeastEarly, share * static_cast<double>(limit) / disk.read); };
    const auto is_good = [&](double seconds) { return seconds <= kGood * result.bound; };
    double careful_least = std::numeric_limits<double>::infinity();
    Impl::Made careful;
    if (impl_->options.careful) careful = impl_->pack_careful(search, early(kEarly[0]), careful_least);
    int64_t target = limit;
    if (!is_good(careful_least)) impl_->pack_plans(search, *search.streamer, early(kEarly[0]), target, made, least);
    // The others by twos, each of which goes on from what the first has found, and doesn't know of its neighbour.
    for (size_t at = 1; at < std::size(kEarly) && !is_good(std::min(least, careful_least)); at += 2) {
      struct Attempt {
        Streamer streamer;
        int64_t target;
        double least;
        Impl::Made made{};
      };
      Attempt attempts[] = {{search.streamer->fork(), target, least}, {search.streamer->fork(), target, least}};
      const auto attempt = [&](size_t i) {
        Attempt& of = attempts[i];
        impl_->pack_plans(search, of.streamer, early(kEarly[at + i]), of.target, of.made, of.least);
      };
      const bool at_once = search.planners > 1;
      call_both(
          at_once, [&] { attempt(0); },
          [&] {
            if (at_once || !is_good(attempts[0].least)) attempt(1);
          });
      for (Attempt& of : attempts) {
        if (is_good(least) || of.least >= least) continue;
        least = of.least;
        made = std::move(of.made);
      }
    }
    if (careful_least <= kGood * least) made = std::move(careful);
    if (made.program.entries.empty()) impl_->pack_least(search, early(kEarly[0]), made);
  }
  if (made.program.entries.empty()) {
    made.program = impl_->least(search.streams, made.plan);
    impl_->forecast(search, made.plan);
  }
  result.program = std::move(made.program);
  result.forecasts = std::move(made.plan.forecasts);
  return result;
}

planning::Problem Planner::problem(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  const Impl::Streams streams = impl_->streams(compute);
  planning::Problem problem{.memory = limit, .disk = disk};
  std::vector<int32_t> number(impl_->persistents.size(), -1);
  for (size_t i = 0; i < number.size(); ++i) {
    const Persistent& value = impl_->persistents[i];
    if (!streams.movable[i]) {
      problem.always += aligned(value.type.bytes());
      continue;
    }
    number[i] = static_cast<int32_t>(problem.lasting.size());
    problem.lasting.push_back({.name = value.name, .bytes = whole_sectors(value.type.bytes())});
  }
  problem.always = whole_sectors(problem.always);
  for (size_t e = 0; e < impl_->drafts.size(); ++e) {
    const Draft& draft = impl_->drafts[e];
    const StreamDraft& stream = streams.drafts[e];
    planning::Run run{.name = draft.name, .weight = draft.weight, .seconds = stream.entry.seconds};
    std::vector<bool> moves(draft.chains.size());
    for (size_t p = 0; p < stream.pieces.size(); ++p) {
      const PieceOf& of = stream.pieces[p];
      const StreamPiece& asked = stream.entry.pieces[p];
      if (of.is_chain) moves[of.index] = true;
      const uint32_t root = of.is_chain ? draft.chains[of.index].classes[0] : of.index;
      planning::Piece piece{.name = draft.graph->value(draft.model.classes[root].root).name,
                            .bytes = asked.bytes,
                            .lasting = asked.persistent < 0 ? -1 : number[static_cast<size_t>(asked.persistent)],
                            .uses = asked.uses};
      run.pieces.push_back(std::move(piece));
    }
    const auto last = static_cast<int32_t>(draft.order.size()) - 1;
    for (size_t i = 0; i < moves.size(); ++i) {
      const Chain& chain = draft.chains[i];
      if (!moves[i] && chain.bytes > 0)
        run.blocks.push_back({.bytes = chain.bytes, .first = chain.first, .last = std::min(chain.last, last)});
    }
    for (int32_t t = 0; t <= last; ++t) {
      const int64_t bytes = aligned(draft.workspaces[static_cast<size_t>(t)]);
      if (bytes > 0) run.blocks.push_back({.bytes = bytes, .first = t, .last = t});
    }
    problem.runs.push_back(std::move(run));
  }
  return problem;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).resident(); }

}  // namespace ort_train
