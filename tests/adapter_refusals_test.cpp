// Adapters that can't be: what doesn't fit a model, an adapter's file or a checkpoint is refused in a sentence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "tests/adapter_job.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace fs = std::filesystem;
namespace pb = ort_train_onnx;

struct AdapterRefusals : AdapterJob {};

TEST_F(AdapterRefusals, WhatDoesNotFitIsRefused) {
  const Options good = options();
  Options o = good;
  o.lora_target = {"frist"};
  EXPECT_HAS(refusal(o), "`lora_target` 'frist' fits no product, convolution or embedding of the model; it has 'first'");
  o.lora_target = {"first"};
  o.train = {"first.weight"};
  EXPECT_HAS(refusal(o), "fits only weights that are trained as a whole");
  o = good;
  o.lora_rank = 200;
  o.lora_target = {"first"};
  EXPECT_HAS(refusal(o), "`lora_rank` 200 is more than 'first.weight' has, which is [1024, 128]: at most 128 is of use");
  o = good;
  o.lora_rank = 2000;
  EXPECT_HAS(refusal(o),
             "`lora_rank` 2000 is more than any product of the model has ('first.weight' [1024, 128], 'second.weight' [1024, 1024], "
             "'third.weight' [1024, 1024]): at most 1024 is of use");
  o = good;
  o.lora_rank = 0;
  EXPECT_HAS(refusal(o), "`lora_alpha` is about adapters");
  o.lora_alpha = 0;
  o.adapter_only = true;
  EXPECT_HAS(refusal(o), "`adapter_only` is about adapters");
  o = good;
  o.adapter_only = true;
  o.train = {"head.weight"};
  EXPECT_HAS(refusal(o), "`adapter_only` writes adapters alone, and 'head.weight' is trained, too");
  o = good;
  o.bf16 = true;
  o.base_dtype = "float16";
  EXPECT_HAS(refusal(o), "`base_dtype` float16: products are in bfloat16 here");
  o = good;
  o.base_dtype = "int3";
  EXPECT_HAS(refusal(o), "`base_dtype` int3: is not known");
  o.base_dtype = "int8";
  o.double_quant = true;
  EXPECT_HAS(refusal(o), "goes with `base_dtype` nf4, not int8");
  o.base_dtype.clear();
  EXPECT_HAS(refusal(o), "goes with `base_dtype` nf4");
  o = good;
  o.ia3_target = {"first"};
  EXPECT_HAS(refusal(o), "`lora_rank` and `ia3_target` are two kinds of adapters");
  o.lora_rank = 0;
  EXPECT_HAS(refusal(o), "`lora_alpha` is about LoRA, and `ia3_target` asks for (IA)3");
  o.lora_alpha = 0;
  o.ia3_feedforward = {"frist"};
  EXPECT_HAS(refusal(o), "`ia3_feedforward` 'frist' fits no product");
  o = good;
  o.lora_rank = 0, o.lora_alpha = 0, o.use_dora = true;
  EXPECT_HAS(refusal(o), "`use_dora` is about adapters");
  o = good;
  o.base_target = {"head"};
  EXPECT_HAS(refusal(o), "`base_target` adds weights to those stored as `base_dtype`");
  o.base_dtype = "nf4";
  o.train = {"head.weight"};
  EXPECT_HAS(refusal(o), "`base_target` 'head' fits only weights that are trained as a whole");
  o.train.clear();
  o.base_target = {"haed"};
  EXPECT_HAS(refusal(o), "`base_target` 'haed' fits no product");
  EXPECT_HAS(error_of([&] { check(o); }).what(), "`base_target` 'haed' fits no product");
  o = good;
  o.adapter = folder / "nowhere";
  EXPECT_HAS(refusal(o), "is no folder with adapter_config.json");
}

TEST_F(AdapterRefusals, AdaptersOfOtherModelsAreRefused) {
  Options o = options();
  o.adapter_only = true;
  const std::string file = train(o).summary.model_path, at = fs::path(file).parent_path();
  Options next = options();
  next.lora_rank = 0, next.lora_alpha = 0;
  next.adapter = at;
  const std::string config = read_file(fs::path(at) / "adapter_config.json"), bytes = read_file(file);
  const auto with = [&](const std::string& text, const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  write_file(file, with(bytes, ".first.", ".fifth."));
  EXPECT_HAS(refusal(next), "has an adapter of 'fifth', which isn't in the model: it is of another model");
  write_file(file, with(bytes, "[4,128]", "[128,4]"));
  EXPECT_HAS(refusal(next), "'base_model.model.first.lora_A.weight' is [128, 4], and would have to be [4, 128] for this model");
  write_file(file, bytes);
  write_file(fs::path(at) / "adapter_config.json", with(config, "LORA", "VERA"));
  EXPECT_HAS(refusal(next), "its adapter is of the kind VERA");
  write_file(fs::path(at) / "adapter_config.json", with(config, "LORA", "IA3"));
  EXPECT_HAS(refusal(next), "which is no tensor of (IA)3");
  write_file(fs::path(at) / "adapter_config.json", R"({"peft_type": "IA3", "feedforward_modules": [1]})");
  EXPECT_HAS(refusal(next), "adapter_config.json: has something else where PEFT has a number, a flag or names");
  write_file(fs::path(at) / "adapter_config.json", with(config, "\"use_dora\": false", "\"use_dora\": true"));
  EXPECT_HAS(refusal(next), "lacks one of the tensors of 'first'");
  write_file(fs::path(at) / "adapter_config.json", with(config, "\"r\": 4", "\"r\": 4, \"use_qalora\": true"));
  EXPECT_HAS(refusal(next), "'use_qalora' is on");
  write_file(fs::path(at) / "adapter_config.json", "{}");
  EXPECT_HAS(refusal(next), "lacks `r` or `lora_alpha`");
  write_file(fs::path(at) / "adapter_config.json", config);
  write_file(fs::path(at) / "adapter_config.json", with(config, "\"r\": 4", "\"r\": 4.5"));
  EXPECT_HAS(refusal(next), "`r` is no whole number");
  write_file(fs::path(at) / "adapter_config.json", with(config, "\"r\": 4", "\"init_lora_weights\": \"pissa\", \"r\": 4"));
  EXPECT_HAS(refusal(next), "began by 'pissa', which changes the model's own weights");
  write_file(fs::path(at) / "adapter_config.json", config);
  next.lora_rank = 8;
  EXPECT_HAS(refusal(next), "says kind, rank (4), scale and targets: leave out `lora_rank`");
}

// PEFT saves embeddings and heads beside their adapters, transposed against the file here; names have a longer path, and keep it.
TEST_F(AdapterRefusals, WeightsBesideAdaptersHaveToBeTheModels) {
  Options o = options();
  o.lora_target = {"head"};
  o.adapter_only = true;
  const std::string file = train(o).summary.model_path;
  Options next = options();
  next.lora_rank = 0, next.lora_alpha = 0, next.adapter_only = true;
  next.adapter = fs::path(file).parent_path();
  const Run plain = train(next);

  const std::vector<float> a = matrix(file, "head.lora_A.weight"), b = matrix(file, "head.lora_B.weight"),
                           head = weight(o.model, "head.weight");
  std::vector<float> base(head.size());
  for (size_t i = 0; i < head.size(); ++i) base[i % kOut * kInner + i / kOut] = head[i];
  const auto write = [&] {
    Arrays()
        .add("base_model.model.wrapped.head.lora_A.weight", {kRank, kInner}, a)
        .add("base_model.model.wrapped.head.lora_B.weight", {kOut, kRank}, b)
        .add("base_model.model.wrapped.head.base_layer.weight", {kOut, kInner}, base)
        .write(file);
  };
  write();
  next.output_dir = folder / "next";
  const Run run = train(next);
  EXPECT_EQ(run.losses, plain.losses);
  EXPECT_EQ(matrix(run.summary.model_path, "wrapped.head.lora_A.weight"), matrix(plain.summary.model_path, "head.lora_A.weight"));
  base[77] += 1;
  write();
  EXPECT_HAS(refusal(next),
             "'base_model.model.wrapped.head.base_layer.weight', [4, 1024], has other numbers than the model's 'head.weight'");
}

TEST_F(AdapterRefusals, ResumeWantsTheSameAdaptersAndBase) {
  Options o = options();
  o.output_dir = folder / "out-resumed";
  train_in_two(o, 3);
  o.resume = true;
  o.max_steps = 8;
  const auto problem = [&](Options changed) {
    const Error error = error_of([&] { Trainer(changed).train(); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return std::string(error.what());
  };
  Options other = o;
  other.lora_rank = 2;
  EXPECT_HAS(problem(other), "give it the same adapters (`lora_rank`");
  other = o;
  other.lora_rank = 0, other.lora_alpha = 0;
  EXPECT_HAS(problem(other), "was saved with adapters of rank 4");
  other = o;
  other.base_dtype = "nf4";
  EXPECT_HAS(problem(other), "whose frozen weights are stored as they come, not nf4: give it the same `base_dtype`");
  // What changes nothing about which numbers are kept may be another.
  other = o;
  other.lora_alpha = 3, other.lora_dropout = 0.1, other.use_rslora = true;
  std::string notes;
  EXPECT_EQ(Trainer(other, {.on_note = [&](const std::string& text) { notes += text + "\n"; }}).train().steps, 8);
  for (const char* part : {"lora_alpha 3 instead of 8", "lora_dropout 0.1 instead of 0", "use_rslora true instead of none"})
    EXPECT_HAS(notes, part);
}

TEST_F(AdapterRefusals, NumbersThatArentFiniteHaveNoCodes) {
  Options o = options();
  ort_train_onnx::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(read_file(o.model)));
  std::vector<float> values(kInner * kInner, 1);
  values[70] = std::numeric_limits<float>::quiet_NaN();
  *model.mutable_graph()->mutable_initializer(2) = tensor_of("second.weight", {kInner, kInner}, values);
  o.model = write_model(folder, model, "nan.onnx");
  o.base_dtype = "nf4";
  EXPECT_HAS(error_of([&] { Trainer(o).train(); }).what(),
             "the weight 'second.weight' has numbers that aren't finite, which nf4 can't hold");
}

// A table that is the head's matrix, too, has two uses; untied, each has its own weight.
TEST_F(AdapterRefusals, AdaptersAreOfUses) {
  const std::string tied = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (int64[batch, 3] words) => (float[batch, 3, 6] y)
    <float[6, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24},
     float[4, 4] inner = {1, 0, 2, 0, 0, 3, 0, 1, 4, 1, 0, 0, 1, 1, 1, 2}> {
      a = Gather (table, words)
      b = MatMul (a, inner)
      t = Transpose <perm = [1, 0]> (table)
      y = MatMul (b, t)
    })");
  Arrays arrays;
  arrays.add("words", {4, 3}, std::vector<int64_t>{0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0});
  arrays.add("labels", {4, 3, 6}, numbers(72, 7919));
  Options o{.model = tied,
            .data = arrays.write(folder / "words.safetensors"),
            .loss = "mse",
            .batch_size = 2,
            .profile = profile,
            .max_steps = 2,
            .lora_rank = 2};
  EXPECT_EQ(Trainer(o).plan().trainable_parameters, 2 * 8);  // the head has none
  o.lora_target = {"table"};
  EXPECT_HAS(refusal(o), "'table' can't have an adapter");
  EXPECT_HAS(refusal(o), "`untie` gives each a weight of its own");
  o.untie = true;
  EXPECT_GT(Trainer(o).plan().trainable_parameters, 0);
  o.use_dora = true;
  EXPECT_HAS(refusal(o), "'table' is an embedding, which DoRA isn't for: leave it out of `lora_target`");
  o.use_dora = false;
  const Run run = train(o);
  EXPECT_EQ(run.summary.steps, 2);
}

// PyTorch's exporter stores a tied weight twice under the head's name; untied, the modules of the nodes tell the two apart.
TEST_F(AdapterRefusals, UntiedWeightsHaveTheNamesOfTheirModules) {
  auto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (int64[batch, 3] words) => (float[batch, 3, 6] y) { a = Gather (head_weight, words) y = MatMul (a, val_1) })");
  const std::vector<float> table = numbers(6 * 4, 7919);
  std::vector<float> transposed(table.size());
  for (size_t i = 0; i < table.size(); ++i) transposed[i % 4 * 6 + i / 4] = table[i];
  pb::GraphProto& graph = *model.mutable_graph();
  graph.mutable_node(0)->set_input(0, "head.weight");
  *graph.add_initializer() = tensor_of("head.weight", {6, 4}, table);
  *graph.add_initializer() = tensor_of("val_1", {4, 6}, transposed);
  const auto add = [](auto* entry, const char* key, const char* value) {
    entry->set_key(key);
    entry->set_value(value);
  };
  const char *const modules[] = {"['', 'body', 'body.embed', 'embedding']", "['', 'head', 'linear']"}, *const names[] = {"node_embedding",
                                                                                                                         "node_linear"};
  for (int i = 0; i < 2; ++i) {
    graph.mutable_node(i)->set_name(names[i]);
    add(graph.mutable_node(i)->add_metadata_props(), "pkg.torch.onnx.name_scopes", modules[i]);
  }
  add(graph.add_metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature",
      "p_body_embed_weight: PARAMETER target='body.embed.weight'\np_head_weight: PARAMETER target='head.weight'\n");
  describe(model, "val_1", "pkg.onnxscript.optimizer.folded_from", "['head.weight']");

  Arrays arrays;
  arrays.add("words", {4, 3}, std::vector<int64_t>{0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0});
  arrays.add("labels", {4, 3, 6}, numbers(72, 7907));
  Options o{.model = write_model(folder, model),
            .data = arrays.write(folder / "words.safetensors"),
            .loss = "mse",
            .batch_size = 2,
            .profile = profile,
            .max_steps = 2,
            .lora_rank = 2,
            .lora_target = {"head"},
            .adapter_only = true};
  EXPECT_HAS(refusal(o), "`untie` gives each a weight of its own");
  o.untie = true;
  EXPECT_EQ(matrix(train(o).summary.model_path, "head.lora_A.weight").size(), 2U * 4);
  o.lora_target = {"embed"};
  o.output_dir = folder / "embed";
  EXPECT_EQ(matrix(train(o).summary.model_path, "body.embed.lora_embedding_A").size(), 2U * 6);
}

// A bias has the factors in it in the end, so it may be no other product's: not even where both read one Reshape of it.
TEST_F(AdapterRefusals, FactorsWantABiasOfTheirOwn) {
  const auto model = [&](const char* second) {
    return write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[batch, 2] x) => (float[batch, 2] y)
      <float[1, 2] b = {{1, 2}}, float[1, 2] c = {{3, 4}}, int64[1] size = {{2}}, float[2, 2] w = {{1, 2, 3, 4}}, float[2, 2] v = {{4, 3, 2, 2}}> {{
        r = Reshape (b, size)
        s = Reshape (c, size)
        a = Gemm (x, w, r)
        t = Tanh (a)
        y = Gemm (t, v, {})
      }})",
                                           second));
  };
  Arrays arrays;
  for (const char* name : {"x", "labels"}) arrays.add(name, {kSamples, 2}, numbers(kSamples * 2, 104'729));
  Options o = options();
  o.lora_rank = 0, o.lora_alpha = 0;
  o.ia3_target = {"w"};
  o.data = arrays.write(folder / "pairs.safetensors");
  o.model = model("r");
  EXPECT_HAS(refusal(o), "'w' can't have its outputs scaled: its bias 'b' has other uses, too");
  o.model = model("s");
  EXPECT_EQ(Trainer(o).plan().trainable_parameters, 2);
}

}  // namespace
}  // namespace ort_train
