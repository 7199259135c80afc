// PersistentValues: what lives across runs, collected from all entries and then laid at the bottom of the arena.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/program.h"
#include "graph/graph.h"

namespace ort_train {

Purpose purpose_of(ValueKind kind);

class PersistentValues {
 public:
  // The number of the value, known already or new.
  size_t add(const std::string& entry, const Value& value);

  // Some entry writes it.
  void change(size_t i) { values_[i].read_only = false; }
  // What a caller looks at after a run is where the run left it: it never moves.
  void keep(size_t i) { kept_.insert(i); }
  bool worth_moving(size_t i) const;
  // Whatever its size: neither a constant nor kept.
  bool may_move(size_t i) const { return !values_[i].initial && kept_.count(i) == 0; }

  size_t size() const { return values_.size(); }
  const Persistent& operator[](size_t i) const { return values_[i]; }

  // Gives each its place, in the space that `homes` says. Sets the bytes that they take there.
  std::vector<Persistent> lay_out(const std::vector<SpaceId>& homes, Program& program) const;

 private:
  size_t add_constant(const Value& value);

  std::vector<Persistent> values_;
  std::set<size_t> kept_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::unordered_multimap<size_t, size_t> constants_;
};

}  // namespace ort_train
