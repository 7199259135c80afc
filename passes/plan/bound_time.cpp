// Bound's rows of time and of room: see bound.h.

#include <algorithm>
#include <limits>
#include <numeric>

#include "passes/plan/bound.h"
#include "passes/plan/bound_stretch.h"

namespace ort_train::planning {
namespace {

constexpr size_t kRowsARound = 12;  // a run

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

}  // namespace ort_train::planning
