// A library that is opened while the program runs, wherever the loader finds it: programs run without it, too.

#pragma once

#include <dlfcn.h>

#include <initializer_list>

namespace ort_train::cuda {

class SharedLibrary {
 public:
  // The first of these that there is; it stays open as long as the program runs.
  SharedLibrary(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
  }

  bool is_open() const { return library_ != nullptr; }
  // False, and null: it has no such function.
  template <typename Function> bool find(Function& function, const char* name) const {
    function = is_open() ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
    return function != nullptr;
  }

 private:
  void* library_ = nullptr;
};

}  // namespace ort_train::cuda
