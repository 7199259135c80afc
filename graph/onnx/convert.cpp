#include "graph/onnx/convert.h"

#include <bit>
#include <charconv>

#include "graph/error.h"

namespace ort_train::onnx {

static_assert(std::endian::native == std::endian::little, "tensors are stored little-endian");

int to_onnx(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return pb::TensorProto::FLOAT;
    case DType::float64:
      return pb::TensorProto::DOUBLE;
    case DType::float16:
      return pb::TensorProto::FLOAT16;
    case DType::bfloat16:
      return pb::TensorProto::BFLOAT16;
    case DType::int64:
      return pb::TensorProto::INT64;
    case DType::int32:
      return pb::TensorProto::INT32;
    case DType::int16:
      return pb::TensorProto::INT16;
    case DType::int8:
      return pb::TensorProto::INT8;
    case DType::uint8:
      return pb::TensorProto::UINT8;
    case DType::boolean:
      return pb::TensorProto::BOOL;
    case DType::dynamic8:
    case DType::dynamic8_unsigned:
    case DType::nf4:
    case DType::nf4_double:
    case DType::block_int8:
      break;  // ONNX has no such type
  }
  return pb::TensorProto::UNDEFINED;
}

std::optional<DType> from_onnx(int data_type) {
  for (DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::int16,
                      DType::int8, DType::uint8, DType::boolean}) {
    if (to_onnx(dtype) == data_type) return dtype;
  }
  return std::nullopt;
}

std::string type_in_words(int data_type) {
  if (const auto dtype = from_onnx(data_type)) return std::string(to_string(*dtype));
  std::string name = pb::TensorProto::DataType_IsValid(data_type)
                         ? pb::TensorProto::DataType_Name(static_cast<pb::TensorProto::DataType>(data_type))
                         : fmt::format("type {}", data_type);
  for (char& c : name) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

void set_type(const TensorType& type, pb::TypeProto& proto) {
  auto& tensor = *proto.mutable_tensor_type();
  tensor.set_elem_type(to_onnx(type.dtype));
  auto& shape = *tensor.mutable_shape();  // there even where the rank is 0
  for (int64_t dim : type.shape) shape.add_dim()->set_dim_value(dim);
}

ValueDef to_value(const pb::ValueInfoProto& proto) {
  ValueDef value;
  value.name = proto.name();
  if (!proto.type().has_tensor_type()) {
    value.type = proto.type().has_sequence_type()        ? "sequence"
                 : proto.type().has_optional_type()      ? "optional"
                 : proto.type().has_map_type()           ? "map"
                 : proto.type().has_sparse_tensor_type() ? "sparse tensor"
                                                         : "untyped";
    return value;
  }
  const auto& tensor = proto.type().tensor_type();
  value.type = type_in_words(tensor.elem_type());
  value.dtype = from_onnx(tensor.elem_type());
  value.has_shape = tensor.has_shape();
  if (static_cast<size_t>(tensor.shape().dim_size()) > kMaxRank)
    throw error(ErrorCode::unsupported, "'{}' has {} dimensions; at most {} are", value.name, tensor.shape().dim_size(), kMaxRank);
  for (const auto& dim : tensor.shape().dim()) {
    DimDef def;
    // Exporters write 0, -1 and '?' for a dimension that they don't know.
    if (dim.has_dim_value() && dim.dim_value() > 0) def.size = dim.dim_value();
    if (dim.has_dim_param() && dim.dim_param() != "?" && dim.dim_param() != "-1" && dim.dim_param() != "None") def.name = dim.dim_param();
    const char* const end = def.name.data() + def.name.size();
    if (int64_t size = 0; std::from_chars(def.name.data(), end, size) == std::from_chars_result{end, std::errc()} && size > 0)
      def = {.size = size, .name = ""};  // a name that is a number is one
    value.dims.push_back(std::move(def));
  }
  return value;
}

pb::ValueInfoProto to_proto(const ValueDef& value) {
  pb::ValueInfoProto proto;
  proto.set_name(value.name);
  auto& tensor = *proto.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(to_onnx(*value.dtype));
  for (const DimDef& dim : value.dims) {
    auto& to = *tensor.mutable_shape()->add_dim();
    if (dim.size >= 0)
      to.set_dim_value(dim.size);
    else if (!dim.name.empty())
      to.set_dim_param(dim.name);
  }
  return proto;
}

pb::TensorProto to_proto(const Tensor& tensor, const std::string& name) {
  pb::TensorProto proto;
  proto.set_name(name);
  proto.set_data_type(to_onnx(tensor.dtype));
  for (int64_t dim : tensor.shape) proto.add_dims(dim);
  if (!tensor.bytes.empty()) proto.set_raw_data(tensor.bytes.data(), tensor.bytes.size());
  return proto;
}

pb::AttributeProto to_proto(const std::string& name, const Attribute& attribute) {
  pb::AttributeProto proto;
  proto.set_name(name);
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, int64_t>) {
          proto.set_type(pb::AttributeProto::INT);
          proto.set_i(value);
        } else if constexpr (std::is_same_v<T, float>) {
          proto.set_type(pb::AttributeProto::FLOAT);
          proto.set_f(value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          proto.set_type(pb::AttributeProto::STRING);
          proto.set_s(value);
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          proto.set_type(pb::AttributeProto::INTS);
          for (int64_t v : value) proto.add_ints(v);
        } else if constexpr (std::is_same_v<T, std::vector<float>>) {
          proto.set_type(pb::AttributeProto::FLOATS);
          for (float v : value) proto.add_floats(v);
        } else {
          proto.set_type(pb::AttributeProto::TENSOR);
          *proto.mutable_t() = to_proto(value, "");
        }
      },
      attribute);
  return proto;
}

std::string plain_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

std::string function_key(const std::string& domain, const std::string& name, const std::string& overload) {
  return plain_domain(domain) + "::" + name + (overload.empty() ? "" : "::" + overload);
}

Opsets to_opsets(const google::protobuf::RepeatedPtrField<pb::OperatorSetIdProto>& imports) {
  Opsets opsets;
  for (const auto& import : imports) {
    if (import.version() < 1 || import.version() > 10'000) {
      throw error(ErrorCode::unsupported, "the model imports version {} of the operator set '{}', which can't be", import.version(),
                  import.domain());
    }
    opsets[plain_domain(import.domain())] = static_cast<int>(import.version());
  }
  return opsets;
}

namespace {

int64_t number(const std::string& text, const std::string& what) {
  int64_t value = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0) {
    throw error(ErrorCode::unsupported, "tensor {} is not a number of bytes: '{}'", what, text);
  }
  return value;
}

// The elements that a repeated field of 32- or 64-bit integers stands for.
template <typename Field> void narrow(const Field& field, Tensor& tensor) {
  const auto fill = [&]<typename T>(T) {
    for (size_t i = 0; i < static_cast<size_t>(field.size()); ++i) {
      const T element = static_cast<T>(field[static_cast<int>(i)]);
      std::memcpy(tensor.bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  };
  switch (tensor.dtype) {
    case DType::int64:
      return fill(int64_t{});
    case DType::int32:
      return fill(int32_t{});
    case DType::int16:
      return fill(int16_t{});
    case DType::float16:
    case DType::bfloat16:
      return fill(uint16_t{});
    case DType::int8:
      return fill(int8_t{});
    case DType::uint8:
      return fill(uint8_t{});
    default:
      break;
  }
  for (int i = 0; i < field.size(); ++i) tensor.bytes[static_cast<size_t>(i)] = std::byte{field[i] != 0};
}

// The field that holds the elements of this type where they aren't in raw_data.
int field_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return pb::TensorProto::kFloatDataFieldNumber;
    case DType::float64:
      return pb::TensorProto::kDoubleDataFieldNumber;
    case DType::int64:
      return pb::TensorProto::kInt64DataFieldNumber;
    default:
      return pb::TensorProto::kInt32DataFieldNumber;
  }
}

// Elements that are still in the proto; null where there are none.
std::shared_ptr<const Tensor> elements(const pb::TensorProto& proto, const TensorDef& def, int64_t count) {
  auto tensor = std::make_shared<Tensor>();
  const auto wrong = [&](int64_t have) {
    return error(ErrorCode::unsupported, "tensor '{}' is {} {}, but the file holds {} elements of it", def.name, def.type,
                 to_string(def.shape), have);
  };
  const auto allocate = [&](int64_t have) {
    if (have != count) throw wrong(have);
    *tensor = Tensor(*def.dtype, def.shape);
  };
  if (proto.has_raw_data() && !proto.raw_data().empty()) {
    const auto bytes = static_cast<int64_t>(proto.raw_data().size());
    if (bytes != count * size_of(*def.dtype)) throw wrong(bytes / size_of(*def.dtype));
    allocate(count);
    std::memcpy(tensor->bytes.data(), proto.raw_data().data(), proto.raw_data().size());
    if (*def.dtype == DType::boolean) {
      for (std::byte& byte : tensor->bytes) byte = std::byte{byte != std::byte{0}};  // a bool that is neither 0 nor 1 is none
    }
    return tensor;
  }
  switch (field_of(*def.dtype)) {
    case pb::TensorProto::kFloatDataFieldNumber:
      if (proto.float_data_size() == 0) break;
      allocate(proto.float_data_size());
      std::memcpy(tensor->bytes.data(), proto.float_data().data(), tensor->bytes.size());
      return tensor;
    case pb::TensorProto::kDoubleDataFieldNumber:
      if (proto.double_data_size() == 0) break;
      allocate(proto.double_data_size());
      std::memcpy(tensor->bytes.data(), proto.double_data().data(), tensor->bytes.size());
      return tensor;
    case pb::TensorProto::kInt64DataFieldNumber:
      if (proto.int64_data_size() == 0) break;
      allocate(proto.int64_data_size());
      narrow(proto.int64_data(), *tensor);
      return tensor;
    default:
      if (proto.int32_data_size() == 0) break;
      allocate(proto.int32_data_size());
      narrow(proto.int32_data(), *tensor);
      return tensor;
  }
  if (count != 0) return nullptr;
  *tensor = Tensor(*def.dtype, def.shape);
  return tensor;
}

void read_external(const pb::TensorProto& proto, TensorDef& def, int64_t need) {
  int64_t length = need;
  def.offset = 0;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") def.location = entry.value();
    if (entry.key() == "offset") def.offset = number(entry.value(), fmt::format("'{}': its offset", def.name));
    if (entry.key() == "length") length = number(entry.value(), fmt::format("'{}': its length", def.name));
  }
  if (def.location.empty())
    throw error(ErrorCode::unsupported, "tensor '{}' is stored in another file, but the model doesn't say in which", def.name);
  if (def.dtype && length != need) {
    throw error(ErrorCode::unsupported, "tensor '{}' is {} {} and needs {} bytes, but {} are said to be in '{}'", def.name, def.type,
                to_string(def.shape), need, length, def.location);
  }
  def.bytes = length;
}

}  // namespace

TensorDef to_tensor(const pb::TensorProto& proto) {
  TensorDef def;
  def.name = proto.name();
  def.type = type_in_words(proto.data_type());
  def.dtype = from_onnx(proto.data_type());
  def.shape.assign(proto.dims().begin(), proto.dims().end());
  if (def.shape.size() > kMaxRank)
    throw error(ErrorCode::unsupported, "tensor '{}' has {} dimensions; at most {} are", def.name, def.shape.size(), kMaxRank);
  if (proto.has_segment())
    throw error(ErrorCode::unsupported, "tensor '{}' is stored in segments, which nothing writes; save the model again", def.name);
  int64_t count = 0;
  try {
    count = element_count(def.shape);
  } catch (const Error& e) {
    throw error(ErrorCode::unsupported, "tensor '{}': {}", def.name, e.what());
  }
  const int64_t need = def.dtype ? count * size_of(*def.dtype) : 0;

  if (proto.data_location() == pb::TensorProto::EXTERNAL) {
    read_external(proto, def, need);
    return def;
  }
  if (!def.dtype) return def;
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() != kBytesKey) continue;
    const std::string& text = entry.value();
    int field = 0;
    const char* at = std::from_chars(text.data(), text.data() + text.size(), field).ptr;
    at = std::from_chars(at + 1, text.data() + text.size(), def.offset).ptr;
    std::from_chars(at + 1, text.data() + text.size(), def.bytes);
    if (field == pb::TensorProto::kRawDataFieldNumber || field == pb::TensorProto::kFloatDataFieldNumber ||
        field == pb::TensorProto::kDoubleDataFieldNumber) {
      if (def.bytes != need || (field != pb::TensorProto::kRawDataFieldNumber && field != field_of(*def.dtype))) {
        throw error(ErrorCode::unsupported, "tensor '{}' is {} {} and needs {} bytes, but the file holds {}", def.name, def.type,
                    to_string(def.shape), need, def.bytes);
      }
    } else if (field == field_of(*def.dtype)) {
      def.varints = true;
      if (def.bytes < count)
        throw error(ErrorCode::unsupported, "tensor '{}' is {} {}, but the file holds fewer elements of it", def.name, def.type,
                    to_string(def.shape));
    } else {
      throw error(ErrorCode::unsupported, "tensor '{}' is {}, but its elements are stored as another type", def.name, def.type);
    }
  }
  def.value = elements(proto, def, count);
  if (!def.value && def.offset < 0)
    throw error(ErrorCode::unsupported, "tensor '{}' is {} {}, but the file holds no elements of it", def.name, def.type,
                to_string(def.shape));
  return def;
}

NodeDef to_node(const pb::NodeProto& proto, const std::shared_ptr<const void>& owner) {
  NodeDef node;
  node.domain = plain_domain(proto.domain());
  node.op_type = proto.op_type();
  node.overload = proto.overload();
  node.name = proto.name();
  node.module = module_of(proto);
  node.inputs.assign(proto.input().begin(), proto.input().end());
  node.outputs.assign(proto.output().begin(), proto.output().end());
  node.proto = std::shared_ptr<const pb::NodeProto>(owner, &proto);
  for (const auto& attribute : proto.attribute()) {
    const std::string& name = attribute.name();
    switch (attribute.type()) {
      case pb::AttributeProto::FLOAT:
        node.attributes.set(name, attribute.f());
        break;
      case pb::AttributeProto::INT:
        node.attributes.set(name, int64_t{attribute.i()});
        break;
      case pb::AttributeProto::STRING:
        node.attributes.set(name, attribute.s());
        break;
      case pb::AttributeProto::FLOATS:
        node.attributes.set(name, std::vector<float>(attribute.floats().begin(), attribute.floats().end()));
        break;
      case pb::AttributeProto::INTS:
        node.attributes.set(name, std::vector<int64_t>(attribute.ints().begin(), attribute.ints().end()));
        break;
      case pb::AttributeProto::STRINGS:  // as one text: the standard's are names
        node.attributes.set(name, fmt::format("{}", fmt::join(attribute.strings(), ",")));
        break;
      case pb::AttributeProto::TENSOR: {
        TensorDef tensor = to_tensor(attribute.t());
        if (tensor.value) node.attributes.set(name, *tensor.value);
        node.tensors[name] = std::move(tensor);
        break;
      }
      case pb::AttributeProto::GRAPH:
        node.graphs[name] = std::make_shared<const GraphDef>(to_graph(attribute.g(), owner));
        break;
      default:
        node.others.push_back(name);
    }
  }
  return node;
}

GraphDef to_graph(const pb::GraphProto& proto, const std::shared_ptr<const void>& owner) {
  GraphDef graph;
  graph.name = proto.name();
  for (const auto& value : proto.input()) graph.inputs.push_back(to_value(value));
  for (const auto& value : proto.output()) graph.outputs.push_back(to_value(value));
  for (const auto& value : proto.value_info()) graph.declared[value.name()] = to_value(value);
  for (const auto& tensor : proto.initializer()) graph.initializers.push_back(to_tensor(tensor));
  for (const auto& tensor : proto.sparse_initializer()) graph.sparse_initializers.push_back(tensor.values().name());
  for (const auto& node : proto.node()) graph.nodes.push_back(to_node(node, owner));
  read_origins(proto, graph);
  return graph;
}

}  // namespace ort_train::onnx
