#include "passes/stream.h"

#include <algorithm>
#include <span>

#include "passes/stream_bound.h"
#include "passes/stream_hold.h"
#include "passes/stream_spread.h"

namespace ort_train {
namespace {

// Shares of the memory above the floor that choices leave free for transfers ahead of and behind their steps.
constexpr double kFree[] = {0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6, 0.8, 1};
constexpr double kFewFree[] = {0.06, 0.22};  // and a solution for the first
// Of these, what the linear program is solved for.
constexpr double kFreeOfBound[] = {0, 0.22};
// Seconds of transfers that may wait for the disk when a read is begun ahead, as shares of the entry's time.
constexpr double kAhead[] = {1, 0.02, 0};
constexpr double kFewAhead[] = {1, 0};
constexpr double kNoGap = 2e-4;  // of the bound: no other way is looked for
constexpr double kWell = 1.01;   // of the least time
constexpr size_t kBest = 6;      // plans for a target; the ways to the first are tried again for another

// The stays that the choices lead to, without transfers.
std::vector<Visit> make_visits(const StreamEntry& entry, size_t number, const Holder& holder) {
  std::vector<Visit> visits;
  for (uint32_t p = 0; p < entry.pieces.size(); ++p) {
    const StreamPiece& piece = entry.pieces[p];
    if (holder.is_resident(piece)) continue;
    bool changed = false, first_visit = true;
    for (size_t u = 0; u < piece.uses.size(); ++u) {
      const bool reads = piece.uses[u].reads;
      Visit visit{.piece = p, .first = piece.uses[u].step, .last = piece.uses[u].step};
      changed |= piece.uses[u].changes;
      // Uses in neighbouring steps have nothing between them.
      while (u + 1 < piece.uses.size() && (holder.held(number, p, u) || piece.uses[u + 1].step == piece.uses[u].step + 1)) {
        visit.last = piece.uses[++u].step;
        changed |= piece.uses[u].changes;
      }
      const bool comes_back = u + 1 < piece.uses.size() ? piece.uses[u + 1].reads : piece.persistent >= 0;
      visit.issue = (first_visit && piece.persistent < 0) || !reads ? -1 : visit.first;
      visit.written = changed && comes_back ? visit.last + 1 : -1;
      if (visit.written >= 0) changed = false;
      first_visit = false;
      visits.push_back(visit);
    }
  }
  std::stable_sort(visits.begin(), visits.end(), [](const Visit& a, const Visit& b) { return a.first < b.first; });
  return visits;
}

}  // namespace

std::vector<int64_t> least_load(const StreamEntry& entry) {
  std::vector<int64_t> load = entry.fixed;
  for (const StreamPiece& piece : entry.pieces) {
    for (const StreamUse& use : piece.uses) load[static_cast<size_t>(use.step)] += piece.bytes;
  }
  return load;
}

StreamPlan make_plan(const std::vector<StreamEntry>& entries, const Holder& holder, int64_t limit, const StreamRates& rates, double ahead) {
  StreamPlan plan{.resident = holder.resident(), .visits = {}, .forecasts = {}};
  for (size_t e = 0; e < entries.size(); ++e) {
    std::vector<Visit> visits = make_visits(entries[e], e, holder);
    double seconds = 0;
    for (const double step : entries[e].seconds) seconds += step;
    spread_transfers(entries[e], holder.load(e), limit, rates, ahead < 0 ? ahead : ahead * seconds, visits);
    plan.forecasts.push_back(simulate(entries[e], visits, rates));
    plan.visits.push_back(std::move(visits));
  }
  return plan;
}

int64_t stream_floor(const std::vector<StreamEntry>& entries) {
  int64_t floor = 0;
  for (const StreamEntry& entry : entries) {
    for (const int64_t bytes : least_load(entry)) floor = std::max(floor, bytes);
  }
  return floor;
}

StreamPlan least_streams(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit) {
  const StreamRates nominal;
  Holder holder(entries, persistents, limit, nominal);
  holder.choose(holder.greedy(), limit, 0);
  return make_plan(entries, holder, limit, nominal, -1);
}

struct Streamer::Impl {
  // A way to plan.
  struct Way {
    size_t order = 0;
    double free = 0, ahead = 0;
    double seconds = 0;
  };
  struct Found {
    Way way;
    StreamPlan plan;
  };

  const std::vector<StreamEntry>& entries;
  const StreamRates rates;
  const int64_t limit, floor;
  Holder holder;
  StreamBound bound;
  std::vector<HoldOrder> orders;
  bool has_first = false;  // of the linear program
  std::vector<Way> best;   // of the first plans, fastest first

  Impl(const std::vector<StreamEntry>& e, size_t persistents, int64_t l, const StreamRates& r)
      : entries(e), rates(r), limit(l), floor(stream_floor(e)), holder(e, persistents, l, r), bound(e, persistents, l, r) {
    orders.push_back(holder.greedy());
  }

  void find_first_order() {
    if (!has_first) find_order(kFewFree[0]);
    has_first = true;
  }

  void find_order(double share) {
    if (!bound.settle(static_cast<int64_t>(share * static_cast<double>(limit - floor)))) return;
    HoldOrder order = holder.like(bound);
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
  }

  double seconds_of(const StreamPlan& plan, double least_weight) const {
    double seconds = 0;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].weight >= least_weight) seconds += entries[e].weight * plan.forecasts[e].seconds;
    }
    return seconds;
  }

  std::vector<Way> ways(std::span<const double> frees, std::span<const double> aheads) const {
    std::vector<Way> all;
    for (size_t order = orders.size(); order-- > 0;) {
      for (const double free : frees) {
        for (const double ahead : aheads) all.push_back({.order = order, .free = free, .ahead = ahead});
      }
    }
    return all;
  }

  bool is_good(const StreamPlan& plan) const { return seconds_of(plan, kRarely) <= bound.seconds() * (1 + kNoGap); }

  // `found` keeps the fastest, in their order. With `may_stop` what comes after a good one is not tried; says whether there is one.
  bool try_out(std::vector<Way>& ways, int64_t target, std::vector<Found>& found, bool may_stop) {
    const Way* last = nullptr;
    for (Way& way : ways) {
      if (!last || way.order != last->order || way.free != last->free)
        holder.choose(orders[way.order], target, static_cast<int64_t>(way.free * static_cast<double>(target - floor)));
      last = &way;
      StreamPlan plan = make_plan(entries, holder, target, rates, way.ahead);
      way.seconds = seconds_of(plan, 0);
      const bool is_known = std::any_of(found.begin(), found.end(), [&](const Found& f) { return f.way.seconds == way.seconds; });
      if (is_known || (found.size() == kBest && way.seconds > found.back().way.seconds)) continue;
      if (found.size() == kBest) found.pop_back();
      const bool is_fastest = found.empty() || way.seconds < found.front().way.seconds;
      const bool is_enough = is_fastest && is_good(plan);
      const auto at = std::upper_bound(found.begin(), found.end(), way.seconds, [](double s, const Found& f) { return s < f.way.seconds; });
      found.insert(at, Found{way, std::move(plan)});
      if (is_enough && may_stop) return true;
    }
    return false;
  }

  // How far ahead reads begin matters most: with few shares at first, then with all of them for what does about as well.
  void try_all(int64_t target, std::vector<Found>& found) {
    std::vector<Way> few = ways(kFewFree, kAhead);
    if (try_out(few, target, found, true)) return;
    std::vector<double> aheads, frees;
    for (const double ahead : kAhead) {
      const auto does_well = [&](const Way& way) { return way.ahead == ahead && way.seconds < kWell * found.front().way.seconds; };
      if (std::any_of(few.begin(), few.end(), does_well)) aheads.push_back(ahead);
    }
    for (const double free : kFree) {
      if (std::find(std::begin(kFewFree), std::end(kFewFree), free) == std::end(kFewFree)) frees.push_back(free);
    }
    std::vector<Way> more = ways(frees, aheads);
    try_out(more, target, found, true);
  }
};

Streamer::Streamer(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates)
    : impl_(std::make_unique<Impl>(entries, persistents, limit, rates)) {}
Streamer::~Streamer() = default;

double Streamer::bound() const { return impl_->bound.seconds(); }

StreamPlan Streamer::outlook(int64_t target) {
  impl_->find_first_order();
  std::vector<Impl::Way> ways = impl_->ways(kFewFree, kFewAhead);
  std::vector<Impl::Found> found;
  impl_->try_out(ways, target, found, true);
  return std::move(found.front().plan);
}

std::vector<StreamPlan> Streamer::plans(int64_t target) {
  std::vector<Impl::Found> found;
  if (impl_->best.empty()) {
    impl_->find_first_order();
    for (const double share : kFreeOfBound) impl_->find_order(share);
    impl_->try_all(target, found);
    for (const Impl::Found& f : found) impl_->best.push_back(f.way);
  } else {
    std::vector<Impl::Way> ways = impl_->best;
    impl_->try_out(ways, target, found, false);  // all: for the same target the same plans come out again
  }
  std::vector<StreamPlan> plans;
  for (Impl::Found& f : found) plans.push_back(std::move(f.plan));
  return plans;
}

}  // namespace ort_train
