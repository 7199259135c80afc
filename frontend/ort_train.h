// ort-train's public C++ API: fine-tunes an exported ONNX model inside a hard limit of bytes.
//
//   ort_train::Options options{.model = "gpt2.onnx", .data = "wiki.bin", .task = "causal-lm", .seq_length = 256, .budget = 4'000'000'000};
//   ort_train::Trainer trainer(options);           // imports, plans, proves the peak; throws Error
//   ort_train::Summary summary = trainer.train();  // until done or request_stop()
//
// The library never exits, prints, installs signal handlers or changes global settings, and reads no environment variables, but for those
// by which NVIDIA's libraries would compute otherwise, which it refuses. A Trainer may be used by one thread at a time; only request_stop()
// may be called from any thread and from a signal handler. Several Trainers may run at once, each with its own budget and output folder.
// The rounding mode of the program's threads changes no result; it is the program's own again when a call returns, and in callbacks.
//
// Relative paths are resolved when they are used, so the working directory has to stay while a trainer exists. A trainer whose state is on
// a disk keeps its file until it is destroyed: make the one that resumes the run after that.
//
// A call throws Error and nothing else (std::bad_alloc becomes one), except what a callback throws. Messages name fields of Options in
// backticks: `max_steps`.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/error_type.h"

namespace ort_train {

// Parameters that are updated with numbers of their own.
struct ParamGroup {
  std::string pattern{};                 // over names, as in Options::freeze; of several that fit, the first counts
  std::optional<double> lr{};            // the peak learning rate, instead of the job's
  double lr_scale = 1;                   // without `lr`: the job's learning rate is multiplied by this
  std::optional<double> weight_decay{};  // on all of them, whatever their dimensions
};

// How many elements a node that selects by a mask of the batch (NonZero, Compress) takes of it.
struct SelectionLimit {
  std::string node;  // name, pattern or op
  int64_t count = 0;
  bool exact = false;  // exactly as many in each batch; else at most
};

// An array of which each sample has a part: one of a model's inputs, or the labels.
struct SampleField {
  std::string name{};            // of the input, or as Options::labels says
  std::string type = "float32";  // NumPy's name: float16, float32, float64, int8 to int64, uint8 to uint64, bool; or bfloat16
  std::vector<int64_t> shape{};  // of one sample, without a batch axis; empty: a number
};

// Samples that the program itself has, in memory or wherever they come from. Its functions are called in the thread that calls the Trainer,
// and by two trainers at once if both are given the same source. A std::exception that they throw ends the call as an Error(data), and the
// run is saved.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  // Asked for when a Trainer is made.
  virtual std::vector<SampleField> fields() const = 0;
  virtual int64_t size() const = 0;
  // Writes one sample's elements of fields()[field], in row-major order. `sample` is in [0, size()). The same sample has to have the same
  // elements each time: it is read again in every epoch.
  virtual void read(size_t field, int64_t sample, std::span<std::byte> to) = 0;
  // A text that changes with the samples, by which a resumed run notices others. Empty: it goes by their number and fields.
  virtual std::string content_hash() const { return {}; }
};

// Fields have the names and defaults of the command line's options, which follow Hugging Face's Trainer where it has the option.
struct Options {
  std::string model{};  // path of an ONNX file
  std::string data{};   // .txt, .bin, .npy, .npz, .safetensors, .jsonl, or a folder with train and valid of one of these
  // Instead of `data`: samples to train on, and to evaluate on (none: as with a single file, see validation_split).
  std::shared_ptr<SampleSource> train_samples{}, eval_samples{};
  std::string task{};  // "causal-lm" or empty. With it, where arrays have no `labels`, the labels are `input_ids`, without padding
  // What is minimized: cross_entropy | nll | mse | l1 | smooth_l1 | huber | binary_cross_entropy (of logits) | focal | dice | kl |
  // distillation | cosine_embedding | info_nce | triplet | ctc | output (the model's output is the loss); or several, with weights,
  // parameters and labels: OUTPUT:NAME(PARAMETER=VALUE,…)*WEIGHT@LABELS,… (docs/losses.md). Empty: `output` with `loss_model`,
  // distillation with `teacher`, else cross_entropy.
  std::string loss{};
  std::string teacher{};                    // an ONNX model that `distillation` follows; its inputs have the names of the model's
  double temperature = 1;                   // of `distillation`: both models' logits are divided by it
  std::string loss_model{};                 // a loss as an ONNX model: its inputs are outputs of the model or arrays of the data, by name
  double label_smoothing = 0;               // of cross_entropy: the share of a label that goes to all classes alike, from 0 to below 1
  double z_loss = 0;                        // of cross_entropy: this times the square of log(sum(exp(logits))) is added
  std::string output{};                     // which model output a loss reads that names none; empty: the first
  std::string labels = "labels";            // the array that holds the labels; of several losses, OUTPUT_labels where none is named
  std::string token_type = "uint16";        // number type of a .bin file: uint16 | uint32
  std::map<std::string, int64_t> shapes{};  // dimension name -> size
  // Inputs that the data don't feed, each the same for all samples: name -> a number (for all elements), numbers separated by commas, or
  // @FILE.npy. What follows from them is known at import: branches, trip counts, shapes.
  std::map<std::string, std::string> bind{};
  int64_t batch_size = 0;  // 0: as the model or `shapes` fixes it, else 8
  int64_t seq_length = 0;  // 0: as the model, `shapes` or the data fixes it
  // With arrays as data: each batch is cut to the first of these lengths that holds all its samples, by `attention_mask`; the length of the
  // arrays is one of them. A step of short samples takes less time; which length a batch has depends on the data alone.
  std::vector<int64_t> length_buckets{};

  // cpu | cuda | cuda:N, the GPU of that number. Every device gives the same bits in float32, but for some convolutions (docs/gpu.md).
  std::string device = "cpu";
  // Bytes; 0: as much as the job takes, within what the machine and its cgroups have left. On a GPU: of all its memory that this process
  // takes, CUDA's context included.
  int64_t budget = 0;
  bool budget_is_process = false;  // cpu: `budget` limits the whole process's resident memory; false: what the library takes
  int64_t host_budget = 0;         // of pinned memory beside a GPU; 0: half of what is available. Refused on the CPU device
  // Which activations are recomputed in the backward pass instead of kept: auto (as many as the budget asks for) | none | sqrt (of n
  // blocks of layers, keeps the activations between sqrt(n)) | all (keeps those between all blocks). Changes no result.
  std::string recompute = "auto";
  // Order of the micro-batches of an accumulating step: horizontal (one after the other through the whole model) | vertical (all of them
  // through one block of layers, then the next: streamed weights are read once a step) | auto (the faster one). Changes no result.
  std::string micro_batches = "auto";
  std::string nvme_path{};     // a folder on a disk for what the budget can't hold; empty: no disk
  int64_t nvme_budget = 0;     // limit of the bytes in that folder; 0: none
  bool nvme_checksums = true;  // verify what is read back from the disk
  int64_t nvme_endurance = 0;  // how many bytes the drive is rated to be written; 0: unknown
  std::string profile{};       // file that keeps the measured speed of this machine; empty: measured each time
  bool recalibrate = false;    // measure the machine again

  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";                  // one of schedules()
  std::map<std::string, std::string> lr_scheduler_kwargs{};  // the schedule's arguments, as text; those left out have their defaults
  double warmup_steps = 0;                                   // a number below 1 is a share of all steps
  // The learning rate grows with the samples of an optimizer step, k = batch_size * gradient_accumulation_steps / base_batch_size:
  // linear (times k) | sqrt (times the root of k) | empty (it doesn't).
  std::string scale_lr{};
  int64_t base_batch_size = 0;  // the samples of a step for which `learning_rate` was chosen; goes with scale_lr
  double weight_decay = 0;      // on tensors of two dimensions and more
  std::vector<ParamGroup> param_groups{};
  // The learning rate of layer i of n is multiplied by this to the power of n - i. Layers are recognised by the numbers in the weights'
  // names; what comes before them (embeddings) is layer 0, what comes after them (the head) layer n. Not where a group has an `lr`. 1:
  // none.
  double layer_decay = 1;
  double max_grad_norm = 1.0;                  // 0: no clipping
  bool clip_per_layer = false;                 // clip each weight's gradient by its own norm, not all by theirs: no gradient has to wait
  std::string optim = "adamw";                 // one of optimizers() or a synonym, "_8bit" behind it: with its state in 8 bits
  std::map<std::string, double> optim_args{};  // the optimizer's own options; those left out have their defaults
  // The loss is multiplied by this before the backward pass, and gradients are divided by it before they are clipped and used: auto
  // (dynamic where gradients are float16, else none) | none | dynamic | a number. A step whose gradients aren't finite is then skipped: its
  // data is used up, but weights, optimizer state and learning rate schedule stay where they are. Dynamic is as torch.amp.GradScaler: the
  // number begins as loss_scale_init; a skipped step multiplies it by loss_scale_backoff, loss_scale_window finite ones by
  // loss_scale_growth.
  std::string loss_scale = "auto";
  double loss_scale_init = 65536, loss_scale_growth = 2, loss_scale_backoff = 0.5;
  int64_t loss_scale_window = 2000;
  // Mixed precision: products, convolutions and attention, and what only follows them, compute and store 16-bit numbers (bfloat16,
  // float16); weights, their gradients, sums, statistics and losses are float32. `autocast_list` is a text file that changes which ops do:
  // a line is the name of an op, or a pattern over names of nodes, and low, float32 or follow (the widest type of what they read).
  // A model that comes in 16 bits computes in its own type, unless one of these says otherwise (fp32: all in float32); its weights are
  // trained as float32, and written back in their own type.
  bool bf16 = false, fp16 = false, fp32 = false;
  std::string autocast_list{};
  // The same as bf16, and the trained weights but vectors (of any rank) are bfloat16 themselves: two bytes a parameter less to keep and to
  // stream. What an update leaves is rounded stochastically, by `seed`.
  bool bf16_full = false;
  bool tf32 = false;       // refused: there are no products of TF32
  int64_t max_steps = -1;  // if positive, num_train_epochs is ignored
  double num_train_epochs = 3;
  int64_t gradient_accumulation_steps = 1;
  int64_t eval_steps = 0;  // evaluate every N steps and at the end; 0: never, unless eval_strategy says so
  // "steps": by eval_steps; "epoch": after each epoch and at the end, without eval_steps; "no": never. Empty: steps where eval_steps are
  // given, else no. Below, what needs eval_steps goes with "epoch" as well, and multiples of eval_steps are the ends of epochs.
  std::string eval_strategy{};
  int64_t eval_batches = 0;       // at most N batches in an evaluation; 0: all
  double validation_split = 0.1;  // share held out at a single file's end; used if eval_steps > 0
  // Without eval_steps: keep a folder's validation file ready for evaluate(), which says so if that file doesn't fit; false: don't open it.
  bool evaluates_on_request = true;
  // End the run after this many evaluations in a row (those at multiples of eval_steps) whose loss isn't lower than the lowest before them
  // by more than early_stopping_threshold, a difference of losses; 0: never. The run is over then, as after its last step: the model is
  // written. Needs eval_steps, else Error(usage).
  int64_t early_stopping_patience = 0;
  double early_stopping_threshold = 0;  // from 0 up; goes with early_stopping_patience
  // In the end take the weights of the step whose held-out loss was the lowest, not the last step's: the model, the reports of the end and
  // later calls of the trainer have them. Needs eval_steps, else Error(usage). Whatever save_steps says, a checkpoint is saved after each
  // evaluation that is the best so far, and stays until there is a better one: it is one of the save_total_limit that are kept, which are
  // two at least. Of a streamed run it is written out as a whole, so it takes as much of output_dir as one of a run in memory.
  bool load_best_model_at_end = false;
  // Write a checkpoint every N steps, at the end, when stopped, and where an Error ends the run between two steps; 0: only at the end and
  // when stopped. One that is due together with an evaluation is saved first. Where one in between can't be written, a run whose state is
  // in memory goes on without it, and a note says so; of a streamed run that is an Error(io), as it is for all at the end.
  int64_t save_steps = 500;
  // "steps", as which empty counts: by save_steps; "epoch": after each epoch instead; "no": as with 0 save_steps. Other save_steps than the
  // default are refused with the last two.
  std::string save_strategy{};
  // The number of checkpoints that are kept. 0: two, or one in a streamed run. A streamed run's state file has a slot for each checkpoint
  // that is kept and one to write to: with two it has three slots for each tensor, which the plan and `nvme_budget` count.
  int64_t save_total_limit = 0;
  uint64_t seed = 42;
  bool shuffle = true;

  int threads = 0;  // 0: the processors that the process may use, within its cgroups' CPU quota; never changes a result
  std::string output_dir = "out";
  bool resume = false;  // go on from the newest valid checkpoint in output_dir; an error if there is none
  // Empty; "auto": as `resume`, but start afresh if there is none; or the folder of a checkpoint, in output_dir or elsewhere.
  std::string resume_from_checkpoint{};
  // Replace the checkpoints and the model that an earlier run left in output_dir, if this run starts afresh. Each stays until its successor
  // is complete. Files that ort-train did not write are never replaced.
  bool overwrite = false;
  int64_t predict_batch_size = 0;  // the batch size of predict(); 0: predict() is not used
  std::string log_file{}, plan_json{}, plan_svg{}, dump_problem{}, save_gradients{};
  // TensorBoard's event files, one for each call of train(): tensorboard (into the folder `logging_dir`; empty: `runs` in output_dir) |
  // none | empty (tensorboard where `logging_dir` is given). One that can't be written to ends the run, saved, as the log does.
  std::string report_to{}, logging_dir{};
  std::string op_times{};  // JSON file for how long each op took a step, at the end of train()
  // JSON file, a Chrome trace, for what happened when in some steps, which are 32 at most: FIRST-LAST or one step; empty: the second to the
  // fourth that this trainer makes. Refused on a GPU.
  std::string timeline{}, timeline_steps{};
  std::string save_optimizer_state{};  // .safetensors file for the optimizer's state at the end of train()
  bool retie = true, untie = false;
  // Which tensors are trained follows from the exporter's metadata, or else from what they are used for; check() lists all, with the
  // reason. Patterns over their names, or over the names that the metadata give them, have the last word; `*` matches any text. What
  // matches `train` is trained, even where it matches `freeze`; what matches `freeze` alone stays as it is.
  std::vector<std::string> train{}, freeze{};
  // LoRA: the model's weights stay as they are, but for those that `train` names, and beside each that `lora_target` names two small
  // matrices are trained, A [lora_rank, in] and B [out, lora_rank]: y = W x + scale * B A dropout(x), scale = lora_alpha / lora_rank. 0:
  // none. In the end the model is written with W + scale * B A.
  int64_t lora_rank = 0;
  double lora_alpha = 0;                 // 0: as lora_rank
  std::optional<double> lora_dropout{};  // share of x that is left out, from 0 to below 1; none: as `adapter` says, else 0
  // Patterns over names of weights, or of their modules, whose last parts will do (q_proj, `*.attn.*`): products, convolutions in one group
  // and embeddings. None: all products with a matrix of the model but the head's, whose result is an output or a loss's logits, and those
  // whose matrix has fewer rows or columns than lora_rank.
  std::vector<std::string> lora_target{};
  bool use_rslora = false;  // scale = lora_alpha / sqrt(lora_rank)
  // DoRA: what each output of W + scale * B A has as its norm is trained, too: y = m / ||W + scale * B A|| * (W x + scale * B A x).
  // Products and convolutions.
  bool use_dora = false;
  double lora_plus_ratio = 1;  // the learning rate of B is this times A's (LoRA+)
  std::string adapter{};       // folder of an adapter that PEFT or an earlier run wrote, to start from; it says rank, scale and targets
  bool adapter_only = false;   // write the adapter, as PEFT does, instead of the model
  // (IA)3, instead of LoRA: patterns as those of `lora_target`, of products and convolutions whose outputs, or inputs (`ia3_feedforward`),
  // are multiplied by trained numbers. What both fit has its inputs multiplied. In the end weights and biases have these factors in them.
  std::vector<std::string> ia3_target{}, ia3_feedforward{};
  // ControlNet's way: blocks of the model, by patterns over names of modules, nodes or weights, get a copy that is trained, beside layers
  // of zeros that add what it gives to the model's own values. The model's weights stay as they are, but for those that `train` names. The
  // new model has the copy in it.
  std::vector<std::string> control{};
  // A condition: NAME=SIZE,SIZE,… of one sample. An input that the data feed, and that is added to what the copy reads, through a layer of
  // zeros.
  std::string control_input{};
  // What frozen matrices of products are stored as: float32 | bfloat16 | float16 | int8 | nf4 (4 bits, 64 elements a scale); embeddings,
  // norms and the head stay as they are, but for heads and embeddings that `base_target` names (patterns). Empty: as in the file. They are
  // rounded as they are read from it; products compute in float32, or as the job's precision says. The new model has adapters added to the
  // file's own numbers.
  std::string base_dtype{};
  std::vector<std::string> base_target{};
  bool double_quant = false;  // nf4: scales in 8 bits, too
  // Which BatchNormalization nodes are live, that is, normalise by the statistics of each batch and update the running ones: model (those
  // that the file has in training mode) | live | frozen. `batch_norm_nodes` sets it by node name, as (pattern, "live" or "frozen"); `*`
  // matches any text, and the last pattern that matches counts.
  std::string batch_norm = "model";
  std::vector<std::pair<std::string, std::string>> batch_norm_nodes{};
  // Puts a Dropout behind nodes in training, in place of one that the file has there: (name of a node, pattern with *, or op; ratio from 0
  // to below 1). Of several that fit, the last counts. Exporters leave Dropout out, or in evaluation mode. The new model is not changed by
  // it.
  std::vector<std::pair<std::string, double>> dropout{};
  // How many elements the nodes that select by a mask of the batch (NonZero, Compress) take of it. A step has fixed shapes: as many as the
  // mask has where nothing is said here. A batch that selects more (with `exact`: another number) ends the run with an Error(data).
  std::vector<SelectionLimit> selects{};
  // Look at what every node makes, and end with the name of the first that makes NaN or infinities of finite numbers. Slow.
  bool detect_anomaly = false;
  std::vector<std::string> skip_passes{};
  std::map<std::string, std::string> dump_after{};  // pass name -> .onnx file
};

// One row of the plan's table: bytes by purpose.
struct MemoryTable {
  int64_t program = 0;  // everything but the arena: code, stacks, libraries
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;  // with inputs and constants
  int64_t workspace = 0;
  int64_t gaps = 0;  // unused bytes between tensors in the arena
  int64_t total = 0;
};

// Where the tensors of one kind are: weights, gradients (those that outlive their layer's backward pass), optimizer, activations (those
// that the backward pass needs).
struct PlanMoves {
  std::string kind;
  int64_t kept = 0, kept_bytes = 0;
  int64_t moved = 0, moved_bytes = 0;  // go to the disk and back
  int64_t recomputed = 0, recomputed_bytes = 0;
  int64_t read = 0, written = 0;  // bytes a step
};

// A group of trained parameters that are updated with the same numbers.
struct GroupReport {
  std::string name;  // the pattern of `param_groups`, the layer of `layer_decay`, or both; "all", or "others" beside these
  int64_t tensors = 0, elements = 0;
  double learning_rate = 0;  // the highest
  double weight_decay = 0;
  int64_t decayed = 0;  // of the tensors, those that have weight decay
};

// One of Options::length_buckets, and the share of the batches that have it.
struct LengthReport {
  int64_t length = 0;
  double share = 0;
};

struct PlanReport {
  int64_t budget = 0;          // Options::budget, or the machine's memory where the job would take more; 0: none
  int64_t minimum_budget = 0;  // the smallest budget that is accepted, in bytes
  // The operation and entry point that set it; what is no operation of the job has no entry; on a GPU empty.
  std::string minimum_op, minimum_entry;
  std::string device;                          // the GPU's name; empty: the processor
  int64_t arena_bytes = 0;                     // of the memory that most is computed in: the GPU's, or the host's
  int64_t host_bytes = 0;                      // beside a GPU: pinned
  int64_t up_per_step = 0, down_per_step = 0;  // bytes that go to the GPU and back
  int64_t peak_live_bytes = 0;                 // arena_bytes / peak_live_bytes is the fragmentation
  MemoryTable at_peak;                         // what the bytes are for when most are in use
  std::string peak_entry, peak_op;             // when that is: "train", "MatMul '/lm_head' backward"
  int64_t parameters = 0, trainable_parameters = 0;
  int64_t batch = 0, sequence = 0;  // sequence 0: the model has no sequence
  int64_t train_samples = 0, valid_samples = 0, total_steps = 0;
  std::vector<LengthReport> lengths;  // none: all batches have one
  std::vector<GroupReport> groups;
  double flops_per_step = 0;
  double machine_flops = 0, machine_bytes_per_second = 0;  // measured: matrix products (of 16 bits, on a GPU), memory traffic
  int64_t micro_batches_together = 1;                      // in the vertical order; 1: horizontal
  int64_t divided = 0, parts = 0, part_bytes = 0;          // divided weights, all their parts, the largest part's bytes
  bool updates_in_next_step = false;                       // each right before its weight's first use
  int64_t state_bytes = 0;                                 // part of disk_bytes: the state file
  int64_t state_slots = 0;                                 // that it has for each weight and each tensor of optimizer state
  int64_t disk_bytes = 0;                                  // what the job takes on the disk
  int64_t disk_peak_bytes = 0;                             // of these, the most in use at once
  std::string disk_peak_op;                                // when that is; empty: always
  int64_t disk_read_per_step = 0, disk_written_per_step = 0;
  int64_t disk_written_in_all = 0;                              // by the whole run with its checkpoints
  double computing_milliseconds = 0, stalled_milliseconds = 0;  // of the predicted time: computing; waiting for the disk
  double slowed_milliseconds = 0;                               // lost because transfers slow computing down
  double reading_milliseconds = 0, writing_milliseconds = 0;    // how long the disk is busy with reads and with writes
  std::string bounded_by;                                       // "compute" or "disk", whichever takes longer
  double bound_milliseconds = 0;  // lower bound for any plan in this memory with the same order and recomputation
  double endurance_share = 0;     // the run's share of Options::nvme_endurance; 0: unknown
  std::vector<PlanMoves> moves;
  int64_t saved_kept = 0, saved_recomputed = 0;  // activations that the backward pass needs: tensors
  int64_t saved_kept_bytes = 0, saved_recomputed_bytes = 0;
  double recompute_milliseconds = 0;  // of the predicted time
  double predicted_milliseconds = 0;
  double seconds = 0;  // how long import and planning took
  std::string text;    // as the command line prints it
};

struct StepReport {
  int64_t step = 0, total_steps = 0;  // step counts from 1
  double loss = 0, grad_norm = 0, learning_rate = 0, milliseconds = 0;
  double loss_scale = 0;                                        // that this step was made with; 0: none
  bool skipped = false;                                         // its gradients weren't finite, so no weight changed (Options::loss_scale)
  double computing_milliseconds = 0, waiting_milliseconds = 0;  // of these: computing; waiting for the disk
  double tokens_per_second = 0;                                 // samples, if the model has no sequence
  double peak_share = 0;                                        // of the machine's measured rate of matrix products
  int64_t resident_bytes = 0;                                   // of the process
  double seconds_left = 0;
  double epoch = 0;  // how many times the training data have been gone through after this step: 1.5 is the middle of the second time
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0;
  int64_t batches = 0;
};

struct Summary {
  int64_t steps = 0;                     // in total, with those before a resume
  int64_t skipped_steps = 0;             // of these, see Options::loss_scale
  double loss_scale = 0;                 // after the last step; 0: none
  bool stopped = false;                  // by request_stop(); a checkpoint was saved
  bool early_stopped = false;            // by early_stopping_patience: done, before total_steps
  double first_loss = 0, last_loss = 0;  // means over the first and last tenth of the steps, at most 100
  double eval_loss = 0;                  // of the last evaluation; NaN if there was none
  // The lowest held-out loss of the run, with those before a resume, and after which step that was; NaN and 0 if there was none. With
  // load_best_model_at_end the weights, the model and weights_hash are of that step, unless `stopped`.
  double best_eval_loss = 0;
  int64_t best_step = 0;
  double seconds = 0, milliseconds_per_step = 0;                // since the start or the resume
  double median_milliseconds = 0;                               // of the last 100 steps
  double computing_milliseconds = 0, waiting_milliseconds = 0;  // per step: computing; waiting for the disk
  double predicted_milliseconds = 0;
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;  // of the arena
  // On a GPU: what this process takes of its memory, as planned and by the driver's count when the run has ended (0: it can't be asked);
  // pinned memory beside it.
  int64_t planned_device_bytes = 0, measured_device_bytes = 0, planned_host_bytes = 0;
  int64_t rss_peak_bytes = 0, minimum_budget_bytes = 0;
  int64_t planned_disk_bytes = 0, disk_bytes_read = 0, disk_bytes_written = 0;  // in all
  int64_t pinned_bytes = 0;                                                     // of the arena, pinned for the disk's transfers
  int64_t planned_read_per_step = 0, planned_written_per_step = 0;
  int64_t read_per_step = 0, written_per_step = 0;  // in the last step
  std::string weights_hash;                         // xxh3 of the final parameters in import order, 16 hex digits
  std::string model_path, checkpoint_path;          // no model is written where the run was stopped: empty
};

// Called from the thread that called train(). If a callback throws, training ends: a checkpoint is saved, then train() throws that
// exception. on_step and on_eval may call evaluate(), sample() and predict(): they see the weights after the step, and the run's results
// stay the same to the bit.
struct Callbacks {
  std::function<void(const StepReport&)> on_step{};
  std::function<void(const EvalReport&)> on_eval{};
  std::function<void(const std::string&)> on_note{};  // one sentence: a repair, a saved checkpoint
};

// A node that can't be trained.
struct CheckRow {
  std::string node, reason, hint;
  bool blocks = true;
};
// A floating-point tensor of the file, and whether training changes it.
struct CheckTensor {
  std::string name, type;  // "float32 [768, 3072]"
  bool trained = false;
  // trained | frozen (by `freeze`, adapters or quantization) | statistic (of BatchNormalization) | constant | unreached (no influence on
  // the loss)
  std::string treatment;
  std::string why;
  std::string original;  // names of the exported program's tensors that it was made of, where the file says so and they are others
};
// A dimension that neither the file nor the options bind.
struct CheckDimension {
  std::string name;                             // or INPUT.AXIS
  int64_t size = 0;                             // with which the model was checked
  std::vector<int64_t> fits{}, does_not_fit{};  // other sizes that were tried
};
struct CheckReport {
  std::string text;  // as the command line prints it
  std::vector<CheckDimension> dimensions;
  std::vector<CheckRow> rows;
  std::vector<CheckTensor> tensors;  // in import order
  std::vector<GroupReport> groups;   // for batches as the model or the options fix them, else of 8
  std::vector<std::string> notes;
  bool trainable = false;  // nothing blocks the way from the weights to the loss
};
ORT_TRAIN_API CheckReport check(const Options& options);

// Adds Options::adapter to the weights of Options::model and writes the model into output_dir; returns its path. Throws Error.
ORT_TRAIN_API std::string export_merged(const Options& options);

struct DeviceChoice;

class ORT_TRAIN_API Trainer {
 public:
  // Imports the model, makes the plan and checks it. Throws Error: unsupported, budget (it names the smallest that would do), data, io,
  // usage, device. The arena's memory is allocated by the first call of train(), evaluate(), sample() or predict().
  explicit Trainer(const Options& options, Callbacks callbacks = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const PlanReport& plan() const;
  // Trains until the last step or request_stop(), then writes a checkpoint and the model into output_dir. May be called once, and again if
  // it was refused before the first step (another run has the folder). If reading weights or a step fails, the trainer can't be used any
  // more: later calls say so. An Error that comes between two steps, as that of a sample that doesn't fit, is thrown when the last step is
  // saved: its sentence says where, and that it goes on with `resume`.
  Summary train();
  // Mean loss over the held-out data with the current weights; NaN if request_stop() ended it. Throws Error(usage) where nothing is held
  // out, Error(data) where a folder's validation file doesn't fit the job.
  double evaluate();
  // Whether sample() can be called: the data is a .txt file, and the loss reads an output with a number for each token at each position.
  bool can_sample() const;
  // Continues `prompt` by `length` characters, sampled at `temperature` (0: always the likeliest).
  std::string sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed);
  // Runs the model on one batch of Options::predict_batch_size samples: inputs by name -> floating-point outputs by name. Inputs that no
  // output depends on may be left out.
  std::map<std::string, std::vector<float>> predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                    const std::map<std::string, std::vector<float>>& reals);
  // Ends the call that is under way: train() finishes the step, saves and returns; evaluate() returns NaN; sample() what it has written. A
  // train() that has not been called yet will end before its first step. Any other later call works as usual. Safe from other threads and
  // from signal handlers.
  void request_stop() noexcept;

 protected:
  Trainer(const Options& options, Callbacks callbacks, const DeviceChoice& on);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What `optim` can be, and the `optim_args` that each has.
struct OptimizerChoice {
  struct Option {
    std::string name;
    double value = 0;  // by default
    std::string help;
    bool flag = false;  // 1: yes, 0: no
  };
  std::string name;
  std::vector<std::string> synonyms{};  // Hugging Face's names
  std::vector<Option> options{};
};
ORT_TRAIN_API std::vector<OptimizerChoice> optimizers();
// What Options::loss may name.
ORT_TRAIN_API std::vector<std::string> losses();
// Most of them can store their state in 8 bits: NAME_8bit. The `optim_args` that it then has besides its own.
ORT_TRAIN_API std::vector<OptimizerChoice::Option> eight_bit_options();

// What `lr_scheduler_type` can be, and the `lr_scheduler_kwargs` that each has.
struct ScheduleChoice {
  struct Argument {
    std::string name;
    std::string value;  // by default; empty: it isn't given
    std::string help;
  };
  std::string name;
  std::vector<Argument> arguments;
};
ORT_TRAIN_API std::vector<ScheduleChoice> schedules();

// "12GB" -> 12e9, "12GiB", "300MB", plain bytes. Throws Error(usage).
ORT_TRAIN_API int64_t parse_bytes(const std::string& text);
ORT_TRAIN_API std::string version();

}  // namespace ort_train
