// PackMember where it is no view, and Pack. Their meaning: exec/ops/pack.cpp. A launch writes up to kMembers members of a pack and the
// zeros behind each: a thread 16 bytes, which lie in one member and perhaps the zeros behind it, as members begin at multiples of 64.

#include <algorithm>
#include <vector>

#include "exec/cuda/copy.h"
#include "exec/element_types.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int kMembers = 64;

Cost no_cost(const KernelSpec&) { return {}; }  // it is a view nearly always
Cost pack_cost(const KernelSpec& spec) { return {.flops = 0, .bytes = 2.0 * static_cast<double>(spec.outputs[0].bytes())}; }

struct PackedMember {
  const std::byte* data;
  int64_t begin, bytes;  // where it begins in the pack
};
struct PackedWords {
  CopiedWords pack;  // where to write; up to the first member behind these
  int64_t first;     // word
  int count;
  PackedMember members[kMembers];

  HOST_DEVICE WideWord take(int64_t i) const {
    const int64_t at = 16 * (first + i);
    int below = 0, end = count;  // the last member that begins here or before
    while (end - below > 1) {
      const int middle = (below + end) / 2;
      (members[middle].begin <= at ? below : end) = middle;
    }
    const PackedMember& member = members[below];
    const int64_t inside = at - member.begin;
    return inside >= 0 && inside < member.bytes ? CopiedWords{member.data, nullptr, member.bytes}.take(inside / 16) : WideWord{};
  }
  HOST_DEVICE void put(int64_t i, WideWord word) const { pack.put(first + i, word); }
};

KernelRun prepare_member(const KernelSpec& spec) {
  return [from = spec.attributes.get("byte_offset", int64_t{0}), bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    const std::byte* const member = args.in<std::byte>(0) + from;
    if (args.out<std::byte>(0) != member) copy_bytes(args.outputs[0], member, bytes, args);
  };
}

KernelRun prepare_pack(const KernelSpec& spec) {
  std::vector<int64_t> sizes;
  for (const TensorType& member : spec.inputs) sizes.push_back(member.bytes());
  return [offsets = spec.attributes.get("byte_offsets", std::vector<int64_t>{}), sizes = std::move(sizes),
          bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    for (size_t from = 0; from < sizes.size(); from += kMembers) {
      const size_t to = std::min(sizes.size(), from + kMembers);
      const int64_t begin = from == 0 ? 0 : offsets[from], end = to == sizes.size() ? bytes : offsets[to];
      PackedWords words{.pack = {nullptr, args.out<std::byte>(0), end}, .first = begin / 16};
      for (size_t i = from; i < to; ++i) words.members[words.count++] = {args.in<std::byte>(i), offsets[i], sizes[i]};
      launch_moves<1>(words, (end - begin + 15) / 16, args);
    }
  };
}

}  // namespace

constexpr Kernel kPackMemberKernel{
    .types = kAnyType,
    .cost = no_cost,
    .prepare = prepare_member,
};
constexpr Kernel kPackKernel{
    .types = kAnyType,
    .cost = pack_cost,
    .prepare = prepare_pack,
};

ORT_TRAIN_OPS_END
