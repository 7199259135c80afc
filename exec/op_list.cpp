// The tables that exec/op_list.h stands for: the kernels of one instruction set and, in one compilation, what the ops mean.

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

#define ORT_TRAIN_KERNEL_OF(name) &k##name##Kernel,
extern const Kernel* const kKernels[] = {ORT_TRAIN_EACH_OP(ORT_TRAIN_KERNEL_OF)};

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
