// A valid file of nodes that the bytes choose: each op of the list and each other of the standard, at any opset, with inputs, attributes,
// shapes and numbers that are usual or extreme. What is random in the bytes is the meaning here, never the file's syntax.

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <string>

#include "graph/op_def.h"
#include "tests/fuzz/fuzz.h"

namespace ort_train::fuzz {
namespace {

namespace pb = ort_train_onnx;

// Decisions, taken from the bytes; zeros when they are used up.
class Choices {
 public:
  explicit Choices(Bytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  size_t below(size_t n) { return n == 0 ? 0 : (n > 256 ? byte() * size_t{256} + byte() : byte()) % n; }
  bool rarely() { return byte() >= 240; }
  template <typename List> const auto& of(const List& list) { return list[below(std::size(list))]; }

  int64_t number() {
    static constexpr int64_t kExtreme[] = {INT64_MAX,
                                           INT64_MIN,
                                           -1,
                                           int64_t{1} << 62,
                                           int64_t{1} << 48,
                                           int64_t{1} << 32,
                                           int64_t{1} << 31,
                                           (int64_t{1} << 31) - 1,
                                           -(int64_t{1} << 31),
                                           int64_t{1} << 20,
                                           65536,
                                           255,
                                           64,
                                           17,
                                           -2,
                                           -3};
    const uint8_t way = byte();
    return way < 208 ? way % 5 : way < 224 ? -(way % 4) : of(kExtreme);
  }
  float real() {
    static constexpr float kReals[] = {
        0, 1, 0.5f, -1, 1e-5f, 2, 1e38f, -1e38f, 1e19f, -3e9f, 1e-45f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 0.1f, 300};
    return of(kReals);
  }
  int64_t dimension() {
    static constexpr int64_t kLarge[] = {0, 7, 16, 33, 129, 1 << 20, int64_t{1} << 31, int64_t{1} << 40};
    return byte() < 232 ? static_cast<int64_t>(1 + below(4)) : of(kLarge);
  }
  std::vector<int64_t> dimensions() {
    std::vector<int64_t> dims(rarely() ? below(20) : below(5));
    for (int64_t& dim : dims) dim = dimension();
    return dims;
  }

 private:
  Bytes bytes_;
};

struct Op {
  std::string domain, name;
};

// Those that we have forms of come twice: they are what this is about.
const std::vector<Op>& ops() {
  static const auto& list = *new std::vector<Op>([] {
    std::vector<Op> ops;
    for (const OpDef* op : all_ops()) {
      for (const OnnxForm& form : op->onnx) ops.push_back({std::string(form.domain), std::string(form.name)});
    }
    const size_t own = ops.size();
    ops.insert(ops.end(), ops.begin(), ops.begin() + static_cast<ptrdiff_t>(own));
    for (const pb::OpSchema& schema : pb::OpSchemaRegistry::get_all_schemas()) {
      if (schema.domain().empty()) ops.push_back({"", schema.Name()});
    }
    return ops;
  }());
  return list;
}

class ModelMaker {
 public:
  explicit ModelMaker(Bytes bytes) : choose_(bytes) {}

  pb::ModelProto make() {
    static constexpr int kOpsets[] = {17, 18, 20, 13, 11, 9, 23, 24, 7, 22, 21, 19, 16, 15, 14, 12};
    opset_ = choose_.of(kOpsets);
    model_.set_ir_version(10);
    add_opset("", opset_);
    add_opset("com.microsoft", 1);
    graph_ = model_.mutable_graph();
    graph_->set_name("g");
    add_input();
    for (int nodes = 0; nodes < 6 && (nodes == 0 || !choose_.empty()); ++nodes) add_node();
    add_outputs();
    return std::move(model_);
  }

 private:
  void add_opset(const std::string& domain, int version) {
    auto& import = *model_.add_opset_import();
    import.set_domain(domain);
    import.set_version(version);
  }

  int element_type() {
    static constexpr int kTypes[] = {pb::TensorProto::FLOAT, pb::TensorProto::FLOAT,   pb::TensorProto::INT64,    pb::TensorProto::DOUBLE,
                                     pb::TensorProto::INT32, pb::TensorProto::BOOL,    pb::TensorProto::UINT8,    pb::TensorProto::INT8,
                                     pb::TensorProto::INT16, pb::TensorProto::FLOAT16, pb::TensorProto::BFLOAT16, pb::TensorProto::STRING};
    return choose_.byte() < 160 ? pb::TensorProto::FLOAT : choose_.of(kTypes);
  }

  std::string add_input() {
    auto& input = *graph_->add_input();
    input.set_name("x" + std::to_string(graph_->input_size()));
    auto& type = *input.mutable_type()->mutable_tensor_type();
    type.set_elem_type(element_type());
    type.mutable_shape();
    for (int64_t dim : choose_.dimensions()) type.mutable_shape()->add_dim()->set_dim_value(dim);
    values_.push_back(input.name());
    return input.name();
  }

  // Elements only where there are few: the file stays small, whatever the shape says.
  void fill(pb::TensorProto& tensor, std::vector<int64_t> dims, int type) {
    constexpr int64_t kMost = 256;
    int64_t count = 1;
    for (int64_t& dim : dims) {
      if (count * std::max<int64_t>(dim, 1) > kMost) dim = 1;
      count *= dim;
    }
    for (int64_t dim : dims) tensor.add_dims(dim);
    tensor.set_data_type(type);
    for (int64_t i = 0; i < count; ++i) {
      if (type == pb::TensorProto::FLOAT)
        tensor.add_float_data(choose_.real());
      else if (type == pb::TensorProto::DOUBLE)
        tensor.add_double_data(choose_.real());
      else if (type == pb::TensorProto::INT64)
        tensor.add_int64_data(choose_.number());
      else if (type == pb::TensorProto::STRING)
        tensor.add_string_data("a");
      else
        tensor.add_int32_data(static_cast<int32_t>(choose_.number()));
    }
  }

  std::string add_initializer() {
    pb::TensorProto& tensor = *graph_->add_initializer();
    tensor.set_name("w" + std::to_string(graph_->initializer_size()));
    // Often a list of integers, as shapes, axes and pads are.
    if (choose_.byte() < 128)
      fill(tensor, choose_.rarely() ? std::vector<int64_t>{} : std::vector<int64_t>{static_cast<int64_t>(choose_.below(6))},
           pb::TensorProto::INT64);
    else
      fill(tensor, choose_.dimensions(), element_type());
    values_.push_back(tensor.name());
    return tensor.name();
  }

  std::string operand() {
    const uint8_t way = choose_.byte();
    if (way < 150) return values_[values_.size() - 1 - choose_.below(std::min<size_t>(values_.size(), 8))];
    if (way < 225) return add_initializer();
    if (way < 250) return add_input();
    return "";
  }

  std::string text(const std::string& name) {
    static const std::vector<std::string> kTexts{"",     "mean",       "sum",        "none",  "add",    "mul",      "max",
                                                 "min",  "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "constant", "reflect",
                                                 "edge", "wrap",       "DCR",        "CRD",   "tanh",   "linear",   "nearest"};
    if (name != "equation") return choose_.of(kTexts);
    static constexpr std::string_view kPieces[] = {"i", "j", "k", "...", ",", "->", ".", " ", "b", "ij", "jk", "-", ">", "A", "1", "\xff"};
    std::string equation;
    for (size_t pieces = choose_.below(12); pieces > 0; --pieces) equation += choose_.of(kPieces);
    return equation;
  }

  void add_attribute(pb::NodeProto& node, const std::string& name, pb::AttributeProto::AttributeType type) {
    pb::AttributeProto attribute;
    attribute.set_name(name);
    attribute.set_type(type);
    switch (type) {
      case pb::AttributeProto::INT:
        attribute.set_i(choose_.number());
        break;
      case pb::AttributeProto::FLOAT:
        attribute.set_f(choose_.real());
        break;
      case pb::AttributeProto::STRING:
        attribute.set_s(text(name));
        break;
      case pb::AttributeProto::INTS:
        for (size_t n = choose_.below(7); n > 0; --n) attribute.add_ints(choose_.number());
        break;
      case pb::AttributeProto::FLOATS:
        for (size_t n = choose_.below(5); n > 0; --n) attribute.add_floats(choose_.real());
        break;
      case pb::AttributeProto::TENSOR:
        fill(*attribute.mutable_t(), choose_.byte() < 128 ? std::vector<int64_t>{1} : choose_.dimensions(), element_type());
        break;
      default:
        return;
    }
    *node.add_attribute() = std::move(attribute);
  }

  void add_attributes(pb::NodeProto& node, const pb::OpSchema* schema) {
    if (!schema) {
      static const std::vector<std::pair<std::string, pb::AttributeProto::AttributeType>> kOthers{
          {"axis", pb::AttributeProto::INT},   {"epsilon", pb::AttributeProto::FLOAT}, {"transA", pb::AttributeProto::INT},
          {"transB", pb::AttributeProto::INT}, {"alpha", pb::AttributeProto::FLOAT},   {"transBatchA", pb::AttributeProto::INT}};
      for (const auto& [name, type] : kOthers) {
        if (choose_.byte() >= 192) add_attribute(node, name, type);
      }
      return;
    }
    for (const auto& [name, attribute] : schema->attributes()) {
      // A wrong type now and then.
      if (attribute.required || choose_.byte() < 128)
        add_attribute(node, name, choose_.rarely() ? pb::AttributeProto::INTS : attribute.type);
    }
  }

  void add_node() {
    const Op& op = choose_.of(ops());
    const pb::OpSchema* schema = pb::OpSchemaRegistry::Schema(op.name, opset_, op.domain);
    pb::NodeProto node;
    node.set_op_type(op.name);
    node.set_domain(op.domain);
    const int least = schema ? std::min(schema->min_input(), 4) : 1, most = schema ? std::min(schema->max_input(), least + 4) : 6;
    int inputs = least + static_cast<int>(choose_.below(static_cast<size_t>(most - least) + 1));
    if (choose_.rarely()) inputs = static_cast<int>(choose_.below(9));
    for (int i = 0; i < inputs; ++i) node.add_input(operand());
    const int few = schema ? std::clamp(schema->min_output(), 1, 4) : 1, many = schema ? std::clamp(schema->max_output(), few, 6) : 7;
    const int outputs = choose_.byte() < 160 ? few : few + static_cast<int>(choose_.below(static_cast<size_t>(many - few) + 1));
    add_attributes(node, schema);
    for (int i = 0; i < outputs; ++i) {
      node.add_output("v" + std::to_string(made_++));
      values_.push_back(node.output(i));
    }
    *graph_->add_node() = std::move(node);  // last: its operands are before it
  }

  void add_outputs() {
    for (size_t i = values_.size(); i-- > 0 && graph_->output_size() < 4;) {
      if (values_[i].starts_with('v')) graph_->add_output()->set_name(values_[i]);
    }
  }

  Choices choose_;
  pb::ModelProto model_;
  pb::GraphProto* graph_ = nullptr;
  std::vector<std::string> values_;
  int opset_ = 17, made_ = 0;
};

}  // namespace

void fuzz_nodes(Bytes bytes) { exercise_model(write("nodes.onnx", ModelMaker(bytes).make().SerializeAsString())); }

}  // namespace ort_train::fuzz
