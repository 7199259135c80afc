#include "passes/stream.h"

#include <algorithm>
#include <limits>
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
constexpr double kGood = 1.01;   // of the least time
constexpr size_t kBest = 4;      // ways to plan that are tried again for another target

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

  const std::vector<StreamEntry>& entries;
  const StreamRates rates;
  const int64_t limit, floor;
  Holder holder;
  StreamBound bound;
  std::vector<HoldOrder> orders;
  std::vector<Way> best;  // of the first plan, fastest first

  Impl(const std::vector<StreamEntry>& e, size_t persistents, int64_t l, const StreamRates& r)
      : entries(e), rates(r), limit(l), floor(stream_floor(e)), holder(e, persistents, l, r), bound(e, persistents, l, r) {
    orders.push_back(holder.greedy());
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

  static void sort(std::vector<Way>& ways) {
    std::stable_sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.seconds < b.seconds; });
  }

  bool is_good(const StreamPlan& plan) const { return seconds_of(plan, kRarely) <= bound.seconds() * (1 + kNoGap); }

  // The best of the ways; sorts them by what they lead to.
  StreamPlan fastest(std::vector<Way>& ways, int64_t target) {
    StreamPlan result;
    double least = std::numeric_limits<double>::infinity();
    const Way* chosen = nullptr;
    for (Way& way : ways) {
      if (!chosen || way.order != chosen->order || way.free != chosen->free)
        holder.choose(orders[way.order], target, static_cast<int64_t>(way.free * static_cast<double>(target - floor)));
      chosen = &way;
      StreamPlan plan = make_plan(entries, holder, target, rates, way.ahead);
      way.seconds = seconds_of(plan, 0);
      if (way.seconds >= least) continue;
      least = way.seconds;
      result = std::move(plan);
      if (!is_good(result)) continue;
      ways.resize(static_cast<size_t>(&way - ways.data()) + 1);
      break;
    }
    sort(ways);
    return result;
  }
};

Streamer::Streamer(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates)
    : impl_(std::make_unique<Impl>(entries, persistents, limit, rates)) {}
Streamer::~Streamer() = default;

double Streamer::bound() const { return impl_->bound.seconds(); }

StreamPlan Streamer::plan(int64_t target, bool thorough) {
  if (std::vector<Impl::Way> ways = impl_->best; !ways.empty()) return impl_->fastest(ways, target);
  if (impl_->orders.size() == 1) impl_->find_order(kFewFree[0]);
  if (!thorough) {
    std::vector<Impl::Way> ways = impl_->ways(kFewFree, kFewAhead);
    return impl_->fastest(ways, target);
  }
  for (const double share : kFreeOfBound) impl_->find_order(share);
  // How far ahead reads begin matters most: with few shares at first, then with all of them for what does about as well.
  std::vector<Impl::Way> ways = impl_->ways(kFewFree, kAhead);
  StreamPlan plan = impl_->fastest(ways, target);
  std::vector<double> good;
  for (const Impl::Way& way : ways) {
    if (way.seconds < kGood * ways[0].seconds && std::find(good.begin(), good.end(), way.ahead) == good.end()) good.push_back(way.ahead);
  }
  std::vector<double> rest;
  for (const double free : kFree) {
    if (std::find(std::begin(kFewFree), std::end(kFewFree), free) == std::end(kFewFree)) rest.push_back(free);
  }
  if (!impl_->is_good(plan)) {
    std::vector<Impl::Way> more = impl_->ways(rest, good);
    StreamPlan other = impl_->fastest(more, target);
    if (more[0].seconds < ways[0].seconds) plan = std::move(other);
    ways.insert(ways.end(), more.begin(), more.end());
    impl_->sort(ways);
  }
  ways.resize(std::min(ways.size(), kBest));
  impl_->best = std::move(ways);
  return plan;
}

}  // namespace ort_train
