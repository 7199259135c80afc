// How the library tells the user something in the course of a run: one sentence at a time (Callbacks::on_note).

#pragma once

#include <functional>
#include <string>

namespace ort_train {

using Note = std::function<void(const std::string&)>;

}  // namespace ort_train
