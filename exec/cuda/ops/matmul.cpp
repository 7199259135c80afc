// MatMul, MatMulPart and AccumulateMatMul: their meaning and the CPU's kernels are in exec/ops/matmul.cpp.
//
// Products of 16 bits are made by cuBLASLt (exec/cuda/half_products.h), on the host by the tests' library if it is switched on. Those of
// float32, and on the host of 16 bits otherwise, are those of exec/cuda/gemm.h, whose sums are in the CPU's order: blocks of the depth,
// each a chain of fused multiply-adds. Those of other types have a thread for each result, which multiplies and adds as the CPU does.

#include "exec/ops/matmul.h"

#include "exec/cuda/copy.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/half_products.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace matmul;

// --- float32 and 16 bits --------------------------------------------------------------------------------------------------------------

template <bool a_along_depth, bool b_along_depth> struct MatMulProducts {
  tiled::ProductShape shape;
  tiled::StoredA<a_along_depth> first_a;
  tiled::StoredB<b_along_depth> first_b;
  tiled::Result first_c;
  StridedLoop<2> items;  // where each one's a and b begin

  HOST_DEVICE tiled::StoredA<a_along_depth> a(int64_t item) const { return moved(first_a, item, 0); }
  HOST_DEVICE tiled::StoredB<b_along_depth> b(int64_t item) const { return moved(first_b, item, 1); }
  HOST_DEVICE tiled::Result c(int64_t item) const {  // of several, each is whole and has no base
    auto one = first_c;
    one.data += item * shape.rows * shape.columns * bytes_each<float>(one.element);
    return one;
  }

 private:
  template <class Operand> HOST_DEVICE Operand moved(Operand operand, int64_t item, int which) const {
    if (shape.items == 1) return operand;
    auto rest = static_cast<uint32_t>(item);  // as blocks of threads, items are numbered in 31 bits
    for (int axis = items.rank - 1; axis >= 0; --axis) {
      const auto dim = static_cast<uint32_t>(items.dims[axis]);
      operand.data += rest % dim * items.strides[axis][which] * bytes_each<float>(operand.element);
      rest /= dim;
    }
    return operand;
  }
};

// Whether groups of four, from each item's beginning on, are aligned in each item.
bool keeps_fours(const StridedLoop<2>& items, int operand) {
  for (int axis = 0; axis < items.rank; ++axis) {
    if (items.dims[axis] > 1 && items.strides[axis][operand] % 4 != 0) return false;
  }
  return true;
}

// What is known before the addresses are.
struct FloatProduct {
  Layout layout;
  Window window;
  Rows row;
  tiled::ProductShape shape;
  StridedLoop<2> items;
  Element a, b, y, bias;
};

FloatProduct float_product(const KernelSpec& spec) {
  const Layout l = part_layout(spec);
  const DType compute = type_from(spec.attributes, "compute", DType::float32);
  return {.layout = l,
          .window = window_of(spec.attributes),
          .row = rows_of(spec, l),
          .shape = {.items = l.items,
                    .rows = l.rows,
                    .columns = l.columns,
                    .depth = l.depth,
                    .block = block_of(spec, l),
                    .alpha = spec.attributes.get("alpha", 1.0f)},
          .items = StridedLoop<2>(l.batch, {l.a_strides, l.b_strides}),
          .a = element_of(spec.inputs[0].dtype, compute),
          .b = element_of(spec.inputs[1].dtype, compute),
          .y = element_of(spec.outputs[0].dtype),
          .bias = spec.has(2) ? element_of(spec.inputs[2].dtype) : Element::own};
}

// Where an operand lies; its rows of neighbours have `length` elements.
template <class Operand>
Operand stored(const std::byte* data, Element element, int64_t count, int64_t pitch, int64_t length, bool keeps_fours) {
  return {.data = data,
          .count = count,
          .pitch = pitch,
          .element = element,
          .by_fours = keeps_fours && length % 4 == 0 && tiled::are_fours(data, pitch, element)};
}

const std::byte* optional_input(const KernelArgs& args, size_t i) { return args.inputs.size() > i ? args.in<std::byte>(i) : nullptr; }

// Where y is among more columns, the base is what these hold.
tiled::Result result_of(const FloatProduct& p, const KernelArgs& args) {
  std::byte* const y = args.out<std::byte>(0) + p.window.y_from * bytes_each<float>(p.y);
  const std::byte* const bias = optional_input(args, 2);
  return {.data = y,
          .row = p.row.y,
          .element = p.y,
          .by_fours = p.shape.columns % 4 == 0 && tiled::are_fours(y, p.row.y, p.y),
          .bias = bias ? bias + p.window.y_from * bytes_each<float>(p.bias) : nullptr,
          .bias_element = p.bias,
          .base = p.window.y_columns > 0 ? nullptr : reinterpret_cast<const float*>(optional_input(args, 3))};
}

template <bool trans_a, bool trans_b> void run_floats(const FloatProduct& p, const KernelArgs& args) {
  using Products = MatMulProducts<!trans_a, trans_b>;
  const auto& s = p.shape;
  const std::byte* const a = args.in<std::byte>(0) + p.window.a_from * bytes_each<float>(p.a);
  const Products products{
      .shape = s,
      .first_a = stored<tiled::StoredA<!trans_a>>(a, p.a, s.rows, p.row.a, trans_a ? s.rows : s.depth, keeps_fours(p.items, 0)),
      .first_b = stored<tiled::StoredB<trans_b>>(args.in<std::byte>(1), p.b, s.columns, p.row.b, trans_b ? s.depth : s.columns,
                                                 keeps_fours(p.items, 1)),
      .first_c = result_of(p, args),
      .items = p.items};
  tiled::launch_products(products, args);
}

// --- other types ----------------------------------------------------------------------------------------------------------------------

template <typename T> struct PlainProduct {
  const T *a, *b, *bias, *base;
  T* y;
  StridedLoop<2> items;
  int64_t rows, columns, depth, block, a_row, a_depth, b_depth, b_column, y_row;
  T alpha;

  HOST_DEVICE void operator()(int64_t at) const {
    const int64_t column = at % columns, row = at / columns % rows, item = at / columns / rows;
    const auto first = offsets_at(items, item);
    const T* const x = a + first.of[0] + row * a_row;
    const T* const w = b + first.of[1] + column * b_column;
    const int64_t to = item * rows * columns + row * y_row + column;
    T result = bias ? bias[column] : base ? base[to] : T(0);
    for (int64_t begin = 0; begin < depth; begin += block) {
      const int64_t end = begin + block < depth ? begin + block : depth;
      T sum = 0;
      for (int64_t k = begin; k < end; ++k) sum += x[k * a_depth] * w[k * b_depth];
      result += alpha * sum;
    }
    y[to] = result;
  }
};

template <typename T> KernelRun make_plain(const KernelSpec& spec) {
  const Layout l = part_layout(spec);
  const Rows row = rows_of(spec, l);
  const PlainProduct<T> plain{.items = StridedLoop<2>(l.batch, {l.a_strides, l.b_strides}),
                              .rows = l.rows,
                              .columns = l.columns,
                              .depth = l.depth,
                              .block = block_of(spec, l),
                              .a_row = l.trans_a ? 1 : row.a,
                              .a_depth = l.trans_a ? row.a : 1,
                              .b_depth = l.trans_b ? 1 : row.b,
                              .b_column = l.trans_b ? row.b : 1,
                              .y_row = row.y,
                              .alpha = static_cast<T>(spec.attributes.get("alpha", 1.0f))};
  return [plain, window = window_of(spec.attributes), n = l.items * l.rows * l.columns](const KernelArgs& args) {
    PlainProduct<T> product = plain;
    product.a = args.in<T>(0) + window.a_from;
    product.b = args.in<T>(1);
    product.y = args.out<T>(0) + window.y_from;
    if (const std::byte* const bias = optional_input(args, 2)) product.bias = reinterpret_cast<const T*>(bias) + window.y_from;
    if (window.y_columns == 0) product.base = reinterpret_cast<const T*>(optional_input(args, 3));
    launch_elements(product, n, args);
  };
}

// --- both -----------------------------------------------------------------------------------------------------------------------------

KernelRun make_product(const KernelSpec& spec) {
  return for_type(Numeric{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() -> KernelRun {
    if constexpr (std::is_same_v<T, float>) {
      return [p = float_product(spec)](const KernelArgs& args) {
        if (p.layout.trans_a)
          p.layout.trans_b ? run_floats<true, true>(p, args) : run_floats<true, false>(p, args);
        else
          p.layout.trans_b ? run_floats<false, true>(p, args) : run_floats<false, false>(p, args);
      };
    } else {
      return make_plain<T>(spec);
    }
  });
}

// By a library, where there is one.
KernelRun make_any_product(const KernelSpec& spec) {
  if (const std::optional<HalfProduct> half = half_product(spec)) return make_half_product(*half);
  return make_product(spec);
}

Workspace workspace(const KernelSpec& spec) {
  const std::optional<HalfProduct> half = half_product(spec);
  return {.shared = half ? half->bytes : 0};
}

KernelRun make(const KernelSpec& spec) {
  if (part_layout(spec).is_empty()) return [](const KernelArgs&) {};
  const bool is_placed = window_of(spec.attributes).y_columns > 0;  // among columns of the base
  return [product = make_any_product(spec), is_placed, bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    const std::byte* const base = optional_input(args, 3);
    std::byte* const y = args.out<std::byte>(0);
    if (is_placed && base && base != y) copy_bytes(y, base, bytes, args);
    product(args);
  };
}

}  // namespace

constexpr Kernel kMatMulKernel{.types = dtypes_of(Numeric{}) | kMixed, .cost = cost, .workspace = workspace, .prepare = make};

constexpr Kernel kMatMulPartKernel{
    .types = dtypes_of(Numeric{}) | kMixed,
    .in_place = {{.output = 0, .input = 3}},
    .cost = cost,
    .workspace = workspace,
    .prepare = make,
};

constexpr Kernel kAccumulateMatMulKernel{.types = dtypes_of(Numeric{}) | kMixed, .cost = cost, .workspace = workspace, .prepare = make};

ORT_TRAIN_OPS_END
