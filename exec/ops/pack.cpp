// Packs of small parameters (passes/pack_weights.h): one tensor, in which each of them begins at a multiple of 64 bytes; zeros between.
//
//   PackMember{byte_offset, shape}(pack) -> member    a view into the pack; the kernel copies where the planner could not make it one
//   Pack{byte_offsets, shape}(members...) -> pack     puts gradients together as their parameters are

#include <cstring>

#include "exec/element_types.h"
#include "exec/op_list.h"
#include "exec/program.h"

ORT_TRAIN_OPS_BEGIN

namespace {

constexpr const char* kBehindGradients = "packs are made behind the gradients";

// Where a member ends that begins at `offset`; throws where it doesn't lie in [from, pack bytes).
int64_t checked_end(int64_t offset, int64_t bytes, int64_t from, int64_t pack_bytes) {
  if (offset < from || offset % kPlaceAlignment != 0 || bytes > pack_bytes - offset) {
    throw error(ErrorCode::unsupported, "{} bytes from {} on are no member of a pack of {} bytes that is taken up to {}", bytes, offset,
                pack_bytes, from);
  }
  return offset + bytes;
}

std::vector<TensorType> infer_member(const InferContext& context) {
  const TensorType& pack = context.input(0);
  const TensorType member{pack.dtype, context.attributes.get("shape", Shape{})};
  checked_end(context.attributes.get("byte_offset", int64_t{0}), member.bytes(), 0, pack.bytes());
  return {member};
}

std::vector<TensorType> infer_pack(const InferContext& context) {
  const TensorType pack{context.input(0).dtype, context.attributes.get("shape", Shape{})};
  const std::vector<int64_t> offsets = context.attributes.get("byte_offsets", std::vector<int64_t>{});
  if (offsets.size() != context.inputs.size())
    throw error(ErrorCode::unsupported, "{} members have {} offsets in the pack", context.inputs.size(), offsets.size());
  int64_t end = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const TensorType& member = context.input(i);
    if (member.dtype != pack.dtype)
      throw error(ErrorCode::unsupported, "member {} is {}, not {}", i, to_string(member.dtype), to_string(pack.dtype));
    end = checked_end(offsets[i], member.bytes(), end, pack.bytes());
  }
  return {pack};
}

Cost no_cost(const KernelSpec&) { return {}; }
Cost pack_cost(const KernelSpec& spec) { return {.flops = 0, .bytes = 2.0 * static_cast<double>(spec.outputs[0].bytes())}; }

KernelRun prepare_member(const KernelSpec& spec) {
  return [from = spec.attributes.get("byte_offset", int64_t{0}), bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    const std::byte* const member = args.in<std::byte>(0) + from;
    if (args.out<std::byte>(0) != member) std::memcpy(args.outputs[0], member, static_cast<size_t>(bytes));
  };
}

// Small by what it is for: one thread.
KernelRun prepare_pack(const KernelSpec& spec) {
  std::vector<int64_t> sizes;
  for (const TensorType& member : spec.inputs) sizes.push_back(member.bytes());
  return [offsets = spec.attributes.get("byte_offsets", std::vector<int64_t>{}), sizes = std::move(sizes),
          bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    std::byte* const pack = args.out<std::byte>(0);
    int64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::memset(pack + end, 0, static_cast<size_t>(offsets[i] - end));
      std::memcpy(pack + offsets[i], args.inputs[i], static_cast<size_t>(sizes[i]));
      end = offsets[i] + sizes[i];
    }
    std::memset(pack + end, 0, static_cast<size_t>(bytes - end));
  };
}

}  // namespace

constexpr OpDef kPackMember{
    .name = "PackMember",
    .infer = infer_member,
    .no_gradient = kBehindGradients,
    .alias = {{.output = 0, .input = 0}},
};
constexpr Kernel kPackMemberKernel{
    .types = kAnyType,
    .cost = no_cost,
    .prepare = prepare_member,
};

constexpr OpDef kPack{
    .name = "Pack",
    .infer = infer_pack,
    .no_gradient = kBehindGradients,
};
constexpr Kernel kPackKernel{
    .types = kAnyType,
    .cost = pack_cost,
    .prepare = prepare_pack,
};

ORT_TRAIN_OPS_END
