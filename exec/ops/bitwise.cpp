// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot (ONNX 18) and BitShift{direction} (ONNX BitShift-11 and -28), of integers, with NumPy
// broadcasting.
//
// A right shift of a negative number fills with its sign. Where the shift is negative, or not smaller than the type's width, what is left
// is that sign alone: -1 or 0; of a left shift 0.

#include <climits>

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using Integers = Types<int64_t, int32_t, int16_t, int8_t, uint8_t>;

struct BitsOfBoth {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return static_cast<T>(a & b); }
};
struct BitsOfEither {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return static_cast<T>(a | b); }
};
struct BitsOfOne {
  template <typename T> HOST_DEVICE static T value(T a, T b) { return static_cast<T>(a ^ b); }
};
struct BitsTurned {
  template <typename T> HOST_DEVICE static T value(T a) { return static_cast<T>(~a); }
};

struct Shifted {
  bool left;
  explicit Shifted(const Attributes& attributes) : left(attributes.get("direction", "") == "LEFT") {}
  template <typename T> HOST_DEVICE T value(T a, T by) const {
    constexpr T width = static_cast<T>(sizeof(T) * CHAR_BIT);
    if (by < 0 || by >= width) return left || a >= 0 ? T(0) : static_cast<T>(-1);
    return left ? static_cast<T>(static_cast<uint64_t>(a) << by) : static_cast<T>(a >> by);
  }
};

std::vector<TensorType> infer_shift(const InferContext& context) {
  const std::string direction = context.attributes.get("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") throw error(ErrorCode::unsupported, "the direction '{}' is unknown", direction);
  return infer_broadcast(context);
}

constexpr std::string_view kWhy = "integers have no gradient";

constexpr OpDef bitwise(std::string_view name) {
  return {.name = name,
          .onnx = {{.domain = "", .name = name, .since = 18}},
          .infer = infer_broadcast,
          .no_gradient = kWhy,
          .traits = {.along = along_elements},
          .standard = 18};
}
constexpr Kernel bitwise_kernel(Prepare prepare) {
  return {.types = dtypes_of(Integers{}), .in_place = kOverEither, .cost = elementwise_cost<1>, .prepare = prepare};
}

}  // namespace

constexpr OpDef kBitwiseAnd = bitwise("BitwiseAnd");
constexpr Kernel kBitwiseAndKernel = bitwise_kernel(binary<BitsOfBoth, Integers>);
constexpr OpDef kBitwiseOr = bitwise("BitwiseOr");
constexpr Kernel kBitwiseOrKernel = bitwise_kernel(binary<BitsOfEither, Integers>);
constexpr OpDef kBitwiseXor = bitwise("BitwiseXor");
constexpr Kernel kBitwiseXorKernel = bitwise_kernel(binary<BitsOfOne, Integers>);
constexpr OpDef kBitwiseNot = bitwise("BitwiseNot");
constexpr Kernel kBitwiseNotKernel = unary_functor_kernel<BitsTurned, Integers>(elementwise_cost<1>, dtypes_of(Integers{}));

constexpr OpDef kBitShift{
    .name = "BitShift",
    .onnx = {{.domain = "", .name = "BitShift", .since = 11}},
    .infer = infer_shift,
    .no_gradient = kWhy,
    .traits = {.along = along_elements},
    .standard = 28,
};
constexpr Kernel kBitShiftKernel = bitwise_kernel(binary<Shifted, Integers>);

ORT_TRAIN_OPS_END
