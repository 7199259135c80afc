// Runs on a device whose library has several algorithms for a product: a resumed run has those by which it began.

#include "exec/algorithms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/kernel.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "tests/discrete_device.h"
#include "tests/failures.h"
#include "tests/golden_model.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::HasSubstr;
using ::testing::Not;

// Its second algorithm has another last bit in a product's first element.
struct Library {
  static inline std::string suggested;  // "first" or "second"
  static inline AlgorithmTable* algorithms = nullptr;

  static KernelRun prepare_product(const KernelSpec& spec) {
    const std::string algorithm = algorithms->choose(to_string(spec.outputs[0]), suggested);
    return [run = prepare(*cpu_kernels().find(op_named("MatMul")), spec), is_second = algorithm == "second"](const KernelArgs& args) {
      run(args);
      if (is_second) args.out<uint8_t>(0)[0] ^= 1;
    };
  }
  static const KernelTable& kernels() {
    static const Kernel product = [] {
      Kernel kernel = *cpu_kernels().find(op_named("MatMul"));
      kernel.prepare = prepare_product;
      return kernel;
    }();
    static const KernelTable table("test", [] {
      static std::vector<const Kernel*> all;
      for (const OpDef* op : all_ops()) all.push_back(op->name == "MatMul" ? &product : cpu_kernels().find(*op));
      return all.data();
    }());
    return table;
  }
};

struct LibraryDevice : DiscreteDevice {
  LibraryDevice(const Program& program, const std::vector<const Graph*>& graphs, std::string version_)
      : DiscreteDevice(program, graphs, /*threads=*/1, /*seed=*/3, Library::kernels()), version(std::move(version_)) {}
  std::string makes_products(DType) const override { return version; }
  const AlgorithmTable* algorithms() const override { return Library::algorithms; }
  std::string version;
};

struct LibraryAlgorithms : TrainerRuns {
  // What a process has.
  struct Process {
    AlgorithmTable table;
    explicit Process(const std::string& suggested) {
      Library::suggested = suggested;
      Library::algorithms = &table;
    }
  };

  DeviceChoice on_library(const std::string& version) const {
    constexpr int64_t kBytes = 100'000'000;
    return {.kernels = &Library::kernels(),
            .make = [version](const Program& program, const std::vector<const Graph*>& graphs) -> std::unique_ptr<Device> {
              return std::make_unique<LibraryDevice>(program, graphs, version);
            },
            .memories = {.device = kBytes, .host = kBytes},
            .algorithms = Library::algorithms,
            .makes_products = version};
  }

  Options options() const {
    Options o = golden_options("bert-dynamo-20-classes");
    o.max_steps = 6;
    o.threads = 1;
    o.bf16 = true;
    o.profile = profile;
    o.output_dir = folder / "out";
    o.overwrite = true;
    return o;
  }

  std::string whole(const std::string& suggested) {
    const Process process(suggested);
    return TrainerOn(on_library("1.0"), options()).train().weights_hash;
  }
  // Stopped after two steps by a process to which the library suggests the first, saved with version 1.0.
  void begin() {
    const Process process("first");
    Trainer* running = nullptr;
    TrainerOn trainer(on_library("1.0"), options(), {.on_step = [&](const StepReport& step) {
                        if (step.step == 2) running->request_stop();
                      }});
    running = &trainer;
    ASSERT_TRUE(trainer.train().stopped);
  }
  // By another one.
  std::string resume(const std::string& suggested, const std::string& version, std::string& notes) {
    const Process process(suggested);
    Options o = options();
    o.overwrite = false;
    o.resume = true;
    return TrainerOn(on_library(version), o, {.on_note = [&](const std::string& text) { notes += text + "\n"; }}).train().weights_hash;
  }
};

TEST_F(LibraryAlgorithms, AreThoseByWhichTheRunBegan) {
  const std::string first = whole("first"), second = whole("second");
  ASSERT_NE(first, second);
  std::string notes;
  begin();
  EXPECT_EQ(resume("second", "1.0", notes), first);
  EXPECT_THAT(notes, Not(HasSubstr("differs")));
}

TEST_F(LibraryAlgorithms, OfAnotherVersionAreItsOwn) {
  const std::string first = whole("first");
  std::string notes;
  begin();
  EXPECT_NE(resume("second", "1.1", notes), first);
  EXPECT_THAT(notes, HasSubstr("from here on the run differs from the one that was saved: products 1.1 instead of 1.0"));
}

TEST_F(LibraryAlgorithms, AreRefusedWhereTheProcessHasOthers) {
  begin();
  Process process("second");
  Options o = options();
  (void)TrainerOn(on_library("1.0"), [&] {
    Options other = o;
    other.output_dir = folder / "other";
    return other;
  }());
  o.overwrite = false;
  o.resume = true;
  const Error problem = error_of([&] { TrainerOn trainer(on_library("1.0"), o); });
  EXPECT_EQ(problem.code(), ErrorCode::usage);
  EXPECT_THAT(problem.what(),
              HasSubstr("by an algorithm (first) other than this process does (second): resume it in a process of its own"));
}

}  // namespace
}  // namespace ort_train
