// Where tensors come from, as PyTorch's dynamo exporter says it in metadata: Python's text of lists and of a graph signature.

#include <algorithm>

#include "graph/onnx/convert.h"

namespace ort_train::onnx {
namespace {

OriginKind kind_of(std::string_view word) {
  if (word == "PARAMETER") return OriginKind::parameter;
  if (word == "BUFFER") return OriginKind::buffer;
  if (word == "CONSTANT_TENSOR") return OriginKind::constant;
  return OriginKind::unknown;
}

// The strings of a Python list: ['a', "b'c"] -> a, b'c
std::vector<std::string> strings_of(std::string_view list) {
  std::vector<std::string> strings;
  for (size_t at = 0; at < list.size(); ++at) {
    const char quote = list[at];
    if (quote != '\'' && quote != '"') continue;
    std::string text;
    for (++at; at < list.size() && list[at] != quote; ++at) {
      if (list[at] == '\\' && at + 1 < list.size()) ++at;
      text.push_back(list[at]);
    }
    if (at < list.size()) strings.push_back(std::move(text));  // else it is cut short
  }
  return strings;
}

// Lines "p_fc_weight: PARAMETER target='fc.weight'".
void read_signature(std::string_view text, std::map<std::string, OriginKind>& program) {
  constexpr std::string_view kTarget = "target=";
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    const std::string_view rest = line.substr(colon + 2);
    const OriginKind kind = kind_of(rest.substr(0, rest.find(' ')));
    const size_t target = rest.find(kTarget);
    if (kind == OriginKind::unknown || target == std::string_view::npos) continue;
    const std::vector<std::string> names = strings_of(rest.substr(target));
    if (!names.empty()) program[names[0]] = kind;
  }
}

}  // namespace

// ['', 'encoder', 'encoder.fc', 'linear_1']: the modules from the outermost to the innermost, then the node.
std::string module_of(const pb::NodeProto& proto) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() != kScopesKey) continue;
    const std::vector<std::string> names = strings_of(entry.value());
    return names.size() < 2 ? std::string() : names[names.size() - 2];
  }
  return {};
}

void read_origins(const pb::GraphProto& proto, GraphDef& graph) {
  for (const auto* values : {&proto.value_info(), &proto.input(), &proto.output()}) {
    for (const auto& value : *values) {
      TensorOrigin origin;
      for (const auto& entry : value.metadata_props()) {
        if (entry.key() == kKindKey) origin.kind = kind_of(entry.value());
        if (entry.key() == kFoldedKey) origin.folded_from = strings_of(entry.value());
      }
      if (origin.kind != OriginKind::unknown || !origin.folded_from.empty()) graph.origins[value.name()] = std::move(origin);
    }
  }
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kSignatureKey) read_signature(entry.value(), graph.program);
  }
}

}  // namespace ort_train::onnx
