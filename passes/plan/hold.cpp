#include "passes/plan/hold.h"

#include <algorithm>
#include <cmath>

#include "exec/program.h"

namespace ort_train::planning {

Holder::Holder(const Problem& problem) : problem_(problem), runs_(problem.runs), owners_(problem.lasting.size()) {
  for (size_t e = 0; e < runs_.size(); ++e) {
    least_.push_back(least_load(problem, runs_[e]));
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      if (runs_[e].pieces[p].lasting >= 0) owners_[static_cast<size_t>(runs_[e].pieces[p].lasting)].push_back({e, p});
    }
  }
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
        const auto steps = static_cast<double>(piece.uses[u + 1].step - piece.uses[u].last() - 1);
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
      const int32_t between = std::max(0, piece.uses.back().last() - piece.uses.front().step - 1);
      steps += runs_[owner.run].weight * (static_cast<double>(runs_[owner.run].steps()) - between);
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

// The steps of a run at which a lasting value is neither used nor held.
std::vector<Holder::Span> Holder::away(size_t run, const std::vector<Owner>& owners) const {
  std::vector<Span> there, away;
  for (const Owner& owner : owners) {
    if (owner.run != run) continue;
    const Piece& piece = runs_[run].pieces[owner.piece];
    for (size_t u = 0; u < piece.uses.size(); ++u)
      there.push_back({piece.uses[u].step, held(run, owner.piece, u) ? piece.uses[u + 1].step : piece.uses[u].last() + 1});
  }
  std::sort(there.begin(), there.end(), [](const Span& x, const Span& y) { return x.begin < y.begin; });
  there.push_back({static_cast<int32_t>(load_[run].size()), 0});
  int32_t until = 0;
  for (const Span& span : there) {
    if (until < span.begin) away.push_back({until, span.begin});
    until = std::max(until, span.end);
  }
  return away;
}

void Holder::make_resident(const HoldCandidate& candidate, int64_t cap) {
  const Piece& piece = runs_[candidate.run].pieces[candidate.piece];
  const auto number = static_cast<size_t>(piece.lasting);
  std::vector<std::vector<Span>> spans;  // by run
  for (size_t e = 0; e < load_.size(); ++e) {
    for (const Span& span : spans.emplace_back(away(e, owners_[number]))) {
      if (*std::max_element(load_[e].begin() + span.begin, load_[e].begin() + span.end) + piece.bytes > cap) return;
    }
  }
  for (size_t e = 0; e < load_.size(); ++e) {
    for (const Span& span : spans[e]) {
      for (int32_t t = span.begin; t < span.end; ++t) load_[e][static_cast<size_t>(t)] += piece.bytes;
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
