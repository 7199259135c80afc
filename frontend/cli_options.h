// The command line's options: each a field of ort_train::Options by the same name. The library's messages name fields (`max_steps`); here
// they become options (--max-steps).

#pragma once

#include <cstdint>
#include <string>

#include "frontend/ort_train.h"

namespace ort_train {

struct CommandLine {
  enum class Command { train, plan, check, export_merged };
  Command command = Command::train;
  Options options;
  int64_t logging_steps = 10;
  int64_t sample_length = 200;
  std::string text;  // of --help or --version: print it and leave
};

// A sentence of the library with its fields' names as the command line has them: "`max_steps` 3" -> "--max-steps 3". What is no field of
// Options that has an option stays as it is.
std::string with_options(const std::string& sentence);

// Names may be written --like-this or --like_this. Throws Error(usage); an unknown name gets the nearest known one suggested.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace ort_train
