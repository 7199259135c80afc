// Where, Cast and BitCast. Their meaning: exec/ops/where_cast.cpp.
//
// Where reads both sides for each element, so that its loads wait for no other. Cast takes as many neighbours a thread as fill 16 bytes of
// the wider type.

#include "exec/ops/where_cast.h"

#include <algorithm>

#include "exec/cuda/copy.h"
#include "exec/cuda/indexing.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename Word> struct ChosenWords {
  ThreadLoop<3> loop;
  const uint8_t* condition;
  const Word *x, *y;
  Word* out;
  HOST_DEVICE Word take(int64_t i) const {
    const Offsets<3> at = loop.offsets(i);
    const Word a = x[at.of[1]], b = y[at.of[2]];
    return condition[at.of[0]] ? a : b;
  }
  HOST_DEVICE void put(int64_t i, Word word) const { out[i] = word; }
};

KernelRun prepare_where(const KernelSpec& spec) {
  return for_word(size_of(spec.outputs[0].dtype), [&]<typename Word>() -> KernelRun {
    return [loop = ThreadLoop<3>(where_loops(spec))](const KernelArgs& args) {
      launch_moves(ChosenWords<Word>{loop, args.in<uint8_t>(0), args.in<Word>(1), args.in<Word>(2), args.out<Word>(0)}, loop.count, args);
    };
  });
}

template <typename To, typename From> struct ConvertedVectors {
  static constexpr int kEach = static_cast<int>(16 / std::max(sizeof(To), sizeof(From)));
  const From* in;
  To* out;
  int64_t count;
  HOST_DEVICE Vector<From, kEach> take(int64_t i) const {
    if ((i + 1) * kEach <= count) return reinterpret_cast<const Vector<From, kEach>*>(in)[i];
    Vector<From, kEach> from{};
    for (int k = 0; k < kEach; ++k) {
      if (i * kEach + k < count) from.of[k] = in[i * kEach + k];
    }
    return from;
  }
  HOST_DEVICE void put(int64_t i, const Vector<From, kEach>& from) const {
    Vector<To, kEach> to;
    for (int k = 0; k < kEach; ++k) to.of[k] = converted<To>(from.of[k]);
    if ((i + 1) * kEach <= count) {
      reinterpret_cast<Vector<To, kEach>*>(out)[i] = to;
      return;
    }
    for (int k = 0; k < kEach; ++k) {
      if (i * kEach + k < count) out[i * kEach + k] = to.of[k];
    }
  }
};

KernelRun prepare_copy(const KernelSpec& spec) {
  return [bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    if (args.outputs[0] != args.inputs[0]) copy_bytes(args.outputs[0], args.inputs[0], bytes, args);
  };
}

KernelRun prepare_cast(const KernelSpec& spec) {
  if (spec.inputs[0].dtype == spec.outputs[0].dtype) return prepare_copy(spec);
  const int64_t count = element_count(spec.outputs[0].shape);
  return for_type(Castable{}, spec.inputs[0].dtype, [&]<typename From>() {
    return for_type(Castable{}, spec.outputs[0].dtype, [&]<typename To>() -> KernelRun {
      if constexpr (std::is_same_v<From, To>) return {};
      using Mover = ConvertedVectors<To, From>;
      return [count](const KernelArgs& args) {
        launch_moves<2>(Mover{args.in<From>(0), args.out<To>(0), count}, (count + Mover::kEach - 1) / Mover::kEach, args);
      };
    });
  });
}

}  // namespace

constexpr Kernel kWhereKernel{
    .types = kAnyType,
    .typed = 1,
    .in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 2}},
    .cost = elementwise_cost<1>,
    .prepare = prepare_where,
};
constexpr Kernel kBitCastKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_copy,
};
constexpr Kernel kCastKernel{
    .types = kAnyType,
    .cost = elementwise_cost<1>,
    .prepare = prepare_cast,
};

ORT_TRAIN_OPS_END
