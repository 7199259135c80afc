#include "passes/pack_weights.h"

#include <algorithm>
#include <array>

#include "exec/program.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

bool is_matrix(const Value& weight) { return weight.shape.size() >= 2; }  // what weight decay asks

class Packer {
 public:
  Packer(JobGraph& job, const std::vector<std::string>& names) : graph_(job.graph) {
    int64_t end = 0;
    for (const std::string& name : names) {
      const ValueId id = graph_.find_value(name);
      require(id != kNone && graph_.value(id).kind == ValueKind::parameter, "a graph without a parameter that goes into a pack");
      members_.push_back(id);
      offsets_.push_back(aligned(end));
      end = offsets_.back() + graph_.value(id).bytes();
    }
    const Value& first = graph_.value(members_.front());
    const int64_t elements = aligned(end) / size_of(first.dtype);
    const std::string name = fmt::format("{}..{}", names.front(), names.back());
    pack_ = graph_.add_value({.name = name,
                              .dtype = first.dtype,
                              .shape = is_matrix(first) ? Shape{1, elements} : Shape{elements},
                              .kind = ValueKind::parameter,
                              .trainable = true});
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

  // The pack's gradient behind the last of its members'. Uses are added up first.
  void join_gradients(std::map<ValueId, std::vector<ValueId>>& gradients) {
    Builder builder(graph_, Stage::backward);
    std::vector<ValueId> parts;
    for (const ValueId member : members_) {
      const auto uses = gradients.find(member);
      require(uses != gradients.end(), "a weight without a gradient is in a pack");
      builder.named(graph_.value(member).name);
      emit_behind(builder, uses->second);
      parts.push_back(add_up(builder, uses->second));
      gradients.erase(uses);
    }
    builder.named(graph_.value(pack_).name);
    emit_behind(builder, parts);
    gradients[pack_] = {builder.emit("Pack", parts, {{"byte_offsets", offsets_}, {"shape", graph_.value(pack_).shape}})};
  }

 private:
  Graph& graph_;
  ValueId pack_ = kNone;
  std::vector<ValueId> members_;
  std::vector<int64_t> offsets_;  // bytes
};

}  // namespace

Packs choose_packs(const Graph& forward, const LossSpec& loss) {
  JobGraph job{.graph = forward};  // what has a gradient is known when there are gradients
  build_loss(job, loss);
  job.graph.outputs = {job.loss_sum};
  job.graph.remove_dead_nodes();
  const auto gradients = differentiate_uses(job.graph, job.loss_sum);
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
  std::array<Open, 2> open;  // matrices by themselves
  const auto close = [&](Open& pack) {
    if (pack.names.size() > 1) packs.push_back(std::move(pack.names));
    pack = {};
  };
  for (const NodeId id : forward.order()) {
    for (const ValueId input : forward.node(id).inputs) {
      if (input == kNone || !fits(input)) continue;
      const Value& weight = forward.value(input);
      Open& pack = open[is_matrix(weight)];
      if (aligned(pack.end) + weight.bytes() > kPackBytes) close(pack);
      pack.names.push_back(weight.name);
      pack.end = aligned(pack.end) + weight.bytes();
    }
  }
  for (Open& pack : open) close(pack);
  return packs;
}

bool pack_weights(JobGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients, const Packs& packs) {
  const bool trains = !gradients.empty();  // else this entry has no backward pass
  for (const std::vector<std::string>& names : packs) {
    Packer packer(job, names);
    packer.show_members();
    if (trains) packer.join_gradients(gradients);
  }
  return !packs.empty();
}

}  // namespace ort_train
