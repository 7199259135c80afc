#include "passes/plan/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ort_train::planning {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kUnit = 1e6;  // bytes of a row of memory
constexpr int kRounds = 16;    // of rows of time
constexpr int kIdleRounds = 3;
constexpr size_t kRowsARound = 12;   // a run
constexpr double kTolerance = 3e-4;  // of a run's time, that a row of time may be violated
constexpr int kFirstRows = 64;       // of memory, a run
constexpr size_t kMemoryRowsARound = 32;
constexpr int kMemoryRounds = 16;
constexpr double kOverfull = 2e-4;      // of the limit, that a row of memory may be violated
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

struct Stretch {  // between two moments
  double violation = 0;
  int32_t begin = 0, end = 0;
};

// Those that are violated most and don't meet; false if there are none.
template <typename Body> bool for_worst(std::vector<Stretch>& all, size_t most, Body&& body) {
  std::stable_sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.violation > b.violation; });
  std::vector<Stretch> done;
  for (const Stretch& stretch : all) {
    const auto meets = [&](const Stretch& other) { return stretch.begin < other.end && other.begin < stretch.end; };
    if (std::any_of(done.begin(), done.end(), meets)) continue;
    done.push_back(stretch);
    body(stretch);
    if (done.size() == most) break;
  }
  return !done.empty();
}

}  // namespace

Bound::Bound(const Problem& problem, double enough)
    : problem_(problem), runs_(problem.runs), limit_(problem.memory), resident_(problem.lasting.size(), 1) {
  const StreamRates& rates = problem.disk;
  const double price = rates.slowed / rates.beside;
  const double hidden = (rates.beside - rates.slowed) / (1 - rates.slowed);  // by a second of computing
  price_ = price / (1 - price);
  for (const bool write : {false, true}) rate_[write] = rates.rate(write) / (1 - price);
  for (const Run& run : runs_) {
    RunRows& rows = rows_.emplace_back();
    rows.begin.resize(run.seconds.size() + 1);
    std::partial_sum(run.seconds.begin(), run.seconds.end(), rows.begin.begin() + 1);
    rows.computing = rows.begin.back();
    for (double& seconds : rows.begin) seconds *= hidden;
    rows.changes.resize(run.seconds.size() + 1);
  }
  find_groups(resident_.size());
  for (Group& group : groups_) add_group(group);
  for (size_t e = 0; e < runs_.size(); ++e) {
    add_memory(e);
    RunRows& rows = rows_[e];
    for (const Job& job : rows.jobs) rows.work += job.most();
    const auto end = static_cast<int32_t>(runs_[e].seconds.size());
    sort_jobs(rows);
    rows.waited[-1] = program_.add_column(0, 0, 0);
    rows.waited[end] = program_.add_column(0, 0, rows.work);
    add_time(rows, 0, end);
  }
  for (const Group& group : groups_) {
    auto& held = held_.emplace_back();
    for (const Group::Member& member : group.members) held.emplace_back(member.held.size(), 1.0);
  }
  set_costs(kRarely, 0);
  find_seconds(enough);
}

void Bound::find_groups(size_t lasting) {
  const auto key_of = [&](std::vector<int64_t>& key, size_t run, const Piece& piece) {
    key.push_back(static_cast<int64_t>(run));
    key.push_back(static_cast<int64_t>(piece.uses.size()));
    for (const Use& use : piece.uses) key.push_back(int64_t{use.step} * 4 + use.reads * 2 + use.changes);
  };
  struct Found {
    std::vector<int64_t> key;
    double bytes = 0;
    std::vector<std::pair<size_t, uint32_t>> pieces;
  };
  std::vector<Found> found(lasting);
  for (size_t e = 0; e < runs_.size(); ++e) {
    auto& of = group_of_piece_.emplace_back(runs_[e].pieces.size());
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      const Piece& piece = runs_[e].pieces[p];
      const size_t at = piece.lasting >= 0 ? static_cast<size_t>(piece.lasting) : found.size();
      if (piece.lasting < 0) found.push_back({.key = {-1}, .pieces = {}});
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
      group.lasting = i < lasting;
      for (const auto& [e, p] : found[i].pieces) group.members.push_back({.run = e, .piece = p, .held = {}});
    }
    groups_[at->second].bytes += found[i].bytes;
  }
  for (auto& of : group_of_piece_) {
    for (size_t& at : of) at = group_of[at];
  }
  group_of_lasting_.assign(group_of.begin(), group_of.begin() + static_cast<std::ptrdiff_t>(lasting));
}

// The column's share of `bytes` is there at steps [from, to).
void Bound::occupy(RunRows& rows, int32_t from, int32_t to, int32_t column, double bytes) const {
  if (from >= to) return;
  rows.changes[static_cast<size_t>(from)][column] += bytes / kUnit;
  rows.changes[static_cast<size_t>(to)][column] -= bytes / kUnit;
}

void Bound::add_group(Group& group) {
  if (group.lasting) group.resident = program_.add_column(0, 0, 1);
  for (Group::Member& member : group.members) add_member(group, member);
  for (size_t e = 0; group.lasting && e < runs_.size(); ++e) {
    const bool used = std::any_of(group.members.begin(), group.members.end(), [&](const Group::Member& m) { return m.run == e; });
    if (!used) occupy(rows_[e], 0, static_cast<int32_t>(runs_[e].seconds.size()), group.resident, group.bytes);
  }
}

void Bound::add_member(const Group& group, Group::Member& member) {
  const Piece& piece = runs_[member.run].pieces[member.piece];
  RunRows& rows = rows_[member.run];
  const auto steps = static_cast<int32_t>(runs_[member.run].seconds.size());
  const double read = group.bytes / rate_[false], write = group.bytes / rate_[true];
  const int32_t resident = group.resident;
  member.held.assign(piece.uses.size(), -1);
  if (group.lasting) {
    occupy(rows, 0, piece.uses.front().step, resident, group.bytes);
    if (piece.uses.front().reads)
      rows.jobs.push_back({.begin = 0, .end = piece.uses.front().step, .constant = read, .terms = {{resident, -read}}});
  }
  bool changed = false;
  int32_t change_over = 0;  // the moment from which it can be written
  std::vector<Gap> gaps;    // since then: what is not held through all of them is written
  for (size_t u = 0; u < piece.uses.size(); ++u) {
    const int32_t step = piece.uses[u].step;
    if (piece.uses[u].changes || (u == 0 && !group.lasting)) {
      add_writes(rows, change_over, write, gaps);
      gaps.clear();
      changed = true;
      change_over = step + 1;
    }
    if (u + 1 == piece.uses.size()) break;
    const int32_t next = piece.uses[u + 1].step;
    if (next == step + 1) continue;
    if (!piece.uses[u + 1].reads) {  // nothing would come back
      if (group.lasting) occupy(rows, step + 1, next, resident, group.bytes);
      continue;
    }
    const int32_t held = member.held[u] = program_.add_column(0, 0, 1);
    if (group.lasting) program_.add_row(0, kInfinity, {{held, 1}, {resident, -1}});
    occupy(rows, step + 1, next, held, group.bytes);
    rows.jobs.push_back({.begin = step + 1, .end = next, .constant = read, .terms = {{held, -read}}});
    if (changed) gaps.push_back({.held = held, .begin = step + 1, .end = next});
  }
  if (group.lasting) {
    const int32_t last = piece.uses.back().step + 1;
    occupy(rows, last, steps, resident, group.bytes);
    if (changed) gaps.push_back({.held = resident, .begin = last, .end = steps});
  }
  add_writes(rows, change_over, write, gaps);
}

// By the end of each gap as much is written as is not held through it.
void Bound::add_writes(RunRows& rows, int32_t changed, double seconds, const std::vector<Gap>& gaps) {
  if (gaps.size() == 1) {
    const Gap& gap = gaps[0];
    rows.jobs.push_back({.begin = changed, .end = gap.end, .released = gap.begin, .constant = seconds, .terms = {{gap.held, -seconds}}});
    return;
  }
  std::vector<LinearTerm> sum;
  for (const Gap& gap : gaps) {
    const int32_t written = program_.add_column(0, 0, 1);
    sum.push_back({written, 1});
    std::vector<LinearTerm> terms = sum;
    terms.push_back({gap.held, 1});
    program_.add_row(1, kInfinity, terms);
    rows.jobs.push_back({.begin = changed, .end = gap.end, .released = gap.begin, .terms = {{written, seconds}}});
  }
}

// The rooms of the steps, and rows of a few: the others are made where a solution violates them.
void Bound::add_memory(size_t run) {
  RunRows& rows = rows_[run];
  for (const int64_t least : least_load(problem_, runs_[run])) rows.room.push_back(limit_ - least);
  const auto steps = static_cast<int32_t>(rows.room.size());
  for (int32_t i = 0; i < kFirstRows && steps > 0; ++i)
    memory_row(rows, static_cast<int32_t>(int64_t{steps} * (2 * i + 1) / (2 * kFirstRows)));
}

// The load at a step: that of the row before it, and what changes between them.
Bound::Row Bound::memory_row(RunRows& rows, int32_t step) {
  const auto behind = rows.memory_at.upper_bound(step);
  const auto before = behind == rows.memory_at.begin() ? rows.memory_at.end() : std::prev(behind);
  const bool is_first = before == rows.memory_at.end();
  if (!is_first && before->first == step) return before->second;
  const int64_t room = rows.room[static_cast<size_t>(step)];
  const Row row{.column = program_.add_column(0, 0, most_load(room)), .room = room};
  std::vector<LinearTerm> terms{{row.column, 1}};
  if (!is_first) terms.push_back({before->second.column, -1});
  std::map<int32_t, double> change;
  for (int32_t t = is_first ? 0 : before->first + 1; t <= step; ++t) {
    for (const auto& [column, bytes] : rows.changes[static_cast<size_t>(t)]) change[column] += bytes;
  }
  for (const auto& [column, bytes] : change) {
    if (std::abs(bytes) * kUnit >= 1) terms.push_back({column, -bytes});
  }
  program_.add_row(0, 0, terms);
  rows.memory_at.emplace(step, row);
  return row;
}

double Bound::most_load(int64_t room) const { return static_cast<double>(std::max<int64_t>(0, room - free_)) / kUnit; }

// By step, in the last solution.
std::vector<double> Bound::free_memory(const RunRows& rows) const {
  std::vector<double> free(rows.room.size());
  double load = 0;
  for (size_t t = 0; t < free.size(); ++t) {
    for (const auto& [column, bytes] : rows.changes[t]) load += bytes * program_.value(column);
    free[t] = (most_load(rows.room[t]) - load) * kUnit;
  }
  return free;
}

// Makes the rows of memory that the solution violates most, some way from each other.
bool Bound::add_overfull(RunRows& rows) {
  const std::vector<double> free = free_memory(rows);
  const auto steps = static_cast<int32_t>(free.size());
  const int32_t apart = steps / kFirstRows / 4;
  std::vector<Stretch> worst;
  for (int32_t t = 0; t < steps; ++t) {
    const double violation = -free[static_cast<size_t>(t)];
    if (violation > kOverfull * static_cast<double>(limit_)) worst.push_back({violation, t, t + apart + 1});
  }
  return for_worst(worst, kMemoryRowsARound, [&](const Stretch& stretch) { memory_row(rows, stretch.begin); });
}

// Solves until the memory does for all runs that cost something, or for all.
bool Bound::solve(bool is_near, double least_weight) {
  for (int round = 0; round < kMemoryRounds; ++round) {
    if (!program_.solve(is_near || round > 0)) return false;
    bool violated = false;
    for (size_t e = 0; e < runs_.size(); ++e) {
      if (runs_[e].weight >= least_weight && add_overfull(rows_[e])) violated = true;
    }
    if (!violated) return true;
  }
  return program_.solve(/*is_near=*/true);
}

// The moments that have a column are in order: later ones have waited no less.
int32_t Bound::waited_until(RunRows& rows, int32_t moment) {
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
void Bound::add_time(RunRows& rows, int32_t begin, int32_t end) {
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
bool Bound::add_violated(RunRows& rows) {
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
  std::vector<Stretch> worst;
  std::vector<double> inside(last.size());  // seconds of the jobs from a moment on, by where they end
  for (size_t begin = moments; begin-- > 0;) {
    if (beginning[begin].empty()) continue;
    for (const Job* job : beginning[begin]) {
      const double seconds = value_of(*job);
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
  return for_worst(worst, kRowsARound, [&](const Stretch& stretch) { add_time(rows, stretch.begin, stretch.end); });
}

int32_t Bound::Job::counted() const { return released < 0 ? end : released; }

double Bound::Job::most() const {
  double seconds = constant;
  for (const LinearTerm& term : terms) seconds += std::max(0.0, term.factor);
  return seconds;
}

double Bound::value_of(const Job& job) const {
  double seconds = job.constant;
  for (const LinearTerm& term : job.terms) seconds += term.factor * program_.value(term.column);
  return seconds;
}

// Reads count when they are wanted, writes when their memory is.
void Bound::sort_jobs(RunRows& rows) {
  for (const Job& job : rows.jobs) (job.released < 0 ? rows.reads : rows.writes).jobs.push_back(&job);
  for (Sum* sum : {&rows.reads, &rows.writes}) {
    std::stable_sort(sum->jobs.begin(), sum->jobs.end(), [](const Job* a, const Job* b) { return a->counted() < b->counted(); });
    sum->columns[-1] = program_.add_column(0, 0, 0);
  }
}

int32_t Bound::sum_until(RunRows& rows, Sum& sum, int32_t moment) {
  const auto before = std::prev(sum.columns.upper_bound(moment));
  if (before->first == moment) return before->second;
  const auto from =
      std::upper_bound(sum.jobs.begin(), sum.jobs.end(), before->first, [](int32_t m, const Job* job) { return m < job->counted(); });
  const auto to = std::upper_bound(sum.jobs.begin(), sum.jobs.end(), moment, [](int32_t m, const Job* job) { return m < job->counted(); });
  std::map<int32_t, double> factors;
  double constant = 0;
  for (auto job = from; job != to; ++job) {
    constant += (*job)->constant;
    for (const LinearTerm& term : (*job)->terms) factors[term.column] += term.factor;
  }
  const int32_t column = program_.add_column(0, 0, rows.work);
  std::vector<LinearTerm> terms{{column, 1}, {before->second, -1}};
  for (const auto& [of, factor] : factors) terms.push_back({of, -factor});
  program_.add_row(constant, constant, terms);
  return sum.columns[moment] = column;
}

// Seconds of the jobs that may be under way at a step: no more than there are, and bytes that fit beside what is there then.
int32_t Bound::add_underway(RunRows& rows, const std::vector<const Job*>& jobs, int32_t step, double rate) {
  std::map<int32_t, double> factors;
  double constant = 0, most = 0;
  for (const Job* job : jobs) {
    if (job->begin > step || job->end <= step) continue;
    constant += job->constant;
    most += job->most();
    for (const LinearTerm& term : job->terms) factors[term.column] += term.factor;
  }
  const int32_t column = program_.add_column(0, 0, most);
  std::vector<LinearTerm> terms{{column, 1}};
  for (const auto& [of, factor] : factors) terms.push_back({of, -factor});
  program_.add_row(-kInfinity, constant, terms);
  const Row load = memory_row(rows, step);
  const int32_t all = program_.add_column(0, 0, most_load(load.room));
  program_.add_row(0, 0, {{all, 1}, {load.column, -1}, {column, -rate / kUnit}});
  rows.underway.push_back({.column = all, .room = load.room});
  return column;
}

int32_t Bound::ahead_behind(RunRows& rows, int32_t step) {
  const auto [at, is_new] = rows.ahead.emplace(step, 0);
  if (is_new) at->second = add_underway(rows, rows.reads.jobs, step, rate_[false]);
  return at->second;
}

int32_t Bound::pending_before(RunRows& rows, int32_t step) {
  const auto [at, is_new] = rows.pending.emplace(step, 0);
  if (is_new) at->second = add_underway(rows, rows.writes.jobs, step, rate_[true]);
  return at->second;
}

// From the end of one step (-1: from the beginning of all) to the beginning of another, or to the end of all, when nothing is under way.
void Bound::add_room(RunRows& rows, int32_t begin, int32_t end) {
  std::vector<LinearTerm> terms{
      {waited_until(rows, end), 1}, {sum_until(rows, rows.reads, end), -1}, {sum_until(rows, rows.writes, end), -1}};
  if (!rows.is_end(end)) terms.push_back({pending_before(rows, end), 1});
  double constant = 0;
  if (begin >= 0) {
    terms.push_back({waited_until(rows, begin), -1});
    terms.push_back({sum_until(rows, rows.reads, begin), 1});
    terms.push_back({sum_until(rows, rows.writes, begin), 1});
    terms.push_back({ahead_behind(rows, begin), 1});
    // What may have been written before, while it was still there for its readers.
    std::map<int32_t, double> early;
    for (const Job* job : rows.writes.jobs) {
      if (job->begin > begin || job->released <= begin || job->released > end) continue;
      constant -= job->constant;
      for (const LinearTerm& term : job->terms) early[term.column] += term.factor;
    }
    for (const auto& [column, factor] : early) terms.push_back({column, factor});
  }
  const double computing = rows.begin[static_cast<size_t>(end)] - rows.begin[static_cast<size_t>(begin + 1)];
  program_.add_row(constant - computing, kInfinity, terms);
}

// Makes the rows of room that the solution violates most, whatever of the free memory is under way.
bool Bound::add_crowded(RunRows& rows) {
  const std::vector<double> free = free_memory(rows);
  const std::vector<int32_t> moments = thinned(std::vector<bool>(rows.begin.size(), true));
  const size_t count = moments.size();
  const auto at_or_after = [&](int32_t moment) {
    return static_cast<size_t>(std::lower_bound(moments.begin(), moments.end(), moment) - moments.begin());
  };
  // By moment: the sums until there, and the most that can be under way.
  std::vector<double> reads(count + 1), writes(count + 1), ahead(count + 1), pending(count + 1), waited(count);
  for (const Job* job : rows.reads.jobs) {
    const double seconds = value_of(*job);
    reads[at_or_after(job->end)] += seconds;
    ahead[at_or_after(job->begin)] += seconds;
    ahead[at_or_after(job->end)] -= seconds;
  }
  for (const Job* job : rows.writes.jobs) {
    const double seconds = value_of(*job);
    writes[at_or_after(job->released)] += seconds;
    pending[at_or_after(job->begin)] += seconds;
    pending[at_or_after(job->end)] -= seconds;
  }
  for (auto* sums : {&reads, &writes, &ahead, &pending}) std::partial_sum(sums->begin(), sums->end(), sums->begin());
  for (size_t i = 0; i < count; ++i) {
    auto last = std::prev(rows.waited.upper_bound(moments[i]));
    while (!program_.has_value(last->second)) --last;  // the rows of time of this round are not solved yet
    waited[i] = program_.value(last->second);
    if (rows.is_end(moments[i])) continue;
    const double room = std::max(0.0, free[static_cast<size_t>(moments[i])]);
    ahead[i] = std::min(ahead[i], room / rate_[false]);
    pending[i] = std::min(pending[i], room / rate_[true]);
  }
  std::vector<Stretch> worst;
  std::vector<double> early(count + 1);         // writes that may have been made before, by where they count
  for (size_t from = count + 1; from-- > 0;) {  // 0: the beginning of all
    const int32_t begin = from == 0 ? -1 : moments[from - 1];
    if (rows.is_end(begin)) continue;
    std::fill(early.begin(), early.end(), 0.0);
    for (const Job* job : rows.writes.jobs) {
      if (begin >= 0 && job->begin <= begin && job->released > begin) early[at_or_after(job->released)] += value_of(*job);
    }
    double crossing = 0;
    Stretch most{0, begin, 0};
    for (size_t to = from; to < count; ++to) {
      crossing += early[to];
      double wanted = reads[to] + writes[to] - pending[to] - waited[to] - rows.begin[static_cast<size_t>(moments[to])] - crossing;
      if (from > 0) {
        const size_t i = from - 1;
        wanted -= reads[i] + writes[i] + ahead[i] - waited[i] - rows.begin[static_cast<size_t>(begin) + 1];
      }
      if (wanted > most.violation) most = {wanted, begin, moments[to]};
    }
    if (most.violation > kTolerance * rows.begin.back()) worst.push_back(most);
  }
  return for_worst(worst, kRowsARound, [&](const Stretch& stretch) { add_room(rows, stretch.begin, stretch.end); });
}

// What is minimised: what is waited for, and what transfers cost, of runs that run often enough.
void Bound::set_costs(double least_weight, double of_transfers) {
  std::map<int32_t, double> costs;
  for (size_t e = 0; e < runs_.size(); ++e) {
    const double weight = runs_[e].weight;
    if (weight < least_weight) continue;
    costs[std::prev(rows_[e].waited.end())->second] += weight;
    for (const Job& job : rows_[e].jobs) {
      for (const LinearTerm& term : job.terms) costs[term.column] += weight * (price_ + of_transfers) * term.factor;
    }
  }
  for (const auto& [column, cost] : costs) program_.set_cost(column, cost);
}

void Bound::find_seconds(double enough) {
  double certain = 0;
  for (size_t e = 0; e < runs_.size(); ++e) {
    if (runs_[e].weight < kRarely) continue;
    seconds_ += runs_[e].weight * rows_[e].computing;
    for (const Job& job : rows_[e].jobs) certain += runs_[e].weight * price_ * job.constant;
  }
  certain += seconds_;
  int idle = 0;  // rounds that changed next to nothing
  for (int round = 0; round < kRounds && idle < kIdleRounds && solve(/*is_near=*/round > 0, kRarely); ++round) {
    const double before = seconds_;
    seconds_ = std::max(seconds_, certain + program_.bound());
    idle = round > 0 && seconds_ < before * (1 + kTolerance) ? idle + 1 : 0;
    bool violated = false;
    for (size_t e = 0; e < runs_.size() && seconds_ < enough; ++e) {
      if (runs_[e].weight < kRarely) continue;
      if (add_violated(rows_[e])) violated = true;
      if (add_crowded(rows_[e])) violated = true;
    }
    if (!violated) break;
  }
}

bool Bound::settle(int64_t free) {
  if (by_time_) {  // of what takes the same time, what moves least; rare runs too
    by_time_ = false;
    set_costs(0, kTransferCost);
  }
  free_ = free;
  for (const RunRows& rows : rows_) {
    for (const auto& [step, row] : rows.memory_at) program_.set_upper(row.column, most_load(row.room));
    for (const Row& row : rows.underway) program_.set_upper(row.column, most_load(row.room));
  }
  if (!solve(/*is_near=*/false, 0)) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t m = 0; m < groups_[g].members.size(); ++m) {
      const auto& columns = groups_[g].members[m].held;
      for (size_t u = 0; u < columns.size(); ++u) held_[g][m][u] = columns[u] < 0 ? 1 : program_.value(columns[u]);
    }
  }
  for (size_t i = 0; i < resident_.size(); ++i) {
    const int32_t column = groups_.empty() ? -1 : groups_[group_of_lasting_[i]].resident;
    resident_[i] = column < 0 ? 1 : program_.value(column);
  }
  return true;
}

double Bound::held(size_t run, uint32_t piece, size_t use) const {
  const size_t g = group_of_piece_[run][piece];
  for (size_t m = 0; m < groups_[g].members.size(); ++m) {
    if (groups_[g].members[m].run == run) return held_[g][m][use];
  }
  return 1;
}

}  // namespace ort_train::planning
