// `check`: what of a model can be trained, and why not the rest, before anything runs.

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "exec/kernel.h"
#include "exec/workers.h"
#include "frontend/adapters.h"
#include "frontend/binding.h"
#include "frontend/bound_value.h"
#include "frontend/boundary.h"
#include "frontend/check_options.h"
#include "frontend/check_shapes.h"
#include "frontend/gpu_choice.h"
#include "frontend/importer.h"
#include "frontend/loss_options.h"
#include "frontend/ort_train.h"
#include "frontend/parameter_groups.h"
#include "frontend/precision.h"
#include "frontend/units.h"
#include "graph/autodiff.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

constexpr size_t kLabelWidth = 12;

std::string in_words(const onnx::ValueDef& value) {
  std::vector<std::string> dims;
  for (const onnx::DimDef& dim : value.dims) dims.push_back(dim.size >= 0 ? std::to_string(dim.size) : dim.name.empty() ? "?" : dim.name);
  return onnx::printable(
      fmt::format("{} {} {}", value.name, value.type, value.has_shape ? fmt::format("[{}]", fmt::join(dims, ", ")) : "of unknown shape"));
}

// "28.3 M", "113 MB": three digits
std::string rounded(double number, std::string_view unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t prefix = 0;
  for (; number >= 999.5 && prefix < 4; ++prefix) number /= 1000;
  const int decimals = prefix == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}{}", number, decimals, prefix == 0 && unit.empty() ? "" : " ", kPrefixes[prefix], unit);
}

class Report {
 public:
  void line(std::string_view label, std::string_view text) {
    text_ += fmt::format("{:<{}}{}\n", label, std::max(kLabelWidth, label.size() + 2), text);
  }
  void lines(std::string_view label, const std::vector<std::string>& texts) {
    for (size_t i = 0; i < texts.size(); ++i) line(i == 0 ? label : "", texts[i]);
  }
  void add(std::string_view text) { text_ += text; }
  void table(const std::vector<CheckRow>& rows) {
    size_t node = 0, reason = 0;
    for (const CheckRow& row : rows) {
      node = std::clamp(row.node.size(), node, size_t{48});
      reason = std::clamp(row.reason.size(), reason, size_t{64});
    }
    for (const CheckRow& row : rows) {
      std::string text = fmt::format("  {:<{}}  {:<{}}  {}", row.node, node, row.reason, reason, row.hint);
      text.erase(text.find_last_not_of(' ') + 1);
      text_ += text + "\n";
    }
  }
  // One line each: what becomes of it, name, type, why.
  void tensors(const std::vector<CheckTensor>& tensors) {
    constexpr size_t kWidest = 56;
    size_t name = 0, type = 0;
    for (const CheckTensor& tensor : tensors) {
      name = std::clamp(tensor.name.size(), name, kWidest);
      type = std::clamp(tensor.type.size(), type, kWidest);
    }
    for (const CheckTensor& tensor : tensors) {
      text_ += fmt::format("  {:<9}  {:<{}}  {:<{}}  {}{}\n", tensor.treatment, tensor.name, name, tensor.type, type, tensor.why,
                           tensor.original.empty() ? "" : ": " + tensor.original);
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string producer_in_words(std::string producer) {
  if (producer.starts_with("pytorch")) producer.replace(0, 7, "PyTorch");
  return onnx::printable(std::move(producer));
}

std::string header(const Imported& model) {
  int64_t elements = 0, bytes = 0;
  std::set<std::string> types;
  for (ValueId id : model.graph.parameters()) {
    elements += element_count(model.graph.value(id).shape);
    bytes += model.graph.value(id).bytes();
    types.insert(std::string(to_string(model.graph.value(id).dtype)));
  }
  return fmt::format("opset {}{} · {} parameters in {} tensors, {} {}", model.info.opset,
                     model.info.producer.empty() ? "" : " · " + producer_in_words(model.info.producer),
                     rounded(static_cast<double>(elements), ""), model.weights.size(), rounded(static_cast<double>(bytes), "B"),
                     fmt::join(types, " and "));
}

class Check {
 public:
  explicit Check(const Options& options) : options_(options), file_(importing::open_model(options.model)) {
    add_condition(control_net(options), file_.graph);
  }

  CheckReport run() {
    if (file_.graph.outputs.empty())
      throw error(ErrorCode::unsupported, "'{}': the model has no outputs, so there is nothing to train", options_.model);
    find_outputs();
    std::vector<OpenDimension> open;
    Workers workers(1);
    model_ = import_with_some_sizes(file_.graph, options_, outputs_, open, workers);

    number_types(options_, model_.info.low);  // refuses what doesn't go with the model's type
    for (const Obstacle& obstacle : model_.obstacles) add_row({obstacle.node, obstacle.reason, obstacle.hint, obstacle.blocks});
    find_nodes_without_gradient();
    find_nodes_without_kernel();
    list_tensors();
    PassOptions passes{.read = outputs_read_of(model_.graph, outputs_)};
    if (!options_.base_target.empty()) choose_base(model_, options_, passes);  // refuses what fits nothing
    if (const AdapterSettings adapting = adapter_settings(options_); adapting.is_on()) {
      model_.info.notes.push_back(adapters_note(model_, adapt(model_, adapting, passes), adapting));
      find_unreached_parameters();  // of the adapters
    }
    const std::vector<ParameterGroup> groups = assign_groups(model_, options_);
    const int64_t batch = likely_batch(declared(options_.model, control_net(options_)), options_);
    report_.groups = describe_groups(model_.graph, groups, scaled_rate(options_, batch), options_.weight_decay);
    for (const OpenDimension& dimension : open) {
      report_.dimensions.push_back(
          {.name = dimension.name, .size = dimension.size, .fits = dimension.fits, .does_not_fit = dimension.fails});
    }
    report_.notes = model_.info.notes;
    describe(open);
    report_.text = text_.take();
    return std::move(report_);
  }

 private:
  // Those that the losses read.
  void find_outputs() {
    const std::vector<std::string> names = importing::output_names(file_.graph);
    for (std::string name : import_options(options_).outputs) {
      if (name.empty()) name = names[0];
      const bool is_there = std::find(names.begin(), names.end(), name) != names.end();
      // Other models have outputs and inputs, too.
      if (!is_there && (!options_.loss_model.empty() || name.starts_with(kTeacherPrefix))) continue;
      if (!is_there) throw error(ErrorCode::usage, "the model has no output '{}'; it has {}", name, fmt::join(names, ", "));
      if (std::find(outputs_.begin(), outputs_.end(), name) == outputs_.end()) outputs_.push_back(name);
    }
    if (outputs_.empty())
      throw error(ErrorCode::usage, "the loss model '{}' reads none of the model's outputs, which are {}", options_.loss_model,
                  fmt::join(names, ", "));
  }

  std::string in_quotes() const { return fmt::format("'{}'", fmt::join(outputs_, "', '")); }
  bool is_read(const Graph& graph, ValueId output) const {
    return std::find(outputs_.begin(), outputs_.end(), graph.output_name(output)) != outputs_.end();
  }

  void add_row(CheckRow row) {
    if (!row.blocks) row.hint = fmt::format("not in the way: the loss reads {}", in_quotes());
    report_.rows.push_back(std::move(row));
  }

  // By the file's own op type.
  std::string describe_node(NodeId id) {
    if (op_types_.empty()) {
      for (const onnx::NodeDef& node : file_.graph.nodes) {
        if (!node.name.empty() || !node.outputs.empty()) op_types_.emplace(node.name.empty() ? node.outputs[0] : node.name, node.op_type);
      }
    }
    const auto op = op_types_.find(model_.graph.node(id).name);
    return onnx::printable(op == op_types_.end() ? ort_train::describe(model_.graph, id) : fmt::format("{} '{}'", op->second, op->first));
  }

  // What the device can't compute: ops that a GPU has no kernel for, element types that its kernels don't take. It blocks where the loss
  // needs it.
  void find_nodes_without_kernel() {
    const Graph& graph = model_.graph;
    std::vector<bool> needed(graph.value_count());
    for (const ValueId id : read_) needed[id] = true;
    for (auto at = graph.order().rbegin(); at != graph.order().rend(); ++at) {
      const Node& node = graph.node(*at);
      if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && needed[v]; })) continue;
      for (ValueId input : node.inputs) {
        if (input != kNone) needed[input] = true;
      }
    }
    const bool on_gpu = gpu_number(options_.device) >= 0;
    const KernelTable& kernels = on_gpu ? gpu_kernels() : cpu_kernels();
    for (NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      const KernelSpec spec = make_spec(graph, node);
      const std::string why = kernels.refusal(*node.op, spec);
      if (why.empty()) continue;
      const bool is_gpus = on_gpu && cpu_kernels().refusal(*node.op, spec).empty();
      const bool blocks = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && needed[v]; });
      add_row({describe_node(id), why, is_gpus ? "`device` cpu computes it" : "cast its inputs in the model, and export it again", blocks});
    }
  }

  void find_nodes_without_gradient() {
    const Graph& graph = model_.graph;
    std::set<NodeId> listed;
    const auto add_rows = [&](const std::vector<ValueId>& values, bool is_loss) {
      for (const Blocker& blocker : find_blockers(graph, values)) {
        if (listed.insert(blocker.node).second) add_row({describe_node(blocker.node), blocker.reason, blocker.hint, is_loss});
      }
    };
    find_unreached_parameters();
    add_rows(read_, true);  // first: what stands in the losses' way blocks
    for (ValueId id : graph.outputs) {
      if (!is_read(graph, id)) add_rows({id}, false);
    }
  }

  void find_unreached_parameters() {
    read_.clear();
    for (ValueId id : model_.graph.outputs) {
      if (is_read(model_.graph, id)) read_.push_back(id);
    }
    unreached_ = find_unreached(model_.graph, read_);
  }

  int64_t blocking_rows() const {
    return std::count_if(report_.rows.begin(), report_.rows.end(), [](const CheckRow& row) { return row.blocks; });
  }

  void list_tensors() {
    std::set<std::string> unreached;  // where something is in the way, what lies beyond it would be trained
    if (blocking_rows() == 0) {
      for (const ValueId id : unreached_) unreached.insert(model_.graph.value(id).name);
    }
    for (const TensorFate& tensor : model_.info.tensors) {
      const bool is_reached = tensor.treatment != Treatment::trained || !unreached.contains(tensor.name);
      report_.tensors.push_back({.name = onnx::printable(tensor.name),
                                 .type = to_string(tensor.type),
                                 .trained = is_reached && tensor.treatment == Treatment::trained,
                                 .treatment = is_reached ? std::string(to_string(tensor.treatment)) : "unreached",
                                 .why = is_reached ? tensor.why : "no influence on " + in_quotes(),
                                 .original = onnx::printable(tensor.original)});
    }
  }

  void describe(const std::vector<OpenDimension>& open) {
    const auto all = [](const std::vector<onnx::ValueDef>& values, const std::set<std::string>& but) {
      std::vector<std::string> lines;
      for (const onnx::ValueDef& value : values) {
        if (!but.contains(value.name)) lines.push_back(in_words(value));
      }
      return lines;
    };
    text_.line(std::filesystem::path(options_.model).filename().string(), header(model_));
    text_.lines("inputs", all(file_.graph.inputs, importing::initializer_names(file_.graph)));
    text_.lines("outputs", all(file_.graph.outputs, {}));
    if (!open.empty()) text_.line("dimensions", fmt::format("{} (`shapes` binds them)", onnx::printable(in_words(open))));
    text_.lines("noted", model_.info.notes);
    if (!report_.tensors.empty()) {
      const auto trained = std::count_if(report_.tensors.begin(), report_.tensors.end(), [](const CheckTensor& t) { return t.trained; });
      text_.line("tensors", fmt::format("{} trained, {} left as they are", grouped(static_cast<int64_t>(trained)),
                                        grouped(static_cast<int64_t>(report_.tensors.size()) - static_cast<int64_t>(trained))));
      text_.tensors(report_.tensors);
    }
    if (report_.groups.size() > 1) text_.add(shown_groups(report_.groups));
    if (!report_.rows.empty()) {
      text_.add(
          fmt::format("not trainable, {} of {} nodes:\n", grouped(static_cast<int64_t>(report_.rows.size())), grouped(model_.info.nodes)));
      text_.table(report_.rows);
    }
    conclude();
  }

  void conclude() {
    std::vector<ValueId> parameters = model_.graph.parameters();
    std::erase_if(parameters, [&](ValueId id) { return !model_.graph.value(id).trainable; });  // running statistics
    const int64_t blocking = blocking_rows();
    const auto other = std::find_if(read_.begin(), read_.end(), [&](ValueId id) { return !is_floating(model_.graph.value(id).dtype); });
    const bool is_whole = read_.size() == outputs_.size();
    report_.trainable = blocking == 0 && unreached_.size() < parameters.size();
    const std::string count =
        fmt::format("{} of {} tensors", grouped(static_cast<int64_t>(unreached_.size())), grouped(static_cast<int64_t>(parameters.size())));
    if (other != read_.end()) {
      text_.add(fmt::format("'{}' is {}: a loss needs an output of floating-point numbers (`output`)\n", model_.graph.output_name(*other),
                            to_string(model_.graph.value(*other).dtype)));
    } else if (parameters.empty()) {
      text_.add("the model has no floating-point weights, so there is nothing to train\n");
    } else if (blocking > 0 && !is_whole) {
      text_.add(fmt::format("the loss can't be computed: {} on {} that can't be imported\n",
                            outputs_.size() == 1 ? in_quotes() + " depends" : in_quotes() + " depend", blocking == 1 ? "a node" : "nodes"));
    } else if (blocking > 0) {
      text_.add(fmt::format("{} can't be reached from the loss\n", count));
    } else if (unreached_.empty()) {
      text_.line("trainable",
                 fmt::format("all {} tensors, by a loss on {}", grouped(static_cast<int64_t>(parameters.size())), in_quotes()));
    } else {
      text_.line("trainable", unreached_in_words(model_.graph, unreached_, in_quotes()));
    }
  }

  const Options& options_;
  onnx::ModelDef file_;
  std::vector<std::string> outputs_;
  std::map<std::string, std::string> op_types_;  // by the name of the file's node, or of its first output
  Imported model_;
  std::vector<ValueId> read_;       // of these, those that could be imported
  std::vector<ValueId> unreached_;  // parameters
  CheckReport report_;
  Report text_;
};

}  // namespace

CheckReport check(const Options& options) {
  return in_library([&] {
    check_options(options);
    return Check(options).run();
  });
}

}  // namespace ort_train
