#include "passes/plan/hold.h"

#include <algorithm>
#include <cmath>

#include "exec/program.h"

namespace ort_train::planning {

Holder::Holder(const Problem& problem)
    : problem_(problem), runs_(problem.runs), owners_(problem.lasting.size()), away_(problem.runs.size()) {
  for (size_t e = 0; e < runs_.size(); ++e) {
    least_.push_back(least_load(problem, runs_[e]));
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      if (runs_[e].pieces[p].lasting >= 0) owners_[static_cast<size_t>(runs_[e].pieces[p].lasting)].push_back({e, p});
    }
  }
  find_contended();
  find_candidates();
}

HoldOrder Holder::like(const Bound& bound) const {
  std::vector<std::pair<double, size_t>> shares;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const HoldCandidate& candidate = candidates_[i];
    const Piece& piece = runs_[candidate.run].pieces[candidate.piece];
    const double share = candidate.use < 0 ? bound.resident(static_cast<size_t>(piece.lasting))
                                           : bound.held(candidate.run, candidate.piece, static_cast<size_t>(candidate.use));
    shares.emplace_back(std::round(share * 10), i);
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  HoldOrder order;
  for (const auto& [share, i] : shares) order.push_back(candidates_[i]);
  return order;
}

void Holder::choose(const HoldOrder& order, int64_t limit) {
  load_ = least_;
  full_.assign(load_.size(), 0);
  resident_.assign(owners_.size(), false);
  held_.clear();
  for (const Run& run : runs_) {
    auto& held = held_.emplace_back();
    for (const Piece& piece : run.pieces) held.emplace_back(piece.uses.size(), false);
  }
  for (const HoldCandidate& candidate : order) {
    if (candidate.use < 0)
      make_resident(candidate, limit);
    else
      hold(candidate, limit);
  }
}

// Steps at which not everything can be held; as counts before each step.
void Holder::find_contended() {
  for (const Run& run : runs_) {
    std::vector<int64_t> all = fixed_load(problem_, run);
    const auto steps = static_cast<int32_t>(all.size());
    for (const Piece& piece : run.pieces) {
      const int32_t first = piece.lasting >= 0 ? 0 : piece.uses.front().step;
      const int32_t last = piece.lasting >= 0 ? steps - 1 : piece.uses.back().last();
      for (int32_t t = first; t <= last; ++t) all[static_cast<size_t>(t)] += piece.bytes;
    }
    auto& contended = contended_.emplace_back(1, 0.0);
    for (const int64_t bytes : all) contended.push_back(contended.back() + (bytes > problem_.memory ? 1 : 1e-3));
  }
}

double Holder::span(size_t run, int32_t after, int32_t before) const {  // steps strictly between
  return contended_[run][static_cast<size_t>(before)] - contended_[run][static_cast<size_t>(after) + 1];
}

void Holder::find_candidates() {
  const StreamRates& rates = problem_.disk;
  for (size_t e = 0; e < runs_.size(); ++e) {
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      const Piece& piece = runs_[e].pieces[p];
      bool changed = !piece.is_read();
      for (size_t u = 0; u + 1 < piece.uses.size(); ++u) {
        changed |= piece.uses[u].changes;
        if (!piece.uses[u + 1].reads) continue;  // nothing would come back
        const double saved = 1 / rates.read + (changed ? 1 / rates.write : 0);
        const double steps = span(e, piece.uses[u].last(), piece.uses[u + 1].step);
        candidates_.push_back({e, p, static_cast<int32_t>(u), saved / std::max(steps, 1e-6)});
      }
    }
  }
  for (const auto& owners : owners_) {
    if (owners.empty()) continue;
    if (!problem_.lasting[static_cast<size_t>(runs_[owners[0].run].pieces[owners[0].piece].lasting)].stays) continue;
    double saved = 0, steps = 0;
    for (const Owner& owner : owners) {
      const Piece& piece = runs_[owner.run].pieces[owner.piece];
      const bool changed = std::any_of(piece.uses.begin(), piece.uses.end(), [](const Use& use) { return use.changes; });
      const bool reads = piece.uses.front().reads;
      saved += runs_[owner.run].weight * ((reads ? 1 / rates.read : 0) + (changed ? 1 / rates.write : 0));
      steps +=
          runs_[owner.run].weight * (contended_[owner.run].back() - span(owner.run, piece.uses.front().step, piece.uses.back().last()));
    }
    candidates_.push_back({owners[0].run, owners[0].piece, -1, saved / std::max(steps, 1e-6)});
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const HoldCandidate& a, const HoldCandidate& b) { return a.gain > b.gain; });
}

void Holder::hold(const HoldCandidate& candidate, int64_t cap) {
  const Piece& piece = runs_[candidate.run].pieces[candidate.piece];
  if (is_resident(piece)) return;
  auto& load = load_[candidate.run];
  const auto use = static_cast<size_t>(candidate.use);
  const auto begin = load.begin() + piece.uses[use].last() + 1, end = load.begin() + piece.uses[use + 1].step;
  if (std::any_of(begin, end, [&](int64_t bytes) { return bytes + piece.bytes > cap; })) return;
  for (auto at = begin; at != end; ++at) *at += piece.bytes;
  held_[candidate.run][candidate.piece][use] = true;
}

bool Holder::is_there(const Owner& owner, int32_t step) const {
  const Piece& piece = runs_[owner.run].pieces[owner.piece];
  const auto next = std::upper_bound(piece.uses.begin(), piece.uses.end(), step, [](int32_t t, const Use& use) { return t < use.step; });
  if (next == piece.uses.begin()) return false;
  const auto use = static_cast<size_t>(next - piece.uses.begin()) - 1;
  return piece.uses[use].last() >= step || held_[owner.run][owner.piece][use];
}

void Holder::make_resident(const HoldCandidate& candidate, int64_t cap) {
  const auto number = static_cast<size_t>(runs_[candidate.run].pieces[candidate.piece].lasting);
  const std::vector<Owner>& owners = owners_[number];
  const int64_t bytes = runs_[candidate.run].pieces[candidate.piece].bytes;
  // Where there was no room for the last one there is none for most.
  for (size_t e = 0; e < load_.size(); ++e) {
    if (load_[e].empty() || load_[e][full_[e]] + bytes <= cap) continue;
    const auto step = static_cast<int32_t>(full_[e]);
    if (std::none_of(owners.begin(), owners.end(), [&](const Owner& owner) { return owner.run == e && is_there(owner, step); })) return;
  }
  auto owner = owners.begin();  // in the order of runs
  for (size_t e = 0; e < load_.size(); ++e) {
    busy_.clear();
    for (; owner != owners.end() && owner->run == e; ++owner) {
      const Piece& piece = runs_[e].pieces[owner->piece];
      for (size_t u = 0; u < piece.uses.size(); ++u)
        busy_.push_back({piece.uses[u].step, held_[e][owner->piece][u] ? piece.uses[u + 1].step : piece.uses[u].last() + 1});
    }
    std::sort(busy_.begin(), busy_.end(), [](const Span& x, const Span& y) { return x.begin < y.begin; });
    busy_.push_back({static_cast<int32_t>(load_[e].size()), 0});
    away_[e].clear();
    int32_t until = 0;
    for (const Span& span : busy_) {
      if (until < span.begin) away_[e].push_back({until, span.begin});
      until = std::max(until, span.end);
    }
    for (const Span& span : away_[e]) {
      const auto begin = load_[e].begin() + span.begin, end = load_[e].begin() + span.end;
      if (*std::max_element(begin, end) + bytes <= cap) continue;
      full_[e] = static_cast<size_t>(std::find_if(begin, end, [&](int64_t load) { return load + bytes > cap; }) - load_[e].begin());
      return;
    }
  }
  for (size_t e = 0; e < load_.size(); ++e) {
    for (const Span& span : away_[e]) {
      for (int32_t t = span.begin; t < span.end; ++t) load_[e][static_cast<size_t>(t)] += bytes;
    }
  }
  resident_[number] = true;
}

std::vector<Stay> Holder::stays(size_t number) const {
  const Run& run = runs_[number];
  std::vector<Stay> stays;
  for (uint32_t p = 0; p < run.pieces.size(); ++p) {
    const Piece& piece = run.pieces[p];
    if (is_resident(piece)) continue;
    bool changed = false;
    for (size_t u = 0; u < piece.uses.size(); ++u) {
      Stay stay{.piece = p, .first = piece.uses[u].step, .last = piece.uses[u].last()};
      stay.reads = piece.uses[u].reads && (u > 0 || piece.is_read());
      changed |= piece.uses[u].changes;
      // Uses in neighbouring steps have nothing between them.
      while (u + 1 < piece.uses.size() && (held(number, p, u) || piece.uses[u + 1].step == piece.uses[u].last() + 1)) {
        stay.last = piece.uses[++u].last();
        changed |= piece.uses[u].changes;
      }
      const bool comes_back = u + 1 < piece.uses.size() ? piece.uses[u + 1].reads : piece.is_left();
      stay.writes = changed && comes_back;
      stay.issue = stay.first;
      stay.released = stay.last + 1;
      if (stay.writes) changed = false;
      stays.push_back(stay);
    }
  }
  std::stable_sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) { return a.first < b.first; });
  return stays;
}

int64_t Holder::resident_bytes() const {
  int64_t bytes = problem_.always;
  for (size_t i = 0; i < resident_.size(); ++i) bytes += resident_[i] ? problem_.lasting[i].held : 0;
  return whole_sectors(bytes);
}

}  // namespace ort_train::planning
