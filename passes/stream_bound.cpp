#include "passes/stream_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ort_train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = 1e6;           // bytes of a row of memory
constexpr int kRounds = 16;             // of rows of time
constexpr size_t kRowsARound = 12;      // an entry
constexpr double kTolerance = 3e-4;     // of an entry's time, that a row of time may be violated
constexpr double kLeast = 0.5;          // of the limit: steps at which less can be there need no row
constexpr double kTransferCost = 1e-4;  // of a second of transfers, of those that take the same time

// Of the marked moments all of the first and the last, and evenly of those between.
std::vector<int32_t> thinned(const std::vector<bool>& marked) {
  constexpr size_t kEnds = 64, kBetween = 256;
  std::vector<int32_t> all, result;
  for (size_t m = 0; m < marked.size(); ++m) {
    if (marked[m]) all.push_back(static_cast<int32_t>(m));
  }
  const size_t stride = all.size() / kBetween + 1;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < kEnds || i + kEnds >= all.size() || i % stride == 0) result.push_back(all[i]);
  }
  return result;
}

}  // namespace

StreamBound::StreamBound(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates)
    : entries_(entries), limit_(limit), rates_(rates), resident_(persistents, 1) {
  for (const StreamEntry& entry : entries) {
    EntryRows& rows = rows_.emplace_back();
    rows.begin.resize(entry.seconds.size() + 1);
    std::partial_sum(entry.seconds.begin(), entry.seconds.end(), rows.begin.begin() + 1);
    rows.changes.resize(entry.seconds.size() + 1);
  }
  find_groups(persistents);
  for (Group& group : groups_) add_group(group);
  for (size_t e = 0; e < entries.size(); ++e) {
    add_memory(e);
    EntryRows& rows = rows_[e];
    for (const Job& job : rows.jobs) {
      rows.work += job.constant;
      for (const LinearTerm& term : job.terms) rows.work += std::max(0.0, term.factor);
    }
    const auto end = static_cast<int32_t>(entries[e].seconds.size());
    rows.waited[-1] = program_.add_column(0, 0, 0);
    rows.waited[end] = program_.add_column(entries[e].weight < kRarely ? 0 : entries[e].weight, 0, rows.work);
    add_time(rows, 0, end);
  }
  for (const Group& group : groups_) {
    auto& held = held_.emplace_back();
    for (const Group::Member& member : group.members) held.emplace_back(member.held.size(), 1.0);
  }
  find_seconds();
}

void StreamBound::find_groups(size_t persistents) {
  const auto key_of = [&](std::vector<int64_t>& key, size_t entry, const StreamPiece& piece) {
    key.push_back(static_cast<int64_t>(entry));
    key.push_back(static_cast<int64_t>(piece.uses.size()));
    for (const StreamUse& use : piece.uses) key.push_back(int64_t{use.step} * 4 + use.reads * 2 + use.changes);
  };
  struct Found {
    std::vector<int64_t> key;
    double bytes = 0;
    std::vector<std::pair<size_t, uint32_t>> pieces;
  };
  std::vector<Found> found(persistents);
  for (size_t e = 0; e < entries_.size(); ++e) {
    auto& of = group_of_piece_.emplace_back(entries_[e].pieces.size());
    for (uint32_t p = 0; p < entries_[e].pieces.size(); ++p) {
      const StreamPiece& piece = entries_[e].pieces[p];
      const size_t at = piece.persistent >= 0 ? static_cast<size_t>(piece.persistent) : found.size();
      if (piece.persistent < 0) found.push_back({.key = {-1}, .pieces = {}});
      key_of(found[at].key, e, piece);
      found[at].bytes = static_cast<double>(piece.bytes);
      found[at].pieces.push_back({e, p});
      of[p] = at;
    }
  }
  std::map<std::vector<int64_t>, size_t> known;
  std::vector<size_t> group_of(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].pieces.empty()) continue;  // it never moves
    const auto [at, is_new] = known.emplace(found[i].key, groups_.size());
    group_of[i] = at->second;
    if (is_new) {
      Group& group = groups_.emplace_back();
      group.persistent = i < persistents;
      for (const auto& [e, p] : found[i].pieces) group.members.push_back({.entry = e, .piece = p, .held = {}});
    }
    groups_[at->second].bytes += found[i].bytes;
  }
  for (auto& of : group_of_piece_) {
    for (size_t& at : of) at = group_of[at];
  }
  group_of_persistent_.assign(group_of.begin(), group_of.begin() + static_cast<std::ptrdiff_t>(persistents));
}

// The column's share of `bytes` is there at steps [from, to).
void StreamBound::occupy(EntryRows& rows, int32_t from, int32_t to, int32_t column, double bytes) const {
  if (from >= to) return;
  rows.changes[static_cast<size_t>(from)][column] += bytes / kUnit;
  rows.changes[static_cast<size_t>(to)][column] -= bytes / kUnit;
}

void StreamBound::add_group(Group& group) {
  if (group.persistent) group.resident = program_.add_column(0, 0, 1);
  for (Group::Member& member : group.members) add_member(group, member);
  for (size_t e = 0; group.persistent && e < entries_.size(); ++e) {
    const bool used = std::any_of(group.members.begin(), group.members.end(), [&](const Group::Member& m) { return m.entry == e; });
    if (!used) occupy(rows_[e], 0, static_cast<int32_t>(entries_[e].seconds.size()), group.resident, group.bytes);
  }
}

void StreamBound::add_member(const Group& group, Group::Member& member) {
  const StreamPiece& piece = entries_[member.entry].pieces[member.piece];
  EntryRows& rows = rows_[member.entry];
  const auto steps = static_cast<int32_t>(entries_[member.entry].seconds.size());
  const double read = group.bytes / rates_.read, write = group.bytes / rates_.write;
  const int32_t resident = group.resident;
  member.held.assign(piece.uses.size(), -1);
  if (group.persistent) {
    occupy(rows, 0, piece.uses.front().step, resident, group.bytes);
    if (piece.uses.front().reads) rows.jobs.push_back({0, piece.uses.front().step, read, {{resident, -read}}});
  }
  bool changed = false;
  int32_t change_over = 0;      // the moment from which it can be written
  std::vector<int32_t> unless;  // if all of these are 1, it need not be
  int32_t until = 0;            // the moment until which it must be written, if it is
  for (size_t u = 0; u < piece.uses.size(); ++u) {
    const int32_t step = piece.uses[u].step;
    if (piece.uses[u].changes || (u == 0 && !group.persistent)) {
      add_write(rows, change_over, until, write, unless);
      unless.clear();
      changed = true;
      change_over = step + 1;
    }
    if (u + 1 == piece.uses.size()) break;
    const int32_t next = piece.uses[u + 1].step;
    if (next == step + 1) continue;
    if (!piece.uses[u + 1].reads) {  // nothing would come back
      if (group.persistent) occupy(rows, step + 1, next, resident, group.bytes);
      continue;
    }
    const int32_t held = member.held[u] = program_.add_column(0, 0, 1);
    if (group.persistent) program_.add_row(0, kInfinity, {{held, 1}, {resident, -1}});
    occupy(rows, step + 1, next, held, group.bytes);
    rows.jobs.push_back({step + 1, next, read, {{held, -read}}});
    if (!changed) continue;
    unless.push_back(held);
    until = next;
  }
  if (group.persistent) {
    occupy(rows, piece.uses.back().step + 1, steps, resident, group.bytes);
    if (changed) unless.push_back(resident);
    until = steps;
  }
  add_write(rows, change_over, until, write, unless);
}

void StreamBound::add_write(EntryRows& rows, int32_t begin, int32_t end, double seconds, const std::vector<int32_t>& unless) {
  if (unless.empty()) return;
  if (unless.size() == 1) {
    rows.jobs.push_back({begin, end, seconds, {{unless[0], -seconds}}});
    return;
  }
  const int32_t written = program_.add_column(0, 0, 1);
  for (const int32_t held : unless) program_.add_row(1, kInfinity, {{written, 1}, {held, 1}});
  rows.jobs.push_back({begin, end, 0, {{written, seconds}}});
}

// The load as a column a step, each the one before it and what changes: rows of few terms. Steps at which all fits into memory need none,
// nor those at which no more can be there than at the step before or behind them.
void StreamBound::add_memory(size_t entry) {
  const StreamEntry& e = entries_[entry];
  EntryRows& rows = rows_[entry];
  const auto steps = e.seconds.size();
  const std::vector<int64_t> least = least_load(e);
  std::vector<double> most(steps);               // above the least
  std::vector<bool> begins(steps), ends(steps);  // something, with this step
  double load = 0;
  for (size_t t = 0; t < steps; ++t) {
    for (const auto& [column, bytes] : rows.changes[t]) {
      load += bytes;
      begins[t] = begins[t] || bytes > 0;
      ends[t] = ends[t] || bytes < 0;
    }
    most[t] = load;
  }
  int32_t before = -1;  // column of the last row
  bool known = false;   // a row stands for the step before this one, or it needs none
  std::map<int32_t, double> change;
  for (size_t t = 0; t < steps; ++t) {
    for (const auto& [column, bytes] : rows.changes[t]) change[column] += bytes;
    const bool fits = static_cast<double>(least[t]) + most[t] * kUnit <= kLeast * static_cast<double>(limit_);
    const bool last_is_fuller = known && !begins[t] && least[t - 1] >= least[t];
    const bool next_is_fuller = t + 1 < steps && !ends[t + 1] && least[t + 1] >= least[t];
    if (fits || last_is_fuller || next_is_fuller) {
      known = fits || last_is_fuller;
      continue;
    }
    known = true;
    const int64_t room = limit_ - least[t];
    const int32_t now = program_.add_column(0, 0, static_cast<double>(room) / kUnit);
    std::vector<LinearTerm> terms{{now, 1}};
    if (before >= 0) terms.push_back({before, -1});
    for (const auto& [column, bytes] : change) {
      if (std::abs(bytes) * kUnit >= 1) terms.push_back({column, -bytes});
    }
    program_.add_row(0, 0, terms);
    rows.memory.push_back({now, room});
    change.clear();
    before = now;
  }
  rows.changes.clear();
}

// The moments that have a column are in order: later ones have waited no less.
int32_t StreamBound::waited_until(EntryRows& rows, int32_t moment) {
  const auto found = rows.waited.find(moment);
  if (found != rows.waited.end()) return found->second;
  const int32_t column = program_.add_column(0, 0, rows.work);
  const auto at = rows.waited.emplace(moment, column).first;
  program_.add_row(0, kInfinity, {{column, 1}, {std::prev(at)->second, -1}});
  program_.add_row(0, kInfinity, {{std::next(at)->second, 1}, {column, -1}});
  return column;
}

// From moment `begin` to `end` all the transfers take place that can't be outside. They may begin before one waits at the first moment, and
// are over after one has waited at the last.
void StreamBound::add_time(EntryRows& rows, int32_t begin, int32_t end) {
  const int32_t from = waited_until(rows, begin - 1), to = waited_until(rows, end);
  const double computing = rows.begin[static_cast<size_t>(end)] - rows.begin[static_cast<size_t>(begin)];
  std::map<int32_t, double> sums;
  double constant = 0;
  for (const Job& job : rows.jobs) {
    if (job.begin < begin || job.end > end) continue;
    constant += job.constant;
    for (const LinearTerm& term : job.terms) sums[term.column] += term.factor;
  }
  std::vector<LinearTerm> terms{{to, 1}, {from, -1}};
  for (const auto& [column, factor] : sums) terms.push_back({column, -factor});
  program_.add_row(constant - computing, kInfinity, terms);
}

// Makes the rows of time that the solution violates most, of stretches that don't meet.
bool StreamBound::add_violated(EntryRows& rows) {
  const size_t moments = rows.begin.size();
  std::vector<bool> begins(moments), ends(moments);
  for (const Job& job : rows.jobs) begins[static_cast<size_t>(job.begin)] = ends[static_cast<size_t>(job.end)] = true;
  const std::vector<int32_t> first = thinned(begins), last = thinned(ends);
  std::vector<std::vector<const Job*>> beginning(moments);
  for (const Job& job : rows.jobs) {
    const auto after = std::upper_bound(first.begin(), first.end(), job.begin);
    if (after != first.begin()) beginning[static_cast<size_t>(*std::prev(after))].push_back(&job);
  }
  // Until a moment that has no column yet as much was waited as until the last before it that has one. Shifted by one: the first is 0.
  std::vector<double> waited(moments + 1);
  for (auto at = rows.waited.begin(); at != rows.waited.end(); ++at) {
    const auto next = std::next(at);
    const auto end = next == rows.waited.end() ? at->first + 1 : next->first;
    std::fill(waited.begin() + at->first + 1, waited.begin() + end + 1, program_.value(at->second));
  }
  struct Stretch {
    double violation;
    int32_t begin, end;
  };
  std::vector<Stretch> worst;
  std::vector<double> inside(last.size());  // seconds of the jobs from a moment on, by where they end
  for (size_t begin = moments; begin-- > 0;) {
    if (beginning[begin].empty()) continue;
    for (const Job* job : beginning[begin]) {
      double seconds = job->constant;
      for (const LinearTerm& term : job->terms) seconds += term.factor * program_.value(term.column);
      if (seconds < 1e-12) continue;
      const auto from = std::lower_bound(last.begin(), last.end(), job->end) - last.begin();
      for (size_t i = static_cast<size_t>(from); i < last.size(); ++i) inside[i] += seconds;
    }
    Stretch most{0, static_cast<int32_t>(begin), 0};
    for (size_t i = 0; i < last.size(); ++i) {
      const auto end = static_cast<size_t>(last[i]);
      if (end < begin) continue;
      const double violation = inside[i] - (rows.begin[end] - rows.begin[begin]) - (waited[end + 1] - waited[begin]);
      if (violation > most.violation) most = {violation, static_cast<int32_t>(begin), last[i]};
    }
    if (most.violation > kTolerance * rows.begin.back()) worst.push_back(most);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const Stretch& a, const Stretch& b) { return a.violation > b.violation; });
  std::vector<Stretch> made;
  for (const Stretch& stretch : worst) {
    const auto meets = [&](const Stretch& other) { return stretch.begin < other.end && other.begin < stretch.end; };
    if (std::any_of(made.begin(), made.end(), meets)) continue;
    made.push_back(stretch);
    add_time(rows, stretch.begin, stretch.end);
    if (made.size() == kRowsARound) break;
  }
  return !made.empty();
}

void StreamBound::find_seconds() {
  double computing = 0;
  for (size_t e = 0; e < entries_.size(); ++e) {
    if (entries_[e].weight >= kRarely) computing += entries_[e].weight * rows_[e].begin.back();
  }
  seconds_ = computing;
  for (int round = 0; round < kRounds && program_.solve(/*is_near=*/round > 1); ++round) {
    seconds_ = std::max(seconds_, computing + program_.bound());
    bool violated = false;
    for (size_t e = 0; e < entries_.size(); ++e) {
      if (entries_[e].weight >= kRarely && add_violated(rows_[e])) violated = true;
    }
    if (!violated) break;
  }
}

bool StreamBound::settle(int64_t free) {
  if (by_time_) {  // of what takes the same time, what moves least; rare entries too
    by_time_ = false;
    std::map<int32_t, double> costs;
    for (size_t e = 0; e < entries_.size(); ++e) {
      costs[std::prev(rows_[e].waited.end())->second] += entries_[e].weight;
      for (const Job& job : rows_[e].jobs) {
        for (const LinearTerm& term : job.terms) costs[term.column] += kTransferCost * entries_[e].weight * term.factor;
      }
    }
    for (const auto& [column, cost] : costs) program_.set_cost(column, cost);
  }
  for (const EntryRows& rows : rows_) {
    for (const Row& row : rows.memory) program_.set_upper(row.column, static_cast<double>(std::max<int64_t>(0, row.room - free)) / kUnit);
  }
  if (!program_.solve()) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t m = 0; m < groups_[g].members.size(); ++m) {
      const auto& columns = groups_[g].members[m].held;
      for (size_t u = 0; u < columns.size(); ++u) held_[g][m][u] = columns[u] < 0 ? 1 : program_.value(columns[u]);
    }
  }
  for (size_t i = 0; i < resident_.size(); ++i) {
    const int32_t column = groups_.empty() ? -1 : groups_[group_of_persistent_[i]].resident;
    resident_[i] = column < 0 ? 1 : program_.value(column);
  }
  return true;
}

double StreamBound::held(size_t entry, uint32_t piece, size_t use) const {
  const size_t g = group_of_piece_[entry][piece];
  for (size_t m = 0; m < groups_[g].members.size(); ++m) {
    if (groups_[g].members[m].entry == entry) return held_[g][m][use];
  }
  return 1;
}

}  // namespace ort_train
