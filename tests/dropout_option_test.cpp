// `dropout` puts Dropout behind nodes of the model: which random numbers they have.

#include <gtest/gtest.h>

#include <set>

#include "graph/op_def.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;

struct DropoutOption : ::testing::Test {
  const TestFolder folder;
  static constexpr const char* kModel = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[8, 4] x) => (float[8, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                                          float ratio = {0.5}, bool training = {1}> {
      [noise] n = RandomUniformLike (x)
      [product] p = MatMul (n, w)
      [dropped] d = Dropout (p, ratio, training)
      [coins] c = Bernoulli (n)
      [sum] y = Add (d, c)
    })";

  // Of the nodes that draw, by the user's names: op and ordinal.
  using Draws = std::set<std::tuple<std::string, std::string, int64_t>>;
  Draws draws(const std::vector<std::pair<std::string, double>>& dropout) const {
    ImportOptions options;
    options.dropout = dropout;
    const Imported imported = import_file(write_model(folder, kModel), options);
    Draws found;
    for (const NodeId id : imported.graph.order()) {
      const Node& node = imported.graph.node(id);
      if (!node.op->random) continue;
      EXPECT_EQ(node.attributes.get("ordinal", int64_t{0}), int64_t{node.ordinal}) << node.name;
      found.emplace(node.name, node.op->name, node.ordinal);
    }
    return found;
  }
};

// A node's numbers are those of its place in the file.
TEST_F(DropoutOption, HasTheNumbersOfItsNode) {
  const Draws without{{"noise", "DrawNumbers", 1}, {"dropped", "Dropout", 3}, {"coins", "DrawNumbers", 4}};
  EXPECT_EQ(draws({}), without);
  Draws with = without;
  with.emplace("product", "Dropout", 2);
  with.emplace("sum", "Dropout", 5);
  EXPECT_EQ(draws({{"product", 0.1}, {"sum", 0.1}}), with);
  EXPECT_EQ(draws({{"dropped", 0.1}}), without) << "in place of the one that is there";
}

// With the words that made the numbers themselves it would drop the smallest of them.
TEST_F(DropoutOption, HasNumbersOfItsOwnBehindANodeThatDraws) {
  constexpr int64_t kOwn = int64_t{1} << 29;
  const Draws wanted{{"noise", "DrawNumbers", 1},
                     {"noise", "Dropout", 1 + kOwn},
                     {"dropped", "Dropout", 3},
                     {"coins", "DrawNumbers", 4},
                     {"coins", "Dropout", 4 + kOwn}};
  EXPECT_EQ(draws({{"noise", 0.1}, {"coins", 0.1}}), wanted);
}

}  // namespace
}  // namespace ort_train
