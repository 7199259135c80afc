#include "graph/onnx/schema.h"

#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <iterator>

#include "graph/error.h"
#include "graph/onnx/convert.h"

namespace ort_train::onnx {
namespace {

using FunctionProto = std::shared_ptr<pb::FunctionProto>;

const pb::OpSchema* schema_of(const std::string& domain, const std::string& op_type, int opset) {
  return pb::OpSchemaRegistry::Schema(op_type, opset, domain);
}

int opset_of(const Opsets& opsets, const std::string& domain) {
  const auto found = opsets.find(domain);
  return found == opsets.end() ? 0 : found->second;
}

std::string first_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

// References to the caller's attributes become their values; those that the caller leaves out, and that have no default, go.
void fill_in(pb::NodeProto& node, const std::map<std::string, const pb::AttributeProto*>& given) {
  google::protobuf::RepeatedPtrField<pb::AttributeProto> filled;
  for (auto& attribute : *node.mutable_attribute()) {
    if (attribute.ref_attr_name().empty()) {
      if (attribute.has_g()) {
        for (auto& inner : *attribute.mutable_g()->mutable_node()) fill_in(inner, given);
      }
      for (auto& graph : *attribute.mutable_graphs()) {
        for (auto& inner : *graph.mutable_node()) fill_in(inner, given);
      }
      *filled.Add() = std::move(attribute);
    } else if (const auto value = given.find(attribute.ref_attr_name()); value != given.end()) {
      auto& copy = *filled.Add();
      copy = *value->second;
      copy.set_name(attribute.name());
    }
  }
  node.mutable_attribute()->Swap(&filled);
}

FunctionDef instantiate(const FunctionProto& body, const pb::NodeProto& call, const pb::OpSchema* schema) {
  std::map<std::string, const pb::AttributeProto*> given;
  if (schema) {
    for (const auto& [name, attribute] : schema->attributes()) {
      if (attribute.default_value.type() != pb::AttributeProto::UNDEFINED) given[name] = &attribute.default_value;
    }
  }
  const pb::FunctionProto defaults = *body;
  for (const auto& attribute : defaults.attribute_proto()) given[attribute.name()] = &attribute;
  for (const auto& attribute : call.attribute()) given[attribute.name()] = &attribute;
  for (auto& node : *body->mutable_node()) fill_in(node, given);

  FunctionDef def;
  def.opsets = to_opsets(body->opset_import());
  def.inputs.assign(body->input().begin(), body->input().end());
  def.outputs.assign(body->output().begin(), body->output().end());
  for (const auto& node : body->node()) def.nodes.push_back(to_node(node, body));
  return def;
}

const pb::FunctionProto* local_function(const ModelDef& model, const NodeDef& node) {
  auto found = model.functions.find(function_key(node.domain, node.op_type, node.overload));
  return found == model.functions.end() ? nullptr : found->second.get();
}

// The newest of the opsets that a body was written for, at most `opset`; 0 where there is none.
int newest_of(const std::vector<int>& versions, int opset) {
  int newest = 0;
  for (int version : versions) {
    if (version <= opset && version > newest) newest = version;
  }
  return newest;
}

}  // namespace

int newest_opset() { return pb::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second; }
int64_t newest_ir_version() { return pb::IR_VERSION; }

int since_version(const std::string& domain, const std::string& op_type, int opset) {
  const pb::OpSchema* schema = schema_of(domain, op_type, opset);
  return schema && !schema->Deprecated() ? schema->SinceVersion() : 0;
}

namespace {

// PyTorch's dynamo exporter leaves opset 18's num_outputs on a Split that it takes down to 17. Where it only counts the outputs, it is
// nothing that the node needs.
bool has_spare_count(const NodeDef& node, int opset) {
  return node.domain.empty() && node.op_type == "Split" && opset < 18 &&
         node.attributes.get("num_outputs", int64_t{-1}) == static_cast<int64_t>(node.outputs.size());
}

pb::NodeProto without(const pb::NodeProto& node, std::string_view attribute) {
  pb::NodeProto copy = node;
  for (int i = copy.attribute_size(); i-- > 0;) {
    if (copy.attribute(i).name() == attribute) copy.mutable_attribute()->DeleteSubrange(i, 1);
  }
  return copy;
}

}  // namespace

std::string violation(const NodeDef& node, int opset) {
  const pb::OpSchema* schema = schema_of(node.domain, node.op_type, opset);
  if (!schema) return "";
  if (schema->Deprecated()) {
    // GroupNormalization's first form, of which its importer checks everything, is deprecated since the opset that has it.
    const bool is_first_form = node.domain.empty() && node.op_type == "GroupNormalization";
    return is_first_form ? "" : fmt::format("is deprecated since opset {}", schema->SinceVersion());
  }
  try {
    schema->Verify(has_spare_count(node, opset) ? without(*node.proto, "num_outputs") : *node.proto);
    return "";
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return first_line(e.what());
  }
}

bool never_differentiable(const std::string& domain, const std::string& op_type, int opset, size_t input) {
  const pb::OpSchema* schema = schema_of(domain, op_type, opset);
  if (!schema || input >= schema->inputs().size()) return false;
  return schema->inputs()[input].GetDifferentiationCategory() == pb::OpSchema::NonDifferentiable;
}

bool is_optional_output(const std::string& domain, const std::string& op_type, int opset, size_t output) {
  const pb::OpSchema* schema = schema_of(domain, op_type, opset);
  return schema && output < schema->outputs().size() && schema->outputs()[output].GetOption() == pb::OpSchema::Optional;
}

bool has_function_body(const ModelDef& model, const NodeDef& node, const Opsets& opsets) {
  if (local_function(model, node)) return true;
  const int opset = opset_of(opsets, node.domain);
  const pb::OpSchema* schema = schema_of(node.domain, node.op_type, opset);
  return schema && !schema->Deprecated() &&
         (newest_of(schema->function_opset_versions(), opset) || newest_of(schema->context_dependent_function_opset_versions(), opset));
}

std::optional<FunctionDef> function_body(const ModelDef& model, const NodeDef& node, const Opsets& opsets,
                                         const std::vector<std::optional<TensorType>>& inputs) {
  if (const pb::FunctionProto* local = local_function(model, node)) {
    return instantiate(std::make_shared<pb::FunctionProto>(*local), *node.proto, nullptr);
  }
  const int opset = opset_of(opsets, node.domain);
  const pb::OpSchema* schema = schema_of(node.domain, node.op_type, opset);
  if (!schema || schema->Deprecated()) return std::nullopt;
  if (newest_of(schema->function_opset_versions(), opset)) {
    // A body is read at the opset that it was written for, whatever the model's.
    return instantiate(std::make_shared<pb::FunctionProto>(*schema->GetFunction(opset)), *node.proto, schema);
  }
  const int version = newest_of(schema->context_dependent_function_opset_versions(), opset);
  if (version == 0) return std::nullopt;
  std::vector<pb::TypeProto> types(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) set_type(*inputs[i], types[i]);
  }
  const auto body = std::make_shared<pb::FunctionProto>();
  try {
    if (!schema->BuildContextDependentFunction(pb::FunctionBodyBuildContextImpl(*node.proto, types), *body, version)) return std::nullopt;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return instantiate(body, *node.proto, schema);
}

namespace {

// Whether an Einsum's equation is one: terms of letters, each with an ellipsis at most, and one result at most. The standard's own shape
// rule goes round for ever in some that aren't.
bool is_equation(const std::string& equation) {
  std::string text;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(text), [](char c) { return c != ' '; });
  const size_t arrow = text.find("->");
  std::string terms = text.substr(0, arrow);
  if (arrow != std::string::npos) {
    const std::string result = text.substr(arrow + 2);
    if (result.find_first_of(",->") != std::string::npos) return false;
    terms += "," + result;
  }
  for (size_t begin = 0; begin <= terms.size();) {
    const size_t end = std::min(terms.find(',', begin), terms.size());
    std::string term = terms.substr(begin, end - begin);
    if (const size_t dots = term.find("..."); dots != std::string::npos) term.erase(dots, 3);
    if (!std::all_of(term.begin(), term.end(), [](char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); })) return false;
    begin = end + 1;
  }
  return true;
}

// Whether the axes that a node names exist: some of the standard's shape rules index with them unchecked. One beyond the last is an axis
// that is made.
bool has_sound_axes(const NodeDef& node, const std::vector<std::optional<TensorType>>& inputs) {
  if (inputs.empty() || !inputs[0]) return true;
  const auto rank = static_cast<int64_t>(inputs[0]->shape.size());
  for (const auto& [name, attribute] : node.attributes.entries()) {
    const auto* const number = std::get_if<int64_t>(&attribute);
    if (name == "axis" && number && (*number < -rank - 1 || *number > rank)) return false;
    if (name == "num_outputs" && number && *number != static_cast<int64_t>(node.outputs.size())) return false;  // it makes so many
    if (name == "batch_dims" && number && (*number < 0 || *number > rank)) return false;
  }
  return true;
}

// Whether the types of all inputs are known that the op can't do without: some of the standard's shape rules read them unchecked.
bool has_required_inputs(const pb::OpSchema& schema, const std::vector<std::optional<TensorType>>& inputs) {
  const auto required = static_cast<size_t>(std::max(schema.min_input(), 0));
  return inputs.size() >= required && std::all_of(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(required),
                                                  [](const std::optional<TensorType>& input) { return input.has_value(); });
}

}  // namespace

std::vector<std::optional<TensorType>> infer_outputs(const NodeDef& node, int opset, const std::vector<std::optional<TensorType>>& inputs,
                                                     const std::vector<const Tensor*>& constants) {
  std::vector<std::optional<TensorType>> outputs(node.outputs.size());
  const pb::OpSchema* schema = schema_of(node.domain, node.op_type, opset);
  if (!schema || schema->Deprecated()) return outputs;
  if (node.domain.empty() && node.op_type == "Einsum") {
    const Attribute* const equation = node.attributes.find("equation");
    const auto* const text = equation ? std::get_if<std::string>(equation) : nullptr;
    if (!text || !is_equation(*text)) return outputs;
  }
  if (!has_required_inputs(*schema, inputs) || !has_sound_axes(node, inputs)) return outputs;
  std::vector<pb::TypeProto> types(inputs.size());
  std::vector<pb::TensorProto> data(inputs.size());
  std::unordered_map<std::string, pb::TypeProto*> types_by_name;
  std::unordered_map<std::string, const pb::TensorProto*> data_by_name;
  for (size_t i = 0; i < inputs.size() && i < node.inputs.size(); ++i) {
    if (!inputs[i]) continue;
    set_type(*inputs[i], types[i]);
    types_by_name[node.inputs[i]] = &types[i];
    if (!constants[i]) continue;
    data[i] = to_proto(*constants[i], node.inputs[i]);
    data_by_name[node.inputs[i]] = &data[i];
  }
  pb::NodeProto copy = *node.proto;
  try {
    pb::shape_inference::InferenceContextImpl context(copy, types_by_name, data_by_name, {}, pb::ShapeInferenceOptions{});
    schema->GetTypeAndShapeInferenceFunction()(context);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const pb::TypeProto& type = *context.getOutputType(i);
      if (!type.has_tensor_type() || !type.tensor_type().has_shape()) continue;
      const auto dtype = from_onnx(type.tensor_type().elem_type());
      if (!dtype) continue;
      TensorType known{*dtype, {}};
      bool fixed = true;
      for (const auto& dim : type.tensor_type().shape().dim()) {
        fixed &= dim.has_dim_value() && dim.dim_value() >= 0;
        known.shape.push_back(dim.dim_value());
      }
      if (!fixed) continue;
      check_type(known);
      outputs[i] = std::move(known);
    }
  } catch (const std::exception&) {
    // Nothing is known of outputs whose rule fails; the node is reported anyway.
  }
  return outputs;
}

}  // namespace ort_train::onnx
