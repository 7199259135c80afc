// Bound's rows of room: see bound.h.

#include <algorithm>
#include <numeric>

#include "passes/plan/bound.h"

namespace ort_train::planning {
namespace {

// From moments 0 to n - 1 takes the first kMoments, the last kMoments, and about as many that are evenly spaced.
std::vector<int32_t> thinned(size_t moments) {
  constexpr size_t kMoments = 192;
  std::vector<int32_t> result;
  const size_t stride = moments / kMoments + 1;
  for (size_t m = 0; m < moments; ++m) {
    if (m < kMoments || m + kMoments >= moments || m % stride == 0) result.push_back(static_cast<int32_t>(m));
  }
  return result;
}

}  // namespace

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

double Bound::Transfer::max_seconds() const {
  double seconds = constant;
  for (const LinearTerm& term : terms) seconds += std::max(0.0, term.factor);
  return seconds;
}

double Bound::value_of(const Transfer& transfer) const {
  double seconds = transfer.constant;
  for (const LinearTerm& term : transfer.terms) seconds += term.factor * program_.value(term.column);
  return seconds;
}

void Bound::sort_transfers(RunRows& rows) {
  for (const Transfer& transfer : rows.transfers) (transfer.released < 0 ? rows.reads : rows.writes).transfers.push_back(&transfer);
  for (Sum* sum : {&rows.reads, &rows.writes}) {
    std::stable_sort(sum->transfers.begin(), sum->transfers.end(),
                     [](const Transfer* a, const Transfer* b) { return a->deadline() < b->deadline(); });
    sum->columns[-1] = program_.add_column(0, 0, 0);
  }
}

int32_t Bound::sum_until(RunRows& rows, Sum& sum, int32_t moment) {
  const auto before = std::prev(sum.columns.upper_bound(moment));
  if (before->first == moment) return before->second;
  const auto from = std::upper_bound(sum.transfers.begin(), sum.transfers.end(), before->first,
                                     [](int32_t m, const Transfer* transfer) { return m < transfer->deadline(); });
  const auto to = std::upper_bound(sum.transfers.begin(), sum.transfers.end(), moment,
                                   [](int32_t m, const Transfer* transfer) { return m < transfer->deadline(); });
  return sum.columns[moment] = add_sum(rows, {from, to}, {{before->second, -1}}, /*all=*/true);
}

// A column for the seconds of these, or (not `all`) for no more than that, above the terms.
int32_t Bound::add_sum(RunRows& rows, const std::vector<const Transfer*>& transfers, std::vector<LinearTerm> terms, bool all) {
  std::map<int32_t, double> factors;
  double constant = 0, max_seconds = 0;
  for (const Transfer* transfer : transfers) {
    constant += transfer->constant;
    max_seconds += transfer->max_seconds();
    for (const LinearTerm& term : transfer->terms) factors[term.column] += term.factor;
  }
  const int32_t column = program_.add_column(0, 0, all ? rows.work : max_seconds);
  terms.insert(terms.begin(), {column, 1});
  for (const auto& [of, factor] : factors) terms.push_back({of, -factor});
  program_.add_row(all ? constant : -kInfinity, constant, terms);
  return column;
}

// Seconds of these that may be under way at a step: no more than there are, and bytes that fit beside what is there then.
int32_t Bound::add_underway(RunRows& rows, const std::vector<const Transfer*>& transfers, int32_t step, double rate) {
  const int32_t column = add_sum(rows, transfers, {}, /*all=*/false);
  const Row load = memory_row(rows, step);
  const int32_t all = program_.add_column(0, 0, most_load(load.room));
  program_.add_row(0, 0, {{all, 1}, {load.column, -1}, {column, -rate / kUnit}});
  rows.underway.push_back({.column = all, .room = load.room});
  return column;
}

// From the end of one step (-1: from the beginning of all) to the beginning of another, or to the end of all, when nothing is under way.
void Bound::add_room(RunRows& rows, int32_t begin, int32_t end) {
  std::vector<LinearTerm> terms{
      {waited_until(rows, end), 1}, {sum_until(rows, rows.reads, end), -1}, {sum_until(rows, rows.writes, end), -1}};
  double constant = 0;
  if (begin >= 0) {
    terms.push_back({waited_until(rows, begin), -1});
    terms.push_back({sum_until(rows, rows.reads, begin), 1});
    terms.push_back({sum_until(rows, rows.writes, begin), 1});
  }
  std::vector<const Transfer*> ahead, pending;
  for (const Transfer* read : rows.reads.transfers) {
    if (read->begin <= begin && read->end > begin && read->end <= end) ahead.push_back(read);
  }
  std::map<int32_t, double> early;  // what may have been written before, while it was still there for its readers
  for (const Transfer* write : rows.writes.transfers) {
    if (write->released <= begin || write->released > end) continue;
    if (write->begin <= begin) {
      constant -= write->constant;
      for (const LinearTerm& term : write->terms) early[term.column] += term.factor;
    } else if (write->end > end) {
      pending.push_back(write);
    }
  }
  for (const auto& [column, factor] : early) terms.push_back({column, factor});
  if (!ahead.empty()) terms.push_back({add_underway(rows, ahead, begin, rate_[false]), 1});
  if (!pending.empty()) terms.push_back({add_underway(rows, pending, end, rate_[true]), 1});
  const double computing = rows.begin[static_cast<size_t>(end)] - rows.begin[static_cast<size_t>(begin + 1)];
  program_.add_row(constant - computing, kInfinity, terms);
}

// Checks the row of room of every pair of moments (begin, end) against the last solution, and adds the most violated; false if there are
// none. `end` moves upwards, while running sums keep what add_room() would put into the row: transfers due by `end`, less reads that may
// be done ahead and writes that may be done before, less writes that may be pending at `end`.
bool Bound::add_violated_room_rows(RunRows& rows) {
  const std::vector<double> free = free_memory(rows);
  const std::vector<int32_t> moments = thinned(rows.begin.size());
  const size_t count = moments.size();
  const auto at_or_after = [&](int32_t moment) {
    return static_cast<size_t>(std::lower_bound(moments.begin(), moments.end(), moment) - moments.begin());
  };
  struct Found {
    int32_t begin;        // step
    size_t counted, end;  // moments
    double seconds;
  };
  const auto found_of = [&](const Sum& sum) {
    std::vector<Found> all;
    for (const Transfer* of : sum.transfers) {
      if (const double seconds = value_of(*of); seconds > 0)
        all.push_back({of->begin, at_or_after(of->deadline()), at_or_after(of->end), seconds});
    }
    return all;
  };
  const std::vector<Found> reads = found_of(rows.reads), writes = found_of(rows.writes);
  std::vector<double> sums(count + 1), waited(count), room(count);  // by moment
  for (const auto* all : {&reads, &writes}) {
    for (const Found& of : *all) sums[of.counted] += of.seconds;
  }
  std::partial_sum(sums.begin(), sums.end(), sums.begin());
  for (size_t i = 0; i < count; ++i) {
    auto last = std::prev(rows.waited.upper_bound(moments[i]));
    while (!program_.has_value(last->second)) --last;  // a row of this round, not solved yet
    waited[i] = program_.value(last->second);
    if (!rows.is_end(moments[i])) room[i] = std::max(0.0, free[static_cast<size_t>(moments[i])]);
  }
  std::vector<Stretch> crowded;
  // For stretches that begin at one moment: reads that may be ahead when it begins, writes that may have been made before, those that may
  // be pending at each moment.
  std::vector<double> ahead(count + 1), early(count + 1), pending(count + 1);
  for (size_t from = 0; from <= count; ++from) {  // 0: the beginning of all
    const int32_t begin = from == 0 ? -1 : moments[from - 1];
    if (rows.is_end(begin)) continue;
    for (auto* all : {&ahead, &early, &pending}) std::fill(all->begin(), all->end(), 0.0);
    for (const Found& read : reads) {
      if (read.begin <= begin) ahead[read.counted] += read.seconds;
    }
    for (const Found& write : writes) {
      if (write.begin <= begin) {
        early[write.counted] += write.seconds;
      } else {
        pending[write.counted] += write.seconds;
        pending[write.end] -= write.seconds;
      }
    }
    const double before = from == 0 ? 0 : sums[from - 1] - waited[from - 1];
    const double max_ahead = from == 0 ? 0 : room[from - 1] / rate_[false];
    double is_ahead = 0, is_early = 0, is_pending = 0;
    Stretch worst_here{0, begin, 0};
    for (size_t to = from; to < count; ++to) {
      is_ahead += ahead[to];
      is_early += early[to];
      is_pending += pending[to];
      const double computing = rows.begin[static_cast<size_t>(moments[to])] - rows.begin[static_cast<size_t>(begin + 1)];
      const double wanted = sums[to] - waited[to] - before - std::min(is_ahead, max_ahead) - is_early -
                            std::min(is_pending, room[to] / rate_[true]) - computing;
      if (wanted > worst_here.violation) worst_here = {wanted, begin, moments[to]};
    }
    if (worst_here.violation > kTolerance * rows.begin.back()) crowded.push_back(worst_here);
  }
  for (const Stretch& stretch : worst(crowded)) add_room(rows, stretch.begin, stretch.end);
  return !crowded.empty();
}

}  // namespace ort_train::planning
