// Which options change what is computed: a checkpoint keeps them, and a run that goes on with others says so.

#include <fmt/ranges.h>

#include <filesystem>

#include "frontend/check_options.h"
#include "frontend/checkpoint.h"
#include "frontend/file.h"
#include "frontend/job.h"
#include "frontend/parameter_groups.h"
#include "graph/onnx/reader.h"

namespace ort_train {

std::map<std::string, std::string> Job::settings() const {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  std::string batch_norm = options.batch_norm;
  for (const auto& [pattern, mode] : options.batch_norm_nodes) batch_norm += fmt::format(" {}={}", pattern, mode);
  std::string kwargs;
  for (const auto& [name, value] : options.lr_scheduler_kwargs) kwargs += fmt::format("{}{}={}", kwargs.empty() ? "" : ",", name, value);
  std::map<std::string, std::string> result{{"loss", options.loss.empty() ? graphs.losses.terms[0].kind : options.loss},
                                            {"output", options.output},
                                            {"labels", options.labels},
                                            {"task", options.task},
                                            {"batch_size", text(data.binding.batch)},
                                            {"seq_length", text(data.binding.sequence)},
                                            {"learning_rate", text(schedule.learning_rate)},
                                            {"lr_scheduler_type", std::string(schedule.def->name)},
                                            {"lr_scheduler_kwargs", kwargs},
                                            {"warmup_steps", text(schedule.warmup_steps)},
                                            {"weight_decay", text(options.weight_decay)},
                                            {"param_groups", groups_setting(options)},
                                            {"layer_decay", text(options.layer_decay)},
                                            {"max_grad_norm", text(options.max_grad_norm)},
                                            {"clip_per_layer", text(options.clip_per_layer)},
                                            {"loss_scale", model.scaling.is_on() ? options.loss_scale : "none"},
                                            {"optim", optimizer.state_label()},
                                            {"total_steps", text(data.total_steps)},
                                            {"gradient_accumulation_steps", text(options.gradient_accumulation_steps)},
                                            {"seed", text(options.seed)},
                                            {"shuffle", text(options.shuffle)},
                                            {"batch_norm", batch_norm},
                                            {"train_samples", text(data.train_samples.count)},
                                            {"data", onnx::printable(std::filesystem::path(data.sets.train->name()).filename().string())},
                                            {"instruction_set", __builtin_cpu_supports("x86-64-v4") ? "x86-64-v4" : "x86-64-v3"}};
  result[kDataHashSetting] = data.sets.content_hash();
  for (const OptimizerOption& option : optimizer.options()) result[std::string(option.name)] = text(optimizer.value(option.name));
  if (!options.teacher.empty()) result["teacher"] = std::filesystem::path(options.teacher).filename().string();
  if (!options.loss_model.empty()) result["loss_model"] = std::filesystem::path(options.loss_model).filename().string();
  if (!options.length_buckets.empty()) result["length_buckets"] = fmt::format("{}", fmt::join(options.length_buckets, ","));
  if (options.token_type != Options{}.token_type) result["token_type"] = options.token_type;
  if (options.early_stopping_patience > 0) {
    result["early_stopping_patience"] = text(options.early_stopping_patience);
    result["early_stopping_threshold"] = text(options.early_stopping_threshold);
  }
  if (options.load_best_model_at_end) result["load_best_model_at_end"] = "true";
  if (schedule.follows_loss() || options.early_stopping_patience > 0 || options.load_best_model_at_end) {
    result["eval_steps"] = options.eval_strategy == kEachEpoch ? "epoch" : text(options.eval_steps);
    result["eval_batches"] = text(options.eval_batches);
  }
  if (model.scaling.is_on()) {
    result["loss_scale_growth"] = text(options.loss_scale_growth);
    result["loss_scale_backoff"] = text(options.loss_scale_backoff);
    result["loss_scale_window"] = text(options.loss_scale_window);
  }
  if (options.temperature != 1) result["temperature"] = text(options.temperature);
  if (options.label_smoothing != 0) result["label_smoothing"] = text(options.label_smoothing);
  if (options.z_loss != 0) result["z_loss"] = text(options.z_loss);
  result["precision"] = fmt::format("{}{}", to_string(model.types.low), model.types.low_weights ? " weights" : "");
  if (!model.types.autocast.empty()) {
    std::string rules;
    for (const AutocastRule& rule : model.types.autocast) rules += fmt::format("{} {}\n", rule.name, static_cast<int>(rule.runs));
    result["autocast_list"] = hex16(hash_bytes(std::as_bytes(std::span(rules))));
  }
  if (!model.info.chosen.empty()) result["train_freeze"] = hex16(hash_bytes(std::as_bytes(std::span(model.info.chosen))));
  if (!options.control.empty()) result["control"] = fmt::format("{} {}", fmt::join(options.control, " "), options.control_input);
  if (const auto base = model.passes().base) result["base_dtype"] = to_string(*base);
  if (!options.base_target.empty()) result["base_dtype"] += fmt::format(" with '{}'", fmt::join(options.base_target, "', '"));
  if (adapting.is_on()) {
    result["adapters"] = adapters_setting(model.adapters, adapting);
  }
  if (adapting.is_on() && adapting.kind != AdapterKind::ia3) {
    result["lora_alpha"] = text(adapting.alpha);
    result["lora_dropout"] = text(adapting.dropout);
    if (adapting.rslora) result["use_rslora"] = "true";
    result["lora_plus_ratio"] = text(options.lora_plus_ratio);
  }
  for (const auto& [name, ratio] : options.dropout) result["dropout " + name] = text(ratio);
  for (const SelectionLimit& limit : options.selects)
    result["selects " + limit.node] = fmt::format("{}{}", limit.exact ? "" : "<=", limit.count);
  for (const auto& [name, value] : options.bind) result["bind " + name] = value;
  for (const auto& [name, size] : data.binding.shapes) result["shape " + name] = text(size);
  return result;
}

}  // namespace ort_train
