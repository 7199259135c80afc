// The tables that exec/op_list.h stands for: the kernels of one instruction set, with how it multiplies bfloat16; and, in one compilation,
// what the ops mean.

#include "exec/op_list.h"

#include "exec/gemm.h"

ORT_TRAIN_OPS_BEGIN

#define ORT_TRAIN_KERNEL_OF(name) &k##name##Kernel,
extern const Kernel* const kKernels[] = {ORT_TRAIN_EACH_OP(ORT_TRAIN_KERNEL_OF)};

std::string_view bfloat16_products() {
  const gemm::Way way = gemm::way_of(Element::bfloat16, Element::bfloat16);
  return way == gemm::Way::tiles ? "AMX-BF16" : way == gemm::Way::pairs ? "AVX512-BF16" : "float32";
}

ORT_TRAIN_OPS_END

#ifdef ORT_TRAIN_MEANINGS
namespace ort_train {

#define ORT_TRAIN_MEANING_OF(name) &k##name,
const std::vector<const OpDef*>& all_ops() {
  static const std::vector<const OpDef*> ops{ORT_TRAIN_EACH_OP(ORT_TRAIN_MEANING_OF)};
  return ops;
}

}  // namespace ort_train
#endif
