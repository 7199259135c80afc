// Slice, SliceGrad, Pad and PadGrad. Their meaning: exec/ops/slice_pad.cpp.
//
// PadGrad gives each element of the input's gradient to a thread, which adds up the copies of that element from zero on in the order in
// which they stand in the output: that in which the processor, which goes through the output, adds them. 16-bit numbers are added in
// float32 and rounded once.

#include "exec/ops/slice_pad.h"

#include <vector>

#include "exec/cuda/copy.h"
#include "exec/cuda/indexing.h"
#include "exec/cuda/strided_copy.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- with a constant around ------------------------------------------------------------------------------------------------------------

// Adjacent axes of which the inner ones have no margins are one, in words.
struct FramedAxes {
  struct Axis {
    int64_t in = 1, before = 0, after = 0;
  };
  std::vector<Axis> axes;
  int64_t word = 1;  // bytes

  FramedAxes(int64_t element_bytes, const Shape& in, const Margins& margins, bool wide) : word(element_bytes) {
    for (size_t i = 0; i < in.size(); ++i) {
      if (axes.empty() || margins.before[i] != 0 || margins.after[i] != 0) {
        axes.push_back({in[i], margins.before[i], margins.after[i]});
        continue;
      }
      axes.back().in *= in[i], axes.back().before *= in[i], axes.back().after *= in[i];
    }
    if (axes.empty()) axes.emplace_back();
    if (axes.size() > kMaxAxes) throw error(ErrorCode::unsupported, "the shape {} has more axes than are supported", to_string(in));
    if (!wide) return;
    Axis& last = axes.back();
    word = word_bytes({last.in * element_bytes, last.before * element_bytes, last.after * element_bytes});
    last.in = last.in * element_bytes / word, last.before = last.before * element_bytes / word;
    last.after = last.after * element_bytes / word;
  }
};

struct FrameLoop {
  int rank = 0;
  bool small = false;
  int64_t count = 1;
  std::array<Size, kMaxAxes> out;
  std::array<int64_t, kMaxAxes> in{}, before{}, strides{};

  explicit FrameLoop(const FramedAxes& framed) : rank(static_cast<int>(framed.axes.size())) {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const FramedAxes::Axis& axis = framed.axes[i];
      out[i] = Size(axis.in + axis.before + axis.after);
      in[i] = axis.in, before[i] = axis.before, strides[i] = stride;
      stride *= axis.in;
      count *= out[i].size;
    }
    small = count <= INT32_MAX;
  }

  // Where in the input element i of the output is from; -1 where it is of the frame.
  HOST_DEVICE int64_t source(int64_t i) const {
    int64_t from = 0;
    bool inside = true;
    for (int axis = rank - 1; axis >= 0; --axis) {
      const Size::Place place = out[axis].split(i, small);
      const int64_t at = place.place - before[axis];
      inside = inside && at >= 0 && at < in[axis];
      from += at * strides[axis];
      i = place.above;
    }
    return inside ? from : -1;
  }
};

template <typename Word> struct FramedWords {
  FrameLoop loop;
  const Word *in, *value;  // value null: zero
  Word* out;
  HOST_DEVICE Word take(int64_t i) const {
    const int64_t from = loop.source(i);
    return from >= 0 ? in[from] : value ? *value : Word{};
  }
  HOST_DEVICE void put(int64_t i, Word word) const { out[i] = word; }
};

KernelRun framed(int64_t element_bytes, const Shape& in, const Margins& margins, bool has_value) {
  const FramedAxes axes(element_bytes, in, margins, !has_value);
  return for_wide_word(axes.word, [&]<typename Word>() -> KernelRun {
    return [loop = FrameLoop(axes), has_value](const KernelArgs& args) {
      launch_moves(FramedWords<Word>{loop, args.in<Word>(0), has_value ? args.in<Word>(1) : nullptr, args.out<Word>(0)}, loop.count, args);
    };
  });
}

// --- Slice ----------------------------------------------------------------------------------------------------------------------------

KernelRun prepare_slice(const KernelSpec& spec) {
  return [move = StridedMove(slice_layout(spec))](const KernelArgs& args) { move.run(args, args.outputs[0], args.inputs[0]); };
}

KernelRun prepare_slice_grad(const KernelSpec& spec) {
  if (const std::optional<Margins> margins = slice_margins(spec))
    return framed(size_of(spec.outputs[0].dtype), spec.inputs[0].shape, *margins, false);
  return [bytes = spec.outputs[0].bytes(), move = StridedMove(slice_grad_layout(spec))](const KernelArgs& args) {
    fill_zeros(args.outputs[0], bytes, args);
    move.run(args, args.outputs[0], args.inputs[0]);
  };
}

// --- Pad in the other modes -----------------------------------------------------------------------------------------------------------

// Adjacent axes without pads are one.
struct PadLoop {
  struct Axis {
    PadAxis pad;
    Size in, out;
    int64_t in_stride, out_stride;
  };
  int rank = 0;
  bool small = false;
  int64_t in_count = 1, out_count = 1;
  std::array<Axis, kMaxAxes> axes{};

  PadLoop(const Attributes& attributes, const Shape& from) {
    bool after_plain = false;
    for (const PadAxis& pad : pad_axes(attributes, from)) {
      const bool plain = pad.base == 0 && pad.kept == pad.in && pad.out == pad.in;
      if (plain && after_plain) {
        PadAxis& last = axes[rank - 1].pad;
        last.kept = last.in = last.out = last.in * pad.in;
        continue;
      }
      if (rank == kMaxAxes) throw error(ErrorCode::unsupported, "the shape {} has more axes than are supported", to_string(from));
      axes[rank++].pad = pad;
      after_plain = plain;
    }
    for (int i = rank - 1; i >= 0; --i) {
      Axis& axis = axes[i];
      axis.in = Size(axis.pad.in), axis.out = Size(axis.pad.out);
      axis.in_stride = in_count, axis.out_stride = out_count;
      in_count *= axis.pad.in, out_count *= axis.pad.out;
    }
    small = in_count <= INT32_MAX && out_count <= INT32_MAX;
  }
};

template <typename Word> struct PaddedWords {
  PadLoop loop;
  const Word* in;
  Word* out;
  HOST_DEVICE Word take(int64_t i) const {
    int64_t from = 0;
    for (int a = loop.rank - 1; a >= 0; --a) {
      const PadLoop::Axis& axis = loop.axes[a];
      const Size::Place place = axis.out.split(i, loop.small);
      from += axis.pad.source(place.place) * axis.in_stride;
      i = place.above;
    }
    return in[from];
  }
  HOST_DEVICE void put(int64_t i, Word word) const { out[i] = word; }
};

KernelRun prepare_pad(const KernelSpec& spec) {
  const int64_t bytes = size_of(spec.inputs[0].dtype);
  const Shape& from = spec.inputs[0].shape;
  if (spec.attributes.get("mode", "constant") == "constant") return framed(bytes, from, pad_margins(spec), spec.has(1));
  return for_word(bytes, [&]<typename Word>() -> KernelRun {
    return [loop = PadLoop(spec.attributes, from)](const KernelArgs& args) {
      launch_moves(PaddedWords<Word>{loop, args.in<Word>(0), args.out<Word>(0)}, loop.out_count, args);
    };
  });
}

template <typename T> struct PadGradient {
  PadLoop loop;
  const T* dy;
  T* dx;

  HOST_DEVICE void operator()(int64_t element) const {
    int64_t copies = 1, rest = element;
    for (int a = loop.rank - 1; a >= 0; --a) {
      const Size::Place place = loop.axes[a].in.split(rest, loop.small);
      copies *= loop.axes[a].pad.copies_of(place.place).count;
      rest = place.above;
    }
    Compute<T> sum = 0;
    for (int64_t k = 0; k < copies; ++k) sum += load(dy[place_of_copy(element, k)]);
    dx[element] = store<T>(sum);
  }

  // Copies count as the output does, the last axis fastest.
  HOST_DEVICE int64_t place_of_copy(int64_t element, int64_t k) const {
    int64_t at = 0;
    for (int a = loop.rank - 1; a >= 0; --a) {
      const PadLoop::Axis& axis = loop.axes[a];
      const Size::Place place = axis.in.split(element, loop.small);
      const PadAxis::Copies copies = axis.pad.copies_of(place.place);
      at += copies[k % copies.count] * axis.out_stride;
      k /= copies.count;
      element = place.above;
    }
    return at;
  }
};

KernelRun prepare_pad_grad(const KernelSpec& spec) {
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [loop = PadLoop(spec.attributes, spec.outputs[0].shape)](const KernelArgs& args) {
      launch_elements(PadGradient<T>{loop, args.in<T>(0), args.out<T>(0)}, loop.in_count, args);
    };
  });
}

}  // namespace

constexpr Kernel kSliceKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_slice,
};
constexpr Kernel kSliceGradKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_slice_grad,
};
constexpr Kernel kPadKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_pad,
};
constexpr Kernel kPadGradKernel{
    .types = kFloating,
    .cost = movement_cost,
    .prepare = prepare_pad_grad,
};

ORT_TRAIN_OPS_END
