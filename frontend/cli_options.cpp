#include "frontend/cli_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "frontend/cli_config.h"
#include "frontend/cli_recipes.h"
#include "frontend/cli_unknown.h"
#include "frontend/cli_values.h"

namespace ort_train {
namespace {

constexpr const char* kDescription =
    "ort-train: fine-tunes an exported ONNX model within a hard limit of memory.\n\n"
    "  ort-train MODEL.onnx --data PATH [--budget 12GB] [options]    train, write OUTPUT_DIR/model.onnx\n"
    "  ort-train check MODEL.onnx [options]                          what can be trained, what can't, and why\n"
    "  ort-train plan MODEL.onnx --data PATH [options]               show the plan, train nothing\n"
    "  ort-train export MODEL.onnx --adapter FOLDER [options]        add an adapter to the model, write OUTPUT_DIR/model.onnx\n";

constexpr const char* kFooter =
    "\nExit codes: 0 done, 1 internal error, 2 usage, 3 model not supported, 4 budget can't be met, 5 data, 6 input/output, 7 diverged,\n"
    "8 corrupt checkpoint, 9 no usable GPU, or it failed, 129 / 130 / 138 / 143 / 152 interrupted (SIGHUP, SIGINT, SIGUSR1, SIGTERM, "
    "SIGXCPU) and saved.";

// What needs more than a conversion.
struct Raw {
  std::string budget, host_budget, nvme_budget, nvme_endurance, scheduler_arguments, recipe, best_metric;
  std::optional<std::string> length_buckets;
  std::vector<std::string> shapes, bound, dump_after, batch_norm, dropout, selects, param_groups, config;
  double warmup_ratio = 0;
  bool gradient_checkpointing = false;
  bool no_checksums = false, no_shuffle = false, no_retie = false, plan = false, version = false;
};

// --learning_rate=1e-5 -> --learning-rate=1e-5
std::string with_dashes(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const size_t end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return argument;
}

// Those that each optimizer has; what several have is one option.
void add_optimizer_options(CLI::App& app, const char* group, Options& o) {
  for (const OptimizerChoice& choice : optimizers()) {
    for (const OptimizerChoice::Option& option : choice.options) {
      const std::string name = with_dashes("--" + option.name), what = fmt::format("of {}: {}", choice.name, option.help);
      if (CLI::Option* const known = app.get_option_no_throw(name)) {
        known->description(fmt::format("{}; {} (default {})", known->get_description(), what, option.value));
        continue;
      }
      if (option.flag) {
        app.add_flag_function(
               name, [&o, of = option.name](int64_t times) { o.optim_args[of] = times > 0; }, what)
            ->group(group);
        continue;
      }
      app.add_option_function<double>(
             name, [&o, of = option.name](double value) { o.optim_args[of] = value; }, what)
          ->default_str(fmt::format("{}", option.value))
          ->group(group);
    }
  }
  for (const OptimizerChoice::Option& option : eight_bit_options()) {
    app.add_option_function<double>(
           with_dashes("--" + option.name), [&o, of = option.name](double value) { o.optim_args[of] = value; },
           "of optimizers with 8-bit state: " + option.help)
        ->default_str(fmt::format("{}", option.value))
        ->group(group);
  }
}

void add_options(CLI::App& app, CommandLine& line, Raw& raw) {
  Options& o = line.options;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // so that a script's options can be overridden
  const auto add = [&](const char* group, const char* name, auto& value, const std::string& what) {
    return app.add_option(name, value, what)->group(group)->capture_default_str();
  };
  const auto add_list = [&](const char* group, const char* name, std::vector<std::string>& values, const std::string& what) {
    return app.add_option(name, values, what)->group(group)->take_all()->allow_extra_args(false);
  };
  app.add_option("model", o.model, "the model: an ONNX file")->type_name("MODEL.onnx");
  app.set_help_flag("-h,--help", "this text");
  app.add_flag("--version", raw.version, "the version");
  add_list("Options", "--config", raw.config, "options from this YAML file; what the command line says counts")->type_name("FILE");

  constexpr const char* data = "Data";
  add(data, "--data", o.data, ".txt, token .bin or .npy, .npz, .safetensors, or a folder with train and valid of one of these");
  add(data, "--task", o.task, "causal-lm: labels are the inputs, shifted by one");
  add(data, "--loss", o.loss,
      fmt::format("{} (the model's output is the loss), or several: OUTPUT:NAME(PARAMETER=VALUE)*WEIGHT@LABELS,... (default: "
                  "cross_entropy)",
                  fmt::join(losses(), ", ")));
  add(data, "--teacher", o.teacher, "an ONNX model that the loss distillation follows, the default with it");
  add(data, "--temperature", o.temperature, "of distillation: the logits of both models are divided by it");
  add(data, "--loss-model", o.loss_model,
      "a loss as an ONNX model, whose first output is one number: its inputs are, by name, outputs of the model or arrays of the data");
  add(data, "--label-smoothing,--label-smoothing-factor", o.label_smoothing,
      "of cross_entropy: the share of a label that goes to all classes alike, from 0 to below 1");
  add(data, "--z-loss", o.z_loss, "of cross_entropy: this times the square of log(sum(exp(logits))) is added");
  add(data, "--output", o.output, "the model's output that the loss reads (default: the first)");
  add(data, "--labels", o.labels, "the array that holds the labels");
  add(data, "--token-type", o.token_type, "number type of .bin files: uint16 or uint32");
  app.add_option("--shape", raw.shapes, "sizes of dynamic dimensions: name=value,...")->group(data)->take_all()->allow_extra_args(false);
  app.add_option("--bind", raw.bound,
                 "an input that is the same for all samples: NAME=VALUE, a number, numbers separated by commas, or @FILE.npy; repeatable")
      ->group(data)
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--batch-size,--per-device-train-batch-size", o.batch_size,
                 "samples in a batch (default: the model's size if it is fixed, else 8)")
      ->group(data);
  app.add_option("--seq-length", o.seq_length, "tokens in a sample of text (default: the model's length if it is fixed)")->group(data);
  app.add_option(
         "--length-buckets", raw.length_buckets,
         "of arrays: cut each batch to the first of these lengths, separated by commas, that holds all its samples, by attention_mask")
      ->group(data);
  app.add_flag("--no-shuffle", raw.no_shuffle, "take the samples in the file's order")->group(data);
  add(data, "--validation-split", o.validation_split,
      "where a run evaluates, with a single data file: the share at its end that is held out");

  constexpr const char* memory = "Memory";
  add(memory, "--device", o.device, "what computes: cpu, cuda, or cuda:N, the GPU of that number");
  app.add_option(
         "--budget", raw.budget,
         "hard limit of the whole process, on a GPU of all its memory that the process takes: 12GB, 300MiB (default: what is there)")
      ->group(memory);
  app.add_option("--host-budget", raw.host_budget,
                 "of pinned memory beside a GPU (default: half of what is available); refused on the CPU device, which has no other memory "
                 "than --budget's")
      ->group(memory);
  add(memory, "--recompute", o.recompute,
      "recompute activations instead of keeping them: auto (as far as the budget asks for it), none, sqrt or all");
  add(memory, "--micro-batches", o.micro_batches,
      "order of an accumulating step: horizontal (one after the other), vertical (all through one layer, then the next) or auto (the "
      "faster)");
  app.add_flag("--gradient-checkpointing", raw.gradient_checkpointing, "the same as --recompute auto: the budget decides")->group(memory);
  add(memory, "--nvme-path", o.nvme_path, "a folder on a disk for what the budget can't hold");
  app.add_option("--nvme-budget", raw.nvme_budget, "hard limit of the bytes in that folder (default: none)")->group(memory);
  app.add_option("--nvme-endurance", raw.nvme_endurance,
                 "bytes that the drive is rated to be written (600TB): the plan shows the share that the run takes")
      ->group(memory);
  app.add_flag("--no-nvme-checksums", raw.no_checksums, "don't verify what is read back from the disk")->group(memory);
  add(memory, "--profile", o.profile, "the file that keeps the measured speed of this machine");
  app.add_flag("--recalibrate", o.recalibrate, "measure the machine again")->group(memory);
  app.add_flag("--plan", raw.plan, "show the plan, train nothing")->group(memory);
  add(memory, "--plan-json", o.plan_json, "write the plan as JSON to this file");
  add(memory, "--dump-problem", o.dump_problem, "where a disk is used: write what the planner solves, as JSON, to this file");
  add(memory, "--plan-svg", o.plan_svg, "draw the plan as SVG into this file");
  app.add_option("--threads", o.threads,
                 "default: the processors that the process may use, or its cgroup's CPU quota pays for; never changes a result")
      ->group(memory);

  constexpr const char* optimizer = "Optimizer";
  std::vector<std::string> names;
  for (const OptimizerChoice& choice : optimizers()) names.push_back(choice.name);
  add(optimizer, "--optim", o.optim,
      fmt::format("{}; or what Hugging Face's Trainer calls it. _8bit behind the name: with its state in 8 bits", fmt::join(names, ", ")));
  add(optimizer, "--learning-rate", o.learning_rate, "the highest, where the schedule changes it");
  std::string known_schedules, known_arguments;
  for (const ScheduleChoice& choice : schedules()) {
    known_schedules += (known_schedules.empty() ? "" : ", ") + choice.name;
    if (choice.arguments.empty()) continue;
    known_arguments += (known_arguments.empty() ? "" : "; ") + choice.name + ":";
    for (const ScheduleChoice::Argument& argument : choice.arguments)
      known_arguments += fmt::format(" {}{}", argument.name, argument.value.empty() ? "" : fmt::format(" ({})", argument.value));
  }
  add(optimizer, "--lr-scheduler-type", o.lr_scheduler_type, known_schedules);
  app.add_option("--lr-scheduler-kwargs", raw.scheduler_arguments,
                 "arguments of the schedule, as name=value,... or as a JSON object (defaults in parentheses). " + known_arguments)
      ->group(optimizer)
      ->type_name("ARGUMENTS");
  add(optimizer, "--warmup-steps", o.warmup_steps, "a number below 1 is a share of all steps");
  app.add_option("--warmup-ratio", raw.warmup_ratio, "the same as --warmup-steps below 1")->group(optimizer);
  app.add_option("--scale-lr", o.scale_lr,
                 "multiply the learning rate by k = samples of an optimizer step / --base-batch-size (linear), or by its root (sqrt)")
      ->group(optimizer)
      ->type_name("linear|sqrt");
  app.add_option("--base-batch-size", o.base_batch_size, "the samples of an optimizer step for which --learning-rate was chosen")
      ->group(optimizer);
  add(optimizer, "--weight-decay", o.weight_decay, "on tensors of two dimensions and more");
  add_list(optimizer, "--param-group", raw.param_groups,
           "PATTERN:key=value,...: numbers of their own for the weights of this name: lr (a learning rate) or lr_scale (a factor), "
           "weight_decay. * matches any text, the first pattern that fits counts; may be given several times")
      ->type_name("GROUP");
  add(optimizer, "--layer-decay", o.layer_decay, "multiply the learning rate of layer i of n by this to the power of n - i");
  add_optimizer_options(app, optimizer, o);
  add(optimizer, "--max-grad-norm", o.max_grad_norm, "clip gradients to this norm (0: no clipping)");
  app.add_flag("--clip-per-layer", o.clip_per_layer, "clip each weight's gradient to --max-grad-norm by its own norm")->group(optimizer);
  add(optimizer, "--loss-scale", o.loss_scale,
      "multiply the loss by this before the backward pass, and skip steps whose gradients aren't finite: auto (dynamic where gradients are "
      "float16, else none), none, dynamic or a number");
  add(optimizer, "--loss-scale-init", o.loss_scale_init, "what the dynamic loss scale begins as");
  add(optimizer, "--loss-scale-window", o.loss_scale_window, "finite steps after which the dynamic loss scale grows");
  add(optimizer, "--loss-scale-growth", o.loss_scale_growth, "the factor by which it grows");
  add(optimizer, "--loss-scale-backoff", o.loss_scale_backoff, "the factor by which a skipped step lowers it");

  constexpr const char* precision = "Precision";
  app.add_flag(
         "--bf16", o.bf16,
         "products, convolutions and attention in bfloat16, and what follows them: half the memory of activations; weights stay float32")
      ->group(precision);
  app.add_flag("--fp16", o.fp16, "the same in float16")->group(precision);
  app.add_flag("--bf16-full", o.bf16_full,
               "the same as --bf16, and trained weights are bfloat16 themselves (rounded stochastically): the least to keep and to stream")
      ->group(precision);
  app.add_flag("--fp32", o.fp32, "all in float32, even where the model comes in 16 bits (which else computes in its own type)")
      ->group(precision);
  add(precision, "--autocast-list", o.autocast_list,
      "a text file that says of ops, or of nodes by name, whether they run low (in 16 bits), in float32, or follow what they read");
  app.add_flag("--tf32", o.tf32, "refused: there are no products of TF32")->group(precision);

  constexpr const char* adapters = "Adapters";
  app.add_option("--lora-rank,--lora-r", o.lora_rank,
                 "train small matrices of this rank beside the model's weights, which stay as they are (LoRA)")
      ->group(adapters);
  app.add_option("--lora-alpha", o.lora_alpha, "what they give is multiplied by this / rank (default: the rank)")->group(adapters);
  app.add_option("--lora-dropout", o.lora_dropout, "share of their input that is left out in training (default: as --adapter says, else 0)")
      ->group(adapters);
  add_list(adapters, "--lora-target,--lora-target-modules", o.lora_target,
           "which weights have them: names of weights or modules, or their last parts (q_proj); * matches any text; repeatable "
           "(default: all products with a matrix but the head)")
      ->type_name("PATTERN");
  app.add_flag("--use-rslora", o.use_rslora, "multiply by alpha / sqrt(rank) instead")->group(adapters);
  app.add_flag("--use-dora", o.use_dora, "DoRA: also train the norm of each output of W + scale * B A")->group(adapters);
  add(adapters, "--lora-plus-ratio", o.lora_plus_ratio, "the learning rate of the second matrix is this times the first one's (LoRA+)");
  add_list(adapters, "--ia3-target", o.ia3_target,
           "(IA)3 instead of LoRA: train a factor for each output of the products or convolutions with these weights; repeatable")
      ->type_name("PATTERN");
  add_list(adapters, "--ia3-feedforward", o.ia3_feedforward, "(IA)3: train a factor for each input of theirs; repeatable")
      ->type_name("PATTERN");
  app.add_option("--adapter", o.adapter, "start from this adapter: a folder that PEFT or an earlier run wrote")
      ->group(adapters)
      ->type_name("FOLDER");
  add_list(adapters, "--control", o.control,
           "train a copy of these blocks, joined by layers of zeros (ControlNet): names of modules, or their last parts (down.1), nodes or "
           "weights; * matches any text; repeatable")
      ->type_name("PATTERN");
  app.add_option("--control-input", o.control_input, "a condition for the copy, which the data feed: NAME=SIZE,SIZE,... of a sample")
      ->group(adapters)
      ->type_name("INPUT");
  app.add_option(
         "--base-dtype", o.base_dtype,
         "what frozen matrices of products are stored as: float32, bfloat16, float16, int8 or nf4 (4 bits); default: as in the file")
      ->group(adapters);
  add_list(adapters, "--base-target", o.base_target, "heads and embeddings that `--base-dtype` stores, too; repeatable")
      ->type_name("PATTERN");
  app.add_option("--recipe", raw.recipe,
                 "options that go together, each that isn't given otherwise: qlora (rank 64, nf4 and the rest as qlora.py has it), bitfit "
                 "(biases alone are trained)")
      ->group(adapters)
      ->type_name("NAME");
  app.add_flag("--double-quant", o.double_quant, "the scales of nf4 in 8 bits, too")->group(adapters);
  app.add_flag("--adapter-only", o.adapter_only, "write the adapter's files, as PEFT does, instead of the model")->group(adapters);

  constexpr const char* length = "Length";
  app.add_option("--max-steps", o.max_steps, "optimizer steps; wins over --num-train-epochs")->group(length);
  add(length, "--num-train-epochs", o.num_train_epochs, "passes over the training data");
  add(length, "--gradient-accumulation-steps", o.gradient_accumulation_steps, "micro-batches in an optimizer step");
  app.add_option("--eval-steps", o.eval_steps, "evaluate every N steps and at the end (default: never)")->group(length);
  app.add_option("--eval-strategy", o.eval_strategy,
                 "no, steps (--eval-steps) or epoch: after each and at the end (default: by --eval-steps)")
      ->group(length);
  app.add_option("--eval-batches", o.eval_batches, "at most N batches in an evaluation (default: all)")->group(length);
  app.add_option("--early-stopping-patience", o.early_stopping_patience,
                 "end after N evaluations in a row without a better held-out loss (default: never)")
      ->group(length);
  add(length, "--early-stopping-threshold", o.early_stopping_threshold,
      "with --early-stopping-patience: a loss is better if it is lower than the lowest by more than this");
  add(length, "--seed", o.seed, "of the order of samples, of Dropout and of stochastic rounding");

  constexpr const char* files = "Files";
  add(files, "--output-dir", o.output_dir, "the trained model and the checkpoints go here");
  app.add_flag("--overwrite,--overwrite-output-dir", o.overwrite,
               "start afresh where an earlier run left checkpoints and a model: they are replaced, other programs' files never are")
      ->group(files);
  app.add_flag("--resume", o.resume, "go on from the newest valid checkpoint in the output folder")->group(files);
  app.add_option("--resume-from-checkpoint", o.resume_from_checkpoint,
                 "auto: as --resume, but start afresh if there is none; or the folder of a checkpoint")
      ->group(files)
      ->type_name("auto|PATH");
  add(files, "--save-steps", o.save_steps,
      "write a checkpoint every N steps, at the end, when stopped and where bad data end the run (0: only at the end and when stopped)");
  app.add_option("--save-strategy", o.save_strategy, "no, steps (--save-steps) or epoch: after each (default: steps)")->group(files);
  app.add_option("--save-total-limit", o.save_total_limit,
                 "checkpoints to keep (default: 2; with weights on a disk 1, because 2 take three slots for each tensor there)")
      ->group(files);
  app.add_flag("--load-best-model-at-end", o.load_best_model_at_end,
               "the new model has the weights of the evaluation with the lowest held-out loss, whose checkpoint is kept, not the last ones")
      ->group(files);
  app.add_option("--metric-for-best-model", raw.best_metric, "what --load-best-model-at-end goes by: the held-out loss, eval_loss or loss")
      ->group(files)
      ->type_name("eval_loss");
  add(files, "--log-file", o.log_file, "write one line of JSON for each step to this file");
  add(files, "--op-times", o.op_times, "write how long each op took a step, and at what rates, as JSON to this file");
  add(files, "--report-to", o.report_to, "write event files for tensorboard, or none (default: none, with --logging-dir tensorboard)");
  add(files, "--logging-dir", o.logging_dir, "the folder of TensorBoard's event files (default: the folder runs in the output folder)");
  add(files, "--timeline", o.timeline, "write what happened when in some steps to this JSON file, which Perfetto opens; on the CPU alone");
  add(files, "--timeline-steps", o.timeline_steps, "these: FIRST-LAST, or one step (default: the second to the fourth that it makes)");
  add(files, "--logging-steps", line.logging_steps, "steps between printed lines if the output is not a terminal");
  add(files, "--save-gradients", o.save_gradients, "write every gradient of the first step that isn't skipped to this .safetensors file");
  add(files, "--save-optimizer-state", o.save_optimizer_state, "write the optimizer's state at the end to this .safetensors file");
  add(files, "--sample-length", line.sample_length, "characters that the model writes after training on a .txt file");

  constexpr const char* graph = "Graph";
  app.add_flag("--detect-anomaly", o.detect_anomaly, "end with the name of the first node that makes NaN or infinities; slow")
      ->group(graph);
  app.add_flag("--no-retie", raw.no_retie, "keep a weight that the file stores twice as two weights")->group(graph);
  app.add_flag("--untie", o.untie, "give each use of a shared weight a weight of its own")->group(graph);
  add_list(graph, "--freeze", o.freeze,
           "leave the weights of this name as they are. The name is an initializer's, or the one that the exporter's metadata has for it; "
           "* matches any text; may be given several times")
      ->type_name("PATTERN");
  add_list(graph, "--train", o.train, "train the tensors of this name, whatever they are taken for, and even if --freeze matches them")
      ->type_name("PATTERN");
  add_list(graph, "--dropout", raw.dropout,
           "puts a Dropout behind nodes in training: NODE=RATIO, NODE a name, a pattern with *, or an op; repeatable");
  add_list(graph, "--selects", raw.selects,
           "how many elements a NonZero or Compress node takes of a batch by its mask: NODE=COUNT (always) or 'NODE<=COUNT', NODE a "
           "name, a pattern with *, or an op; repeatable. Default: at most as many as the mask has");
  add_list(graph, "--batch-norm", raw.batch_norm,
           "BatchNormalization uses the statistics of each batch and updates its running ones (live), or uses the running ones "
           "(frozen); model: as exported (default). NODE=live or NODE=frozen: for some nodes, * matches any text");
  add_list(graph, "--skip-pass", o.skip_passes, "leave out a graph pass");
  app.add_option("--dump-after", raw.dump_after, "PASS FILE.onnx: write the graph as it is after this pass")
      ->group(graph)
      ->type_size(2)
      ->take_all()
      ->allow_extra_args(false);
}

// Where programs keep what they can find out again; empty where there is no such place.
std::string default_profile() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/ort-train/machine.json";
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/ort-train/machine.json";
  return {};
}

// The option of a field; empty where there is none.
std::string option_of(const CLI::App& app, const std::string& field) {
  static const std::map<std::string, std::string> kOthers{{"shapes", "--shape"},
                                                          {"shuffle", "--no-shuffle"},
                                                          {"retie", "--no-retie"},
                                                          {"nvme_checksums", "--no-nvme-checksums"},
                                                          {"skip_passes", "--skip-pass"},
                                                          {"batch_norm_nodes", "--batch-norm"},
                                                          {"param_groups", "--param-group"}};
  if (const auto found = kOthers.find(field); found != kOthers.end()) return found->second;
  const std::string name = with_dashes("--" + field);
  return app.get_option_no_throw(name) != nullptr ? name : std::string();
}

// Throws Error(usage) for what CLI11 takes otherwise than its user means it, and for what is unknown.
void parse(CLI::App& app, std::vector<std::string> arguments, const Raw& raw, CommandLine& line) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return;
  } catch (const CLI::ConversionError& problem) {
    for (const CLI::Option* option : app.get_options()) {
      if (is_about(problem.what(), option->get_name()) && !option->results().empty())
        throw usage(unfit_value(option->get_name(), option->results().back(), option->get_type_name()));
    }
    throw usage(problem.what());
  } catch (const CLI::ParseError& problem) {
    throw usage(problem.what());
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (const std::string wrong = misread_value(option->get_name(), value, option->get_type_name()); !wrong.empty()) throw usage(wrong);
    }
  }
  if (raw.version) {
    line.text = "ort-train " + version() + "\n";
    return;
  }
  std::vector<std::string> extras = app.remaining();
  std::erase(extras, "--");
  for (const std::string& extra : extras) {
    if (!extra.starts_with("-")) continue;
    throw usage(unknown_option(extra.substr(0, extra.find('=')), app));
  }
  if (!extras.empty()) throw usage(fmt::format("'{}' is one argument too many: there is one model, '{}'", extras[0], line.options.model));
}

// What the options that need more than a conversion say. Throws Error(usage).
void settle(const Raw& raw, CommandLine& line) {
  Options& o = line.options;
  if (o.model.empty()) throw usage("no model is given: ort-train MODEL.onnx --data PATH (--help shows all options)");
  if (raw.plan && line.command == CommandLine::Command::train) line.command = CommandLine::Command::plan;
  o.budget_is_process = true;
  o.evaluates_on_request = false;
  if (!raw.budget.empty()) {
    o.budget = parse_bytes(raw.budget);
    if (o.budget == 0) throw usage("--budget 0 holds nothing");
  }
  if (!raw.host_budget.empty()) {
    o.host_budget = parse_bytes(raw.host_budget);
    if (o.host_budget == 0) throw usage("--host-budget 0 holds nothing");
  }
  if (!raw.nvme_budget.empty()) {
    o.nvme_budget = parse_bytes(raw.nvme_budget);
    if (o.nvme_budget == 0) throw usage("--nvme-budget 0 holds nothing: without --nvme-path no disk is used");
  }
  if (!raw.nvme_endurance.empty()) o.nvme_endurance = parse_bytes(raw.nvme_endurance);
  o.nvme_checksums = !raw.no_checksums;
  if (raw.gradient_checkpointing && o.recompute != "auto")
    throw usage(fmt::format("--gradient-checkpointing leaves it to the budget, --recompute {} does not: give one of them", o.recompute));
  if (!raw.best_metric.empty() && raw.best_metric != "eval_loss" && raw.best_metric != "loss")
    throw usage(fmt::format("--metric-for-best-model {}: is not known here: the held-out loss decides, eval_loss", raw.best_metric));
  if (o.profile.empty()) o.profile = default_profile();
  if (raw.length_buckets) o.length_buckets = whole_numbers("--length-buckets", *raw.length_buckets);
  for (const std::string& shape : raw.shapes) add_shapes(shape, o.shapes);
  for (const std::string& item : raw.bound) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size())
      throw usage(fmt::format("--bind '{}' is not NAME=VALUE", item));
    o.bind[item.substr(0, equals)] = item.substr(equals + 1);
  }
  for (const std::string& item : raw.batch_norm) {
    const size_t equals = item.rfind('=');
    if (equals == std::string::npos)
      o.batch_norm = item;
    else
      o.batch_norm_nodes.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  for (const std::string& item : raw.dropout) {
    std::pair<std::string, double>& drop = o.dropout.emplace_back();
    if (!split_number(item, drop.first, drop.second)) throw usage(fmt::format("--dropout '{}' is not NODE=RATIO", item));
  }
  for (const std::string& item : raw.selects) {
    SelectionLimit& limit = o.selects.emplace_back();
    const bool is_split = split_number(item, limit.node, limit.count);
    limit.exact = !limit.node.ends_with('<');
    if (!limit.exact) limit.node.pop_back();
    if (!is_split || limit.node.empty()) throw usage(fmt::format("--selects '{}' is not NODE=COUNT or NODE<=COUNT", item));
  }
  for (size_t i = 0; i + 1 < raw.dump_after.size(); i += 2) o.dump_after[raw.dump_after[i]] = raw.dump_after[i + 1];
  if (raw.warmup_ratio != 0) {
    if (!(raw.warmup_ratio > 0 && raw.warmup_ratio < 1))
      throw usage(fmt::format("--warmup-ratio {} has to lie between 0 and 1", raw.warmup_ratio));
    if (o.warmup_steps == 0) o.warmup_steps = raw.warmup_ratio;
  }
  add_scheduler_arguments(raw.scheduler_arguments, o.lr_scheduler_kwargs);
  for (const std::string& group : raw.param_groups) o.param_groups.push_back(parse_param_group(group));
  o.shuffle = !raw.no_shuffle;
  o.retie = !raw.no_retie;
  if (line.logging_steps < 1) throw usage("--logging-steps is at least 1");
}

}  // namespace

std::string with_options(const std::string& sentence) {
  if (sentence.find('`') == std::string::npos) return sentence;
  CLI::App app;
  CommandLine line;
  Raw raw;
  add_options(app, line, raw);
  std::string text;
  for (size_t at = 0; at < sentence.size();) {
    const size_t open = std::min(sentence.find('`', at), sentence.size()), close = sentence.find('`', open + 1);
    text += sentence.substr(at, open - at);
    if (close == std::string::npos) return text + sentence.substr(open);
    const std::string option = option_of(app, sentence.substr(open + 1, close - open - 1));
    if (option.empty()) {
      text += '`';
      at = open + 1;
      continue;
    }
    text += option;
    at = close + 1;
  }
  return text;
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const auto end = std::find(arguments.begin(), arguments.end(), "--");  // of the options
  std::transform(arguments.begin(), end, arguments.begin(), with_dashes);
  if (!arguments.empty() && (arguments[0] == "check" || arguments[0] == "plan" || arguments[0] == "train" || arguments[0] == "export")) {
    line.command = arguments[0] == "check"    ? CommandLine::Command::check
                   : arguments[0] == "plan"   ? CommandLine::Command::plan
                   : arguments[0] == "export" ? CommandLine::Command::export_merged
                                              : CommandLine::Command::train;
    arguments.erase(arguments.begin());
  }

  for (const std::string& argument : arguments) {  // CLI11 would take the next one
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1)
      throw usage(fmt::format("{} has no value: leave it out, or write it behind the =", argument));
  }
  CLI::App app(kDescription, "ort-train");
  app.footer(kFooter);
  app.allow_extras();
  app.get_formatter()->column_width(40);
  Raw raw;
  add_options(app, line, raw);
  const ConfigFiles files(app, arguments);
  follow_recipe(arguments);
  try {
    parse(app, std::move(arguments), raw, line);
    if (!line.text.empty()) return line;
    if (line.options.model.empty()) line.options.model = files.model();
    settle(raw, line);
  } catch (const Error& problem) {
    throw Error(problem.code(), files.with_place(problem.what()));
  }
  return line;
}

}  // namespace ort_train
