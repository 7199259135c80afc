#include "passes/stream_hold.h"

#include <algorithm>
#include <cmath>

namespace ort_train {

Holder::Holder(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates)
    : entries_(entries), owners_(persistents), away_(entries.size()) {
  for (size_t e = 0; e < entries.size(); ++e) {
    least_.push_back(least_load(entries[e]));
    for (uint32_t p = 0; p < entries[e].pieces.size(); ++p) {
      if (entries[e].pieces[p].persistent >= 0) owners_[static_cast<size_t>(entries[e].pieces[p].persistent)].push_back({e, p});
    }
  }
  find_contended(limit);
  find_candidates(rates);
}

HoldOrder Holder::like(const StreamBound& bound) const {
  std::vector<std::pair<double, size_t>> shares;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const HoldCandidate& candidate = candidates_[i];
    const StreamPiece& piece = entries_[candidate.entry].pieces[candidate.piece];
    const double share = candidate.use < 0 ? bound.resident(static_cast<size_t>(piece.persistent))
                                           : bound.held(candidate.entry, candidate.piece, static_cast<size_t>(candidate.use));
    shares.emplace_back(std::round(share * 10), i);
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  HoldOrder order;
  for (const auto& [share, i] : shares) order.push_back(candidates_[i]);
  return order;
}

void Holder::choose(const HoldOrder& order, int64_t limit, int64_t free) {
  load_ = least_;
  full_.assign(load_.size(), 0);
  resident_.assign(owners_.size(), false);
  held_.clear();
  for (const StreamEntry& entry : entries_) {
    auto& held = held_.emplace_back();
    for (const StreamPiece& piece : entry.pieces) held.emplace_back(piece.uses.size(), false);
  }
  for (const HoldCandidate& candidate : order) {
    if (candidate.use < 0)
      make_resident(candidate, limit - free);
    else
      hold(candidate, limit - free);
  }
}

// Steps at which not everything can be held; as counts before each step.
void Holder::find_contended(int64_t limit) {
  for (const StreamEntry& entry : entries_) {
    std::vector<int64_t> all = entry.fixed;
    const auto steps = static_cast<int32_t>(all.size());
    for (const StreamPiece& piece : entry.pieces) {
      const int32_t first = piece.persistent >= 0 ? 0 : piece.uses.front().step;
      const int32_t last = piece.persistent >= 0 ? steps - 1 : piece.uses.back().step;
      for (int32_t t = first; t <= last; ++t) all[static_cast<size_t>(t)] += piece.bytes;
    }
    auto& contended = contended_.emplace_back(1, 0.0);
    for (const int64_t bytes : all) contended.push_back(contended.back() + (bytes > limit ? 1 : 1e-3));
  }
}

double Holder::span(size_t entry, int32_t after, int32_t before) const {  // steps strictly between
  return contended_[entry][static_cast<size_t>(before)] - contended_[entry][static_cast<size_t>(after) + 1];
}

void Holder::find_candidates(const StreamRates& rates) {
  for (size_t e = 0; e < entries_.size(); ++e) {
    for (uint32_t p = 0; p < entries_[e].pieces.size(); ++p) {
      const StreamPiece& piece = entries_[e].pieces[p];
      bool changed = piece.persistent < 0;
      for (size_t u = 0; u + 1 < piece.uses.size(); ++u) {
        changed |= piece.uses[u].changes;
        if (!piece.uses[u + 1].reads) continue;  // nothing would come back
        const double saved = 1 / rates.read + (changed ? 1 / rates.write : 0);
        const double steps = span(e, piece.uses[u].step, piece.uses[u + 1].step);
        candidates_.push_back({e, p, static_cast<int32_t>(u), saved / std::max(steps, 1e-6)});
      }
    }
  }
  for (const auto& owners : owners_) {
    if (owners.empty()) continue;
    double saved = 0, steps = 0;
    for (const Owner& owner : owners) {
      const StreamPiece& piece = entries_[owner.entry].pieces[owner.piece];
      const bool changed = std::any_of(piece.uses.begin(), piece.uses.end(), [](const StreamUse& use) { return use.changes; });
      const bool reads = piece.uses.front().reads;
      saved += entries_[owner.entry].weight * ((reads ? 1 / rates.read : 0) + (changed ? 1 / rates.write : 0));
      steps += entries_[owner.entry].weight *
               (contended_[owner.entry].back() - span(owner.entry, piece.uses.front().step, piece.uses.back().step));
    }
    candidates_.push_back({owners[0].entry, owners[0].piece, -1, saved / std::max(steps, 1e-6)});
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const HoldCandidate& a, const HoldCandidate& b) { return a.gain > b.gain; });
}

void Holder::hold(const HoldCandidate& candidate, int64_t cap) {
  const StreamPiece& piece = entries_[candidate.entry].pieces[candidate.piece];
  if (is_resident(piece)) return;
  auto& load = load_[candidate.entry];
  const auto use = static_cast<size_t>(candidate.use);
  const auto begin = load.begin() + piece.uses[use].step + 1, end = load.begin() + piece.uses[use + 1].step;
  if (std::any_of(begin, end, [&](int64_t bytes) { return bytes + piece.bytes > cap; })) return;
  for (auto at = begin; at != end; ++at) *at += piece.bytes;
  held_[candidate.entry][candidate.piece][use] = true;
}

bool Holder::is_there(const Owner& owner, int32_t step) const {
  const StreamPiece& piece = entries_[owner.entry].pieces[owner.piece];
  const auto next =
      std::upper_bound(piece.uses.begin(), piece.uses.end(), step, [](int32_t t, const StreamUse& use) { return t < use.step; });
  if (next == piece.uses.begin()) return false;
  const auto use = static_cast<size_t>(next - piece.uses.begin()) - 1;
  return piece.uses[use].step == step || held_[owner.entry][owner.piece][use];
}

void Holder::make_resident(const HoldCandidate& candidate, int64_t cap) {
  const auto number = static_cast<size_t>(entries_[candidate.entry].pieces[candidate.piece].persistent);
  const std::vector<Owner>& owners = owners_[number];
  const int64_t bytes = entries_[candidate.entry].pieces[candidate.piece].bytes;
  // Where there was no room for the last one there is none for most.
  for (size_t e = 0; e < load_.size(); ++e) {
    if (load_[e].empty() || load_[e][full_[e]] + bytes <= cap) continue;
    const auto step = static_cast<int32_t>(full_[e]);
    if (std::none_of(owners.begin(), owners.end(), [&](const Owner& owner) { return owner.entry == e && is_there(owner, step); })) return;
  }
  auto owner = owners.begin();  // in the order of entries
  for (size_t e = 0; e < load_.size(); ++e) {
    busy_.clear();
    for (; owner != owners.end() && owner->entry == e; ++owner) {
      const StreamPiece& piece = entries_[e].pieces[owner->piece];
      for (size_t u = 0; u < piece.uses.size(); ++u)
        busy_.push_back({piece.uses[u].step, held_[e][owner->piece][u] ? piece.uses[u + 1].step : piece.uses[u].step + 1});
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

}  // namespace ort_train
