#include "frontend/check_options.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "frontend/adapters.h"
#include "frontend/controlnet.h"
#include "frontend/event_file.h"
#include "frontend/gpu_choice.h"
#include "frontend/loss_options.h"
#include "frontend/loss_scaling.h"
#include "frontend/parameter_groups.h"
#include "frontend/precision.h"
#include "frontend/schedule.h"
#include "frontend/timeline.h"
#include "graph/error.h"
#include "passes/losses.h"
#include "passes/optimizer.h"
#include "passes/recompute.h"

namespace ort_train {

void check_options(const Options& options) {
  const auto refuse = [](const char* name, auto value, const char* wanted) {
    return error(ErrorCode::usage, "`{}` {}: {}", name, value, wanted);
  };
  if (options.model.empty()) throw error(ErrorCode::usage, "`model` is not set: give the path of an .onnx file");
  for (const auto& [name, path] : {std::pair("model", &options.model),
                                   {"data", &options.data},
                                   {"teacher", &options.teacher},
                                   {"loss_model", &options.loss_model},
                                   {"nvme_path", &options.nvme_path},
                                   {"profile", &options.profile},
                                   {"autocast_list", &options.autocast_list},
                                   {"output_dir", &options.output_dir},
                                   {"adapter", &options.adapter},
                                   {"resume_from_checkpoint", &options.resume_from_checkpoint},
                                   {"log_file", &options.log_file},
                                   {"plan_json", &options.plan_json},
                                   {"plan_svg", &options.plan_svg},
                                   {"dump_problem", &options.dump_problem},
                                   {"save_gradients", &options.save_gradients},
                                   {"save_optimizer_state", &options.save_optimizer_state},
                                   {"logging_dir", &options.logging_dir},
                                   {"timeline", &options.timeline},
                                   {"op_times", &options.op_times}}) {
    if (path->find('\0') != std::string::npos)
      throw error(ErrorCode::usage, "`{}` {}: holds a zero character, which no path has", name, path->substr(0, path->find('\0')));
  }
  if (options.train_samples && !options.data.empty())
    throw refuse("data", options.data, "`train_samples` are given, too: leave out one of them");
  if (options.eval_samples && !options.train_samples)
    throw error(ErrorCode::usage, "`eval_samples` go with `train_samples`; with `data` the folder has the validation file");
  if (make_schedule(options.lr_scheduler_type, options.lr_scheduler_kwargs).follows_loss() && !evaluates(options))
    throw refuse("lr_scheduler_type", options.lr_scheduler_type, "follows the held-out loss: it needs evaluations (`eval_steps`)");
  check_groups(options);
  if (!options.scale_lr.empty() && options.scale_lr != "linear" && options.scale_lr != "sqrt")
    throw refuse("scale_lr", options.scale_lr, "is not known: linear or sqrt");
  if (options.base_batch_size < 0) throw refuse("base_batch_size", options.base_batch_size, "is negative");
  if (options.scale_lr.empty() != (options.base_batch_size == 0))
    throw error(ErrorCode::usage,
                "`scale_lr` (how the learning rate grows with the batch) and `base_batch_size` (the samples of a step for which it was "
                "chosen) go together: give both or none");
  LossScaling(options, /*in_float16=*/true);  // refuses what fits no model
  for (const LossTerm& term : parse_losses(options).terms) {
    if (options.task == "causal-lm" && term.kind != "cross_entropy" && term.kind != "nll" &&
        loss_named(term.kind).labels != LabelKind::none)
      throw error(ErrorCode::usage, "`task` causal-lm goes with `loss` cross_entropy, not {}", term.kind);
  }
  for (const auto& [name, ratio] : options.dropout) {
    if (!(ratio >= 0 && ratio < 1)) throw error(ErrorCode::usage, "`dropout` {}={}: has to lie in [0, 1)", name, ratio);
  }
  if (is_weight_blocks(base_type(options).value_or(DType::float32)) && gpu_number(options.device) >= 0)
    throw error(ErrorCode::unsupported, "`base_dtype` {}: the GPU's products read float32, bfloat16 and float16 so far",
                options.base_dtype);
  if (options.lora_rank < 0) throw refuse("lora_rank", options.lora_rank, "is negative");
  if (!(options.lora_alpha >= 0 && std::isfinite(options.lora_alpha))) throw refuse("lora_alpha", options.lora_alpha, "has to be positive");
  const double dropout = options.lora_dropout.value_or(0);
  if (!(dropout >= 0 && dropout < 1)) throw refuse("lora_dropout", dropout, "has to lie in [0, 1)");
  if (!(options.lora_plus_ratio > 0 && std::isfinite(options.lora_plus_ratio)))
    throw refuse("lora_plus_ratio", options.lora_plus_ratio, "has to be positive");
  if (options.base_dtype.empty() && !options.base_target.empty())
    throw error(ErrorCode::usage, "`base_target` adds weights to those stored as `base_dtype`: set `base_dtype`, too");
  if (options.lora_rank > 0 && (!options.ia3_target.empty() || !options.ia3_feedforward.empty()))
    throw error(ErrorCode::usage, "`lora_rank` and `ia3_target` are two kinds of adapters: give one of them");
  if (options.lora_rank == 0 && options.adapter.empty()) {
    const bool is_ia3 = has_adapters(options);
    for (const auto& [name, is_set] : {std::pair("lora_alpha", options.lora_alpha != 0),
                                       {"lora_dropout", dropout != 0},
                                       {"lora_target", !options.lora_target.empty()},
                                       {"use_rslora", options.use_rslora},
                                       {"use_dora", options.use_dora},
                                       {"lora_plus_ratio", options.lora_plus_ratio != 1},
                                       {"adapter_only", options.adapter_only && !is_ia3}}) {
      if (is_set && is_ia3)
        throw error(ErrorCode::usage, "`{}` is about LoRA, and `ia3_target` asks for (IA)3: leave out one of them", name);
      if (is_set) throw error(ErrorCode::usage, "`{}` is about adapters: give `lora_rank`, or an `adapter` to start from", name);
    }
  }
  if (control_net(options).is_on()) {
    if (has_adapters(options))
      throw error(ErrorCode::usage,
                  "`control` copies blocks, `lora_rank`, `ia3_target`, `ia3_feedforward` and `adapter` put adapters beside their weights: "
                  "give one or the other");
    if (options.untie)
      throw error(ErrorCode::usage, "`control` doesn't go with `untie`: copied blocks have weights of their own anyway; leave `untie` out");
  }
  for (const int64_t length : options.length_buckets) {
    if (length <= 0) throw refuse("length_buckets", length, "a length is at least 1");
  }
  if (options.recompute != "auto") recompute_mode(options.recompute);
  if (options.micro_batches != "auto" && options.micro_batches != "horizontal" && options.micro_batches != "vertical")
    throw refuse("micro_batches", options.micro_batches, "is not known: auto, horizontal or vertical");
  if (options.budget < 0) throw refuse("budget", options.budget, "is negative");
  if (options.host_budget < 0) throw refuse("host_budget", options.host_budget, "is negative");
  if (options.host_budget != 0 && gpu_number(options.device) < 0)
    throw refuse("host_budget", options.host_budget,
                 "limits pinned memory beside a GPU; the CPU device has no other memory than that of `budget`: leave it out");
  if (options.detect_anomaly && gpu_number(options.device) >= 0)
    throw error(ErrorCode::usage, "`detect_anomaly` looks at each node's results in the host's memory: use `device` cpu for it");
  if (!options.timeline.empty() && gpu_number(options.device) >= 0)
    throw error(
        ErrorCode::usage,
        "`timeline` tells when each node was computed, and a GPU goes on computing after work was issued: use `device` cpu for it, or "
        "`op_times`");
  timeline_steps(options);
  event_folder(options);
  if (!options.dump_problem.empty() && gpu_number(options.device) >= 0)
    throw error(ErrorCode::usage, "`dump_problem` writes what a plan for the CPU with a disk solves: use `device` cpu for it");
  if (options.nvme_budget < 0) throw refuse("nvme_budget", options.nvme_budget, "is negative");
  if (options.nvme_endurance < 0) throw refuse("nvme_endurance", options.nvme_endurance, "is negative");
  if (!options.nvme_path.empty() && !std::filesystem::is_directory(options.nvme_path))
    throw error(ErrorCode::io, "`nvme_path` {}: is no folder", options.nvme_path);
  if (options.nvme_budget > 0 && options.nvme_path.empty())
    throw error(ErrorCode::usage, "`nvme_budget` {} goes with `nvme_path`, the folder on a disk", options.nvme_budget);
  if (options.threads < 0) throw refuse("threads", options.threads, "is negative");
  constexpr int kMostThreads = 1024;
  if (options.threads > kMostThreads) throw refuse("threads", options.threads, "is more than 1,024");
  if (options.max_steps > kMostSteps) throw refuse("max_steps", options.max_steps, "is more than can be counted");
  constexpr int64_t kMostSamples = int64_t{1} << 31;  // their products are counted in 64 bits
  for (const auto& [name, value] : {std::pair("batch_size", options.batch_size),
                                    {"gradient_accumulation_steps", options.gradient_accumulation_steps},
                                    {"base_batch_size", options.base_batch_size},
                                    {"predict_batch_size", options.predict_batch_size}}) {
    if (value > kMostSamples) throw refuse(name, value, "is more than can be counted");
  }
  constexpr std::string_view kOptional[] = {"simplify",          "fuse_normalization", "fuse_gelu",     "fuse_attention",  "simplify_again",
                                            "backward_simplify", "early_updates",      "join_adapters", "fuse_elementwise"};
  for (const std::string& pass : options.skip_passes) {
    if (std::find(std::begin(kOptional), std::end(kOptional), pass) == std::end(kOptional))
      throw error(ErrorCode::usage, "`skip_passes` {}: no such pass can be left out; these can: {}", pass, fmt::join(kOptional, ", "));
  }
  if (options.bf16_full && !make_optimizer(options.optim, options.optim_args).def->rounds) {
    std::string others;
    for (const OptimizerDef* def : all_optimizers()) {
      if (def->rounds) others += fmt::format("{}{}", others.empty() ? "" : ", ", def->name);
    }
    throw error(ErrorCode::usage, "`bf16_full` keeps weights that `optim` {} can't round; these can: {} (or `bf16`)", options.optim,
                others);
  }
  // Which list a 16-bit model may have is known when it has been read.
  number_types(options, options.autocast_list.empty() ? DType::float32 : DType::bfloat16);
  if (!(options.learning_rate >= 0) || !std::isfinite(options.learning_rate))
    throw refuse("learning_rate", options.learning_rate, "has to be 0 or more, and finite");
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay)))
    throw refuse("weight_decay", options.weight_decay, "has to be 0 or more, and finite");
  if (!(options.max_grad_norm >= 0)) throw refuse("max_grad_norm", options.max_grad_norm, "has to be 0 or more (0: no clipping)");
  if (options.max_grad_norm > 0 && options.max_grad_norm < std::numeric_limits<float>::min())
    throw refuse("max_grad_norm", options.max_grad_norm, "is too small for a float32 (0: no clipping)");
  if (options.clip_per_layer && options.max_grad_norm == 0)
    throw error(ErrorCode::usage, "`clip_per_layer` needs a `max_grad_norm` above 0");
  if (options.gradient_accumulation_steps < 1)
    throw refuse("gradient_accumulation_steps", options.gradient_accumulation_steps, "is at least 1");
  if (options.max_steps <= 0 && !(options.num_train_epochs > 0 && options.num_train_epochs <= kMostSteps))
    throw refuse("num_train_epochs", options.num_train_epochs, "has to be positive, and no more than can be counted");
  if (options.eval_steps < 0) throw refuse("eval_steps", options.eval_steps, "is negative");
  for (const auto& [name, strategy] : {std::pair("eval_strategy", &options.eval_strategy), {"save_strategy", &options.save_strategy}}) {
    if (!strategy->empty() && *strategy != kNever && *strategy != kBySteps && *strategy != kEachEpoch)
      throw refuse(name, *strategy, "is not known: no, steps or epoch");
  }
  if (options.eval_strategy == kBySteps && options.eval_steps == 0)
    throw error(ErrorCode::usage, "`eval_strategy` steps needs `eval_steps`: after how many");
  if (!options.eval_strategy.empty() && options.eval_strategy != kBySteps && options.eval_steps > 0)
    throw error(ErrorCode::usage, "`eval_strategy` {} and `eval_steps` {} contradict each other: give one of them", options.eval_strategy,
                options.eval_steps);
  const bool saves_otherwise = options.save_strategy == kEachEpoch || (options.save_strategy == kNever && options.save_steps != 0);
  if (saves_otherwise && options.save_steps != Options{}.save_steps)
    throw error(ErrorCode::usage, "`save_strategy` {} and `save_steps` {} contradict each other: give one of them", options.save_strategy,
                options.save_steps);
  if (options.eval_batches < 0) throw refuse("eval_batches", options.eval_batches, "is negative");
  if (options.early_stopping_patience < 0) throw refuse("early_stopping_patience", options.early_stopping_patience, "is negative");
  if (!(options.early_stopping_threshold >= 0 && std::isfinite(options.early_stopping_threshold)))
    throw refuse("early_stopping_threshold", options.early_stopping_threshold, "has to be 0 or more, and finite");
  if (options.early_stopping_threshold > 0 && options.early_stopping_patience == 0)
    throw error(ErrorCode::usage,
                "`early_stopping_threshold` {} goes with `early_stopping_patience`, the evaluations without a better loss that end the run",
                options.early_stopping_threshold);
  if (options.early_stopping_patience > 0 && !evaluates(options))
    throw refuse("early_stopping_patience", options.early_stopping_patience,
                 "follows the held-out loss: it needs evaluations (`eval_steps`)");
  if (options.load_best_model_at_end && !evaluates(options))
    throw error(ErrorCode::usage, "`load_best_model_at_end` goes by the held-out loss: it needs evaluations (`eval_steps`)");
  if (options.save_steps < 0) throw refuse("save_steps", options.save_steps, "is negative");
  if (options.save_total_limit < 0) throw refuse("save_total_limit", options.save_total_limit, "is negative");
  constexpr int64_t kMostKept = 1000;
  if (options.save_total_limit > kMostKept) throw refuse("save_total_limit", options.save_total_limit, "is more than 1,000");
  if (options.predict_batch_size < 0) throw refuse("predict_batch_size", options.predict_batch_size, "is negative");
  if (!(options.validation_split >= 0 && options.validation_split < 1))
    throw refuse("validation_split", options.validation_split, "has to lie in [0, 1)");
}

}  // namespace ort_train
