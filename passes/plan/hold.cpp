#include "passes/plan/hold.h"

#include <algorithm>
#include <cmath>

#include "exec/program.h"

namespace ort_train::planning {

int64_t bytes_below(const Problem& problem, const std::vector<bool>& resident) {
  int64_t bytes = problem.immovable;
  for (size_t i = 0; i < resident.size(); ++i) bytes += resident[i] ? problem.lasting[i].held : 0;
  return whole_sectors(bytes);
}

Holder::Holder(const Problem& problem) : problem_(problem), runs_(problem.runs), owners_(problem.lasting.size()) {
  for (size_t e = 0; e < runs_.size(); ++e) {
    least_.push_back(used_bytes_by_step(problem, runs_[e]));
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      if (runs_[e].pieces[p].lasting >= 0) owners_[static_cast<size_t>(runs_[e].pieces[p].lasting)].push_back({e, p});
    }
  }
  find_choices();
}

HoldOrder Holder::by_shares(const Bound& bound) const {
  constexpr double kTenths = 10;
  std::vector<std::pair<double, size_t>> shares;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const auto& [run, number, use, gain] = choices_[i];
    const Piece& piece = runs_[run].pieces[number];
    const double share = use < 0 ? bound.resident(static_cast<size_t>(piece.lasting)) : bound.held(run, number, static_cast<size_t>(use));
    shares.emplace_back(std::round(kTenths * share), i);
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  HoldOrder order;
  for (const auto& [share, i] : shares) order.push_back(choices_[i]);
  return order;
}

void Holder::fill(const HoldOrder& order, int64_t limit) {
  load_ = least_;
  resident_.assign(owners_.size(), false);
  held_.clear();
  for (const Run& run : runs_) {
    auto& held = held_.emplace_back();
    for (const Piece& piece : run.pieces) held.emplace_back(piece.uses.size(), false);
  }
  for (const HoldChoice& choice : order) {
    if (choice.use < 0)
      make_resident(static_cast<size_t>(runs_[choice.run].pieces[choice.piece].lasting), limit);
    else
      hold(choice, limit);
  }
}

void Holder::find_choices() {
  const StreamRates& rates = problem_.store;
  const auto add = [&](const Owner& of, int32_t use, double saved, double steps) {
    choices_.push_back({of.run, of.piece, use, saved / std::max(steps, 1e-6)});
  };
  for (size_t e = 0; e < runs_.size(); ++e) {
    for (uint32_t p = 0; p < runs_[e].pieces.size(); ++p) {
      const Piece& piece = runs_[e].pieces[p];
      bool changed = !piece.is_read();
      for (size_t u = 0; u + 1 < piece.uses.size(); ++u) {
        changed |= piece.uses[u].changes;
        if (!piece.uses[u + 1].reads) continue;  // nothing would come back
        add({e, p}, static_cast<int32_t>(u), 1 / rates.read + (changed ? 1 / rates.write : 0),
            piece.uses[u + 1].step - piece.uses[u].last() - 1);
      }
    }
  }
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i].empty() || !problem_.lasting[i].may_be_resident) continue;
    double saved = 0, steps = 0;
    for (const Owner& owner : owners_[i]) {
      const Run& run = runs_[owner.run];
      const std::vector<Use>& uses = run.pieces[owner.piece].uses;
      const bool changed = std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.changes; });
      saved += run.runs_per_step * ((uses.front().reads ? 1 / rates.read : 0) + (changed ? 1 / rates.write : 0));
      steps += run.runs_per_step * (static_cast<double>(run.steps()) - std::max(0, uses.back().last() - uses.front().step - 1));
    }
    add(owners_[i][0], -1, saved, steps);
  }
  std::stable_sort(choices_.begin(), choices_.end(), [](const HoldChoice& a, const HoldChoice& b) { return a.gain > b.gain; });
}

bool Holder::has_room(size_t run, const Span& span, int64_t bytes, int64_t limit) const {
  const std::vector<int64_t>& load = load_[run];
  return std::all_of(load.begin() + span.begin, load.begin() + span.end, [&](int64_t taken) { return taken + bytes <= limit; });
}

void Holder::take(size_t run, const Span& span, int64_t bytes) {
  for (int32_t t = span.begin; t < span.end; ++t) load_[run][static_cast<size_t>(t)] += bytes;
}

void Holder::hold(const HoldChoice& choice, int64_t limit) {
  const Piece& piece = runs_[choice.run].pieces[choice.piece];
  const auto use = static_cast<size_t>(choice.use);
  const Span span{piece.uses[use].last() + 1, piece.uses[use + 1].step};
  if (is_resident(piece) || !has_room(choice.run, span, piece.bytes, limit)) return;
  take(choice.run, span, piece.bytes);
  held_[choice.run][choice.piece][use] = true;
}

// The steps of a run at which a lasting value is neither used nor held.
std::vector<Holder::Span> Holder::away(size_t run, size_t lasting) const {
  std::vector<Span> away;
  int32_t until = 0;
  const auto is_there = [&](int32_t begin, int32_t end) {
    if (until < begin) away.push_back({until, begin});
    until = std::max(until, end);
  };
  for (const Owner& owner : owners_[lasting]) {
    if (owner.run != run) continue;
    const std::vector<Use>& uses = runs_[run].pieces[owner.piece].uses;
    for (size_t u = 0; u < uses.size(); ++u) is_there(uses[u].step, held(run, owner.piece, u) ? uses[u + 1].step : uses[u].last() + 1);
  }
  is_there(static_cast<int32_t>(runs_[run].steps()), 0);
  return away;
}

void Holder::make_resident(size_t lasting, int64_t limit) {
  const int64_t bytes = problem_.lasting[lasting].bytes;
  std::vector<std::vector<Span>> spans;  // by run
  for (size_t e = 0; e < runs_.size(); ++e) {
    for (const Span& span : spans.emplace_back(away(e, lasting))) {
      if (!has_room(e, span, bytes, limit)) return;
    }
  }
  for (size_t e = 0; e < runs_.size(); ++e) {
    for (const Span& span : spans[e]) take(e, span, bytes);
  }
  resident_[lasting] = true;
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
      const bool comes_back = u + 1 < piece.uses.size() ? piece.uses[u + 1].reads : piece.needed_in_store();
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

}  // namespace ort_train::planning
