#include "passes/pack_weights.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "exec/program.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

// Where the next member of a pack begins that ends at a byte, where it has to be at a multiple of so many elements.
int64_t next_member(int64_t end, int64_t multiple, DType dtype) {
  const int64_t bytes = std::lcm(kPlaceAlignment, multiple * size_of(dtype));
  return (end + bytes - 1) / bytes * bytes;
}

class WeightPacker {
 public:
  WeightPacker(EntryGraph& job, const std::vector<std::string>& names, int64_t multiple) : graph_(job.graph) {
    int64_t end = 0;
    for (const std::string& name : names) {
      const ValueId id = graph_.find_value(name);
      require(id != kNone && graph_.value(id).kind == ValueKind::parameter, "a graph without a parameter that goes into a pack");
      members_.push_back(id);
      offsets_.push_back(next_member(end, multiple, graph_.value(id).dtype));
      end = offsets_.back() + graph_.value(id).bytes();
    }
    const Value& first = graph_.value(members_.front());
    const int64_t elements = aligned(end) / size_of(first.dtype);
    const std::string name = fmt::format("{}..{}", names.front(), names.back());
    pack_ = graph_.add_value({.name = name,
                              .dtype = first.dtype,
                              .shape = first.shape.size() >= 2 ? Shape{1, elements} : Shape{elements},
                              .kind = ValueKind::parameter,
                              .trainable = true,
                              .quantized_state = first.quantized_state,
                              .group = first.group});
    if (graph_.value(pack_).name != name)
      throw error(ErrorCode::unsupported, "'{}' is a name in the model that a pack of small weights has to have: rename it", name);
    for (size_t i = 0; i < members_.size(); ++i)
      job.slices[names[i]] = {{.name = name, .offset = offsets_[i], .bytes = graph_.value(members_[i]).bytes()}};
  }

  // Each member becomes a view, made before its first reader.
  void show_members() {
    const auto readers = graph_.readers();
    for (size_t i = 0; i < members_.size(); ++i) {
      Value& member = graph_.value(members_[i]);
      if (readers[members_[i]].empty()) {
        member.kind = ValueKind::activation;  // that nobody makes or reads; else it stays a weight, which a node shows
        continue;
      }
      const NodeId first = readers[members_[i]].front();
      graph_.add_node({.op = &op_named("PackMember"),
                       .inputs = {pack_},
                       .outputs = {members_[i]},
                       .attributes = {{"byte_offset", offsets_[i]}, {"shape", member.shape}},
                       .stage = graph_.node(first).stage,
                       .name = member.name},
                      first);
    }
  }

  // The pack's gradient after the last of its members'. Uses are added up first.
  void join_gradients(std::map<ValueId, std::vector<ValueId>>& gradients) {
    Builder builder(graph_, Stage::backward);
    std::vector<ValueId> parts;
    for (const ValueId member : members_) {
      const auto uses = gradients.find(member);
      require(uses != gradients.end(), "a weight without a gradient is in a pack");
      builder.named(graph_.value(member).name);
      emit_after(builder, uses->second);
      parts.push_back(add_up(builder, uses->second));
      gradients.erase(uses);
    }
    builder.named(graph_.value(pack_).name);
    emit_after(builder, parts);
    gradients[pack_] = {builder.emit("Pack", parts, {{"byte_offsets", offsets_}, {"shape", graph_.value(pack_).shape}})};
  }

 private:
  Graph& graph_;
  ValueId pack_ = kNone;
  std::vector<ValueId> members_;
  std::vector<int64_t> offsets_;  // bytes
};

}  // namespace

Packs choose_packs(const Graph& forward, const LossSpec& loss, const Optimizer& optimizer) {
  const int64_t multiple = pack_multiple(optimizer.granularity());
  if (multiple == 0) return {};
  EntryGraph job{.graph = forward};  // what has a gradient is known when there are gradients
  std::vector<Seed> seeds;
  const std::vector<JobLoss> losses = build_losses(job.graph, loss);
  job.graph.outputs.clear();
  for (const JobLoss& term : losses) {
    seeds.push_back({.value = term.sum});
    job.graph.outputs.push_back(term.sum);
  }
  job.graph.remove_dead_nodes();
  const auto gradients = differentiate_uses(job.graph, seeds);
  const auto readers = forward.readers();
  const auto fits = [&](ValueId id) {
    const Value& weight = forward.value(id);
    return gradients.contains(id) && weight.dtype == DType::float32 && weight.bytes() > 0 && weight.bytes() < kPackBytes &&
           weight.part_rows == 0 && readers[id].size() == 1 &&
           std::find(forward.outputs.begin(), forward.outputs.end(), id) == forward.outputs.end();
  };
  Packs packs;
  struct Open {
    std::vector<std::string> names{};
    int64_t end = 0;
  };
  std::map<std::tuple<uint32_t, bool, std::vector<DType>>, Open> open;  // by group, whether it may have weight decay, and types of state
  const auto close = [&](Open& pack) {
    if (pack.names.size() > 1) packs.push_back(std::move(pack.names));
    pack = {};
  };
  for (const NodeId id : forward.order()) {
    for (const ValueId input : forward.node(id).inputs) {
      if (input == kNone || !fits(input)) continue;
      const Value& weight = forward.value(input);
      std::vector<DType> types;
      for (const StateDef& state : optimizer.states(weight)) types.push_back(state.type.dtype);
      Open& pack = open[{weight.group, weight.shape.size() >= 2, types}];
      if (next_member(pack.end, multiple, weight.dtype) + weight.bytes() > kPackBytes) close(pack);
      pack.names.push_back(weight.name);
      pack.end = next_member(pack.end, multiple, weight.dtype) + weight.bytes();
    }
  }
  for (auto& [of, pack] : open) close(pack);
  return packs;
}

bool pack_weights(EntryGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients, const PassOptions& options) {
  const bool trains = !gradients.empty();  // else this entry has no backward pass
  for (const std::vector<std::string>& names : options.packs) {
    WeightPacker packer(job, names, pack_multiple(options.optimizer.granularity()));
    packer.show_members();
    if (trains) packer.join_gradients(gradients);
  }
  return !options.packs.empty();
}

}  // namespace ort_train
