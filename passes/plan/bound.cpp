#include "passes/plan/bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ort_train::planning {
namespace {

constexpr int kIdleRounds = 3;          // of rows of room, that changed next to nothing
constexpr int kFirstRows = 64;          // of memory, a run
constexpr size_t kRowsARound = 12;      // that are made at a time, a run
constexpr double kTransferCost = 1e-4;  // of a second of transfers, of those that take the same time

}  // namespace

Bound::Bound(const Problem& problem, double enough_seconds, int64_t max_bytes)
    : problem_(problem),
      runs_(problem.runs),
      limit_(problem.memory),
      max_bytes_(max_bytes),
      least_runs_(min_counted_runs_per_step(runs_)),
      resident_(problem.lasting.size(), -1) {
  const StreamRates& rates = problem.store;
  const double price = rates.compute_lost / rates.while_computing;
  const double hidden = (rates.while_computing - rates.compute_lost) / (1 - rates.compute_lost);  // by a second of computing
  price_ = price / (1 - price);
  // Reads and writes at once take at least their sum over what they reach together.
  for (const bool write : {false, true}) rate_[write] = rates.duplex * rates.rate(write) / (1 - price);
  for (const Run& run : runs_) {
    RunRows& rows = rows_.emplace_back();
    rows.begin.resize(run.seconds.size() + 1);
    std::partial_sum(run.seconds.begin(), run.seconds.end(), rows.begin.begin() + 1);
    rows.computing = rows.begin.back();
    for (double& seconds : rows.begin) seconds *= hidden;
    rows.changes.resize(run.seconds.size() + 1);
  }
  for (size_t e = 0; e < runs_.size(); ++e) {
    for (const Piece& piece : runs_[e].pieces) {
      if (piece.lasting < 0) continue;
      int32_t& column = resident_[static_cast<size_t>(piece.lasting)];
      if (column < 0) column = program_.add_column(0, 0, problem.lasting[static_cast<size_t>(piece.lasting)].may_be_resident ? 1 : 0);
    }
  }
  for (size_t e = 0; e < runs_.size(); ++e) {
    add_pieces(e);
    add_memory(e);
    RunRows& rows = rows_[e];
    for (const Transfer& transfer : rows.transfers) rows.work += transfer.max_seconds();
    const auto end = static_cast<int32_t>(runs_[e].seconds.size());
    sort_transfers(rows);
    rows.waited[-1] = program_.add_column(0, 0, 0);
    rows.waited[end] = program_.add_column(0, 0, rows.work);
    add_room(rows, -1, end);
  }
  too_large_ = is_full();
  set_costs(least_runs_, 0);
  find_seconds(enough_seconds);
}

// The column's share of `bytes` is there at steps [from, to).
void Bound::occupy(RunRows& rows, int32_t from, int32_t to, int32_t column, double bytes) const {
  if (from >= to) return;
  rows.changes[static_cast<size_t>(from)][column] += bytes / kUnit;
  rows.changes[static_cast<size_t>(to)][column] -= bytes / kUnit;
}

void Bound::add_pieces(size_t run) {
  std::vector<bool> used(resident_.size());
  held_.emplace_back();
  for (uint32_t p = 0; p < runs_[run].pieces.size(); ++p) {
    const Piece& piece = runs_[run].pieces[p];
    held_[run].emplace_back(piece.uses.size(), -1);
    if (piece.lasting >= 0) used[static_cast<size_t>(piece.lasting)] = true;
    add_piece(run, p);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (resident_[i] >= 0 && !used[i])
      occupy(rows_[run], 0, static_cast<int32_t>(runs_[run].steps()), resident_[i], static_cast<double>(problem_.lasting[i].bytes));
  }
}

void Bound::add_piece(size_t run, uint32_t number) {
  const Piece& piece = runs_[run].pieces[number];
  RunRows& rows = rows_[run];
  const auto steps = static_cast<int32_t>(runs_[run].steps());
  const auto bytes = static_cast<double>(piece.bytes);
  const double read = bytes / rate_[false], write = bytes / rate_[true];
  const bool lasts = piece.lasting >= 0;
  const int32_t resident = lasts ? resident_[static_cast<size_t>(piece.lasting)] : -1;
  if (lasts) occupy(rows, 0, piece.uses.front().step, resident, bytes);
  if (piece.is_read() && piece.uses.front().reads) {
    rows.transfers.push_back({.begin = piece.first_readable_step, .end = piece.uses.front().step, .constant = read});
    if (lasts) rows.transfers.back().terms = {{resident, -read}};
  }
  bool changed = false;
  int32_t change_over = 0;  // the moment from which it can be written
  std::vector<Gap> gaps;    // since then: what is not held through all of them is written
  for (size_t u = 0; u < piece.uses.size(); ++u) {
    const int32_t step = piece.uses[u].last();
    if (piece.uses[u].changes || (u == 0 && !piece.is_read())) {
      add_writes(rows, change_over, write, gaps);
      gaps.clear();
      changed = true;
      change_over = step + 1;
    }
    if (u + 1 == piece.uses.size()) break;
    const int32_t next = piece.uses[u + 1].step;
    if (next == step + 1) continue;
    if (!piece.uses[u + 1].reads) {  // nothing would come back
      if (lasts) occupy(rows, step + 1, next, resident, bytes);
      continue;
    }
    const int32_t held = held_[run][number][u] = program_.add_column(0, 0, 1);
    if (lasts) program_.add_row(0, kInfinity, {{held, 1}, {resident, -1}});
    occupy(rows, step + 1, next, held, bytes);
    rows.transfers.push_back({.begin = step + 1, .end = next, .constant = read, .terms = {{held, -read}}});
    if (changed) gaps.push_back({.held = held, .begin = step + 1, .end = next});
  }
  if (lasts) {
    const int32_t last = piece.uses.back().last() + 1;
    occupy(rows, last, steps, resident, bytes);
    if (changed) gaps.push_back({.held = resident, .begin = last, .end = piece.written_by_step < 0 ? steps : piece.written_by_step});
  } else if (piece.used_in_store_later && changed) {
    const int32_t last = piece.uses.back().last() + 1;
    gaps.push_back({.held = program_.add_column(0, 0, 0), .begin = last, .end = piece.written_by_step < 0 ? steps : piece.written_by_step});
  }
  add_writes(rows, change_over, write, gaps);
}

// By the end of each gap as much is written as is not held through it.
void Bound::add_writes(RunRows& rows, int32_t changed, double seconds, const std::vector<Gap>& gaps) {
  if (gaps.size() == 1) {
    const Gap& gap = gaps[0];
    rows.transfers.push_back(
        {.begin = changed, .end = gap.end, .released = gap.begin, .constant = seconds, .terms = {{gap.held, -seconds}}});
    return;
  }
  std::vector<LinearTerm> sum;
  for (const Gap& gap : gaps) {
    const int32_t written = program_.add_column(0, 0, 1);
    sum.push_back({written, 1});
    std::vector<LinearTerm> terms = sum;
    terms.push_back({gap.held, 1});
    program_.add_row(1, kInfinity, terms);
    rows.transfers.push_back({.begin = changed, .end = gap.end, .released = gap.begin, .terms = {{written, seconds}}});
  }
}

// The rooms of the steps, and rows of a few: the others are made where a solution violates them.
void Bound::add_memory(size_t run) {
  RunRows& rows = rows_[run];
  for (const int64_t least : used_bytes_by_step(problem_, runs_[run])) rows.room.push_back(limit_ - least);
  const auto steps = static_cast<int32_t>(rows.room.size());
  for (int32_t i = 0; i < kFirstRows && steps > 0; ++i)
    memory_row(rows, static_cast<int32_t>(int64_t{steps} * (2 * i + 1) / (2 * kFirstRows)));
}

// The load at a step: that of the row before it, and what changes between them.
Bound::Row Bound::memory_row(RunRows& rows, int32_t step) {
  const auto after = rows.memory_at.upper_bound(step);
  const auto before = after == rows.memory_at.begin() ? rows.memory_at.end() : std::prev(after);
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

// Those that are violated most and don't meet.
std::vector<Bound::Stretch> Bound::worst(std::vector<Stretch> all) {
  std::stable_sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.violation > b.violation; });
  std::vector<Stretch> result;
  for (const Stretch& stretch : all) {
    const auto meets = [&](const Stretch& other) { return stretch.begin < other.end && other.begin < stretch.end; };
    if (result.size() < kRowsARound && std::none_of(result.begin(), result.end(), meets)) result.push_back(stretch);
  }
  return result;
}

// Makes the rows of memory that the solution violates most, some way from each other; false if there are none.
bool Bound::add_violated_memory_rows(RunRows& rows) {
  const std::vector<double> free = free_memory(rows);
  const auto steps = static_cast<int32_t>(free.size());
  const int32_t apart = steps / kFirstRows / 4;
  std::vector<Stretch> overfull;
  for (int32_t t = 0; t < steps; ++t) {
    const double violation = -free[static_cast<size_t>(t)] / static_cast<double>(limit_);
    if (violation > kTolerance && rows.memory_at.count(t) == 0) overfull.push_back({violation, t, t + apart + 1});
  }
  for (const Stretch& stretch : worst(overfull)) memory_row(rows, stretch.begin);
  return !overfull.empty();
}

// Solves until the memory does for all runs that cost something, or for all.
bool Bound::solve(bool is_near, double least_runs) {
  if (too_large_) return false;
  for (bool violated = true; violated; is_near = true) {
    if (!program_.solve(is_near)) return false;
    violated = false;
    for (size_t e = 0; e < runs_.size(); ++e) {
      if (runs_[e].runs_per_step >= least_runs && !is_full() && add_violated_memory_rows(rows_[e])) violated = true;
    }
  }
  return true;
}

// What is minimised: what is waited for, and what transfers cost, of runs that run often enough.
void Bound::set_costs(double least_runs, double of_transfers) {
  std::map<int32_t, double> costs;
  for (size_t e = 0; e < runs_.size(); ++e) {
    const double runs = runs_[e].runs_per_step;
    if (runs < least_runs) continue;
    costs[std::prev(rows_[e].waited.end())->second] += runs;
    for (const Transfer& transfer : rows_[e].transfers) {
      for (const LinearTerm& term : transfer.terms) costs[term.column] += runs * (price_ + of_transfers) * term.factor;
    }
  }
  for (const auto& [column, cost] : costs) program_.set_cost(column, cost);
}

void Bound::find_seconds(double enough_seconds) {
  double certain = 0;
  for (size_t e = 0; e < runs_.size(); ++e) {
    if (runs_[e].runs_per_step < least_runs_) continue;
    seconds_ += runs_[e].runs_per_step * rows_[e].computing;
    for (const Transfer& transfer : rows_[e].transfers) certain += runs_[e].runs_per_step * price_ * transfer.constant;
  }
  certain += seconds_;
  int idle = 0;  // rounds that changed next to nothing
  bool violated = true, is_near = false;
  for (; violated && idle < kIdleRounds && solve(is_near, least_runs_); is_near = true) {
    const double before = seconds_;
    seconds_ = std::max(seconds_, certain + program_.bound());
    idle = is_near && seconds_ < before * (1 + kTolerance) ? idle + 1 : 0;
    violated = false;
    for (size_t e = 0; e < runs_.size() && seconds_ < enough_seconds && !is_full(); ++e) {
      if (runs_[e].runs_per_step >= least_runs_ && add_violated_room_rows(rows_[e])) violated = true;
    }
  }
}

bool Bound::solve_with_free(int64_t bytes) {
  set_costs(0, kTransferCost);  // of what takes the same time, what moves least; rare runs too
  free_ = bytes;
  for (const RunRows& rows : rows_) {
    for (const auto& [step, row] : rows.memory_at) program_.set_upper(row.column, most_load(row.room));
    for (const Row& row : rows.underway) program_.set_upper(row.column, most_load(row.room));
  }
  return solve(/*is_near=*/false, 0);
}

}  // namespace ort_train::planning
