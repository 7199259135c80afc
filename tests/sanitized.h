// Whether what is tested runs under the sanitizers: ten times as slow, with more memory than it asks for.

#pragma once

namespace ort_train {

#ifdef ORT_TRAIN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ort_train
