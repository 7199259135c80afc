#include "passes/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "passes/pack.h"
#include "passes/plan_draft.h"
#include "passes/stream_fit.h"
#include "passes/stream_spread.h"

namespace ort_train {
namespace {

// From a draft (and what stream.h decided of it) to an entry of a program whose persistent values have their places.
class EntryMaker {
 public:
  // `enough`: bytes of the arena that it may take without looking for less. `placed`: one of the same storages, whose addresses it gets.
  EntryMaker(const Draft& draft, const std::vector<Persistent>& persistents, const StreamDraft* stream, const std::vector<Visit>* visits,
             int64_t enough, const Entry* placed)
      : draft_(draft),
        graph_(*draft.graph),
        persistents_(persistents),
        stream_(stream),
        visits_(visits),
        enough_(enough),
        placed_(placed) {}

  Entry make(Program& program) {
    entry_ = {.name = draft_.name, .value_places = std::vector<Place>(graph_.value_count()), .keep = draft_.keep};
    lay_code();
    add_storages();
    pack_storages(program.persistent_bytes);
    place_values();
    place_spills(program);
    return std::move(entry_);
  }

 private:
  // The instructions, without places: computing steps, transfers between them.
  void lay_code() {
    const size_t steps = draft_.order.size(), count = visits_ ? visits_->size() : 0;
    std::vector<std::vector<size_t>> issues(steps + 1), needs(steps + 1), begins(steps + 1), waits(steps + 1);
    read_at_.assign(count, -1);
    read_wait_at_.assign(count, -1);
    write_at_.assign(count, -1);
    write_wait_at_.assign(count, -1);
    for (size_t v = 0; v < count; ++v) {
      const Visit& visit = (*visits_)[v];
      if (visit.issue >= 0) {
        issues[static_cast<size_t>(visit.issue)].push_back(v);
        needs[static_cast<size_t>(visit.first)].push_back(v);
      }
      if (visit.written < 0) continue;
      begins[static_cast<size_t>(visit.last) + 1].push_back(v);
      waits[static_cast<size_t>(visit.written)].push_back(v);
    }
    const auto add = [&](Action action, int32_t transfer = -1) {
      entry_.code.push_back({.action = action, .transfer = transfer});
      return static_cast<int32_t>(entry_.code.size()) - 1;
    };
    for (size_t t = 0; t <= steps; ++t) {
      for (size_t v : begins[t]) write_at_[v] = add(Action::write);
      for (size_t v : waits[t]) write_wait_at_[v] = add(Action::wait, write_at_[v]);
      for (size_t v : issues[t]) read_at_[v] = add(Action::read);
      for (size_t v : needs[t]) read_wait_at_[v] = add(Action::wait, read_at_[v]);
      if (t == steps) break;
      step_at_.push_back(add(Action::compute));
      entry_.code.back().node = draft_.model.steps[draft_.order[t]].node;
    }
  }

  void add_storages() {
    const auto values = values_by_class(graph_, draft_.model);
    std::vector<bool> moves(draft_.chains.size(), false);
    for (const PieceOf& piece : stream_ ? stream_->pieces : std::vector<PieceOf>{}) {
      if (piece.is_chain) moves[piece.index] = true;
    }
    storage_of_chain_.assign(draft_.chains.size(), -1);
    const auto chain_values = [&](const Chain& chain) {
      std::vector<ValueId> all;
      for (uint32_t c : chain.classes) all.insert(all.end(), values[c].begin(), values[c].end());
      return all;
    };
    for (size_t i = 0; i < draft_.chains.size(); ++i) {
      if (moves[i]) continue;
      const Chain& chain = draft_.chains[i];
      const Value& first = graph_.value(draft_.model.classes[chain.classes[0]].root);
      storage_of_chain_[i] = static_cast<int32_t>(entry_.storages.size());
      entry_.storages.push_back({.name = first.name,
                                 .purpose = purpose_of(first.kind),
                                 .place = {.bytes = first.bytes()},
                                 .values = chain_values(chain),
                                 .first = at_step(chain.first, true),
                                 .last = at_step(chain.last, false)});
    }
    for (int32_t at = 0; at < static_cast<int32_t>(draft_.workspaces.size()); ++at) {
      if (draft_.workspaces[at] == 0) continue;
      entry_.storages.push_back({.name = describe(graph_, graph_.order()[at]),
                                 .purpose = Purpose::workspace,
                                 .place = {.bytes = draft_.workspaces[at]},
                                 .values = {},
                                 .first = step_at_[at],
                                 .last = step_at_[at]});
    }
    visits_of_.resize(draft_.model.classes.size());
    for (size_t v = 0; visits_ && v < visits_->size(); ++v) {
      const Visit& visit = (*visits_)[v];
      const PieceOf& piece = stream_->pieces[visit.piece];
      const Chain* chain = piece.is_chain ? &draft_.chains[piece.index] : nullptr;
      const Value& first = graph_.value(draft_.model.classes[chain ? chain->classes[0] : piece.index].root);
      for (uint32_t c : chain ? chain->classes : std::vector<uint32_t>{piece.index}) visits_of_[c].push_back(v);
      storage_of_visit_.push_back(entry_.storages.size());
      entry_.storages.push_back({.name = first.name,
                                 .purpose = purpose_of(first.kind),
                                 .place = {.bytes = whole_sectors(first.bytes())},
                                 .values = chain ? chain_values(*chain) : values[piece.index],
                                 .first = read_at_[v] >= 0 ? read_at_[v] : step_at_[visit.first],
                                 .last = write_wait_at_[v] >= 0 ? write_wait_at_[v] : step_at_[visit.last]});
    }
  }

  // Graph inputs are there before the first transfer; what is kept is there after the last one.
  int32_t at_step(int32_t step, bool begins) const {
    const auto steps = static_cast<int32_t>(step_at_.size());
    if (begins && step == 0) return 0;
    if (!begins && step >= steps - 1) return std::max(0, static_cast<int32_t>(entry_.code.size()) - 1);
    return step_at_[step];
  }

  // Addresses above the persistent values, and the peak.
  void pack_storages(int64_t persistent_bytes) {
    std::vector<Block> blocks;
    for (const Storage& storage : entry_.storages)
      blocks.push_back({.bytes = storage.place.bytes, .first = storage.first, .last = storage.last});
    for (size_t storage : storage_of_visit_) blocks[storage].alignment = kSector;
    entry_.peak_live_bytes = max_live_bytes(blocks, &entry_.peak_instruction) + persistent_bytes;
    if (!placed_) pack(blocks, enough_ - persistent_bytes);
    for (size_t i = 0; i < blocks.size(); ++i)
      entry_.storages[i].place.offset = placed_ ? placed_->storages[i].place.offset : blocks[i].offset + persistent_bytes;
  }

  Place place_of(ValueId value, int32_t step) const {
    const uint32_t c = value == kNone ? kNone : draft_.model.class_of[value];
    if (c == kNone) return {};
    const int64_t bytes = graph_.value(value).bytes();
    if (bytes == 0) return {};
    const Persistent* const persistent = draft_.model.classes[c].persistent ? &persistents_[draft_.persistent_of_class[c]] : nullptr;
    const int64_t inside = draft_.model.offset_of[value];
    if (persistent && persistent->disk.bytes == 0) return {.offset = persistent->place.offset + inside, .bytes = bytes};
    if (!visits_of_[c].empty()) {
      size_t found = visits_of_[c].front();  // of several: the last that has begun
      for (size_t v : visits_of_[c]) found = (*visits_)[v].first <= step ? v : found;
      return {.offset = entry_.storages[storage_of_visit_[found]].place.offset + inside, .bytes = bytes};
    }
    if (persistent) return {};  // on the disk, and this entry has no use for it
    return {.offset = entry_.storages[static_cast<size_t>(storage_of_chain_[chain_of_[c]])].place.offset + inside, .bytes = bytes};
  }

  void place_values() {
    chain_of_.assign(draft_.model.classes.size(), 0);
    for (size_t i = 0; i < draft_.chains.size(); ++i) {
      for (uint32_t c : draft_.chains[i].classes) chain_of_[c] = i;
    }
    for (ValueId value = 0; value < graph_.value_count(); ++value) entry_.value_places[value] = place_of(value, 0);
    for (int32_t t = 0; t < static_cast<int32_t>(step_at_.size()); ++t) {
      Instruction& instruction = entry_.code[static_cast<size_t>(step_at_[t])];
      const Node& node = graph_.node(instruction.node);
      const auto place = [&](ValueId value) {
        const Place found = place_of(value, t);
        if (value != kNone) entry_.value_places[value] = found;
        return found;
      };
      for (ValueId value : node.inputs) instruction.inputs.push_back(place(value));
      for (ValueId value : node.outputs) instruction.outputs.push_back(place(value));
    }
    for (const Storage& storage : entry_.storages) {
      if (storage.purpose == Purpose::workspace) entry_.code[static_cast<size_t>(storage.first)].workspace = storage.place;
    }
  }

  // Where transfers go: persistent values to their places on the disk, the entry's own pieces behind those.
  void place_spills(Program& program) {
    std::map<uint32_t, Place> spilled;  // by chain
    int64_t end = 0;
    for (const Persistent& value : persistents_) end = std::max(end, value.disk.offset + whole_sectors(value.disk.bytes));
    for (size_t v = 0; visits_ && v < visits_->size(); ++v) {
      if (read_at_[v] < 0 && write_at_[v] < 0) continue;  // it never leaves
      const PieceOf& piece = stream_->pieces[(*visits_)[v].piece];
      const Storage& storage = entry_.storages[storage_of_visit_[v]];
      Place disk;
      if (piece.is_chain) {
        const auto [at, is_new] = spilled.emplace(piece.index, Place{.offset = end, .bytes = 0});
        if (is_new) {
          at->second.bytes = graph_.value(draft_.model.classes[draft_.chains[piece.index].classes[0]].root).bytes();
          end += whole_sectors(at->second.bytes);
        }
        disk = at->second;
      } else {
        disk = persistents_[draft_.persistent_of_class[piece.index]].disk;
      }
      const Place memory{.offset = storage.place.offset, .bytes = disk.bytes};
      for (int32_t at : {read_at_[v], write_at_[v]}) {
        if (at < 0) continue;
        entry_.code[static_cast<size_t>(at)].memory = memory;
        entry_.code[static_cast<size_t>(at)].disk = disk;
      }
    }
    program.disk_bytes = std::max(program.disk_bytes, end);
  }

  const Draft& draft_;
  const Graph& graph_;
  const std::vector<Persistent>& persistents_;
  const StreamDraft* stream_;  // null: everything is in memory
  const std::vector<Visit>* visits_;
  const int64_t enough_;
  const Entry* const placed_;  // null: it is packed
  Entry entry_;
  std::vector<int32_t> step_at_;                                            // instruction of each step
  std::vector<int32_t> read_at_, read_wait_at_, write_at_, write_wait_at_;  // instructions of each visit; -1: none
  std::vector<int32_t> storage_of_chain_;                                   // -1: it moves
  std::vector<size_t> chain_of_;                                            // by class
  std::vector<size_t> storage_of_visit_;
  std::vector<std::vector<size_t>> visits_of_;  // by class
};

}  // namespace

struct Planner::Impl {
  PlanOptions options;
  KernelTable kernels;
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
    Streams streams;
    int64_t floor = 0;
    std::unique_ptr<Streamer> streamer;

    // Null where the limit is below the floor. Made when it is asked for: its linear program takes time.
    // `enough`: of a bound; no higher one is looked for.
    Streamer* find_streamer(double enough) {
      if (!streamer && limit >= floor) streamer = std::make_unique<Streamer>(streams.entries, streams.movable.size(), limit, disk, enough);
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
    last_search = std::make_unique<Search>(Search{.limit = limit, .compute = compute, .disk = disk, .streams = streams(compute)});
    last_search->floor = stream_floor(last_search->streams.entries);
    return *last_search;
  }

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

  Program make(const Streams& streams, const StreamPlan& plan, int64_t enough, Earlier earlier) const {
    return make(on_disk(streams, plan), &streams.drafts, &plan, enough, std::move(earlier));
  }

  // With addresses, for which transfers get less time where there is no other way, and then what they leave; the plan is then that one. Not
  // at any price, unless it is the `last` plan that is tried; not where it takes `least` seconds then. Counts the `packings` that are left.
  Program make_within(const Search& search, StreamPlan& plan, int64_t limit, double least, bool last, int64_t& packings) const {
    constexpr int kRounds = 12;
    constexpr double kNear = 1.03;  // of the limit
    constexpr double kDear = 1.01;  // of the time at first
    Program program = make(search.streams, plan, limit, {});
    --packings;
    const bool is_costly = search.others() == 0 && !last;
    if (is_costly && static_cast<double>(program.arena_bytes) > kNear * static_cast<double>(limit)) return program;
    if (is_costly) least = std::min(least, kDear * search.seconds_of(plan));
    for (int round = 0; round < kRounds && program.arena_bytes > limit && packings > 0; ++round) {
      std::vector<bool> changed(program.entries.size());
      bool any = false;
      for (const bool around : {false, true}) {
        if (any || (around && !last && static_cast<double>(program.arena_bytes) > kNear * static_cast<double>(limit))) continue;
        for (size_t e = 0; e < program.entries.size(); ++e) {  // up to the first that takes too much
          if (!shorten(program.entries[e], limit, around, plan.visits[e])) continue;
          any = changed[e] = true;
          plan.forecasts[e] = simulate(search.streams.entries[e], plan.visits[e], search.disk);
        }
      }
      if (!any || search.seconds_of(plan) >= least) break;
      program = make(search.streams, plan, limit, {.program = std::move(program), .changed = std::move(changed)});
      --packings;
    }
    if (program.arena_bytes > limit) return program;
    std::vector<bool> changed(program.entries.size());
    for (size_t e = 0; e < program.entries.size(); ++e)
      changed[e] = search.streams.entries[e].weight >= kRarely &&
                   stretch(program.entries[e], search.streams.entries[e], search.disk, plan.visits[e], plan.forecasts[e]);
    if (std::none_of(changed.begin(), changed.end(), [](bool c) { return c; })) return program;
    return make(search.streams, plan, limit, {.program = std::move(program), .changed = std::move(changed), .stays = true});
  }

  // With addresses, plans within `target` bytes whose reads begin so `early`: what takes less than `least` seconds takes its place. Sets
  // what the first was expected to take; says whether there was room for one.
  bool pack_some(const Search& search, double early, int64_t target, int64_t& packings, double& foreseen, StreamedProgram& result,
                 double& least) const {
    std::vector<StreamPlan> plans = search.streamer->plans(target, early);
    foreseen = search.seconds_of(plans[0]);
    for (size_t i = 0; i < std::min(plans.size(), 1 + search.others()) && packings > 0; ++i) {  // one may be packed better than another
      if (search.seconds_of(plans[i]) >= least) break;
      Program program = make_within(search, plans[i], search.limit, least, target == search.floor, packings);
      if (program.arena_bytes > search.limit) continue;
      const double seconds = search.seconds_of(plans[i]);
      if (seconds < least) {
        least = seconds;
        result.program = std::move(program);
        result.forecasts = std::move(plans[i].forecasts);
      }
      return true;
    }
    return false;
  }

  // Addresses take more than live bytes, or all the time that transfers had: another plan, for less, may be packed better. Begins with
  // those for `target` bytes, and says for how many there was room.
  void pack_plans(const Search& search, double early, int64_t& target, StreamedProgram& result, double& least) const {
    constexpr int kTries = 12, kEnough = 3;
    constexpr double kClose = 1.02;  // times the first plan's seconds
    const int64_t step = search.limit / 50;
    int64_t packings = search.packings(), within = target;
    int found = 0;
    double first = 0, foreseen = 0;
    for (int round = 0; round < kTries && found < kEnough && packings > 0; ++round) {
      if (pack_some(search, early, within, packings, foreseen, result, least)) {
        ++found;
        if (found == 1 && round > 0) pack_some(search, early, within + step / 2, packings, foreseen, result, least);
      }
      if (round == 0) first = foreseen;
      if (found > 0 && least <= kClose * first) target = within;
      if (within == search.floor || least <= kClose * first) break;
      within = std::max(search.floor, within - step);
    }
  }

  // Plans that hold no more than they must, whatever time their packing takes: mostly there is room where none was found above.
  bool pack_least(const Search& search, double early, StreamedProgram& result) const {
    constexpr size_t kTries = 2;
    int64_t packings = std::numeric_limits<int64_t>::max();
    std::vector<StreamPlan> plans = search.streamer->plans(search.floor, early);
    for (size_t i = 0; i < std::min(kTries, plans.size()); ++i) {
      Program program = make_within(search, plans[i], search.limit, std::numeric_limits<double>::infinity(), /*last=*/true, packings);
      if (program.arena_bytes > search.limit) continue;
      result.program = std::move(program);
      result.forecasts = std::move(plans[i].forecasts);
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
      if (!best.entries.empty() && static_cast<double>(best.arena_bytes) <= kLittle * static_cast<double>(floor)) break;
      StreamPlan other = least_streams(streams.entries, streams.movable.size(), more < 0 ? 0 : floor + floor * more / 100);
      Program program = make(streams, other, 0, {});
      if (!best.entries.empty() && program.arena_bytes >= best.arena_bytes) continue;
      best = std::move(program);
      plan = std::move(other);
    }
    return best;
  }

  // With `enough` bytes, not 0, no less is looked for; a program that takes more is left unfinished.
  Program make(const std::vector<bool>& on_disk, const std::vector<StreamDraft>* streams, const StreamPlan* streamed, int64_t enough,
               Earlier earlier) const {
    Program program;
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(on_disk, program);
    if (streams) program.persistent_bytes = whole_sectors(program.persistent_bytes);
    program.arena_bytes = program.persistent_bytes;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (i < earlier.changed.size() && !earlier.changed[i]) {
        program.entries.push_back(std::move(earlier.program.entries[i]));
        program.disk_bytes = std::max(program.disk_bytes, earlier.program.disk_bytes);
      } else {
        EntryMaker maker(drafts[i], values, streams ? &(*streams)[i] : nullptr, streamed ? &streamed->visits[i] : nullptr, enough,
                         earlier.stays ? &earlier.program.entries[i] : nullptr);
        program.entries.push_back(maker.make(program));
      }
      for (const Storage& storage : program.entries.back().storages)
        program.arena_bytes = std::max(program.arena_bytes, aligned(storage.place.end()));
      if (enough > 0 && program.arena_bytes > enough) return program;  // the others can't help it
    }
    // Between runs a tensor of the disk is looked at above what always stays; of accumulators, two.
    for (const Persistent& value : values) {
      if (value.disk.bytes == 0) continue;
      const int64_t desks = value.purpose == Purpose::gradients ? 2 : 1;
      program.arena_bytes = std::max(program.arena_bytes, program.persistent_bytes + desks * whole_sectors(value.disk.bytes));
    }
    std::stable_sort(values.begin(), values.end(),
                     [](const Persistent& a, const Persistent& b) { return a.place.offset < b.place.offset; });
    program.persistent = std::move(values);
    return program;
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  for (const PlanEntry& entry : entries) {
    Draft draft = make_draft(entry, impl_->kernels, options.threads);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? impl_->persistents.add(entry.name, entry.graph->value(c.root)) : 0);
      if (c.persistent && c.kept) impl_->persistents.keep(draft.persistent_of_class.back());
    }
    impl_->drafts.push_back(std::move(draft));
  }
}
Planner::~Planner() = default;

Program Planner::resident() const { return impl_->make(std::vector<bool>(impl_->persistents.size(), false), nullptr, nullptr, 0, {}); }

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
  if (search.find_streamer(std::numeric_limits<double>::infinity())) {
    result.bound = search.streamer->bound();
    double least = std::numeric_limits<double>::infinity();  // seconds
    const auto early = [&](double share) { return std::max(kLeastEarly, share * static_cast<double>(limit) / disk.read); };
    int64_t target = limit;
    for (const double share : kEarly) {
      impl_->pack_plans(search, early(share), target, result, least);
      if (least <= kGood * result.bound) break;
    }
    if (!result.program.entries.empty() || impl_->pack_least(search, early(kEarly[0]), result)) return result;
  }
  StreamPlan plan;
  result.program = impl_->least(search.streams, plan);
  for (size_t e = 0; e < plan.visits.size(); ++e) result.forecasts.push_back(simulate(search.streams.entries[e], plan.visits[e], disk));
  return result;
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).resident(); }

}  // namespace ort_train
