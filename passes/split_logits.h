// split_logits: where the weight of a model's head is in parts, its logits become parts, too, so that they never are in memory at once.
// With the usual vocabularies they are the largest tensors of a language model.
//
//   before   y1 = MatMulPart{y_from 0}(x, w1) ; y = MatMulPart{y_from 768}(x, w2, base y1)            (256, 1536)
//            loss, lse = SoftmaxCrossEntropy(y, labels) ; dy = SoftmaxCrossEntropyGrad(…, y, lse, labels)
//            dx1 = MatMulPart{a_from 0}(dy, w1) ; dx = MatMulPart{a_from 768}(dy, w2, base dx1) ; dw1 = … ; dw2 = …
//   after    y1 = MatMulPart(x, w1) ; s1 = SoftmaxCrossEntropyPart(y1, labels)                        (256, 768)
//            y2 = MatMulPart(x, w2) ; s2 = SoftmaxCrossEntropyPart{from 768}(y2, labels, s1)
//            loss, lse = SoftmaxCrossEntropyOfParts(s2, labels)
//            dy1 = SoftmaxCrossEntropyGrad{from 0}(…, y1, lse, labels) ; dx1 = MatMulPart(dy1, w1) ; dw1 = …
//            dy2 = SoftmaxCrossEntropyGrad{from 768}(…, y2, …) ; dx = MatMulPart(dy2, w2, base dx1) ; dw2 = …
//
// A part of the logits can be computed again in the backward pass, beside the products that read the same part of the weight, or wait on
// the disk. It changes no bit but of a bias's gradient, whose rows are added in another order: parts begin where chunks of the loss's
// sums do (exec/class_chunk.h; mark_parts() sees to that), and where blocks of the products' depth do.
//
// Left as they are: logits that anything but the loss reads, be it a scale, a soft cap or an adapter of the head; losses whose classes have
// weights.

#pragma once

#include "graph/graph.h"

namespace ort_train {

// On a job's graph after split_weights().
bool split_logits(Graph& graph);

}  // namespace ort_train
