#include "exec/cuda/tensor_product.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "exec/cuda/shared_library.h"
#include "exec/cuda/status.h"
#include "graph/error.h"

namespace ort_train::cuda {
namespace {

// cuBLASLt of CUDA 13, wherever the loader finds it (LD_LIBRARY_PATH, the toolkit's folder).
class Library {
 public:
  static const Library& open() {
    static const Library library;
    return library;
  }

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) make_product;
  decltype(&cublasLtMatmulDescDestroy) end_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutDestroy) end_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) end_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) suggest;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_algorithm;

 private:
  Library() {
    if (!library_.is_open())
      throw error(ErrorCode::device,
                  "cuBLAS of CUDA 13 (libcublasLt.so.13), by which 16-bit products are made on a GPU, isn't found: install it, or name its "
                  "folder in LD_LIBRARY_PATH");
    find(create, "cublasLtCreate");
    find(version, "cublasLtGetVersion");
    find(matmul, "cublasLtMatmul");
    find(make_product, "cublasLtMatmulDescCreate");
    find(end_product, "cublasLtMatmulDescDestroy");
    find(set_product, "cublasLtMatmulDescSetAttribute");
    find(make_layout, "cublasLtMatrixLayoutCreate");
    find(end_layout, "cublasLtMatrixLayoutDestroy");
    find(set_layout, "cublasLtMatrixLayoutSetAttribute");
    find(make_preference, "cublasLtMatmulPreferenceCreate");
    find(end_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(suggest, "cublasLtMatmulAlgoGetHeuristic");
    find(check_algorithm, "cublasLtMatmulAlgoCheck");
    find(get_algorithm, "cublasLtMatmulAlgoConfigGetAttribute");
  }
  template <typename Function> void find(Function& function, const char* name) {
    if (!library_.find(function, name)) throw error(ErrorCode::device, "cuBLAS lacks {}: it must be that of CUDA 13", name);
  }

  const SharedLibrary library_{"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"};
};

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw error(ErrorCode::budget, "the GPU: {}: cuBLAS finds no memory for its kernels", what);
  if (status != CUBLAS_STATUS_SUCCESS)
    throw error(ErrorCode::device, "the GPU: {}: cuBLAS reports error {}", what, static_cast<int>(status));
}

// One for a device, made when it is first asked for; lives as long as the program.
cublasLtHandle_t handle() {
  constexpr int kDevices = 64;
  static std::array<cublasLtHandle_t, kDevices> handles{};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int device = 0;
  cuda::check(cudaGetDevice(&device), "no device is chosen");
  cublasLtHandle_t& one = handles.at(static_cast<size_t>(device));
  if (one == nullptr) check(Library::open().create(&one), "cuBLAS can't be started");
  return one;
}

cudaDataType_t type_of(DType type) { return type == DType::bfloat16 ? CUDA_R_16BF : type == DType::float16 ? CUDA_R_16F : CUDA_R_32F; }

// A matrix that is stored in rows is, to a library that counts in columns, its transpose: a product's two sides change places.
class Layout {
 public:
  Layout(DType type, int64_t rows, int64_t columns, int64_t pitch, int64_t items, int64_t stride) {
    const Library& library = Library::open();
    check(library.make_layout(&layout_, type_of(type), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), pitch), "no layout");
    if (items == 1) return;
    const auto count = static_cast<int32_t>(items);
    check(library.set_layout(layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "no layout");
    check(library.set_layout(layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride), "no layout");
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout() { Library::open().end_layout(layout_); }
  operator cublasLtMatrixLayout_t() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Description {
 public:
  Description() { check(Library::open().make_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "no product"); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() { Library::open().end_product(product_); }
  operator cublasLtMatmulDesc_t() const { return product_; }

 private:
  cublasLtMatmulDesc_t product_ = nullptr;
};

// "bfloat16 (256 x 768) x (2304 x 768)^T -> float32 + bias, rows of 768, 768 and 2304 elements, addresses of 64, 64 and 64 bytes"
std::string describe(const TensorProduct& p) {
  const auto stored = [](int64_t rows, int64_t columns, bool is_transposed) {
    return is_transposed ? fmt::format("({} x {})^T", columns, rows) : fmt::format("({} x {})", rows, columns);
  };
  std::string text =
      fmt::format("{} {} x {} -> {}{}{}", to_string(p.operands), stored(p.rows, p.depth, p.trans_a), stored(p.depth, p.columns, p.trans_b),
                  to_string(p.result), p.has_bias ? " + bias" : "", p.adds ? " + sum" : "");
  text += fmt::format(", rows of {}, {} and {} elements, addresses of {}, {} and {} bytes", p.a_pitch, p.b_pitch, p.d_pitch, p.a_alignment,
                      p.b_alignment, p.d_alignment);
  if (p.has_bias) text += fmt::format(", the bias's of {}", p.bias_alignment);
  if (p.items > 1) text += fmt::format(", {} of them, {}, {} and {} elements apart", p.items, p.a_stride, p.b_stride, p.d_stride);
  return text;
}

// An algorithm as text: what the library knows it by, which only the same version understands.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{}{:x}", text.empty() ? "" : " ", word);
  return text;
}
// False: it is the text of none.
bool read_algorithm(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  std::istringstream words(text);
  for (uint64_t& word : algorithm.data) words >> std::hex >> word;
  return !words.fail();
}

// Whether a sum is made in one piece. What an algorithm doesn't tell is at its default: one piece, no reduction.
bool has_whole_sums(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t pieces = 1;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  const auto ask = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    auto told = value;
    size_t written = 0;
    const cublasStatus_t status = Library::open().get_algorithm(&algorithm, attribute, &told, sizeof told, &written);
    if (status == CUBLAS_STATUS_SUCCESS && written == sizeof told) value = told;
  };
  ask(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, pieces);
  ask(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
  return pieces <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;  // some algorithms say 0 for one piece
}

class Prepared : public PreparedProduct {
 public:
  Prepared(const TensorProduct& p, AlgorithmTable& algorithms)
      : alpha_(p.alpha),
        beta_(p.adds ? 1.0f : 0.0f),
        a_(p.operands, p.trans_a ? p.depth : p.rows, p.trans_a ? p.rows : p.depth, p.a_pitch, p.items, p.a_stride),
        b_(p.operands, p.trans_b ? p.columns : p.depth, p.trans_b ? p.depth : p.columns, p.b_pitch, p.items, p.b_stride),
        d_(p.result, p.rows, p.columns, p.d_pitch, p.items, p.d_stride) {
    const cublasOperation_t left = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, right = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, left);
    set(CUBLASLT_MATMUL_DESC_TRANSB, right);
    if (p.has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.result));
      // There will be one. The library takes this address's alignment for the bias's.
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(p.bias_alignment));
      has_bias_ = true;
    }
    const std::string problem = describe(p);
    std::optional<std::string> chosen = algorithms.find(problem);
    if (!chosen) {
      suggest(p);
      chosen = algorithms.choose(problem, text_of(algorithm_));
      if (*chosen == text_of(algorithm_)) return;
    }
    if (!take(*chosen)) throw algorithms.refuse(tensor_library(), problem);
  }

  void run(const void* a, const void* b, const void* bias, const void* c, void* d, void* workspace, void* stream) const override {
    if (has_bias_) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    check(Library::open().matmul(handle(), product_, &alpha_, b, b_, a, a_, &beta_, c != nullptr ? c : d, d_, d, d_, &algorithm_, workspace,
                                 static_cast<size_t>(library_limits().product_workspace), static_cast<cudaStream_t>(stream)),
          "a product can't be made");
  }

 private:
  template <typename Value> void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    check(Library::open().set_product(product_, attribute, &value, sizeof value), "no product");
  }

  // False: there is no such algorithm.
  bool take(const std::string& chosen) {
    if (!read_algorithm(chosen, algorithm_)) return false;
    cublasLtMatmulHeuristicResult_t found{};
    const cublasStatus_t status = Library::open().check_algorithm(handle(), product_, b_, a_, d_, d_, &algorithm_, &found);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) check(status, "an algorithm can't be checked");  // there may be such an algorithm
    return status == CUBLAS_STATUS_SUCCESS && found.state == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= static_cast<size_t>(library_limits().product_workspace) && has_whole_sums(algorithm_);
  }

  void suggest(const TensorProduct& p) {
    const Library& library = Library::open();
    cublasLtMatmulPreference_t preference = nullptr;
    check(library.make_preference(&preference), "no preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(library.set_preference(preference, attribute, &value, sizeof value), "no preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(library_limits().product_workspace));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.b_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.a_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.d_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.d_alignment));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = library.suggest(handle(), product_, b_, a_, d_, d_, preference, 1, &found, &count);
    library.end_preference(preference);
    if (status == CUBLAS_STATUS_ALLOC_FAILED) check(status, "a product can't be prepared");
    if (status != CUBLAS_STATUS_SUCCESS || count == 0)
      throw error(ErrorCode::device, "the GPU: cuBLAS has no way to multiply ({} x {}) by ({} x {}) of {}", p.rows, p.depth, p.depth,
                  p.columns, to_string(p.operands));
    if (!has_whole_sums(found.algo))
      throw error(ErrorCode::device, "the GPU: cuBLAS would split the sums of ({} x {}) by ({} x {}) of {}, which it was told not to",
                  p.rows, p.depth, p.depth, p.columns, to_string(p.operands));
    algorithm_ = found.algo;
  }

  const float alpha_, beta_;
  bool has_bias_ = false;
  const Layout a_, b_, d_;
  const Description product_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

AlgorithmTable& algorithms_of(int device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, AlgorithmTable>;  // as long as the program: what was prepared by them is, too
  const std::lock_guard lock(mutex);
  return all[device];
}

AlgorithmTable& algorithms_of_current_device() {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "no device is chosen");
  return algorithms_of(device);
}

std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product, AlgorithmTable& algorithms) {
  return std::make_unique<Prepared>(product, algorithms);
}
std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product) {
  return prepare_product(product, algorithms_of_current_device());
}

std::string tensor_library() {
  const size_t version = Library::open().version();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ort_train::cuda
