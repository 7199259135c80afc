// Optimizers as data. Each is a file under passes/optimizers/ with one OptimizerDef, and a line in passes/optimizer.cpp; what its update
// computes are ops (exec/ops). Nothing else knows an optimizer's name, its options or its state.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ort_train {

struct OptimizerDef;
struct StateDef;
struct OptimizerOption;
enum class Granularity : uint8_t;

// An optimizer with its options; without a definition one that asks for nothing.
struct Optimizer {
  const OptimizerDef* def = nullptr;
  std::vector<double> values{};  // by options()
  bool quantized = false;        // its state is stored in 8 bits, see StateDef::quantized

  std::string name() const;  // "adamw", "adamw_8bit"
  // Its definition's; where its state is quantized, also those of that.
  std::vector<OptimizerOption> options() const;
  double value(std::string_view option) const;
  // What it keeps for a parameter, or a part of one.
  std::vector<StateDef> states(const Value& parameter) const;
  // Whether state of a weight of so many elements is to be quantized.
  bool quantizes(int64_t elements, bool is_embedding) const;
  Granularity granularity() const;
  // Parts of a weight begin at multiples of so many elements.
  int64_t state_block() const;
  // That of step t, counted from 1, where the schedule's is this.
  double learning_rate(int64_t t, double scheduled) const;
  // The numbers of step t: computed in double, fed to the update's nodes as one float32 input.
  std::vector<float> scalars(int64_t t, double scheduled) const;
  // For checkpoints: they can be resumed by what has this label.
  std::string state_label() const;
};

// By its name or a synonym, with "_8bit" after it where its state is to be quantized, with the options given, the others as they are by
// default. Throws Error(usage) for a name or an option that isn't known, a value that doesn't fit, or options that contradict each other.
Optimizer make_optimizer(std::string_view name = "adamw", const std::map<std::string, double>& options = {});

const std::vector<const OptimizerDef*>& all_optimizers();
// Of every optimizer whose state is quantized, besides its own.
const std::vector<OptimizerOption>& quantized_options();
// Whether it keeps state that may be stored in 8 bits.
bool has_quantized_states(const Optimizer& optimizer);

struct OptimizerOption {
  std::string_view name{};
  double value = 0;  // by default
  std::string_view help{};
  bool (*fits)(double) = nullptr;
  std::string_view wrong{};  // of a value that doesn't fit: "has to lie in [0, 1)"
  bool flag = false;         // 1: yes, 0: no
};

// A tensor that an optimizer keeps for each parameter.
struct StateDef {
  std::string_view suffix{};  // its name, after the parameter's: ".exp_avg"
  TensorType type{};
  double fill = 0;                   // what each element begins as
  bool shared = false;               // one for all parts of a divided weight; else each part has that of its rows, the range of the whole's
  std::optional<DType> quantized{};  // how it is stored in 8 bits, by an optimizer whose state is quantized; none: never
};

// What the update of an element depends on, besides its own gradient and state: says what may be packed and divided.
enum class Granularity : uint8_t {
  element,  // nothing: small weights may be updated as one
  block,    // the block of kStateBlock elements in which it is, from the tensor's beginning on: packs and parts begin at multiples of that
  tensor,   // statistics of the whole tensor: the parts of a weight are updated together; nothing is packed
};
inline constexpr int64_t kStateBlock = 256;

// The multiple of elements at which each member of a pack begins; 0: nothing is packed.
constexpr int64_t pack_multiple(Granularity granularity) {
  return granularity == Granularity::element ? 1 : granularity == Granularity::block ? kStateBlock : 0;
}

// The weight, or the part of one, whose update is built.
struct UpdatePart {
  ValueId parameter = kNone, gradient = kNone;
  std::vector<ValueId> states{};  // by OptimizerDef::states; what is shared is the same value in all parts
  NodeId before = kNone;          // where its update stands: before its first use in the same run; kNone: after all
};

// Builds the update of one weight.
class UpdateBuilder {
 public:
  UpdateBuilder(Builder& builder, const Optimizer& optimizer) : optimizer(optimizer), builder_(builder) {}

  const Optimizer& optimizer;
  Shape shape{};                    // the weight's
  std::vector<UpdatePart> parts{};  // in order; one where it isn't divided, or the granularity is less than the tensor
  ValueId clip = kNone;             // float32 []: multiplies the gradient
  ValueId scalars = kNone;          // the optimizer's own, see OptimizerDef::scalars
  double weight_decay = 0;
  NodeId before_all = kNone;  // the first of the parts' places: where statistics of the whole stand

  // Emits a node of a part's own, or one that all parts need before any of them changes. Outputs that are state, changed in place, become
  // state.
  std::vector<ValueId> emit(const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
                            size_t outputs = 1);
  std::vector<ValueId> emit_before_all(const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
                                       size_t outputs = 1);
  // Emits the update of a part by an op in the form of exec/ops/element_update.h, with `weight_decay` among its attributes. Returns what
  // the parameter is after it.
  ValueId emit_update(const UpdatePart& part, std::string_view op, Attributes attributes = {});

 private:
  std::vector<ValueId> emit_at(NodeId before, const UpdatePart& part, std::string_view op, std::vector<ValueId> inputs,
                               Attributes attributes, size_t outputs);
  Builder& builder_;
};

struct OptimizerDef {
  std::string_view name{};
  std::vector<std::string_view> synonyms{};  // what Hugging Face's `optim` calls it
  std::vector<OptimizerOption> options{};
  Granularity granularity = Granularity::element;
  size_t scalar_count = 0;
  std::vector<float> (*scalars)(const Optimizer&, int64_t t, double learning_rate) = nullptr;
  // What it keeps for a parameter, or a part of one. As many for parameters of one rank, whatever their sizes.
  std::vector<StateDef> (*states)(const Optimizer&, const TensorType& parameter) = nullptr;
  // Emits the update; returns what each part is after it.
  std::vector<ValueId> (*update)(UpdateBuilder&) = nullptr;
  bool rounds = false;  // its update can leave bfloat16 weights, rounded stochastically
  // What a state label has after the name, where options decide what is kept. Null: nothing.
  std::string_view (*variant)(const Optimizer&) = nullptr;
  // What is wrong with options that don't go together: "`nesterov` goes with `momentum`". Empty: nothing. Null: all do.
  std::string_view (*conflict)(const Optimizer&) = nullptr;
  // The learning rate of step t where options may say so, else the schedule's. Null: always the schedule's.
  double (*own_rate)(const Optimizer&, int64_t t, double learning_rate) = nullptr;
};

// The numbers of a group of parameters: a row of the job's table, which Value::group refers to.
struct ParameterGroup {
  std::string name{};                     // for reports
  std::optional<double> learning_rate{};  // the highest; else the job's times `rate_scale`
  double rate_scale = 1;
  std::optional<double> weight_decay{};  // of all its parameters; else the job's, of those of rank 2 and more

  double rate(double of_job) const { return learning_rate.value_or(of_job * rate_scale); }
  double decay(double of_job, const Shape& parameter) const { return weight_decay.value_or(parameter.size() >= 2 ? of_job : 0); }
};

}  // namespace ort_train
