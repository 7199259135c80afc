// Options from a YAML file, `--config FILE`.

#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ort_train {

// The files that --config names among a command line's arguments. What is given there counts, and of several files the last that has an
// option.
class ConfigFiles {
 public:
  // The files' options come before the arguments, as --name=value; options have been added to `app`, their names have dashes. Throws
  // Error(usage) for what no file may have.
  ConfigFiles(const CLI::App& app, std::vector<std::string>& arguments);

  // The model that a file names; empty: none does.
  const std::string& model() const { return model_; }
  // A sentence about an option that a file has, with the file and the line before it.
  std::string with_place(const std::string& sentence) const;

 private:
  struct Place {
    std::string option, place;  // place: "run.yaml: line 3: "
  };
  void read(const CLI::App& app, const std::string& path, const std::vector<std::string>& given, std::vector<std::string>& arguments);

  std::string model_;
  std::vector<Place> places_;
};

}  // namespace ort_train
