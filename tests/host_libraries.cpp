#include "tests/host_libraries.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/libraries.h"
#include "exec/cuda/tensor_product.h"
#include "graph/error.h"
#include "graph/half.h"

namespace ort_train {
namespace {

using namespace cuda;

bool is_used = false;
fixtures::LibraryCalls calls;

// --- numbers
// ------------------------------------------------------------------------------------------------------------------------------

float get(const void* data, DType type, int64_t i) {
  if (type == DType::float32) return static_cast<const float*>(data)[i];
  return type == DType::bfloat16 ? load(static_cast<const bfloat16*>(data)[i]) : load(static_cast<const float16*>(data)[i]);
}
void put(void* data, DType type, int64_t i, float value) {
  if (type == DType::float32)
    static_cast<float*>(data)[i] = value;
  else if (type == DType::bfloat16)
    static_cast<bfloat16*>(data)[i] = store<bfloat16>(value);
  else
    static_cast<float16*>(data)[i] = store<float16>(value);
}

void require_aligned(const void* place, int64_t bytes) {
  require(place != nullptr && reinterpret_cast<uintptr_t>(place) % static_cast<uintptr_t>(bytes) == 0,
          "an address isn't aligned as promised");
}
// Nobody finds there what was there before.
void overwrite(void* workspace, int64_t bytes) {
  require_aligned(workspace, kLibraryAlignment);
  std::memset(workspace, 0xee, static_cast<size_t>(bytes));
}

// --- products
// -----------------------------------------------------------------------------------------------------------------------------

struct HostProduct : PreparedProduct {
  explicit HostProduct(const TensorProduct& p_) : p(p_) {
    require(p.a_pitch >= (p.trans_a ? p.rows : p.depth) && p.b_pitch >= (p.trans_b ? p.depth : p.columns) && p.d_pitch >= p.columns,
            "rows overlap");
    require(is_half(p.operands) && (p.result == DType::float32 || p.result == p.operands), "types that no library multiplies");
  }

  void run(const void* a, const void* b, const void* bias, const void* c, void* d, void* workspace, void*) const override {
    ++calls.products;
    require_aligned(a, p.a_alignment), require_aligned(b, p.b_alignment), require_aligned(d, p.d_alignment);
    if (p.adds) require_aligned(c, p.d_alignment);
    require(p.has_bias == (bias != nullptr) && p.adds == (c != nullptr), "an operand too many, or too few");
    overwrite(workspace, library_limits().product_workspace);
    for (int64_t item = 0; item < p.items; ++item) {
      for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t column = 0; column < p.columns; ++column) {
          float sum = 0;
          for (int64_t k = 0; k < p.depth; ++k) {
            const int64_t of_a = p.trans_a ? k * p.a_pitch + row : row * p.a_pitch + k;
            const int64_t of_b = p.trans_b ? column * p.b_pitch + k : k * p.b_pitch + column;
            sum += get(a, p.operands, item * p.a_stride + of_a) * get(b, p.operands, item * p.b_stride + of_b);
          }
          sum *= p.alpha;
          const int64_t at = item * p.d_stride + row * p.d_pitch + column;
          if (p.has_bias) sum += get(bias, p.result, column);
          if (p.adds) sum += get(c, p.result, at);
          put(d, p.result, at, sum);
        }
      }
    }
  }

  const TensorProduct p;
};

// --- attention
// ----------------------------------------------------------------------------------------------------------------------------

struct HostPlan : CudnnPlan {
  HostPlan() { workspace_bytes_ = 1000; }
  void begin(std::span<void* const> tensors, void* workspace) const {
    constexpr int64_t kTensor = 16;
    for (void* const tensor : tensors) require_aligned(tensor, kTensor);
    overwrite(workspace, workspace_bytes_);
  }
};

struct HostAttention : HostPlan {
  explicit HostAttention(const AttentionProblem& p_) : p(p_) {}

  void run(std::span<void* const> tensors, void* workspace, void*) const override {
    begin(tensors, workspace);
    p.is_backward ? ++calls.attention_gradients : ++calls.attention;
    const int64_t group = p.heads / p.key_heads, keys = p.batch * p.key_heads;
    for (int64_t key = 0; key < keys; ++key) {
      // Gradients of keys and values, of all heads that share them.
      std::vector<float> dk(static_cast<size_t>(p.columns * p.depth)), dv(static_cast<size_t>(p.columns * p.width));
      for (int64_t of = 0; of < group; ++of) {
        for (int64_t row = 0; row < p.rows; ++row)
          p.is_backward ? gradients(tensors, key, (key * group + of) * p.rows + row, row, dk, dv)
                        : forward(tensors, key, (key * group + of) * p.rows + row, row);
      }
      if (!p.is_backward) continue;
      for (size_t i = 0; i < dk.size(); ++i) put(tensors[7], p.type, key * p.columns * p.depth + static_cast<int64_t>(i), dk[i]);
      for (size_t i = 0; i < dv.size(); ++i) put(tensors[8], p.type, key * p.columns * p.width + static_cast<int64_t>(i), dv[i]);
    }
  }

  // Columns that a row sees.
  int64_t seen(int64_t row) const { return p.causal ? std::min(p.columns, row + 1) : p.columns; }
  float dot(const void* a, int64_t row, const void* b, int64_t other, int64_t n) const {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += get(a, p.type, row * n + i) * get(b, p.type, other * n + i);
    return sum;
  }
  // `at`: of the row, in all heads.
  void forward(std::span<void* const> tensors, int64_t key, int64_t at, int64_t row) const {
    const int64_t n = seen(row);
    std::vector<float> weights(static_cast<size_t>(n));
    float largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      float& score = weights[static_cast<size_t>(j)];
      score = p.scale * dot(tensors[0], at, tensors[1], key * p.columns + j, p.depth);
      largest = std::max(largest, score);
    }
    for (float& weight : weights) sum += weight = std::exp(weight - largest);
    for (int64_t e = 0; e < p.width; ++e) {
      float o = 0;
      for (int64_t j = 0; j < n; ++j) o += weights[static_cast<size_t>(j)] * get(tensors[2], p.type, (key * p.columns + j) * p.width + e);
      put(tensors[3], p.type, at * p.width + e, o / sum);
    }
    put(tensors[4], DType::float32, at, largest + std::log(sum));
  }
  void gradients(std::span<void* const> tensors, int64_t key, int64_t at, int64_t row, std::vector<float>& dk,
                 std::vector<float>& dv) const {
    const void *const dy = tensors[0], *const q = tensors[1], *const k = tensors[2], *const v = tensors[3], *const o = tensors[4];
    const float of_row = dot(dy, at, o, at, p.width), lse = get(tensors[5], DType::float32, at);
    std::vector<float> dq(static_cast<size_t>(p.depth));
    for (int64_t j = 0; j < seen(row); ++j) {
      const int64_t column = key * p.columns + j;
      const float weight = std::exp(p.scale * dot(q, at, k, column, p.depth) - lse);
      const float ds = p.scale * weight * (dot(dy, at, v, column, p.width) - of_row);
      for (int64_t d = 0; d < p.depth; ++d) {
        dq[static_cast<size_t>(d)] += ds * get(k, p.type, column * p.depth + d);
        dk[static_cast<size_t>(j * p.depth + d)] += ds * get(q, p.type, at * p.depth + d);
      }
      for (int64_t e = 0; e < p.width; ++e) dv[static_cast<size_t>(j * p.width + e)] += weight * get(dy, p.type, at * p.width + e);
    }
    for (int64_t d = 0; d < p.depth; ++d) put(tensors[6], p.type, at * p.depth + d, dq[static_cast<size_t>(d)]);
  }

  const AttentionProblem p;
};

// --- convolutions
// -------------------------------------------------------------------------------------------------------------------------

struct HostConvolution : HostPlan {
  explicit HostConvolution(const ConvolutionProblem& p_) : p(p_) {}

  void run(std::span<void* const> tensors, void* workspace, void*) const override {
    using Result = ConvolutionProblem::Result;
    begin(tensors, workspace);
    ++calls.convolutions;
    const int64_t in = p.in[0] * p.in[1], out = p.out[0] * p.out[1], window = p.kernel[0] * p.kernel[1];
    const int64_t x_size = p.batch * p.groups * p.in_channels * in, w_size = p.groups * p.out_channels * p.in_channels * window,
                  y_size = p.batch * p.groups * p.out_channels * out;
    std::vector<float> result(static_cast<size_t>(p.result == Result::y ? y_size : p.result == Result::dx ? x_size : w_size));
    // Each multiplication of an element of x with one of w, which are summed to one of y; of a gradient, dy is in place of y.
    for (int64_t n = 0; n < p.batch; ++n) {
      for (int64_t to = 0; to < p.groups * p.out_channels; ++to) {
        for (int64_t c = 0; c < p.in_channels; ++c) {
          const int64_t from = to / p.out_channels * p.in_channels + c;
          for (int64_t at = 0; at < out * window; ++at) {
            const int64_t tap = at % window, place = at / window;
            const int64_t row = place / p.out[1] * p.stride[0] - p.padding[0] + tap / p.kernel[1] * p.dilation[0];
            const int64_t column = place % p.out[1] * p.stride[1] - p.padding[1] + tap % p.kernel[1] * p.dilation[1];
            if (row < 0 || row >= p.in[0] || column < 0 || column >= p.in[1]) continue;
            const int64_t x = ((n * p.groups * p.in_channels + from) * p.in[0] + row) * p.in[1] + column;
            const int64_t w = (to * p.in_channels + c) * window + tap, y = (n * p.groups * p.out_channels + to) * out + place;
            if (p.result == Result::y)
              result[static_cast<size_t>(y)] += get(tensors[0], p.type, x) * get(tensors[1], p.type, w);
            else if (p.result == Result::dx)
              result[static_cast<size_t>(x)] += get(tensors[0], p.type, y) * get(tensors[1], p.type, w);
            else
              result[static_cast<size_t>(w)] += get(tensors[0], p.type, y) * get(tensors[1], p.type, x);
          }
        }
      }
    }
    for (size_t i = 0; i < result.size(); ++i) put(tensors[2], p.type, static_cast<int64_t>(i), result[i]);
  }

  const ConvolutionProblem p;
};

template <class Plan, class Problem> const CudnnPlan* plan_of(const Problem& problem) {
  if (!is_used) return nullptr;
  static std::map<Problem, std::unique_ptr<const CudnnPlan>> plans;
  std::unique_ptr<const CudnnPlan>& plan = plans[problem];
  if (plan == nullptr) plan = std::make_unique<Plan>(problem);
  return plan.get();
}

}  // namespace
}  // namespace ort_train

ORT_TRAIN_LIBRARIES_BEGIN

bool has_libraries() { return is_used; }
// Of the tests' cases some are copied and divided.
LibraryLimits library_limits() { return {.product_workspace = 1000, .aligned_products = 20'000, .score_bytes = int64_t{16} << 10}; }

std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product) { return std::make_unique<HostProduct>(product); }
const CudnnPlan* find_plan(const AttentionProblem& problem) { return plan_of<HostAttention>(problem); }
const CudnnPlan* find_plan(const ConvolutionProblem& problem) { return plan_of<HostConvolution>(problem); }

ORT_TRAIN_LIBRARIES_END

namespace ort_train::fixtures {

HostLibrariesInUse::HostLibrariesInUse() { is_used = true; }
HostLibrariesInUse::~HostLibrariesInUse() { is_used = false; }
LibraryCalls host_library_calls() { return calls; }

}  // namespace ort_train::fixtures
