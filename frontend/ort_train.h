// ort-train's public C++ API: fine-tunes an exported ONNX model inside a hard limit of bytes.
//
//   ort_train::Options options{.model = "gpt2.onnx", .data = "wiki.bin", .task = "causal-lm", .seq_length = 256, .budget = 4'000'000'000};
//   ort_train::Trainer trainer(options);           // imports, plans, proves the peak; throws Error
//   ort_train::Summary summary = trainer.train();  // until done or request_stop()
//
// The library never exits, prints, reads environment variables, installs handlers or touches global settings. A Trainer belongs to one
// thread at a time, but for request_stop(), which any thread (and a signal handler) may call. Several Trainers may run at once, each with
// a budget and an output folder of its own.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/error_type.h"

namespace ort_train {

// Every option of the command line, by the same name and default (Hugging Face Trainer's where it has one).
struct Options {
  std::string model{};                      // ONNX file
  std::string data{};                       // .txt, .bin, .npz, .safetensors, or a folder with train and valid of one of these
  std::string task{};                       // "causal-lm" or empty
  std::string loss = "cross_entropy";       // cross_entropy | mse | output
  std::string output{};                     // which model output the loss reads; empty: the first
  std::string labels = "labels";            // array of the data set that holds the labels
  std::string token_type = "uint16";        // of .bin files: uint16 | uint32
  std::map<std::string, int64_t> shapes{};  // dimension name -> size
  int64_t batch_size = 0;                   // 0: what the model or `shapes` says, else 8
  int64_t seq_length = 0;                   // 0: what the model, `shapes` or the data says

  int64_t budget = 0;              // bytes, 0 = as much as it takes
  bool budget_is_process = false;  // counts the whole process's resident memory (command line), not just what the library takes
  // What of the forward pass is computed again for the backward pass instead of kept: auto (what the budget asks for) | none | sqrt (the
  // square root of the boundaries between blocks is kept) | all (all boundaries are). Changes no result.
  std::string recompute = "auto";
  // How the micro-batches of an accumulating step go through the model: horizontal (one after the other) | vertical (together from block to
  // block, so that what a block needs is brought once for all) | auto (vertical where that is faster). Changes no result.
  std::string micro_batches = "auto";
  // Bytes. A trained matrix of at least twice as many, of a product or a lookup, is divided by rows into parts that are read, used and
  // updated one by one: smaller parts need less memory, larger ones are fewer. Parts have at least the rows of one block of a product (64
  // to 384), and what has fewer than 64 KiB is not divided. 0: the plan's choice, of 256 KiB to 64 MiB. Changes no result.
  int64_t part_size = 0;
  std::string nvme_path{};     // a folder on a disk for what doesn't fit into the budget; empty: there is none
  int64_t nvme_budget = 0;     // bytes there, 0 = as much as it takes
  bool nvme_checksums = true;  // what is read back from there is checked
  int64_t nvme_endurance = 0;  // bytes that the drive is rated to be written in its life; 0: not known
  std::string profile{};       // file that keeps what was measured of this machine; empty: measured each time
  bool recalibrate = false;    // measure again

  double learning_rate = 5e-5;
  std::string lr_scheduler_type = "linear";  // linear | cosine | constant | constant_with_warmup
  double warmup_steps = 0;                   // below 1: a share of all steps
  double weight_decay = 0;                   // on tensors of rank 2 and more
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;   // 0: no clipping
  std::string optim = "adamw";  // adamw | sgd
  double momentum = 0;          // sgd
  int64_t max_steps = -1;       // wins over num_train_epochs where positive
  double num_train_epochs = 3;
  int64_t gradient_accumulation_steps = 1;
  int64_t eval_steps = 0;         // evaluate each so many steps and at the end; 0: never
  int64_t eval_batches = 0;       // at most so many batches an evaluation; 0: all
  double validation_split = 0.1;  // of a single file's end, where eval_steps > 0 and there is no valid file
  int64_t save_steps = 0;         // checkpoint each so many steps; 0: at the end and when stopped only
  uint64_t seed = 42;
  bool shuffle = true;

  int threads = 0;  // 0: all cores; never changes a result
  std::string output_dir = "out";
  bool resume = false;             // from the newest valid checkpoint in output_dir
  int64_t predict_batch_size = 0;  // plans predict() for batches of this size; 0: not wanted
  std::string log_file{}, plan_json{}, plan_svg{}, save_gradients{};
  bool retie = true, untie = false;
  // Which BatchNormalization nodes are live in training, i.e. normalise each batch by its own statistics and change the running ones: model
  // (as exported: those in training mode) | live | frozen. Then for nodes by name, where `*` stands for any text: the last that fits
  // counts.
  std::string batch_norm = "model";
  std::vector<std::pair<std::string, std::string>> batch_norm_nodes{};
  std::vector<std::string> skip_passes{};
  std::map<std::string, std::string> dump_after{};  // pass name -> .onnx file
};

// One row of the plan's table and of its JSON: bytes by purpose.
struct MemoryTable {
  int64_t program = 0;  // the process itself (or what the library takes), without the arena
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t activations = 0;  // inputs and constants too
  int64_t workspace = 0;
  int64_t gaps = 0;  // between them in the arena
  int64_t total = 0;
};

// What becomes of the tensors of one kind: weights, gradients (those that wait for something), optimizer, activations (those that the
// backward pass reads of the forward pass).
struct PlanMoves {
  std::string kind;
  int64_t kept = 0, kept_bytes = 0;
  int64_t moved = 0, moved_bytes = 0;  // to the disk and back
  int64_t recomputed = 0, recomputed_bytes = 0;
  int64_t read = 0, written = 0;  // bytes a step
};

struct PlanReport {
  int64_t budget = 0;                     // as asked; 0 = none
  int64_t minimum_budget = 0;             // the smallest that is accepted: at_peak.program + the arena in whole pages
  std::string minimum_op, minimum_entry;  // that sets it; no entry where it is planning itself
  int64_t arena_bytes = 0;
  int64_t peak_live_bytes = 0;      // arena_bytes / peak_live_bytes is the fragmentation
  MemoryTable at_peak;              // what the bytes are for, at the op at the peak
  std::string peak_entry, peak_op;  // "train", "MatMul '/lm_head' backward"
  int64_t parameters = 0, trainable_parameters = 0;
  int64_t batch = 0, sequence = 0;  // as bound; sequence 0: the job knows none
  int64_t train_samples = 0, valid_samples = 0, total_steps = 0;
  double flops_per_step = 0;
  double machine_flops = 0, machine_bytes_per_second = 0;  // measured: matrix products, memory traffic
  int64_t micro_batches_together = 1;                      // of an accumulating step
  int64_t divided = 0, parts = 0, part_bytes = 0;          // weights in parts, all their parts, bytes of the largest
  bool updates_in_next_step = false;                       // each before the first use of its weight
  int64_t state_bytes = 0;                                 // of disk_bytes: the state file, two slots for each weight and optimizer tensor
  int64_t disk_bytes = 0;                                  // that the job takes on the disk
  int64_t disk_peak_bytes = 0;                             // of these, in use at once
  std::string disk_peak_op;                                // empty: the same all the time
  int64_t disk_read_per_step = 0, disk_written_per_step = 0;
  int64_t disk_written_in_all = 0;                              // by the whole run, its checkpoints included
  double computing_milliseconds = 0, stalled_milliseconds = 0;  // of the predicted: in steps, and waiting for the disk
  double slowed_milliseconds = 0;                               // and lost because transfers get in the way of computing
  double reading_milliseconds = 0, writing_milliseconds = 0;    // that the disk is busy; reads and writes share it
  std::string bounded_by;                                       // "compute" or "disk": what takes longer
  double bound_milliseconds = 0;  // no plan in this memory takes less, with these entry points and what they recompute
  double endurance_share = 0;     // of the drive's, that the whole run takes; 0 where it isn't known
  std::vector<PlanMoves> moves;
  int64_t saved_kept = 0, saved_recomputed = 0;  // tensors of the forward pass that the backward pass reads
  int64_t saved_kept_bytes = 0, saved_recomputed_bytes = 0;
  double recompute_milliseconds = 0;  // of the predicted
  double predicted_milliseconds = 0;
  double seconds = 0;  // that import and planning took
  std::string text;    // as the command line prints it
};

struct StepReport {
  int64_t step = 0, total_steps = 0;  // step counts from 1
  double loss = 0, grad_norm = 0, learning_rate = 0, milliseconds = 0;
  double computing_milliseconds = 0, waiting_milliseconds = 0;  // of these: in nodes, and for the disk
  double tokens_per_second = 0;                                 // samples, where the job knows no sequence
  double peak_share = 0;                                        // of the machine's measured product rate
  int64_t resident_bytes = 0;                                   // of the process
  double seconds_left = 0;
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0;
  int64_t batches = 0;
};

struct Summary {
  int64_t steps = 0;                                            // done in all, earlier pieces of the run included
  bool stopped = false;                                         // by request_stop(); a checkpoint was saved
  double first_loss = 0, last_loss = 0;                         // means of the first and the last tenth, of 100 steps at most
  double eval_loss = 0;                                         // of the last evaluation; NaN where there was none
  double seconds = 0, milliseconds_per_step = 0;                // of this piece of the run
  double median_milliseconds = 0;                               // of its last 100 steps
  double computing_milliseconds = 0, waiting_milliseconds = 0;  // per step: in nodes, and for the disk
  double predicted_milliseconds = 0;
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;  // of the arena
  int64_t rss_peak_bytes = 0, minimum_budget_bytes = 0;
  int64_t planned_disk_bytes = 0, disk_bytes_read = 0, disk_bytes_written = 0;  // in all
  int64_t pinned_bytes = 0;                                                     // of the arena, for the disk's transfers
  int64_t planned_read_per_step = 0, planned_written_per_step = 0;
  int64_t read_per_step = 0, written_per_step = 0;  // by the last step
  std::string weights_hash;                         // xxh3 of the final parameters in import order, 16 hex digits
  std::string model_path, checkpoint_path;
};

// Called from the thread that trains. An exception that a callback throws ends the training and comes out of train().
struct Callbacks {
  std::function<void(const StepReport&)> on_step{};
  std::function<void(const EvalReport&)> on_eval{};
  std::function<void(const std::string&)> on_note{};  // one sentence at a time: repairs, where a checkpoint went
};

// A node that can't be trained.
struct CheckRow {
  std::string node, reason, hint;
  bool blocks = true;
};
struct CheckReport {
  std::string text;  // as the command line prints it
  std::vector<CheckRow> rows;
  bool trainable = false;  // nothing blocks the way from a parameter to the loss
};
ORT_TRAIN_API CheckReport check(const Options& options);

class ORT_TRAIN_API Trainer {
 public:
  // Imports the model, plans and proves the plan. Throws Error: unsupported, budget (naming the smallest that would do), data, io, usage.
  // The arena's memory is taken by the first of the calls below.
  explicit Trainer(const Options& options, Callbacks callbacks = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const PlanReport& plan() const;
  // Trains until the last step or request_stop(), writes checkpoint and model into output_dir. Once a Trainer.
  Summary train();
  // Mean loss over the held-out data with the present weights; NaN if request_stop() ended it.
  double evaluate();
  // Whether the data is text, so that sample() can write some.
  bool can_sample() const;
  // Text that the model writes after `prompt`: `length` characters, drawn at `temperature` (0: the likeliest).
  std::string sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed);
  // The model's floating-point outputs for a batch of Options::predict_batch_size: name -> values. Inputs by name.
  std::map<std::string, std::vector<float>> predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                    const std::map<std::string, std::vector<float>>& reals);
  // Finishes the step, saves, and makes train() return. Safe from other threads and from signal handlers.
  void request_stop() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "12GB" -> 12e9, "12GiB", "300MB", plain bytes. Throws Error(usage).
ORT_TRAIN_API int64_t parse_bytes(const std::string& text);
ORT_TRAIN_API std::string version();

}  // namespace ort_train
