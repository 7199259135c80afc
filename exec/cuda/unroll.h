// Loops that a device's compiler must unroll, so that arrays stay in registers; or must not, so that the registers are enough.

#pragma once

#ifdef __CUDACC__
#define ORT_TRAIN_UNROLL _Pragma("unroll")
#define ORT_TRAIN_NO_UNROLL _Pragma("unroll 1")
#else
#define ORT_TRAIN_UNROLL
#define ORT_TRAIN_NO_UNROLL
#endif
