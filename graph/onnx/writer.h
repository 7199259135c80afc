// Any Graph, from the imported model to the training step, as an ONNX file that Netron opens and onnx.checker accepts, and back.
//
// Ops that mean the same in ONNX are written as ONNX's own, the rest in the domain kOwnDomain. What ONNX has no word for (kinds, stages,
// ordinals, what is trainable) stands in metadata_props; parameters and state are graph inputs without data, constants initializers.

#pragma once

#include <string>
#include <string_view>

#include "graph/graph.h"

namespace ort_train {

// Throws Error(io) where the file can't be written.
void write_graph(const Graph& graph, const std::string& path);

// Reads what write_graph wrote: the same Graph, by to_text(). Throws Error(io), Error(unsupported) for other files.
Graph read_graph(const std::string& path);

// A graph in ONNX's text syntax, with internal ops by name whatever their domain; types of intermediate values are inferred. A value that
// is declared between < and > without data is a trainable parameter:
//
//   layer (float[8, 32] x) => (float[8, 16] y) <float[32, 16] w, float[16] b = {0, …}> {
//     [projection] y = MatMul<trans_a = 0>(x, w, b)
//   }
//
// Throws Error(unsupported) with the parser's complaint.
Graph parse_graph(std::string_view text);

}  // namespace ort_train
