#include "tests/verify_support.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train::fixtures {
namespace mutations {
namespace {

bool contains(const Place& storage, const Place& place) {
  return place.bytes > 0 && place.space == storage.space && place.offset >= storage.offset && place.end() <= storage.end();
}

}  // namespace

Entry& entry(Program& program) { return program.entries[0]; }
Instruction& at(Program& program, int32_t i) { return program.entries[0].code[static_cast<size_t>(i)]; }
Place& memory_place(Instruction& copy) { return is_read(copy) ? copy.to : copy.from; }
Place& file_place(Instruction& copy) { return is_read(copy) ? copy.from : copy.to; }

bool touches(const Storage& storage, const Instruction& instruction) {
  const auto here = [&](const Place& p) { return contains(storage.place, p); };
  if (is_copy(instruction)) return here(instruction.from) || here(instruction.to);
  return here(instruction.workspace) || std::any_of(instruction.inputs.begin(), instruction.inputs.end(), here) ||
         std::any_of(instruction.outputs.begin(), instruction.outputs.end(), here);
}

void restate_peaks(Program& program) {
  Entry& e = entry(program);
  for (size_t space = 0; space < program.spaces.size(); ++space) {
    if (program.spaces[space].kind == SpaceKind::file) continue;
    std::vector<int64_t> live(e.code.size() + 1, program.spaces[space].persistent_bytes);
    for (const Storage& storage : e.storages) {
      for (int32_t i = storage.first; i <= storage.last && storage.place.space == space; ++i)
        live[static_cast<size_t>(i)] += aligned(storage.place.bytes);
    }
    const auto peak = std::max_element(live.begin(), live.end());
    e.peaks[space] = {.bytes = *peak, .instruction = static_cast<int32_t>(peak - live.begin())};
  }
}

void reorder(Program& program, const Graph& graph, const std::vector<int32_t>& order) {
  Entry& e = entry(program);
  const Entry before = e;
  const auto end = static_cast<int32_t>(order.size()) - 1;
  std::vector<int32_t> to(e.code.size(), -1);
  e.code.clear();
  for (int32_t old : order) {
    to[static_cast<size_t>(old)] = static_cast<int32_t>(e.code.size());
    e.code.push_back(before.code[static_cast<size_t>(old)]);
  }
  for (Instruction& instruction : e.code) {
    for (int32_t& earlier : instruction.waits) earlier = to[static_cast<size_t>(earlier)];
    std::erase(instruction.waits, -1);
  }
  const std::vector<int32_t> waits = first_waits(e);
  for (size_t s = 0; s < e.storages.size(); ++s) {
    const Storage& old = before.storages[s];
    int32_t first = end, last = 0;
    for (int32_t i = old.first; i <= old.last; ++i) {
      const int32_t now = to[static_cast<size_t>(i)];
      if (now < 0 || !touches(old, before.code[static_cast<size_t>(i)])) continue;
      first = std::min(first, now);
      last = std::max(last, is_copy(e.code[static_cast<size_t>(now)]) ? waits[static_cast<size_t>(now)] - 1 : now);
    }
    const auto any = [&](auto test) {  // of the values that are said to be there
      return std::any_of(old.values.begin(), old.values.end(),
                         [&](ValueId v) { return contains(old.place, e.value_places[v]) && test(v); });
    };
    if (old.first == 0 && any([&](ValueId v) { return graph.value(v).kind == ValueKind::input && graph.value(v).producer == kNone; }))
      first = 0;
    if (old.last >= static_cast<int32_t>(before.code.size()) - 1 &&
        any([&](ValueId v) { return std::count(e.keep.begin(), e.keep.end(), v) > 0; }))
      last = end;
    e.storages[s].first = std::min(first, last);
    e.storages[s].last = last;
  }
  restate_peaks(program);
}

std::vector<int32_t> own_order(const Program& program) {
  std::vector<int32_t> order(program.entries[0].code.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void drop(Program& program, const Graph& graph, const std::vector<int32_t>& instructions) {
  std::vector<int32_t> order = own_order(program);
  std::erase_if(order, [&](int32_t i) { return std::count(instructions.begin(), instructions.end(), i) > 0; });
  reorder(program, graph, order);
}

void move(Program& program, const Graph& graph, int32_t from, int32_t to) {
  std::vector<int32_t> order = own_order(program);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  reorder(program, graph, order);
}

void swap_instructions(Program& program, const Graph& graph, int32_t one, int32_t two) {
  std::vector<int32_t> order = own_order(program);
  std::swap(order[static_cast<size_t>(one)], order[static_cast<size_t>(two)]);
  reorder(program, graph, order);
}

void forget(Program& program, int32_t instruction) {
  for (Instruction& i : entry(program).code) std::erase(i.waits, instruction);
}

}  // namespace mutations

namespace {

class BruteForce {
 public:
  static std::string difference(const Program& program, const Program& right, const Graph& graph) {
    const BruteForce tried(program, graph);
    if (!tried.race_.empty()) return tried.race_;
    return tried.left_ == BruteForce(right, graph).left_ ? "" : "something else is left";
  }

 private:
  using Cells = std::vector<uint64_t>;
  static constexpr int64_t kCell = kPlaceAlignment;

  BruteForce(const Program& program, const Graph& graph) : program_(program), graph_(graph), entry_(program.entries[0]) {
    find_races();
    if (race_.empty()) replay();
  }

  static uint64_t mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu; }
  // What a copy moves.
  static Place moved(const Instruction& copy, Place place) {
    if (uses_file(copy)) place.bytes = whole_sectors(place.bytes);
    return place;
  }

  struct Access {
    Place place;
    bool writes;
  };
  std::vector<Access> accesses(const Instruction& i) const {
    if (is_copy(i)) return {{moved(i, i.from), false}, {moved(i, i.to), true}};
    std::vector<Access> all;
    for (const Place& place : i.inputs) all.push_back({place, false});
    if (is_view(graph_.node(i.node), i)) return all;
    for (const Place& place : i.outputs) all.push_back({place, true});
    all.push_back({i.workspace, true});
    return all;
  }

  void find_races() {
    const auto& code = entry_.code;
    std::vector<std::vector<bool>> complete(code.size(), std::vector<bool>(code.size()));  // [later][earlier]
    const auto also = [&](size_t later, size_t earlier, bool itself) {
      for (size_t i = 0; i < code.size(); ++i) {
        if (complete[earlier][i]) complete[later][i] = true;
      }
      if (itself) complete[later][earlier] = true;
    };
    for (size_t later = 0; later < code.size(); ++later) {
      for (size_t earlier = 0; earlier < later; ++earlier) {
        if (code[earlier].queue == code[later].queue) also(later, earlier, /*itself=*/program_.queues[code[later].queue].ordered);
      }
      for (const int32_t earlier : code[later].waits) {
        if (earlier < 0 || earlier >= static_cast<int32_t>(later)) {
          race_ = "it waits for ever";
          return;
        }
        also(later, static_cast<size_t>(earlier), true);
      }
    }
    for (size_t later = 0; later < code.size(); ++later) {
      for (size_t earlier = 0; earlier < later; ++earlier) {
        if (complete[later][earlier]) continue;
        for (const Access& a : accesses(code[later])) {
          for (const Access& b : accesses(code[earlier])) {
            const bool meet = a.place.space == b.place.space && a.place.bytes > 0 && b.place.bytes > 0 && a.place.offset < b.place.end() &&
                              b.place.offset < a.place.end();
            if (meet && (a.writes || b.writes)) race_ = fmt::format("{} and {} may run at once", earlier, later);
          }
        }
      }
    }
  }

  // Symbols in place of numbers: what a node makes is a new one for each cell, of the node and all cells that it reads.
  void replay() {
    for (const Space& space : program_.spaces) cells_.emplace_back(static_cast<size_t>(aligned(space.bytes) / kCell));
    for (const Persistent& value : program_.persistent) fill(value.home, mix(1, std::hash<std::string>{}(value.name)));
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      if (value.producer == kNone && value.kind == ValueKind::input) fill(entry_.value_places[id], mix(2, id));
    }
    uint64_t rubbish = 3;
    for (const Instruction& i : entry_.code) {
      if (is_copy(i)) {
        const Place from = moved(i, i.from), to = moved(i, i.to);
        for (int64_t at = 0; at < from.bytes; at += kCell) cell(to, at) = at < i.from.bytes ? cell(from, at) : ++rubbish;
        continue;
      }
      const Node& node = graph_.node(i.node);
      if (is_view(node, i)) continue;
      uint64_t sum = mix(4, i.node);
      for (size_t k = 0; k < i.inputs.size(); ++k) {
        const bool unread = node.op->overwrites && std::any_of(node.op->writes.begin(), node.op->writes.end(),
                                                               [&](const Alias& a) { return static_cast<size_t>(a.input) == k; });
        for (int64_t at = 0; at < i.inputs[k].bytes && !unread; at += kCell) sum = mix(sum, cell(i.inputs[k], at));
      }
      for (int64_t at = 0; at < i.workspace.bytes; at += kCell) cell(i.workspace, at) = mix(5, ++rubbish);
      for (size_t k = 0; k < i.outputs.size(); ++k) fill(i.outputs[k], mix(sum, k));
    }
    for (const auto* values : {&graph_.outputs, &entry_.keep}) {
      for (const ValueId value : *values) keep(entry_.value_places[value]);
    }
    std::map<std::string, Place> homes;  // in one order for all programs
    for (const Persistent& value : program_.persistent) homes.emplace(value.name, value.home);
    for (const auto& [name, place] : homes) keep(place);
  }

  uint64_t& cell(const Place& place, int64_t at) { return cells_[place.space].at(static_cast<size_t>((place.offset + at) / kCell)); }
  void fill(const Place& place, uint64_t what) {
    for (int64_t at = 0; at < place.bytes; at += kCell) cell(place, at) = mix(what, static_cast<uint64_t>(at));
  }
  void keep(const Place& place) {
    for (int64_t at = 0; at < place.bytes; at += kCell) left_.push_back(cell(place, at));
  }

  const Program& program_;
  const Graph& graph_;
  const Entry& entry_;
  std::string race_;
  std::vector<Cells> cells_;
  Cells left_;
};

}  // namespace

std::string brute_force_difference(const Program& program, const Program& right, const Graph& graph) {
  return BruteForce::difference(program, right, graph);
}

}  // namespace ort_train::fixtures
