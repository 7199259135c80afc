#include "frontend/binding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "frontend/adapters.h"
#include "frontend/bound_value.h"
#include "frontend/element.h"
#include "frontend/loss_options.h"
#include "graph/error.h"

namespace ort_train {
namespace {

bool unnamed(const std::string& dim) { return dim.empty() || dim == "?" || dim == "-1" || dim == "0"; }

std::string axis_name(const DeclaredInput& input, size_t axis) { return fmt::format("{}.{}", input.name, axis); }

// The name by which a dimension is bound.
std::string dimension_name(const DeclaredInput& input, size_t axis) {
  return unnamed(input.dims[axis]) ? axis_name(input, axis) : input.dims[axis];
}

const DeclaredInput* find_input(const Declared& declared, std::string_view name) {
  for (const DeclaredInput& input : declared.inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

std::optional<ConstantInput::Kind> constant_kind(std::string_view name) {
  if (name == "attention_mask") return ConstantInput::Kind::ones;
  if (name == "position_ids") return ConstantInput::Kind::positions;
  if (name == "token_type_ids") return ConstantInput::Kind::zeros;
  return std::nullopt;
}

// The sizes of dynamic dimensions, and where each was learned.
class Sizes {
 public:
  Sizes(const Declared& declared, const std::map<std::string, int64_t>& asked) : asked_(asked) {
    std::set<std::string> known;
    for (const DeclaredInput& input : declared.inputs) {
      for (size_t axis = 0; axis < input.dims.size(); ++axis) {
        if (fixed_size(input.dims[axis])) continue;
        known.insert(axis_name(input, axis));
        if (!unnamed(input.dims[axis])) known.insert(input.dims[axis]);
      }
    }
    for (const auto& [name, size] : asked) {
      if (size <= 0) throw error(ErrorCode::usage, "`shapes` {}={}: a dimension is at least 1", name, size);
      if (!known.contains(name)) {
        throw error(ErrorCode::usage, "`shapes` {}={}: the model has no free dimension of that name; it has {}", name, size,
                    known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
      }
    }
  }

  std::optional<int64_t> asked(const DeclaredInput& input, size_t axis) const { return asked_size(input, axis, asked_); }

  // Binds a dimension that isn't fixed; throws where it is bound to something else.
  void bind(const DeclaredInput& input, size_t axis, int64_t size, std::string_view source) {
    if (const auto is = fixed_size(input.dims[axis])) {
      if (*is != size) {
        throw error(ErrorCode::data, "input '{}' has {} as dimension {} in the model's file, {} gives {}", input.name, *is, axis, source,
                    size);
      }
      return;
    }
    const auto wanted = asked(input, axis);
    if (wanted && *wanted != size)
      throw error(ErrorCode::usage, "input '{}': `shapes` binds dimension {} to {}, {} gives {}", input.name, axis, *wanted, source, size);
    const std::string key = dimension_name(input, axis);
    const auto [place, added] = sizes.emplace(key, size);
    if (!added && place->second != size) {
      throw error(ErrorCode::data, "dimension '{}' of the model would be {} and {}: {} disagrees", key, place->second, size, source);
    }
  }

  std::map<std::string, int64_t> sizes;

 private:
  const std::map<std::string, int64_t>& asked_;
};

// The input that a row of tokens feeds.
const DeclaredInput& token_input(const Declared& declared, const Options& options) {
  if (const DeclaredInput* input = find_input(declared, "input_ids")) return *input;
  std::vector<const DeclaredInput*> others;
  for (const DeclaredInput& input : declared.inputs) {
    if (!constant_kind(input.name) && !options.bind.contains(input.name)) others.push_back(&input);
  }
  if (others.size() != 1 || is_floating(others[0]->dtype)) {
    throw error(ErrorCode::data, "text gives 'input_ids', which the model does not have; its inputs are {}",
                fmt::join(
                    [&] {
                      std::vector<std::string> names;
                      for (const DeclaredInput& input : declared.inputs) names.push_back("'" + input.name + "'");
                      return names;
                    }(),
                    ", "));
  }
  return *others[0];
}

// Says which inputs are fed and which are constants; refuses the rest.
void divide(const Declared& declared, const Options& options, const DataSet& data, Binding& binding,
            std::vector<const DeclaredInput*>& constants) {
  const bool causal = options.task == "causal-lm";
  std::vector<std::string> inputs;
  for (const DeclaredInput& input : declared.inputs) inputs.push_back(input.name);
  check_bound_names(options.bind, inputs);
  const std::string token = data.is_row() ? token_input(declared, options).name : "";
  for (const DeclaredInput& input : declared.inputs) {
    if (options.bind.contains(input.name)) continue;
    if (data.is_row() ? input.name == token : data.field(input.name) != nullptr) {
      binding.fed.push_back({.input = input.name, .field = data.is_row() ? "input_ids" : input.name});
    } else if (causal && constant_kind(input.name)) {
      constants.push_back(&input);
    } else if (data.is_row()) {
      throw error(ErrorCode::data,
                  "the model's input '{}' can't come from text: give the data as .npz or .safetensors with an array for each input, or "
                  "fix it (`bind` {}=VALUE)",
                  input.name, input.name);
    } else {
      std::vector<std::string> names;
      for (const Field& field : data.fields()) names.push_back("'" + field.name + "'");
      throw error(ErrorCode::data, "{}: has no array '{}', which the model wants as an input; it has {} (`bind` {}=VALUE fixes an input)",
                  data.name(), input.name, fmt::join(names, ", "), input.name);
    }
  }
  if (binding.fed.empty()) throw error(ErrorCode::data, "{}: feeds none of the model's inputs", data.name());
}

int64_t usual_batch(const Options& options) { return options.batch_size > 0 ? options.batch_size : kDefaultBatch; }

// The batch size, from the first of: the model's file, --shape, --batch-size, 8.
int64_t find_batch(const Declared& declared, const Options& options, const Sizes& sizes, Binding& binding) {
  std::optional<int64_t> batch;
  std::string source;
  for (const FedInput& fed : binding.fed) {
    const DeclaredInput& input = *find_input(declared, fed.input);
    if (input.dims.empty())
      throw error(ErrorCode::unsupported, "input '{}' is a single number, which has no place for samples", input.name);
    const auto size = sizes.asked(input, 0);
    if (!size) continue;
    if (fixed_size(input.dims[0])) binding.batch_is_fixed = true;
    if (batch && *batch != *size)
      throw error(ErrorCode::usage, "inputs '{}' and '{}' have batches of {} and {}", source, input.name, *batch, *size);
    batch = size;
    source = input.name;
  }
  if (batch && options.batch_size > 0 && *batch != options.batch_size) {
    throw error(ErrorCode::usage, "`batch_size` {} contradicts the batch of {} that {} of input '{}'", options.batch_size, *batch,
                binding.batch_is_fixed ? "the model's file fixes as first dimension" : "`shapes` gives as first dimension", source);
  }
  return batch ? *batch : usual_batch(options);
}

int64_t find_sequence(const DeclaredInput& input, const Options& options, const Sizes& sizes) {
  if (input.dims.size() != 2) {
    throw error(ErrorCode::data, "input '{}' has {} dimensions; token ids have two, batch and sequence", input.name, input.dims.size());
  }
  const auto size = sizes.asked(input, 1);
  if (size && options.seq_length > 0 && *size != options.seq_length) {
    throw error(ErrorCode::usage, "`seq_length` {} contradicts the length {} that {} for input '{}'", options.seq_length, *size,
                fixed_size(input.dims[1]) ? "the model's file fixes" : "`shapes` gives", input.name);
  }
  if (!size && options.seq_length <= 0) {
    throw error(ErrorCode::usage, "the model leaves the length of a sample open (input '{}'): give `seq_length`", input.name);
  }
  return size ? *size : options.seq_length;
}

// How long the samples of arrays are: as those of 'input_ids', else as `seq_length` says, where an input of whole numbers is so long; 0:
// that isn't known.
int64_t sequence_of_arrays(const Options& options, const DataSet& data, const Binding& binding) {
  if (const Field* tokens = data.field("input_ids"); tokens != nullptr && tokens->shape.size() == 1) {
    const int64_t length = tokens->shape[0];
    if (options.seq_length > 0 && options.seq_length != length) {
      throw error(ErrorCode::usage, "`seq_length` {} contradicts {}, whose samples are {} tokens long", options.seq_length, data.name(),
                  length);
    }
    return length;
  }
  if (options.seq_length == 0) return 0;
  bool fits = false;  // also arrays of other numbers, whose samples are no tokens
  for (const FedInput& fed : binding.fed) {
    const Field& field = *data.field(fed.field);
    if (field.shape.empty() || field.shape[0] != options.seq_length) continue;
    if (!is_float(field.element)) return options.seq_length;
    fits = true;
  }
  if (fits) return 0;
  throw error(ErrorCode::usage,
              "`seq_length` {}: {} has neither an array 'input_ids' nor another input with samples of that length "
              "(`shapes` binds a dimension by its name)",
              options.seq_length, data.name());
}

std::vector<std::string> names_of_dimensions(const DeclaredInput& input) {
  std::vector<std::string> names;
  for (size_t axis = 0; axis < input.dims.size(); ++axis)
    names.push_back(fixed_size(input.dims[axis]) ? std::string() : dimension_name(input, axis));
  return names;
}

ConstantInput constant_input(const DeclaredInput& input, const Binding& binding, Sizes& sizes) {
  ConstantInput constant{
      .name = input.name, .kind = *constant_kind(input.name), .dtype = input.dtype, .shape = {}, .names = names_of_dimensions(input)};
  const size_t rank = input.dims.size();
  const bool positions = constant.kind == ConstantInput::Kind::positions;
  if (rank != 2 && !(rank == 1 && positions)) {
    throw error(ErrorCode::data, "input '{}' has {} dimensions, not batch and sequence: give it as an array of .npz or .safetensors data",
                input.name, rank);
  }
  if (rank == 2) {
    const auto size = fixed_size(input.dims[0]);
    if (size && *size != 1 && *size != binding.batch) {
      throw error(ErrorCode::usage, "input '{}' has a batch of {} in the model's file, the job has {}", input.name, *size, binding.batch);
    }
    constant.first_is_batch = !size;
    constant.shape.push_back(size ? *size : binding.batch);
  }
  sizes.bind(input, rank - 1, binding.sequence, "the sequence length");
  constant.shape.push_back(binding.sequence);
  return constant;
}

// An input of Options::bind. Of its dimensions those are known that the file fixes, or that the data or options bind. A first one without a
// name is the batch, unless `shapes` or the value say otherwise: numbers for a vector are as many as they are, and of a file one row is for
// all samples.
ConstantInput given_input(const DeclaredInput& input, const std::string& text, const Binding& binding, const Sizes& sizes) {
  ConstantInput constant{.name = input.name,
                         .kind = ConstantInput::Kind::given,
                         .dtype = input.dtype,
                         .shape = {},
                         .names = names_of_dimensions(input),
                         .text = text};
  for (size_t axis = 0; axis < input.dims.size(); ++axis) {
    const bool is_batch = std::find(binding.batch_names.begin(), binding.batch_names.end(), input.dims[axis]) != binding.batch_names.end();
    const auto asked = sizes.asked(input, axis);
    const auto known = sizes.sizes.find(input.dims[axis]);
    if (axis == 0) constant.first_is_batch = is_batch;
    constant.shape.push_back(is_batch ? binding.batch : asked ? *asked : known == sizes.sizes.end() ? -1 : known->second);
  }
  const bool is_file = text.starts_with('@'), is_list = !is_file && text.find(',') != std::string::npos;
  const bool may_be_batch = !input.dims.empty() && unnamed(input.dims[0]) && !(is_list && input.dims.size() == 1);
  // A number fills a batch of any size. What `shapes` or a file says may be as long as a batch of 1 by chance.
  const bool fills = may_be_batch && !is_file && constant.shape[0] < 0;
  if (fills) constant.shape[0] = binding.batch;
  constant.shape = bound_value(input.name, text, input.dtype, constant.shape).shape;  // throws where it can't be
  if (fills || (may_be_batch && binding.batch > 1 && constant.shape[0] == binding.batch)) constant.first_is_batch = true;
  return constant;
}

template <typename T> Tensor filled(ConstantInput::Kind kind, const Shape& shape) {
  Tensor tensor(dtype_of<T>(), shape);
  const auto data = tensor.data<T>();
  for (size_t i = 0; i < data.size(); ++i) {
    switch (kind) {
      case ConstantInput::Kind::ones:
        data[i] = T(1);
        break;
      case ConstantInput::Kind::zeros:
        data[i] = T(0);
        break;
      case ConstantInput::Kind::given:  // has a text of its own
        break;
      case ConstantInput::Kind::positions:
        data[i] = static_cast<T>(static_cast<int64_t>(i) % shape.back());
        break;
    }
  }
  return tensor;
}

// Of a smaller batch, or of shorter samples, what is given for all of them is cut.
Tensor given_tensor(const ConstantInput& constant, const Shape& shape) {
  bool is_corner = true;
  for (size_t axis = 0; axis < shape.size(); ++axis) is_corner = is_corner && shape[axis] <= constant.shape[axis];
  Tensor whole = bound_value(constant.name, constant.text, constant.dtype, is_corner ? constant.shape : shape);
  if (whole.shape == shape) return whole;
  Tensor corner(whole.dtype, shape);
  take_corner(corner.bytes.data(), whole.bytes.data(), whole.shape, shape, size_of(whole.dtype));
  return corner;
}

Tensor tensor_of(const ConstantInput& constant, const Shape& shape) {
  if (constant.kind == ConstantInput::Kind::given) return given_tensor(constant, shape);
  switch (constant.dtype) {
    case DType::int64:
      return filled<int64_t>(constant.kind, shape);
    case DType::int32:
      return filled<int32_t>(constant.kind, shape);
    case DType::boolean:
      return filled<bool>(constant.kind, shape);
    case DType::float32:
      return filled<float>(constant.kind, shape);
    default:
      break;
  }
  throw error(ErrorCode::data, "input '{}' is {}: give it as an array of .npz or .safetensors data", constant.name,
              to_string(constant.dtype));
}

// By the losses; "" is the first.
std::vector<std::string> outputs_read(const Options& options) {
  std::vector<std::string> outputs;
  for (const LossTerm& term : parse_losses(options).terms) {
    if (term.outputs.empty()) outputs.emplace_back();
    outputs.insert(outputs.end(), term.outputs.begin(), term.outputs.end());
  }
  if (options.loss_model.empty()) return outputs;
  for (const DeclaredInput& input : declared(options.loss_model).inputs) outputs.push_back(input.name);
  return outputs;
}

}  // namespace

std::optional<int64_t> fixed_size(const std::string& dim) {
  int64_t size = 0;
  const auto [end, code] = std::from_chars(dim.data(), dim.data() + dim.size(), size);
  if (code != std::errc() || end != dim.data() + dim.size() || size <= 0) return std::nullopt;  // -1 and 0 mean "any" in some files
  return size;
}

std::optional<int64_t> asked_size(const DeclaredInput& input, size_t axis, const std::map<std::string, int64_t>& shapes) {
  if (const auto size = fixed_size(input.dims[axis])) return size;
  for (const std::string& key : {axis_name(input, axis), input.dims[axis]}) {
    if (const auto found = shapes.find(key); found != shapes.end()) return found->second;
  }
  return std::nullopt;
}

int64_t likely_batch(const Declared& declared, const Options& options) {
  const bool causal = options.task == "causal-lm";
  for (const DeclaredInput& input : declared.inputs) {
    if (input.dims.empty() || options.bind.contains(input.name) || (causal && constant_kind(input.name))) continue;
    if (const auto size = asked_size(input, 0, options.shapes)) return *size;
  }
  return usual_batch(options);
}

ImportOptions import_options(const Options& options) {
  return {.shapes = options.shapes,
          .bound_inputs = {},
          .retie = options.retie,
          .untie = options.untie,
          .batch_norm = options.batch_norm,
          .batch_norm_nodes = options.batch_norm_nodes,
          .train = options.train,
          .freeze = options.freeze,
          .adapts = has_adapters(options) || !options.control.empty(),
          .control = control_net(options),
          .dropout = options.dropout,
          .selects = options.selects,
          .outputs = outputs_read(options)};
}

std::set<size_t> outputs_read_of(const Graph& graph, const std::vector<std::string>& names) {
  std::set<size_t> places;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::string& name = graph.output_name(graph.outputs[i]);
    if (std::any_of(names.begin(), names.end(), [&](const std::string& read) { return read.empty() ? i == 0 : read == name; }))
      places.insert(i);
  }
  return places;
}

bool Binding::is_length(const std::string& name) const {
  return std::find(length_names.begin(), length_names.end(), name) != length_names.end();
}

Shape Binding::cut(Shape sample, int64_t length) const {
  if (!length_names.empty()) std::replace(sample.begin(), sample.end(), sequence, length);
  return sample;
}

ImportOptions Binding::import_options(int64_t size, int64_t length, const Options& options) const {
  ImportOptions result = ort_train::import_options(options);
  result.shapes = shapes;
  for (const std::string& name : batch_names) result.shapes[name] = size;
  for (const std::string& name : length_names) result.shapes[name] = length;
  for (const ConstantInput& constant : constants) {
    Shape shape = constant.shape;
    if (constant.first_is_batch) shape[0] = size;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (is_length(constant.names[axis])) shape[axis] = length;
    }
    result.bound_inputs[constant.name] = tensor_of(constant, shape);
  }
  return result;
}

// The dimensions that are as long as a sample: of what the data feeds the second axis, and all that have its name. So it is of inputs that
// are bound; of those that are filled in it is the last.
void bind_lengths(const Declared& declared, const Options& options, const DataSet& data, Binding& binding) {
  if (options.length_buckets.empty()) return;
  if (data.is_row()) throw error(ErrorCode::usage, "{}: is cut into samples of one length: `length_buckets` are for arrays", data.name());
  const Field* mask = data.field(kLengthField);
  if (mask == nullptr || mask->shape.size() != 1)
    throw error(ErrorCode::data, "{}: has no array '{}' of two dimensions, which would say how long each sample is (`length_buckets`)",
                data.name(), kLengthField);
  binding.sequence = mask->shape[0];
  for (const FedInput& fed : binding.fed) {
    const DeclaredInput& input = *find_input(declared, fed.input);
    const Field& field = *data.field(fed.field);
    if (input.dims.size() < 2 || fixed_size(input.dims[1]) || field.shape[0] != binding.sequence) continue;
    binding.length_names.push_back(dimension_name(input, 1));
  }
  if (binding.length_names.empty())
    throw error(ErrorCode::usage, "the model's file fixes the length of a sample: `length_buckets` need one that is open");
  for (const ConstantInput& constant : binding.constants) {
    const size_t axis = constant.kind == ConstantInput::Kind::given ? 1 : constant.shape.size() - 1;
    if (axis >= constant.shape.size() || constant.names[axis].empty() || constant.shape[axis] != binding.sequence) continue;
    const bool is_named = !unnamed(find_input(declared, constant.name)->dims[axis]);
    if (constant.kind == ConstantInput::Kind::given && is_named) continue;  // its name says whether it is one
    binding.length_names.push_back(constant.names[axis]);
  }
  for (const int64_t length : options.length_buckets) {
    if (length > binding.sequence)
      throw error(ErrorCode::usage, "`length_buckets` {}: the samples of {} are {} long", length, data.name(), binding.sequence);
  }
}

Binding bind_inputs(const Declared& declared, const Options& options, DataSet& data) {
  if (!options.task.empty() && options.task != "causal-lm")
    throw error(ErrorCode::usage, "`task` {} is not known: causal-lm, or none", options.task);
  if (options.batch_size < 0 || options.seq_length < 0) throw error(ErrorCode::usage, "`batch_size` and `seq_length` are at least 1");
  const bool causal = options.task == "causal-lm";
  if (data.is_row() && !causal) throw error(ErrorCode::usage, "{}: text and token files need `task` causal-lm", data.name());
  for (const DeclaredInput& input : declared.inputs) {
    if (!input.has_shape) throw error(ErrorCode::unsupported, "'{}': {}", declared.info.path, without_shape(input.name));
  }
  Binding binding;
  std::vector<const DeclaredInput*> constants;
  divide(declared, options, data, binding, constants);
  Sizes sizes(declared, options.shapes);

  binding.batch = find_batch(declared, options, sizes, binding);
  std::set<std::string> of_batch;  // by either name: an epoch's last batch may be smaller
  const auto add_batch = [&](const DeclaredInput& input) {
    if (fixed_size(input.dims[0])) return;
    binding.batch_names.push_back(dimension_name(input, 0));
    of_batch.insert({axis_name(input, 0), binding.batch_names.back()});
  };
  for (const FedInput& fed : binding.fed) add_batch(*find_input(declared, fed.input));
  for (const DeclaredInput* input : constants) {
    if (input->dims.size() == 2) add_batch(*input);
  }

  if (data.is_row()) {
    const DeclaredInput& input = *find_input(declared, binding.fed[0].input);
    binding.sequence = find_sequence(input, options, sizes);
    data.cut(binding.sequence);
  } else {
    binding.sequence = sequence_of_arrays(options, data, binding);
    if (binding.sequence == 0 && !constants.empty())
      throw error(ErrorCode::data, "{}: input '{}' can't be filled in without an array 'input_ids' of tokens", data.name(),
                  constants[0]->name);
  }

  for (const FedInput& fed : binding.fed) {
    const DeclaredInput& input = *find_input(declared, fed.input);
    const Field& field = *data.field(fed.field);
    if (field.shape.size() + 1 != input.dims.size()) {
      throw error(ErrorCode::data, "{}: array '{}' has samples of shape {}, input '{}' wants {} dimensions after the batch", data.name(),
                  field.name, to_string(field.shape), input.name, input.dims.size() - 1);
    }
    for (size_t axis = 1; axis < input.dims.size(); ++axis) {
      sizes.bind(input, axis, field.shape[axis - 1],
                 data.is_row() ? "`seq_length`" : fmt::format("array '{}' of {}", field.name, data.name()));
    }
  }
  for (const DeclaredInput* input : constants) binding.constants.push_back(constant_input(*input, binding, sizes));
  for (const auto& [name, text] : options.bind) {
    const DeclaredInput& input = *find_input(declared, name);
    binding.constants.push_back(given_input(input, text, binding, sizes));
    if (binding.constants.back().first_is_batch) add_batch(input);
  }
  binding.shapes = std::move(sizes.sizes);
  for (const auto& [name, size] : options.shapes) {
    if (!of_batch.contains(name)) binding.shapes.emplace(name, size);
  }
  bind_lengths(declared, options, data, binding);
  return binding;
}

}  // namespace ort_train
