// Det (ONNX Det-11 and -22): determinants of the matrices in the last two axes, x (..., n, n) -> (...).
//
// Gaussian elimination in double with complete pivoting, P x Q = L U: the determinant is that of U, with the sign of the exchanges.
//
// DetGrad(dy, x): dx = dy * the matrix of cofactors, which exists where x has no inverse. With x = P' L U Q', its transpose is
// Q adj(U) inv(L) P with the sign of the exchanges, where adj(U) = det(U) inv(U). Complete pivoting leaves a zero last: so
//
//   adj(U) = (u_11 ... u_(n-1,n-1)) * M,   M = u_nn inv(U)
//
// whose columns follow from U M = u_nn I without dividing by u_nn. Where the last but one pivot is zero, too, all cofactors are.

#include <cmath>
#include <cstring>
#include <utility>

#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kMaxOrder = 4096;  // n: work is of n^3

// n x n in `lu`; rows[i] and columns[j] of x stand at i and j there.
struct Elimination {
  int64_t n;
  double* lu;
  int64_t* rows;
  int64_t* columns;
  double sign = 1;

  template <typename T> void run(const T* x) {
    for (int64_t i = 0; i < n * n; ++i) lu[i] = static_cast<double>(x[i]);
    for (int64_t i = 0; i < n; ++i) rows[i] = columns[i] = i;
    for (int64_t k = 0; k < n; ++k) {
      int64_t row = k, column = k;
      for (int64_t i = k; i < n; ++i) {
        for (int64_t j = k; j < n; ++j) {
          if (std::abs(at(i, j)) > std::abs(at(row, column))) row = i, column = j;
        }
      }
      if (row != k) {
        for (int64_t j = 0; j < n; ++j) std::swap(at(row, j), at(k, j));
        std::swap(rows[row], rows[k]);
        sign = -sign;
      }
      if (column != k) {
        for (int64_t i = 0; i < n; ++i) std::swap(at(i, column), at(i, k));
        std::swap(columns[column], columns[k]);
        sign = -sign;
      }
      if (at(k, k) == 0) return;  // so is what is left
      for (int64_t i = k + 1; i < n; ++i) {
        const double factor = at(i, k) /= at(k, k);
        for (int64_t j = k + 1; j < n; ++j) at(i, j) -= factor * at(k, j);
      }
    }
  }
  double& at(int64_t i, int64_t j) const { return lu[i * n + j]; }
  double product_of_pivots(int64_t count) const {
    double product = sign;
    for (int64_t k = 0; k < count; ++k) product *= at(k, k);
    return product;
  }
};

struct Matrices {
  int64_t count = 1, n = 0;
  explicit Matrices(const Shape& shape) : count(element_count(Shape(shape.begin(), shape.end() - 2))), n(shape.back()) {}
  int64_t eliminated_bytes() const { return (n * n + 2 * n) * int64_t{sizeof(double)}; }
  Elimination elimination(std::byte* room) const {
    auto* const lu = reinterpret_cast<double*>(room);
    auto* const rows = reinterpret_cast<int64_t*>(lu + n * n);
    return {.n = n, .lu = lu, .rows = rows, .columns = rows + n};
  }
};

void check_matrices(const TensorType& x) {
  const size_t rank = x.shape.size();
  if (rank < 2 || x.shape[rank - 1] != x.shape[rank - 2] || x.shape.back() < 1 || x.shape.back() > kMaxOrder)
    throw error(ErrorCode::unsupported, "{} are no square matrices of at most {} rows", to_string(x), kMaxOrder);
}

std::vector<TensorType> infer_det(const InferContext& context) {
  const TensorType& x = context.input(0);
  check_matrices(x);
  return {{x.dtype, Shape(x.shape.begin(), x.shape.end() - 2)}};
}

std::vector<TensorType> infer_det_grad(const InferContext& context) {
  const TensorType &dy = context.input(0), &x = context.input(1);
  check_matrices(x);
  if (dy != TensorType{x.dtype, Shape(x.shape.begin(), x.shape.end() - 2)})
    throw error(ErrorCode::unsupported, "{} is no gradient of determinants of {}", to_string(dy), to_string(x));
  return {x};
}

void det_gradient(const Node& node, GradientBuilder& g) { g.input_gradient(0, g.emit("DetGrad", {g.output_gradient(0), node.inputs[0]})); }

Workspace det_workspace(const KernelSpec& spec) { return {.each = Matrices(spec.inputs[0].shape).eliminated_bytes()}; }
// Another matrix for M.
Workspace det_grad_workspace(const KernelSpec& spec) {
  const Matrices matrices(spec.inputs[1].shape);
  return {.each = matrices.eliminated_bytes() + matrices.n * matrices.n * int64_t{sizeof(double)}};
}

template <typename T> KernelRun det_of(const KernelSpec& spec) {
  return [matrices = Matrices(spec.inputs[0].shape)](const KernelArgs& args) {
    args.workers().parallel_for(matrices.count, [&](int64_t i, int worker) {
      Elimination x = matrices.elimination(args.workspace + worker * matrices.eliminated_bytes());
      x.run(args.in<T>(0) + i * matrices.n * matrices.n);
      args.out<T>(0)[i] = static_cast<T>(x.product_of_pivots(matrices.n));
    });
  };
}

// m, n x n, becomes adj(U) inv(L).
void adjugate(const Elimination& x, double* m) {
  const int64_t n = x.n;
  std::memset(m, 0, static_cast<size_t>(n * n) * sizeof(double));
  if (n > 1 && x.at(n - 2, n - 2) == 0) return;
  const double last = x.at(n - 1, n - 1), scale = x.product_of_pivots(n - 1);
  for (int64_t column = 0; column < n; ++column) {  // U M = u_nn I, from the last row up
    for (int64_t row = n - 1; row >= 0; --row) {
      if (row == n - 1) {
        m[row * n + column] = column == n - 1 ? 1 : 0;
        continue;
      }
      double sum = row == column ? last : 0;
      for (int64_t j = row + 1; j < n; ++j) sum -= x.at(row, j) * m[j * n + column];
      m[row * n + column] = sum / x.at(row, row);
    }
  }
  for (int64_t row = 0; row < n; ++row) {  // times inv(L), whose diagonal is one: from the last column on
    for (int64_t column = n - 1; column >= 0; --column) {
      for (int64_t j = column + 1; j < n; ++j) m[row * n + column] -= m[row * n + j] * x.at(j, column);
    }
    for (int64_t column = 0; column < n; ++column) m[row * n + column] *= scale;
  }
}

template <typename T> KernelRun det_grad_of(const KernelSpec& spec) {
  const Matrices matrices(spec.inputs[1].shape);
  return [matrices, each = det_grad_workspace(spec).each](const KernelArgs& args) {
    const int64_t n = matrices.n;
    args.workers().parallel_for(matrices.count, [&](int64_t i, int worker) {
      std::byte* const room = args.workspace + worker * each;
      Elimination x = matrices.elimination(room);
      double* const m = reinterpret_cast<double*>(room + matrices.eliminated_bytes());
      x.run(args.in<T>(1) + i * n * n);
      adjugate(x, m);
      const double dy = static_cast<double>(args.in<T>(0)[i]);
      T* const dx = args.out<T>(0) + i * n * n;
      for (int64_t row = 0; row < n; ++row) {  // m[row, column] is adj(x)[columns[row], rows[column]], dx its transpose
        for (int64_t column = 0; column < n; ++column) dx[x.rows[column] * n + x.columns[row]] = static_cast<T>(dy * m[row * n + column]);
      }
    });
  };
}

KernelRun prepare_det(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return det_of<T>(spec); });
}
KernelRun prepare_det_grad(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return det_grad_of<T>(spec); });
}

template <size_t x> Cost det_cost(const KernelSpec& spec) {
  const Matrices matrices(spec.inputs[x].shape);
  Cost cost = movement_cost(spec);
  cost.flops = static_cast<double>(matrices.count) * std::pow(static_cast<double>(matrices.n), 3) * (x == 0 ? 1 : 3);
  return cost;
}

}  // namespace

constexpr OpDef kDet{
    .name = "Det",
    .onnx = {{.domain = "", .name = "Det", .since = 11}},
    .infer = infer_det,
    .gradient = det_gradient,
    .traits = {.precision = kInFloat32},
    .standard = 22,
};
constexpr Kernel kDetKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = det_cost<0>,
    .workspace = det_workspace,
    .prepare = prepare_det,
};
constexpr OpDef kDetGrad{
    .name = "DetGrad",
    .infer = infer_det_grad,
    .no_gradient = kNoSecondDerivative,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kDetGradKernel{
    .types = kWide,
    .halves_by_float32 = true,
    .cost = det_cost<1>,
    .workspace = det_grad_workspace,
    .prepare = prepare_det_grad,
};

ORT_TRAIN_OPS_END
