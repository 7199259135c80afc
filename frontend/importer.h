// The parts that import_model() is made of, in the order in which they work. Private to frontend/import*.cpp.

#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "frontend/import.h"
#include "frontend/import_selection.h"
#include "graph/builder.h"
#include "graph/onnx/model.h"
#include "graph/op_def.h"

namespace ort_train::importing {

// --- the file -------------------------------------------------------------------------------------------------------------------------

// Reads the model without its weights and checks what concerns the whole of it.
onnx::ModelDef open_model(const std::string& path, FileStamp* stamp = nullptr);

struct Candidate;

// The folder of a model and the files in it: where tensors lie, and reading those that are constants.
class TensorFiles {
 public:
  explicit TensorFiles(std::string model_path);

  // Where the elements are; checks that the file is there, is one that may be read, and is long enough. Throws Error(io),
  // Error(unsupported).
  FileRange locate(const onnx::TensorDef& tensor);
  // Where numbers of 16 bits begin that are stored as integers in `range`; null for other tensors. Throws Error(unsupported).
  std::shared_ptr<const IntegerIndex> integers(const onnx::TensorDef& tensor, const FileRange& range);
  // Some elements, as they are stored, of a tensor that was located.
  void read_elements(const Candidate& candidate, int64_t first, std::span<std::byte> to);
  // All elements, for constants; the total that may be read is limited. Of a 16-bit model they are float32 (widen).
  Tensor read(const onnx::TensorDef& tensor);
  Tensor widened(Tensor stored) const;  // a copy in float32 of what has 16 bits, where these stand for it
  void widen() { widens_ = true; }
  bool widens() const { return widens_; }
  const File& reader(const FileRange& range);
  // Opens every file of external data and notes its stamp: export copies them all, under their names in the output folder. So each is named
  // in one way, and in none that a file of ours has there. Throws Error(io), Error(unsupported).
  void check_external(ModelInfo& info);

 private:
  Tensor read_stored(const onnx::TensorDef& tensor);
  FileRange external(const std::string& location) const;  // of no bytes
  std::string model_path_, folder_;
  std::map<std::string, File> readers_;  // by path
  std::map<std::string, FileStamp> stamps_;
  int64_t read_bytes_ = 0;
  bool widens_ = false;
};

// The type of most of a model's floating-point numbers.
DType weight_type_of(const onnx::GraphDef& graph);
// The 16-bit type in which most of a model's floating-point numbers are stored; float32 where most are in others.
DType low_type_of(const onnx::GraphDef& graph);

// --- dimensions -----------------------------------------------------------------------------------------------------------------------

struct BoundInputs {
  std::map<std::string, int64_t> sizes;  // of named dimensions
  std::vector<std::optional<TensorType>>
      types;  // of graph.inputs; none where the type is not known here, or an initializer gives the value
};
// Throws Error(usage) that names all dimensions without a size, or those that contradict.
BoundInputs bind_dimensions(const onnx::GraphDef& graph, const ImportOptions& options);
std::set<std::string> initializer_names(const onnx::GraphDef& graph);
// The type that a file declares, with the named dimensions bound; none where something is missing.
std::optional<TensorType> bound_type(const onnx::ValueDef& value, const std::map<std::string, int64_t>& sizes);

// --- weights --------------------------------------------------------------------------------------------------------------------------

// One reader of a value of the file. A graph's output reads with an empty op_type.
struct Use {
  std::string domain, op_type;
  int opset = 0;
  size_t input = 0;
  std::string output{};      // the first of the node
  size_t node = ~size_t{0};  // position in the list, where it isn't in a nested graph
};
using Uses = std::unordered_map<std::string, std::vector<Use>>;
// The readers of each name, in order, those in nested graphs included.
Uses find_uses(const std::vector<onnx::NodeDef>& nodes, const std::vector<std::string>& outputs, const onnx::Opsets& opsets);
std::vector<std::string> output_names(const onnx::GraphDef& graph);
// The values that a node reads, in nested graphs, too.
std::set<std::string> reads_of(const onnx::NodeDef& node);

// What a name of the file stands for in the Graph: a value, a constant that nobody has read yet, nothing (an absent input), or something
// unknown because a node before it could not be imported.
struct Meaning {
  ValueId value = kNone;
  const onnx::TensorDef* tensor = nullptr;                 // read when first asked for
  std::map<std::pair<size_t, size_t>, ValueId> copies{};   // --untie: what (node, input) of the main graph reads instead
  std::shared_ptr<const std::vector<Meaning>> sequence{};  // of tensors, by position
  bool absent = false;
  bool tainted = false;  // only its type is known, or it comes from such a value

  bool unknown() const { return value == kNone && !tensor && !sequence && !absent; }
};

// A tensor that may be a weight.
struct Candidate {
  std::string name;
  const onnx::TensorDef* tensor = nullptr;
  bool trainable = true;
  bool is_constant = false;  // no weight, but too large for a constant of the graph
  std::vector<Use> uses{};
  FileRange bytes{};
  std::shared_ptr<const IntegerIndex> integers{};  // WeightPlace::integers
  size_t fate = 0;                                 // index in ModelInfo::tensors
};
struct Subject;  // import_evidence.h

// Where a tensor's elements are; a copy that the file lacks is another place, and zeros that it lacks are one each.
using PlaceKey = std::tuple<std::string, int64_t, std::string>;
PlaceKey place_key(const Candidate& candidate);
WeightPlace weight_place(const Candidate& candidate);

struct Tie {
  size_t kept = 0;  // indices of candidates; kept < tied
  size_t tied = 0;
  bool transposed = false;
};
// Candidates of rank 2 and more that hold the same elements as an earlier one, as they are or (rank 2) transposed; never where all elements
// are equal, and copies that the file lacks only with each other. Reads a few elements of each, and all of those that agree in them.
std::vector<Tie> find_ties(const std::vector<Candidate>& candidates, TensorFiles& files);

// A weight of 16 bits.
struct HalfWeight {
  std::string name;
  const onnx::GraphDef* nested = nullptr;  // the graph that has it; null: the main one
};

// Decides which tensors of the file are parameters, and makes them.
class WeightTable {
 public:
  WeightTable(Graph& graph, TensorFiles& files, const ImportOptions& options, Imported& result)
      : graph_(graph), files_(files), options_(options), result_(result) {}

  // Weights of a graph: initializers in the file's order, then Constant nodes in theirs. Returns what their names mean.
  std::map<std::string, Meaning> add(const onnx::GraphDef& graph, const Uses& uses, bool is_main);
  // The weights of 16 bits, in the main graph and nested ones, whether or not these are gone through.
  static std::vector<HalfWeight> half_weights(const onnx::ModelDef& model, TensorFiles& files, const ImportOptions& options);
  // Throws Error(unsupported) where tensors of the model, those of branches and functions included, share bytes of a file and aren't the
  // same.
  void check_overlaps(const onnx::ModelDef& model);
  // Lists the floating-point tensors of a nested graph that isn't gone through.
  void add_untaken(const onnx::GraphDef& graph, const char* why);
  bool has_seen(const onnx::TensorDef& tensor) const { return tensor.offset >= 0 && seen_.contains(seen_key(tensor)); }
  void note(std::string text) { result_.info.notes.push_back(std::move(text)); }
  // Once all graphs have been added: what `train` and `freeze` did. Throws Error(usage) where one of their patterns fits nothing, or
  // nothing is left to train; Error(unsupported) where a weight shares its bytes with a tensor of a function.
  void finish(const onnx::ModelDef& model);

 private:
  using SeenKey = std::tuple<std::string, std::string, int64_t>;
  static SeenKey seen_key(const onnx::TensorDef& tensor) { return {tensor.name, tensor.location, tensor.offset}; }
  void find_halves(const onnx::GraphDef& graph, const onnx::Opsets& opsets, bool is_main, std::vector<HalfWeight>& found);
  void locate(Candidate& candidate) const;
  void note_integers(const Candidate& candidate);
  void check_choices();
  void check_shared_with_functions(const onnx::ModelDef& model);
  void list_untaken();
  std::vector<Candidate> parameters(const onnx::GraphDef& graph, const Uses& uses, bool is_main);
  std::vector<Subject> subjects(const onnx::GraphDef& graph, const Uses& uses);
  void note_own_names(const onnx::GraphDef& graph);
  void check_patterns(const std::vector<std::string>& patterns, const char* option) const;
  void share_choices(std::vector<Candidate>& found, const std::vector<Tie>& ties);
  void add_quantized(const onnx::GraphDef& graph, const Uses& uses, std::map<std::string, Meaning>& meanings);
  Meaning add_parameter(const Candidate& candidate);
  ValueId make_parameter(const Candidate& candidate, const std::string& name, bool added);
  void split(const Candidate& candidate, const Uses& uses, Meaning& meaning, std::set<std::string>& names);
  Meaning tie_to(const Candidate& kept, const Meaning& parameter, const Candidate& tied, bool transposed);

  Graph& graph_;
  TensorFiles& files_;
  const ImportOptions& options_;
  Imported& result_;
  std::vector<std::pair<std::string, std::string>> others_;  // initializers that can't be trained, and why
  std::map<PlaceKey, std::pair<Candidate, Meaning>> by_place_;
  std::set<SeenKey> seen_;                 // of tensors that were looked at
  std::vector<TensorFate> untaken_fates_;  // of tensors of nested graphs that aren't gone through
};

// --- nodes ----------------------------------------------------------------------------------------------------------------------------

// Why there is nothing to make of a node, and what to do.
struct Reason {
  std::string reason, hint;
};

struct ScanForm;  // import_control.cpp

// Walks the model's nodes and emits what they mean.
class Walk {
 public:
  Walk(const onnx::ModelDef& model, Graph& graph, TensorFiles& files, WeightTable& weights, const BoundInputs& inputs, Folder folder);

  struct Found {
    Obstacle obstacle;
    size_t node = 0;  // position of the node of the main graph that it belongs to; model.graph.nodes.size() for tensors
    std::string tensor;
  };

  void run(const ImportOptions& options);
  // What the model's outputs mean; a name of the main graph, null where nothing has it.
  const Meaning& output(const std::string& name) const;
  const Meaning* find(const std::string& name) const;
  bool has_gone_through(const onnx::GraphDef& nested) const { return bodies_.contains(&nested); }

  std::vector<Found> found;           // in the order of the nodes
  std::vector<ValueId> placeholders;  // values of which only the type is known
  int64_t skipped = 0;                // nodes that read something unknown

 private:
  struct Scope {
    Scope* outer = nullptr;
    std::unordered_map<std::string, Meaning> names{};
    bool in_body = false;  // of a nested graph, whose own tensors `outer` has
    Meaning* find(const std::string& name);
  };
  // A nested graph that was gone through. Those of functions live no longer than their expansion, but for this.
  struct Body {
    std::shared_ptr<const onnx::GraphDef> graph{};
    Uses uses{};
    Scope scope{};  // its own tensors
  };
  // Where a list of nodes stands.
  struct Site {
    const onnx::Opsets& opsets;
    const Uses& uses;
    const std::string* caller = nullptr;  // the user's node whose function body this is
    int depth = 0;
  };
  // One node on its way.
  struct Job {
    const onnx::NodeDef& node;
    Scope& scope;
    const Site& site;
    std::string name;  // as the user knows it
    int opset = 0;
    uint32_t ordinal = 0;
    size_t outputs = 0;  // without trailing ones that nobody reads
    std::vector<Meaning> inputs{};
    bool unknown = false, tainted = false;
    bool has(size_t i) const { return i < inputs.size() && inputs[i].value != kNone; }
  };

  bool is_live(const Job& job);
  void note_layer(const std::string& name);
  void check_modes() const;
  void drop(const onnx::NodeDef& node, uint32_t ordinal, NodeId first, Scope& scope);
  void finish_dropout();
  void add_inputs(const ImportOptions& options);
  void add_tensors(const onnx::GraphDef& graph, const Uses& uses, Scope& scope);
  void list(const std::vector<onnx::NodeDef>& nodes, Scope& scope, const Site& site);
  void node(const onnx::NodeDef& node, Scope& scope, const Site& site);
  void constant(Job& job);
  void expand(Job& job);
  bool expand_instead(Job& job);
  std::string lower(Job& job, const OpDef& op, const OnnxForm& form);
  bool resolve(Job& job, Meaning& meaning, const std::string& name);
  bool resolve_inputs(Job& job);
  size_t wanted_outputs(const onnx::NodeDef& node, int opset, const Uses& uses) const;
  void bind(Job& job, size_t output, Meaning meaning);
  void fail(Job& job, std::string reason, std::string hint);
  void leave_unknown(Job& job);

  // Control flow and sequences (import_control.cpp): each binds the node's outputs, or says why it can't.
  using Control = std::optional<Reason> (Walk::*)(Job& job);
  static const Control* find_control(const onnx::NodeDef& node);
  std::optional<Reason> run_control(Job& job, Control control);
  std::optional<Reason> refuse_counts(std::span<const Meaning> meanings) const;
  std::optional<Reason> stack_of(Builder& builder, const std::vector<Meaning>& meanings, int64_t axis, Meaning& result) const;
  std::optional<Reason> branch(Job& job);
  std::optional<Reason> loop(Job& job);
  std::optional<Reason> scan(Job& job);
  std::optional<Reason> construct_sequence(Job& job);
  std::optional<Reason> sequence_at(Job& job);
  std::optional<Reason> change_sequence(Job& job);
  std::optional<Reason> sequence_length(Job& job);
  std::optional<Reason> split_to_sequence(Job& job);
  std::optional<Reason> concat_from_sequence(Job& job);
  std::optional<Reason> optional(Job& job);
  std::optional<Reason> optional_has_element(Job& job);
  std::optional<Reason> gradient(Job& job);
  Builder builder(const Job& job);
  const Tensor* known(const Job& job, size_t input) const;  // null where the input's value isn't known
  std::optional<Reason> integer(const Job& job, size_t input, const std::string& what, int64_t& value) const;
  std::optional<Reason> boolean(const Meaning& meaning, const std::string& what, bool& value) const;
  std::optional<Reason> position(const Job& job, size_t input, int64_t last, int64_t& at) const;
  std::optional<Reason> scan_once(Job& job, const ScanForm& form, std::vector<Meaning> inputs, std::vector<Meaning>& results);
  Body& enter(const std::shared_ptr<const onnx::GraphDef>& graph, Job& job);
  void collect_untaken(const std::vector<onnx::NodeDef>& nodes);
  void leave_untaken();
  bool go_through(Job& job, const std::shared_ptr<const onnx::GraphDef>& graph, const std::vector<Meaning>& inputs,
                  std::vector<Meaning>& outputs);

  const onnx::ModelDef& model_;
  Graph& graph_;
  TensorFiles& files_;
  WeightTable& weights_;
  const BoundInputs& inputs_;
  Folder folder_;
  const ImportOptions* options_ = nullptr;
  Selections selections_;
  std::set<size_t> fitting_;                              // of options.batch_norm_nodes
  std::map<size_t, std::vector<std::string>> dropped_{};  // of options.dropout: the nodes that each pattern is the last to fit
  std::vector<std::string> layers_{};                     // names of BatchNormalization nodes
  Scope main_;
  std::map<const onnx::GraphDef*, Body> bodies_;
  std::vector<std::pair<std::shared_ptr<const onnx::GraphDef>, const char*>> untaken_;  // nested graphs, and why
  std::set<std::array<std::string, 3>> searched_functions_;  // functions whose bodies were searched for untaken graphs
  size_t top_ = 0;                                           // position of the main graph's node at work
  int64_t visited_ = 0;
};

// The newest form of an op for this opset; null where there is none. `oldest`: the first opset that has one (0: none at all).
struct FoundForm {
  const OpDef* op = nullptr;
  const OnnxForm* form = nullptr;
  int oldest = 0;
};
FoundForm find_form(const std::string& domain, const std::string& op_type, int opset);

}  // namespace ort_train::importing
