// Walks a model file's protobuf wire format and copies everything but the tensors' data, through a small buffer: a file of any size is
// taken in without its weights ever being in memory. Private to graph/onnx.

#pragma once

#include <string>

#include "graph/onnx/reader.h"

namespace ort_train::onnx {

// The ModelProto of `source`, serialised, without large tensor data, doc strings and the nodes' own metadata; each tensor's metadata say
// where its data are (convert.h, kBytesKey). Throws Error(unsupported) where the bytes are no protobuf message or are cut short.
std::string strip_model(const ByteSource& source);

}  // namespace ort_train::onnx
