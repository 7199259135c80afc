// The one file that includes cudnn-frontend, which takes half a minute to compile.

#include "exec/cuda/cudnn_plan.h"

#define NV_CUDNN_FRONTEND_DISABLE_LOGGING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/cuda/shared_library.h"
#include "exec/cuda/status.h"
#include "exec/cuda/tensor_product.h"
#include "graph/error.h"

namespace ort_train::cuda {
namespace {

namespace graph = cudnn_frontend::graph;
using cudnn_frontend::DataType_t;
using cudnn_frontend::NumericalNote_t;

// --- the library ------------------------------------------------------------------------------------------------------------------------

// Earlier ones pad what isn't a multiple of 128 keys by copies from the host.
constexpr size_t kLeastVersion = 91600;

// cuDNN 9, wherever the loader finds it (LD_LIBRARY_PATH, the toolkit's folder).
class Library {
 public:
  static const Library& open() {
    static const Library library;
    return library;
  }

  std::string name() const {  // "cuDNN 9.19.0"
    const size_t number = version();
    return fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }

  std::string lacking;  // empty: it is there, with all of these
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_text = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetStream) stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) make = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) end = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

 private:
  Library() {
    if (!library_.is_open()) {
      lacking = "cuDNN 9 (libcudnn.so.9) isn't found: install it, or name its folder in LD_LIBRARY_PATH";
      return;
    }
    find(version, "cudnnGetVersion");
    find(error_text, "cudnnGetErrorString");
    find(last_error, "cudnnGetLastErrorString");
    find(create, "cudnnCreate");
    find(set_stream, "cudnnSetStream");
    find(stream, "cudnnGetStream");
    find(make, "cudnnBackendCreateDescriptor");
    find(end, "cudnnBackendDestroyDescriptor");
    find(finalize, "cudnnBackendFinalize");
    find(set, "cudnnBackendSetAttribute");
    find(get, "cudnnBackendGetAttribute");
    find(execute, "cudnnBackendExecute");
    if (lacking.empty() && version() < kLeastVersion) lacking = fmt::format("{} is too old: 9.16 and later will do", name());
  }
  template <typename Function> void find(Function& function, const char* name) {
    if (!library_.find(function, name)) lacking = fmt::format("cuDNN lacks {}: it must be cuDNN 9", name);
  }

  const SharedLibrary library_{"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
};

}  // namespace
}  // namespace ort_train::cuda

// What cudnn-frontend calls, passed on to the library that was opened. Nobody outside may see these: the library has functions of the same
// names, which call each other.
extern "C" {
#pragma GCC visibility push(hidden)

using ort_train::cuda::Library;

size_t cudnnGetVersion() { return Library::open().version(); }
const char* cudnnGetErrorString(cudnnStatus_t status) { return Library::open().error_text(status); }
void cudnnGetLastErrorString(char* message, size_t size) { Library::open().last_error(message, size); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) { return Library::open().stream(handle, stream); }
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  return Library::open().make(type, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) { return Library::open().end(descriptor); }
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) { return Library::open().finalize(descriptor); }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  return Library::open().set(descriptor, name, type, count, values);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  return Library::open().get(descriptor, name, type, wanted, count, values);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t tensors) {
  return Library::open().execute(handle, plan, tensors);
}

#pragma GCC visibility pop
}

namespace ort_train::cuda {
namespace {

// --- plans ------------------------------------------------------------------------------------------------------------------------------

// cuDNN's handles and plans are for one thread at a time.
std::mutex& mutex() {
  static std::mutex one;
  return one;
}

// The first of these words that a message has; empty: none.
std::string_view word_in(std::string_view message, std::initializer_list<std::string_view> words) {
  const auto found = std::ranges::find_if(words, [&](std::string_view word) { return message.find(word) != std::string_view::npos; });
  return found == words.end() ? std::string_view() : *found;
}

// What a message of the library's, or of CUDA's behind it, is about: memory that is lacking, or something else.
ErrorCode code_of(std::string_view message) {
  const bool lacks_memory = !word_in(message, {"ALLOC_FAILED", "ALLOCATION_FAILED", "OUT_OF_MEMORY", "out of memory"}).empty();
  return lacks_memory ? ErrorCode::budget : ErrorCode::device;
}

void check(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string_view text = Library::open().error_text(status);
  throw error(code_of(text), "the GPU: {}: cuDNN reports {}", what, text);
}

// The first line that has a word, without which it is the first of all.
std::string_view line_of(std::string_view text, std::string_view word) {
  const size_t at = std::min(text.find(word), text.size()), before = text.rfind('\n', at);
  const size_t begin = word.empty() || before == std::string_view::npos ? 0 : before + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

// Throws where there would be a plan another time, with more memory or all of the library's parts: other bits must not come of that.
void refuse_chance(std::string_view message) {
  if (const std::string_view word = word_in(message, {"PREREQUISITE_MISSING", "SUBLIBRARY_LOADING"}); !word.empty()) {
    throw error(ErrorCode::device,
                "cuDNN lacks a part: all of its libraries (libcudnn_*.so.9) and NVRTC of the same CUDA (libnvrtc.so) must be there, in a "
                "folder of LD_LIBRARY_PATH; it says: {}",
                line_of(message, word));
  }
  const std::string_view word =
      word_in(message, {"ALLOC_FAILED", "ALLOCATION_FAILED", "OUT_OF_MEMORY", "out of memory", "FAILED_CUDA_DRIVER"});
  if (!word.empty()) throw error(code_of(message), "the GPU: cuDNN can't prepare its kernels: {}", line_of(message, word));
}

// False: it isn't supported.
bool is_done(cudnn_frontend::error_t status) {
  if (status.is_good()) return true;
  if (status.get_code() == cudnn_frontend::error_code_t::CUDA_API_FAILED)
    throw error(code_of(status.get_message()), "the GPU: cuDNN can't prepare its kernels: {}", line_of(status.get_message(), ""));
  refuse_chance(status.get_message());
  return false;
}

class Plan : public CudnnPlan {
 public:
  // `first_bytes`: of the workspace's beginning, what the frontend takes for itself; what is the library's comes behind.
  Plan(cudnnHandle_t handle, std::unique_ptr<graph::Graph> made, int64_t first_bytes)
      : handle_(handle), graph_(std::move(made)), begin_((kLibraryAlignment - first_bytes % kLibraryAlignment) % kLibraryAlignment) {
    int64_t bytes = 0;
    if (!graph_->get_workspace_size(bytes).is_good()) throw error(ErrorCode::device, "the GPU: a plan of cuDNN has no workspace");
    workspace_bytes_ = begin_ + bytes;
  }

  void run(std::span<void* const> tensors, void* workspace, void* stream) const override {
    std::unordered_map<int64_t, void*> places;
    for (size_t i = 0; i < tensors.size(); ++i) places.emplace(static_cast<int64_t>(i) + 1, tensors[i]);
    const std::lock_guard lock(mutex());
    check(Library::open().set_stream(handle_, static_cast<cudaStream_t>(stream)), "it can't go on in another stream");
    try {
      cudnn_frontend::error_t status = graph_->execute(handle_, places, static_cast<std::byte*>(workspace) + begin_);
      if (!status.is_good())
        throw error(code_of(status.get_message()), "the GPU: cuDNN can't compute: {}", line_of(status.get_message(), ""));
    } catch (const cudnn_frontend::cudnnException& problem) {
      throw error(code_of(problem.what()), "the GPU: cuDNN can't compute: {}", line_of(problem.what(), ""));
    }
  }

 private:
  cudnnHandle_t handle_;
  std::unique_ptr<graph::Graph> graph_;
  int64_t begin_;
};

DataType_t type_of(DType type) {
  return type == DType::bfloat16 ? DataType_t::BFLOAT16 : type == DType::float16 ? DataType_t::HALF : DataType_t::FLOAT;
}

std::unique_ptr<graph::Graph> empty_graph(DType type) {
  auto made = std::make_unique<graph::Graph>();
  made->set_io_data_type(type_of(type)).set_intermediate_data_type(DataType_t::FLOAT).set_compute_data_type(DataType_t::FLOAT);
  return made;
}

// A tensor in one piece, by the number of its place.
void describe(graph::Tensor_attributes& tensor, int64_t number, std::vector<int64_t> dims, DType type) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t axis = dims.size() - 1; axis > 0; --axis) strides[axis - 1] = strides[axis] * dims[axis];
  tensor.set_uid(number).set_dim(dims).set_stride(strides).set_data_type(type_of(type));
}
std::shared_ptr<graph::Tensor_attributes> input(graph::Graph& made, int64_t number, std::vector<int64_t> dims, DType type) {
  graph::Tensor_attributes tensor;
  describe(tensor, number, std::move(dims), type);
  return made.tensor(tensor);
}
void output(const std::shared_ptr<graph::Tensor_attributes>& tensor, int64_t number, std::vector<int64_t> dims, DType type) {
  tensor->set_output(true);
  describe(*tensor, number, std::move(dims), type);
}

// --- attention

template <class Attributes> Attributes attention_attributes(const AttentionProblem& p) {
  Attributes attributes;
  attributes.set_attn_scale(p.scale);
  if (p.causal) attributes.set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  return attributes;
}

std::unique_ptr<graph::Graph> graph_of(const AttentionProblem& p) {
  auto made = empty_graph(p.type);
  const std::vector<int64_t> of_q{p.batch, p.heads, p.rows, p.depth}, of_k{p.batch, p.key_heads, p.columns, p.depth},
      of_v{p.batch, p.key_heads, p.columns, p.width}, of_o{p.batch, p.heads, p.rows, p.width}, of_lse{p.batch, p.heads, p.rows, 1};
  if (!p.is_backward) {
    const auto q = input(*made, 1, of_q, p.type), k = input(*made, 2, of_k, p.type), v = input(*made, 3, of_v, p.type);
    auto attributes = attention_attributes<graph::SDPA_attributes>(p);
    attributes.set_name("attention").set_generate_stats(true).set_implementation(cudnn_frontend::AttentionImplementation_t::COMPOSITE);
    const auto [o, lse] = made->sdpa(q, k, v, attributes);
    output(o, 4, of_o, p.type);
    output(lse, 5, of_lse, DType::float32);
    return made;
  }
  const auto dy = input(*made, 1, of_o, p.type), q = input(*made, 2, of_q, p.type), k = input(*made, 3, of_k, p.type),
             v = input(*made, 4, of_v, p.type), o = input(*made, 5, of_o, p.type), lse = input(*made, 6, of_lse, DType::float32);
  auto attributes = attention_attributes<graph::SDPA_backward_attributes>(p);
  attributes.set_name("attention_gradient").set_deterministic_algorithm(true);
  const auto [dq, dk, dv] = made->sdpa_backward(q, k, v, o, dy, lse, attributes);
  output(dq, 7, of_q, p.type);
  output(dk, 8, of_k, p.type);
  output(dv, 9, of_v, p.type);
  return made;
}

// dy . o of each row.
int64_t first_bytes(const AttentionProblem& p) {
  return p.is_backward ? p.batch * p.heads * p.rows * static_cast<int64_t>(sizeof(float)) : 0;
}

// --- convolutions

template <class Attributes> Attributes convolution_attributes(const ConvolutionProblem& p) {
  const auto list = [](const std::array<int64_t, 2>& values) { return std::vector<int64_t>(values.begin(), values.end()); };
  Attributes attributes;
  attributes.set_name("convolution").set_padding(list(p.padding)).set_stride(list(p.stride)).set_dilation(list(p.dilation));
  return attributes;
}

struct ConvolutionShapes {
  std::vector<int64_t> x, w, y;

  explicit ConvolutionShapes(const ConvolutionProblem& p)
      : x{p.batch, p.groups * p.in_channels, p.in[0], p.in[1]},
        w{p.groups * p.out_channels, p.in_channels, p.kernel[0], p.kernel[1]},
        y{p.batch, p.groups * p.out_channels, p.out[0], p.out[1]} {}
};

std::unique_ptr<graph::Graph> graph_of(const ConvolutionProblem& p) {
  const ConvolutionShapes shapes(p);
  auto made = empty_graph(p.type);
  if (p.result == ConvolutionProblem::Result::y) {
    const auto x = input(*made, 1, shapes.x, p.type), w = input(*made, 2, shapes.w, p.type);
    output(made->conv_fprop(x, w, convolution_attributes<graph::Conv_fprop_attributes>(p)), 3, shapes.y, p.type);
  } else if (p.result == ConvolutionProblem::Result::dx) {
    const auto dy = input(*made, 1, shapes.y, p.type), w = input(*made, 2, shapes.w, p.type);
    output(made->conv_dgrad(dy, w, convolution_attributes<graph::Conv_dgrad_attributes>(p)), 3, shapes.x, p.type);
  } else {
    const auto dy = input(*made, 1, shapes.y, p.type), x = input(*made, 2, shapes.x, p.type);
    output(made->conv_wgrad(dy, x, convolution_attributes<graph::Conv_wgrad_attributes>(p)), 3, shapes.w, p.type);
  }
  return made;
}

// Room for a copy of each tensor in the order that an engine likes better, with channels that are rounded up.
int64_t most_workspace(const ConvolutionProblem& p) {
  const ConvolutionShapes shapes(p);
  constexpr int64_t kLeast = int64_t{64} << 20;
  int64_t elements = 0;
  for (const std::vector<int64_t>& shape : {shapes.x, shapes.w, shapes.y}) {
    int64_t all = 1;
    for (const int64_t dim : shape) all *= dim;
    elements += all;
  }
  return kLeast + 2 * bytes_of(p.type, elements);
}

// --- what there is

// The plan of that name; where that is empty the first that is supported, whose name it becomes. Null: there is none.
std::unique_ptr<Plan> build(cudnnHandle_t handle, std::unique_ptr<graph::Graph> made, int64_t first_bytes, int64_t most_workspace,
                            const std::vector<NumericalNote_t>& unwanted, std::string& name) {
  if (name == kOwnKernels) return nullptr;
  try {
    if (!is_done(made->validate()) || !is_done(made->build_operation_graph(handle)) ||
        !is_done(made->create_execution_plans({cudnn_frontend::HeurMode_t::A})))
      return nullptr;
    made->deselect_numeric_notes(unwanted).deselect_workspace_greater_than(most_workspace);
    for (int64_t i = 0; i < made->get_execution_plan_count(); ++i) {
      std::string of;
      (void)made->get_plan_name_at_index(i, of);  // it always gives one
      const bool is_nameless = of.starts_with("INVALID");
      if (is_nameless || (!name.empty() && of != name) || !is_done(made->build_plan_at_index(i))) continue;
      name = of;
      return std::make_unique<Plan>(handle, std::move(made), first_bytes);
    }
  } catch (const cudnn_frontend::cudnnException& problem) {
    refuse_chance(problem.what());
  }
  return nullptr;
}

std::unique_ptr<Plan> build(cudnnHandle_t handle, const AttentionProblem& p, std::string& name) {
  return build(handle, graph_of(p), first_bytes(p), INT64_MAX, {NumericalNote_t::NONDETERMINISTIC}, name);
}
std::unique_ptr<Plan> build(cudnnHandle_t handle, const ConvolutionProblem& p, std::string& name) {
  return build(handle, graph_of(p), 0, most_workspace(p),
               {NumericalNote_t::NONDETERMINISTIC, NumericalNote_t::REDUCED_PRECISION_REDUCTION, NumericalNote_t::DOWN_CONVERT_INPUTS,
                NumericalNote_t::FFT, NumericalNote_t::WINOGRAD, NumericalNote_t::WINOGRAD_TILE_4x4, NumericalNote_t::WINOGRAD_TILE_6x6,
                NumericalNote_t::WINOGRAD_TILE_13x13},
               name);
}

}  // namespace

std::string describe(const AttentionProblem& p) {
  return fmt::format("{} attention{} of {} x {} heads, {} of keys, {} x {} scores, {} and {} wide, scale {:a}{}", to_string(p.type),
                     p.is_backward ? "'s gradient" : "", p.batch, p.heads, p.key_heads, p.rows, p.columns, p.depth, p.width, p.scale,
                     p.causal ? ", causal" : "");
}
std::string describe(const ConvolutionProblem& p) {
  using Result = ConvolutionProblem::Result;
  return fmt::format(
      "{} convolution {}, {} x {} groups, {} -> {} channels of {} -> {}, windows of {}, strides {}, padding {}, dilations {}",
      to_string(p.type),
      p.result == Result::y    ? "y"
      : p.result == Result::dx ? "dx"
                               : "dw",
      p.batch, p.groups, p.in_channels, p.out_channels, fmt::join(p.in, " x "), fmt::join(p.out, " x "), fmt::join(p.kernel, " x "),
      fmt::join(p.stride, " x "), fmt::join(p.padding, " x "), fmt::join(p.dilation, " x "));
}

namespace {

// Of a device; lives as long as the program.
struct Plans {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionProblem, std::unique_ptr<Plan>> attention;
  std::map<ConvolutionProblem, std::unique_ptr<Plan>> convolutions;
};

// Null: there is no cuDNN.
Plans* plans_of_device() {
  static auto& all = *new std::map<int, Plans>;  // never ended: the driver may be gone before
  if (!Library::open().lacking.empty()) return nullptr;
  int device = 0;
  cuda::check(cudaGetDevice(&device), "no device is chosen");
  Plans& plans = all[device];
  if (plans.handle == nullptr) check(Library::open().create(&plans.handle), "cuDNN can't be started");
  return &plans;
}

template <class Problem> const CudnnPlan* find(const Problem& problem, std::map<Problem, std::unique_ptr<Plan>> Plans::*kind) {
  const std::lock_guard lock(mutex());
  Plans* const plans = plans_of_device();
  if (plans == nullptr) return nullptr;
  const auto found = (plans->*kind).find(problem);
  if (found != (plans->*kind).end()) return found->second.get();
  AlgorithmTable& algorithms = algorithms_of_current_device();
  const std::string words = describe(problem);
  std::string name = algorithms.find(words).value_or("");
  std::unique_ptr<Plan> plan = build(plans->handle, problem, name);
  if (plan == nullptr && name.empty()) name = kOwnKernels;
  if (std::string chosen = algorithms.choose(words, name); chosen != name) {  // a checkpoint's, meanwhile
    name = std::move(chosen);
    plan = build(plans->handle, problem, name);
  }
  if (plan == nullptr && name != kOwnKernels) throw algorithms.refuse(Library::open().name(), words);
  return (plans->*kind).emplace(problem, std::move(plan)).first->second.get();
}

}  // namespace

const CudnnPlan* find_plan(const AttentionProblem& problem) { return find(problem, &Plans::attention); }
const CudnnPlan* find_plan(const ConvolutionProblem& problem) { return find(problem, &Plans::convolutions); }

std::string cudnn_library() {
  const Library& library = Library::open();
  return library.lacking.empty() ? library.name() : "no cuDNN";
}

std::string start_cudnn() {
  const std::lock_guard lock(mutex());
  (void)plans_of_device();
  return Library::open().lacking;
}

}  // namespace ort_train::cuda
