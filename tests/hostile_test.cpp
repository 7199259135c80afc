// Files that are cut short, damaged or made to do harm: an Error in one sentence, never a crash, never memory or time without bound.

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <numeric>
#include <random>

#include "frontend/ort_train.h"
#include "graph/onnx/reader.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

// A bit of everything that a file can hold: raw and typed tensors, a branch, a function, attributes of all kinds, shape arithmetic.
pb::ModelProto rich_model() {
  pb::ModelProto model = model_of(R"(<ir_version: 9, opset_import: ["" : 17, "mine" : 1], producer_name: "pen">
    g (float[2, 3] x, int64[2, 1] ids) => (float[n] y, float[2, 1, 3] z)
    <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] b = {0, 1, 2}, int64[2] shape = {3, 2}, float[4, 3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
      [fc] p = Gemm <alpha = 0.5, transB = 1> (x, w, b)
      [call] q = mine.Twice <factor = 3.0> (p, b)
      s = Shape (q)
      one = Constant <value = int64 {1}> ()
      n = Gather (s, one)
      two = Constant <value_int = 2> ()
      large = Greater (n, two)
      r = If (large) <
        then_branch = big () => (float[2, 3] t) <float[3] v = {1, 2, 3}> { t = Mul (q, v) },
        else_branch = small () => (float[2, 3] u) { u = Neg (q) }
      >
      k = Constant <value = float[3] {1, 2, 3}> ()
      m = Add (r, k)
      l = Reshape (m, shape)
      c = Concat <axis = -1> (l, l)
      y = Transpose <perm = [1, 0]> (c)
      z = Gather (table, ids)
    }
    <domain: "mine", opset_import: ["" : 13]> Twice <factor: float = 2.0> (p, r) => (q) {
      k = Constant <value_float : float = @factor> ()
      m = Mul (p, k)
      q = Add (m, r)
    })");
  for (int i = 1; i < 4; ++i) store_raw(*model.mutable_graph()->mutable_initializer(i));
  return model;
}

// Imports bytes that may be anything. True where they were a model.
bool survives(const TestFolder& folder, const std::string& bytes) {
  try {
    const Imported imported = import_file(write_file(folder / "model.onnx", bytes));
    for (const Weight& weight : imported.weights) {
      if (weight.places.at(0).bytes.bytes < 1 << 20) weight_tensor(imported, weight);
    }
    return true;
  } catch (const Error& e) {
    const bool expected = e.code() == ErrorCode::unsupported || e.code() == ErrorCode::io || e.code() == ErrorCode::usage;
    EXPECT_TRUE(expected) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return false;
  }
}

TEST(Hostile, TheRichModelIsAModel) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, rich_model()));
  EXPECT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].node << ": " << imported.obstacles[0].reason;
  EXPECT_EQ(imported.weights.size(), 5u);
}

TEST(Hostile, CutShortAnywhere) {
  const TestFolder folder;
  const std::string bytes = rich_model().SerializeAsString();
  int models = 0;
  for (size_t length = 0; length < bytes.size(); ++length) models += survives(folder, bytes.substr(0, length));
  // Between the top-level fields the rest is a model still, one with less in it.
  EXPECT_LE(models, 4);
}

TEST(Hostile, DamagedAnywhere) {
  const TestFolder folder;
  const std::string bytes = rich_model().SerializeAsString();
  std::mt19937 random(20240607);
  int models = 0;
  constexpr int kRounds = 1500;
  for (int round = 0; round < kRounds; ++round) {
    std::string damaged = bytes;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      char& byte = damaged[random() % damaged.size()];
      byte = random() % 2 ? static_cast<char>(byte ^ (1 << random() % 8)) : static_cast<char>(random());
    }
    models += survives(folder, damaged);
  }
  EXPECT_GT(models, kRounds / 20);  // damage to a weight or a name leaves a model
  EXPECT_LT(models, kRounds);
}

TEST(Hostile, PiecesExchanged) {
  const TestFolder folder;
  const std::string bytes = rich_model().SerializeAsString();
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string damaged = bytes;
    const size_t length = 1 + random() % 64, from = random() % (bytes.size() - length), to = random() % (bytes.size() - length);
    if (round % 3 == 0)
      damaged.replace(to, length, bytes, from, length);
    else if (round % 3 == 1)
      damaged.erase(from, length);
    else
      damaged.insert(to, bytes, from, length);
    survives(folder, damaged);
  }
}

TEST(Hostile, WhatIsNoModel) {
  const TestFolder folder;
  const auto refused = [&](const std::string& bytes) { return error_of([&] { import_file(write_file(folder / "model.onnx", bytes)); }); };
  EXPECT_HAS(refused("").what(), "is empty");
  for (const std::string& bytes :
       {std::string("\x89PNG\r\n\x1a\n") + std::string(100, '\0'), std::string("hello, I am a text\n"), std::string(5000, '\0'),
        std::string(5000, '\xff'), std::string("\x08\x07"), std::string("\x08\x07\x3a\x00", 4)}) {
    const Error e = refused(bytes);
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    EXPECT_HAS(e.what(), "not an ONNX model");
  }
  EXPECT_EQ(error_of([&] { import_file(folder / "missing.onnx"); }).code(), ErrorCode::io);
  EXPECT_HAS(error_of([&] { import_file(folder.path.string()); }).what(), "is a folder");
  const std::string pipe = folder / "pipe.onnx";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_HAS(error_of([&] { import_file(pipe); }).what(), "not a regular file");
}

TEST(Hostile, WireFormat) {
  const auto refused = [](const std::string& bytes) {
    const onnx::ByteSource source{
        .name = "m", .size = static_cast<int64_t>(bytes.size()), .read = [&](int64_t offset, std::span<std::byte> to) {
          ASSERT_LE(offset + static_cast<int64_t>(to.size()), static_cast<int64_t>(bytes.size()));
          std::memcpy(to.data(), bytes.data() + offset, to.size());
        }};
    const Error e = error_of([&] { onnx::read_model(source); });
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    return std::string(e.what());
  };
  EXPECT_HAS(refused("\x3a\xff\xff\xff\xff\x0f"), "needs 4294967295 bytes, 0 are left");
  EXPECT_HAS(refused("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "cut short");
  EXPECT_HAS(refused("\x3b\x3c"), "no protobuf field");                                                           // a group
  EXPECT_HAS(refused(std::string("\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 12)), "no protobuf field");  // a varint without end
  EXPECT_HAS(refused(std::string("\x00\x01", 2)), "no protobuf field");                                           // field 0
  EXPECT_HAS(refused(std::string("\x3a\x00\x3a\x00", 4)), "no protobuf field");                                   // two graphs
  EXPECT_HAS(refused("\x3a\x02\x08\x01"), "not an ONNX model");  // a graph whose nodes are numbers
  // Graphs in nodes in graphs …
  std::string nested;
  for (int depth = 0; depth < 400; ++depth) {
    for (const char tag : {'\x32', '\x2a', '\x0a'}) {  // attribute.g, node.attribute, graph.node
      std::string outer(1, tag);
      for (size_t length = nested.size();; length >>= 7) {
        outer.push_back(static_cast<char>(length < 128 ? length : (length & 127) | 128));
        if (length < 128) break;
      }
      nested = outer + nested;
    }
  }
  std::string prefix("\x3a");
  for (size_t length = nested.size();; length >>= 7) {
    prefix.push_back(static_cast<char>(length < 128 ? length : (length & 127) | 128));
    if (length < 128) break;
  }
  EXPECT_HAS(refused(prefix + nested), "deep");
  std::string many;
  for (int i = 0; i < 9 << 20; ++i) many += std::string("\x32\x00", 2);
  EXPECT_HAS(refused(many), "fields");
}

// --- tensors --------------------------------------------------------------------------------------------------------------------------

TEST(Hostile, TensorsThatContradictThemselves) {
  const TestFolder folder;
  const auto refused = [&](const std::function<void(pb::TensorProto&)>& change) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) { y = Add (x, w) })");
    pb::TensorProto& w = *model.mutable_graph()->add_initializer() = tensor_of("w", {4}, {1, 2, 3, 4});
    change(w);
    const Error e = error_of([&] { import_file(write_model(folder, model)); });
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    EXPECT_HAS(e.what(), "'w'");
    return std::string(e.what());
  };
  EXPECT_HAS(refused([](auto& w) { w.set_dims(0, 5); }), "needs 20 bytes, but the file holds 16");
  EXPECT_HAS(refused([](auto& w) { w.set_dims(0, int64_t{1} << 62); }), "more bytes than fit");
  EXPECT_HAS(refused([](auto& w) { w.set_dims(0, -4); }), "negative");
  EXPECT_HAS(refused([](auto& w) {
               for (int i = 0; i < 4; ++i) w.add_dims(int64_t{1} << 20);
             }),
             "more elements than fit");
  EXPECT_HAS(refused([](auto& w) {
               for (int i = 0; i < 100; ++i) w.add_dims(1);
             }),
             "dimensions");
  EXPECT_HAS(refused([](auto& w) { w.clear_raw_data(); }), "holds no elements");
  EXPECT_HAS(refused([](auto& w) {
               w.clear_raw_data();
               for (int i = 0; i < 4; ++i) w.add_int64_data(i);
             }),
             "stored as another type");
  EXPECT_HAS(refused([](auto& w) {
               w.clear_raw_data();
               for (int i = 0; i < 3; ++i) w.add_float_data(1);
             }),
             "needs 16 bytes, but the file holds 12");
}

TEST(Hostile, VarintTensors) {
  const TestFolder folder;
  const auto import = [&](int elements) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[4000] x) => (float[4000] y) <float[1] b = {1}> {
      p = Gather (x, order)
      y = Add (p, b) })");
    pb::TensorProto& order = *model.mutable_graph()->add_initializer();
    order.set_name("order");
    order.set_data_type(pb::TensorProto::INT64);
    order.add_dims(4000);
    for (int i = 0; i < elements; ++i) order.add_int64_data(i % 3 == 0 ? -1 - i : i);
    return import_file(write_model(folder, model));
  };
  const Imported imported = import(4000);
  ASSERT_TRUE(imported.obstacles.empty());
  const std::vector<int64_t> order = imported.graph.constant(imported.graph.find_value("order"))->to_int64();
  for (int64_t i = 0; i < 4000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i % 3 == 0 ? -1 - i : i);
  const Imported longer = import(4001);
  ASSERT_EQ(longer.obstacles.size(), 1u);
  EXPECT_HAS(longer.obstacles[0].reason, "another number of elements");
}

// Constants that would fill memory stay nodes, or are refused.
TEST(Hostile, FoldingIsBounded) {
  const TestFolder folder;
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (const std::string nodes : {
           "s = Constant <value_ints = [1099511627776]> () c = ConstantOfShape (s) y = ReduceSum <keepdims = 0> (c)",
           "s = Constant <value_ints = [3037000500, 3037000500, 4]> () c = ConstantOfShape (s) y = ReduceSum <keepdims = 0> (c)",
           "s = Constant <value_ints = [-5]> () c = ConstantOfShape (s) y = ReduceSum <keepdims = 0> (c)",
           "a = Constant <value_int = 0> () b = Constant <value_int = 9223372036854775807> () d = Constant <value_int = 1> () c = Range "
           "(a, b, d) f = Cast <to = 1> (c) y = "
           "ReduceSum <keepdims = 0> (f)",
           "a = Constant <value_int = 0> () d = Constant <value_int = 0> () c = Range (a, d, d) f = Cast <to = 1> (c) y = ReduceSum "
           "<keepdims = 0> (f)",
           "k = Constant <value = float[1] {1}> () s = Constant <value_ints = [1000000, 1000000]> () c = Expand (k, s) t = Expand (c, s) y "
           "= ReduceSum <keepdims = 0> (t)",
           "k = Constant <value = float[2] {1, 2}> () s = Constant <value_ints = [4611686018427387904]> () c = Tile (k, s) y = ReduceSum "
           "<keepdims = 0> (c)",
           "k = Constant <value = float[2] {1, 2}> () s = Constant <value_ints = [9223372036854775807, 9223372036854775807]> () c = Pad "
           "(k, s) y = ReduceSum <keepdims = 0> (c)",
           "k = Constant <value = int64[1] {1}> () n = Constant <value_int = 1000000000000> () v = Constant <value = float[2] {0, 1}> () c "
           "= OneHot (k, n, v) y = ReduceSum "
           "<keepdims = 0> (c)",
           "s = Constant <value_ints = [-9223372036854775808]> () c = Reshape (x, s) y = ReduceSum <keepdims = 0> (c)",
           "s = Constant <value_ints = [4611686018427387904, 4]> () c = Reshape (x, s) y = ReduceSum <keepdims = 0> (c)",
       }) {
    const std::string path = write_model(folder, fmt::format("<ir_version: 8, opset_import: [\"\" : 17]> g (float[2] x) => (float y, float "
                                                             "z) <float[2] w = {{1, 2}}> {{ z = Add (x, w) {} }}",
                                                             nodes));
    try {
      const Imported imported = import_file(path);
      for (ValueId id : imported.graph.values_of(ValueKind::constant))
        EXPECT_LE(imported.graph.value(id).bytes(), int64_t{256} << 20) << nodes;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    }
  }
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 1 << 20);  // KiB
}

// Bodies that call bodies: two to the power of the depth.
TEST(Hostile, FunctionsThatMultiply) {
  const TestFolder folder;
  std::string text = "<ir_version: 9, opset_import: [\"\" : 17, \"m\" : 1]> g (float[1] x) => (float[1] y) { y = m.F30 (x) }\n";
  for (int i = 1; i <= 30; ++i) {
    text += fmt::format("<domain: \"m\", opset_import: [\"\" : 17, \"m\" : 1]> F{} (p) => (q) {{ r = {} (p) q = {} (r) }}\n", i,
                        i == 1 ? "Identity" : fmt::format("m.F{}", i - 1), i == 1 ? "Identity" : fmt::format("m.F{}", i - 1));
  }
  EXPECT_HAS(error_of([&] { import_file(write_model(folder, text)); }).what(), "nodes");
}

// --- external data --------------------------------------------------------------------------------------------------------------------

class ExternalData : public ::testing::Test {
 protected:
  ExternalData() {
    std::filesystem::create_directories(folder_ / "model/sub");
    write_file(folder_ / "outside.bin", std::string(16, 'o'));
    write_file(folder_ / "model/w.bin", "wwwwxxxxyyyyzzzz");
    write_file(folder_ / "model/sub/w.bin", "ssssttttuuuuvvvv");
  }
  Imported import(const std::string& location, int64_t offset = 0, int64_t length = 16,
                  const std::function<void(pb::TensorProto&)>& change = {}) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) { y = Add (x, w) })");
    pb::TensorProto& w = *model.mutable_graph()->add_initializer() = tensor_of("w", {4}, {1, 2, 3, 4});
    store_externally(w, location, offset, length);
    if (change) change(w);
    return import_file(write_file(folder_ / "model/model.onnx", model.SerializeAsString()));
  }
  std::string refused(const std::string& location, int64_t offset = 0, int64_t length = 16,
                      const std::function<void(pb::TensorProto&)>& change = {}) {
    const Error e = error_of([&] { import(location, offset, length, change); });
    EXPECT_TRUE(e.code() == ErrorCode::io || e.code() == ErrorCode::unsupported) << e.what();
    EXPECT_HAS(e.what(), "'w'");
    return e.what();
  }
  TestFolder folder_;
};

TEST_F(ExternalData, InsideTheFolderIsRead) {
  for (const char* location : {"w.bin", "sub/w.bin", "./w.bin", "sub/../w.bin"}) {
    const Imported imported = import(location);
    EXPECT_EQ(weight_tensor(imported, imported.weights.at(0)).bytes.size(), 16u) << location;
  }
}

TEST_F(ExternalData, NeverLeavesTheFolder) {
  EXPECT_HAS(refused("../outside.bin"), "outside the model's folder");
  EXPECT_HAS(refused("sub/../../outside.bin"), "outside the model's folder");
  EXPECT_HAS(refused(folder_ / "outside.bin"), "w");
  EXPECT_HAS(refused("/etc/passwd"), "/etc/passwd");
  std::filesystem::create_symlink("../outside.bin", folder_ / "model/link.bin");
  EXPECT_HAS(refused("link.bin"), "symbolic link");
  std::filesystem::create_symlink("w.bin", folder_ / "model/inner.bin");
  EXPECT_HAS(refused("inner.bin"), "symbolic link");
  std::filesystem::create_directory_symlink("..", folder_ / "model/up");
  EXPECT_HAS(refused("up/outside.bin"), "symbolic link");
  std::filesystem::create_hard_link(folder_ / "outside.bin", folder_ / "model/hard.bin");
  EXPECT_HAS(refused("hard.bin"), "hard links");
}

// Export copies every file that the model mentions, so a branch that is never taken must not name another's.
TEST_F(ExternalData, IsCheckedInUntakenBranchesToo) {
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    yes = Constant <value = bool {1}> ()
    y = If (yes) <
      then_branch = a () => (float[2] t) { t = Add (x, w) },
      else_branch = b () => (float[2] u) <float[2] v = {1, 2}> { u = Add (x, v) }
    >
  })");
  for (auto& attribute : *model.mutable_graph()->mutable_node(1)->mutable_attribute()) {
    if (attribute.name() == "else_branch") store_externally(*attribute.mutable_g()->mutable_initializer(0), "../outside.bin", 0, 8);
  }
  const Error e = error_of([&] { import_file(write_file(folder_ / "model/model.onnx", model.SerializeAsString())); });
  EXPECT_EQ(e.code(), ErrorCode::io);
  EXPECT_HAS(e.what(), "outside the model's folder");
}

TEST_F(ExternalData, IsARegularFileOfEnoughBytes) {
  EXPECT_HAS(refused("missing.bin"), "missing.bin': No such file");
  EXPECT_HAS(refused("sub"), "is a folder");
  EXPECT_HAS(refused(""), "doesn't say in which");
  EXPECT_HAS(refused(std::string("w.bin\0x", 7)), "w.bin");
  ASSERT_EQ(mkfifo((folder_ / "model/pipe").c_str(), 0600), 0);
  EXPECT_HAS(refused("pipe"), "not a regular file");
  EXPECT_HAS(refused("w.bin", 1), "too few");
  EXPECT_HAS(refused("w.bin", 17), "too few");
  EXPECT_HAS(refused("w.bin", INT64_MAX), "too few");
  EXPECT_HAS(refused("w.bin", 0, 12), "needs 16 bytes");
  EXPECT_HAS(refused("w.bin", 0, INT64_MAX), "needs 16 bytes");
  EXPECT_HAS(refused("w.bin", -8), "not a number of bytes");
  EXPECT_HAS(refused("w.bin", 0, 16, [](auto& w) { w.mutable_external_data(1)->set_value("0x10"); }), "not a number of bytes");
  EXPECT_HAS(refused("w.bin", 0, 16, [](auto& w) { w.mutable_external_data(1)->set_value("99999999999999999999"); }),
             "not a number of bytes");
}

// Export copies external data under its own names into the folder of the new model.
TEST_F(ExternalData, HasANameOfItsOwn) {
  const auto message = [&](const std::string& location) {
    const Error e = error_of([&] { import(location); });
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    return std::string(e.what());
  };
  for (const char* name : {"model.onnx.tmp", ".ort-train-model.json", ".ort-train-lock"}) {
    std::filesystem::copy_file(folder_ / "model/w.bin", folder_ / (std::string("model/") + name));
    EXPECT_HAS(message(name), "written beside the new model");
    EXPECT_HAS(message(std::string("./") + name), "written beside the new model");
  }
  std::filesystem::create_directory(folder_ / "model/checkpoint-7");
  std::filesystem::copy_file(folder_ / "model/w.bin", folder_ / "model/checkpoint-7/w.bin");
  EXPECT_HAS(message("checkpoint-7/w.bin"), "written beside the new model");
}

TEST_F(ExternalData, IsNamedInOneWay) {
  pb::ModelProto model = model_of(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[2] v = {1, 2}, float[2] w = {1, 2}> {
    t = Add (x, v)
    y = Add (t, w)
  })");
  const auto with = [&](const std::string& first, const std::string& second, const std::string& name = "model.onnx") {
    pb::ModelProto copy = model;
    store_externally(*copy.mutable_graph()->mutable_initializer(0), first, 0, 8);
    store_externally(*copy.mutable_graph()->mutable_initializer(1), second, 8, 8);
    return write_file(folder_ / ("model/" + name), copy.SerializeAsString());
  };
  import_file(with("w.bin", "w.bin"));
  for (const char* other : {"./w.bin", ".//w.bin", "sub/../w.bin"}) {
    const Error e = error_of([&] { import_file(with("w.bin", other)); });
    EXPECT_HAS(e.what(), "w.bin");
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
  }
  EXPECT_HAS(error_of([&] { import_file(with("w.bin", "net.onnx", "net.onnx")); }).what(), "the model's own file");
  EXPECT_HAS(error_of([&] { import_file(with("w.bin", "model.onnx", "net.onnx")); }).what(), "written beside the new model");
}

// What is swapped between import and training is refused when it is read.
TEST_F(ExternalData, IsOpenedWithTheSameCareLater) {
  const Imported imported = import("w.bin");
  std::filesystem::remove(folder_ / "model/w.bin");
  std::filesystem::create_symlink("../outside.bin", folder_ / "model/w.bin");
  EXPECT_HAS(error_of([&] { weight_tensor(imported, imported.weights.at(0)); }).what(), "symbolic link");
}

// The same without openat2, which old kernels and some sandboxes lack: in a child that a filter forbids it to.
TEST_F(ExternalData, IsOpenedComponentByComponentWithoutOpenat2) {
  std::filesystem::create_symlink("../outside.bin", folder_ / "model/link.bin");
  std::filesystem::create_directory_symlink("..", folder_ / "model/up");
  const std::string root = folder_ / "model";
  const pid_t child = fork();
  if (child == 0) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = 4, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(77);
    int opened = 0;
    const char* const locations[] = {
        "w.bin", "sub/w.bin", ".//sub/./w.bin", "../outside.bin", "sub/../w.bin", "link.bin", "up/outside.bin", "missing.bin", "sub"};
    for (size_t i = 0; i < std::size(locations); ++i) {
      try {
        const File file = File::open_beneath(root + "/" + locations[i], root);
        opened |= file.size() == 16 ? 1 << i : 0x1000;
      } catch (const Error&) {
      }
    }
    _exit(opened == 0b111 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this sandbox allows no seccomp filter, with which the test takes openat2 away";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FileRange, ReadsExactly) {
  const TestFolder folder;
  const std::string path = write_file(folder / "f", "0123456789");
  std::string text(4, ' ');
  read_range({.path = path, .offset = 3, .bytes = 4}, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "3456");
  const Error past = error_of([&] { read_range({.path = path, .offset = 8, .bytes = 4}, std::as_writable_bytes(std::span(text))); });
  EXPECT_EQ(past.code(), ErrorCode::io);
  EXPECT_HAS(past.what(), "2 bytes are missing");
}

}  // namespace
}  // namespace ort_train
