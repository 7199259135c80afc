#include "passes/stream.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>

#include "passes/both.h"
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
constexpr double kNoGap = 2e-4;         // of the bound: no other way is looked for
constexpr double kSmallGap = 2e-3;      // nor is one improved
constexpr double kWell = 1.01;          // of the least time
constexpr int64_t kSearch = 1'000'000;  // steps and pieces that are planned while a plan is improved
constexpr int64_t kMostTries = 250;     // of that, too
constexpr int64_t kLeastTries = 150;    // fewer lead nowhere
constexpr size_t kBest = 6;             // plans for a target; the ways to the first are tried again for another

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

StreamPlan make_plan(const std::vector<StreamEntry>& entries, const Holder& holder, int64_t limit, const StreamRates& rates,
                     Eagerness eagerness) {
  StreamPlan plan{.resident = holder.resident(), .visits = {}, .forecasts = {}};
  const double share = eagerness.queued;
  for (size_t e = 0; e < entries.size(); ++e) {
    std::vector<Visit> visits = make_visits(entries[e], e, holder);
    if (share >= 0) eagerness.queued = share * std::accumulate(entries[e].seconds.begin(), entries[e].seconds.end(), 0.0);
    spread_transfers(entries[e], holder.load(e), limit, rates, eagerness, visits);
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
  return make_plan(entries, holder, limit, nominal, {});
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
  // Where a thread makes plans.
  struct Bench {
    Holder holder;
    size_t order = ~size_t{0};  // what is chosen there
    int64_t target = 0, free = 0;
  };

  const std::vector<StreamEntry>& entries;
  const StreamRates rates;
  const int64_t limit, floor;
  std::vector<Bench> benches;          // one for each thread that looks
  std::shared_ptr<StreamBound> bound;  // forks ask for its seconds only
  std::vector<HoldOrder> orders;
  bool has_first = false;  // of the linear program
  double early = std::numeric_limits<double>::infinity();
  std::vector<Way> first;                   // to the first plans, fastest first
  std::map<double, std::vector<Way>> best;  // by `early`: the same, improved

  Impl(const std::vector<StreamEntry>& e, size_t persistents, int64_t l, const StreamRates& r, double enough, int planners)
      : entries(e), rates(r), limit(l), floor(stream_floor(e)), bound(std::make_shared<StreamBound>(e, persistents, l, r, enough)) {
    const Holder holder(e, persistents, l, r);
    for (int i = 0; i < planners; ++i) benches.push_back({.holder = holder});
    orders.push_back(benches[0].holder.greedy());
  }

  void find_first_order() {
    if (!has_first) find_order(kFewFree[0]);
    has_first = true;
  }

  void find_order(double share) {
    if (!bound->settle(static_cast<int64_t>(share * static_cast<double>(limit - floor)))) return;
    HoldOrder order = benches[0].holder.like(*bound);
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

  bool is_good(const StreamPlan& plan) const { return seconds_of(plan, kRarely) <= bound->seconds() * (1 + kNoGap); }

  int64_t free_of(const Way& way, int64_t target) const { return static_cast<int64_t>(way.free * static_cast<double>(target - floor)); }

  StreamPlan plan_of(Bench& bench, const Way& way, int64_t target) const {
    const int64_t free = free_of(way, target);
    if (bench.order != way.order || bench.target != target || bench.free != free) {
      bench.holder.choose(orders[way.order], target, free);
      bench.order = way.order, bench.target = target, bench.free = free;
    }
    return make_plan(entries, bench.holder, target, rates, {.queued = way.ahead, .early = early});
  }

  // Keeps the fastest, in their order; says whether this is a good one.
  bool keep(const Way& way, StreamPlan plan, std::vector<Found>& found) const {
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const Found& f) { return f.way.seconds == way.seconds; });
    if (is_known || (found.size() == kBest && way.seconds > found.back().way.seconds)) return false;
    if (found.size() == kBest) found.pop_back();
    const bool is_fastest = found.empty() || way.seconds < found.front().way.seconds;
    const bool is_enough = is_fastest && is_good(plan);
    const auto at = std::upper_bound(found.begin(), found.end(), way.seconds, [](double s, const Found& f) { return s < f.way.seconds; });
    found.insert(at, Found{way, std::move(plan)});
    return is_enough;
  }

  // With `may_stop` what comes after a good one is not tried; says whether there is one. Two threads try by groups that hold the same.
  bool try_out(std::vector<Way>& ways, int64_t target, std::vector<Found>& found, bool may_stop) {
    const auto end_of = [&](size_t at) {
      size_t end = at;
      while (end < ways.size() && ways[end].order == ways[at].order && ways[end].free == ways[at].free) ++end;
      return end;
    };
    for (size_t begin = 0, end = 0; begin < ways.size(); begin = end) {
      const bool is_alone = benches.size() == 1 || (may_stop && found.empty());
      const size_t middle = is_alone ? begin + 1 : end_of(begin);
      end = is_alone ? middle : end_of(middle);
      std::vector<StreamPlan> plans(end - begin);
      const auto try_some = [&](Bench& bench, size_t from, size_t to) {
        for (size_t i = from; i < to; ++i) {
          plans[i - begin] = plan_of(bench, ways[i], target);
          ways[i].seconds = seconds_of(plans[i - begin], 0);
        }
      };
      call_both(
          end > middle, [&] { try_some(benches.front(), begin, middle); }, [&] { try_some(benches.back(), middle, end); });
      for (size_t i = begin; i < end; ++i) {
        if (keep(ways[i], std::move(plans[i - begin]), found) && may_stop) return true;
      }
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

  // A transfer of a plan, and what would save it: candidates to be held.
  struct Transfer {
    size_t entry;
    uint32_t piece;
    int32_t use;    // held from there on; -1: resident
    double waited;  // seconds, for it
  };

  // Reads in the order in which they are wanted.
  std::vector<Transfer> transfers_of(const StreamPlan& plan) const {
    std::vector<Transfer> all;
    StreamTimes times;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].weight < kRarely) continue;
      simulate(entries[e], plan.visits[e], rates, &times);
      for (size_t v = 0; v < plan.visits[e].size(); ++v) {
        const Visit& visit = plan.visits[e][v];
        if (visit.issue < 0) continue;
        const std::vector<StreamUse>& uses = entries[e].pieces[visit.piece].uses;
        const auto use = std::lower_bound(uses.begin(), uses.end(), visit.first, [](const StreamUse& u, int32_t t) { return u.step < t; });
        all.push_back({e, visit.piece, static_cast<int32_t>(use - uses.begin()) - 1, times.waited[v]});
      }
    }
    return all;
  }

  // Moves to the front of the order, or somewhere else, what may shorten the waiting; by chance.
  void change(HoldOrder& order, const std::vector<Transfer>& transfers, std::mt19937& random) const {
    constexpr size_t kBefore = 24;  // transfers, that something may have been waited for because of
    const auto upto = [&](size_t n) { return static_cast<size_t>(random() % n); };
    auto chosen = order.begin() + static_cast<std::ptrdiff_t>(upto(order.size()));
    auto to = order.begin() + static_cast<std::ptrdiff_t>(upto(order.size()));
    if (!transfers.empty() && random() % 4 != 0) {
      double waited = 0;
      for (const Transfer& transfer : transfers) waited += transfer.waited;
      double at = waited * static_cast<double>(random() % 65536) / 65536;
      size_t i = 0;
      while (i + 1 < transfers.size() && (at -= transfers[i].waited) > 0) ++i;
      const Transfer& transfer = transfers[i - std::min(i, upto(kBefore))];
      const int32_t persistent = entries[transfer.entry].pieces[transfer.piece].persistent;
      const auto saves = [&](const HoldCandidate& candidate) {
        if (candidate.use >= 0 || transfer.use >= 0)
          return candidate.entry == transfer.entry && candidate.piece == transfer.piece && candidate.use == transfer.use;
        return entries[candidate.entry].pieces[candidate.piece].persistent == persistent;
      };
      const auto found = std::find_if(order.begin(), order.end(), saves);
      if (found != order.end()) chosen = found;
      to = order.begin();
    }
    if (chosen < to)
      std::rotate(chosen, chosen + 1, to + 1);
    else
      std::rotate(to, chosen, chosen + 1);
  }

  // Something else to hold, and what comes of it.
  struct Change {
    HoldOrder order{};
    std::mt19937 after{};  // the state of chance behind it
    StreamPlan plan{};
    double seconds = 0;
  };

  // Looks around the fastest plan, by chance that is the same each time, and keeps what is faster. What comes out is another order. Mostly
  // a change is no better, so two threads try the next one, too; it is dropped where the one before was.
  void improve(int64_t target, std::vector<Found>& found) {
    const Way way = found.front().way;
    HoldOrder order = orders[way.order];
    StreamPlan plan = std::move(found.front().plan);
    double least = seconds_of(plan, kRarely);
    size_t size = 0;
    for (const StreamEntry& entry : entries) size += entry.seconds.size() + entry.pieces.size();
    std::mt19937 random(1);
    std::vector<Transfer> transfers;
    bool is_better = true, is_other = false;
    const int64_t tries = kSearch / static_cast<int64_t>(size + 1);
    int64_t left = tries < kLeastTries ? 0 : std::min(kMostTries, tries);
    const auto goes_on = [&] { return left > 0 && least > bound->seconds() * (1 + kSmallGap); };
    while (goes_on()) {
      if (is_better) transfers = transfers_of(plan);
      std::vector<Change> changes(std::min(benches.size(), static_cast<size_t>(left)));
      std::mt19937 chance = random;
      for (Change& next : changes) {
        next.order = order;
        change(next.order, transfers, chance);
        next.after = chance;
      }
      const auto make = [&](size_t i) {
        Bench& bench = benches[i];
        bench.holder.choose(changes[i].order, target, free_of(way, target));
        bench.order = ~size_t{0};
        changes[i].plan = make_plan(entries, bench.holder, target, rates, {.queued = way.ahead, .early = early});
        changes[i].seconds = seconds_of(changes[i].plan, kRarely);
      };
      call_both(
          changes.size() > 1, [&] { make(0); },
          [&] {
            if (changes.size() > 1) make(1);
          });
      for (Change& tried : changes) {
        random = tried.after;
        --left;
        is_better = tried.seconds < least;
        if (tried.seconds > least) continue;
        order = std::move(tried.order);
        plan = std::move(tried.plan);
        least = tried.seconds;
        is_other = true;
        break;
      }
    }
    if (is_other) orders.push_back(std::move(order));
    found.front() = {
        .way = {.order = is_other ? orders.size() - 1 : way.order, .free = way.free, .ahead = way.ahead, .seconds = seconds_of(plan, 0)},
        .plan = std::move(plan)};
  }
};

Streamer::Streamer(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates, double enough,
                   int planners)
    : impl_(std::make_unique<Impl>(entries, persistents, limit, rates, enough, planners)) {}
Streamer::Streamer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Streamer::~Streamer() = default;

Streamer Streamer::fork() const {
  auto copy = std::make_unique<Impl>(*impl_);
  while (copy->benches.size() > 1) copy->benches.pop_back();
  return Streamer(std::move(copy));
}

int Streamer::planners() const { return static_cast<int>(impl_->benches.size()); }

double Streamer::bound() const { return impl_->bound->seconds(); }

StreamPlan Streamer::outlook(int64_t target) {
  impl_->early = std::numeric_limits<double>::infinity();
  impl_->find_first_order();
  std::vector<Impl::Way> ways = impl_->ways(kFewFree, kFewAhead);
  std::vector<Impl::Found> found;
  impl_->try_out(ways, target, found, true);
  return std::move(found.front().plan);
}

std::vector<StreamPlan> Streamer::plans(int64_t target, double early) {
  std::vector<Impl::Found> found;
  impl_->early = early;
  std::vector<Impl::Way>& best = impl_->best[early];
  if (impl_->best.size() == 1 && best.empty()) {
    impl_->find_first_order();
    for (const double share : kFreeOfBound) impl_->find_order(share);
    impl_->try_all(target, found);
  } else {
    std::vector<Impl::Way> ways = best.empty() ? impl_->first : best;
    impl_->try_out(ways, target, found, false);  // all: for the same target the same plans come out again
  }
  if (best.empty()) {
    if (impl_->first.empty()) {
      for (const Impl::Found& f : found) impl_->first.push_back(f.way);
    }
    impl_->improve(target, found);
    for (const Impl::Found& f : found) best.push_back(f.way);
  }
  std::vector<StreamPlan> plans;
  for (Impl::Found& f : found) plans.push_back(std::move(f.plan));
  return plans;
}

}  // namespace ort_train
