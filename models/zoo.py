#!/usr/bin/env python3
"""Architectures of all kinds in reduced sizes, with random weights, exported by both of PyTorch's exporters with folding and without, and trained
by ort-train and by PyTorch on the same numbers. docs/zoo.md is the table of what comes out, written by

    models/zoo.py --write

A file passes where all gradients of the first step differ from PyTorch's in double by at most 1e-4 of their norm, and the losses of ten steps of
AdamW by at most 1e-3; or by ten times what PyTorch's own run in float32 differs from that in double (the larger of both), where that is more: some
deep networks with random weights multiply any rounding, or tip a max pool from one element to another. Where folding has merged weights (a convolution with its BatchNorm, a table with what is looked up in it), what trains is another form of the model: there the
gradients of the other weights are compared. What an exporter can't export is listed as that.

    models/zoo.py [--ort-train PROGRAM] [--write] [--jobs N] [--keep FOLDER] [NAME...]      needs what models/requirements-zoo.txt lists
"""
import argparse
import concurrent.futures
import contextlib
import importlib.util
import inspect
import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import torch


def declare_operators():
    """torchvision's wheels have their operators for one build of torch each; its models, and timm's, need none, but want them declared."""
    found = importlib.util.find_spec("torchvision")
    if found is None:
        return None
    text = (pathlib.Path(found.submodule_search_locations[0]) / "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for names in set(re.findall(r'register_meta\("(\w+)"\)|register_fake\("torchvision::(\w+)"\)', text)):
        with contextlib.suppress(RuntimeError):  # it is there
            library.define(f"{names[0] or names[1]}(Tensor x) -> Tensor")
    return library


OPERATORS = declare_operators()  # before transformers, which imports torchvision where it is installed
import transformers
from onnx import numpy_helper
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, BATCH, LENGTH, VOCABULARY, RATE = 10, 2, 8, 61, 1e-3
EXPORTS = {"torchscript": dict(dynamo=False, do_constant_folding=True), "torchscript, not folded": dict(dynamo=False, do_constant_folding=False),
           "dynamo": dict(dynamo=True, optimize=True), "dynamo, not folded": dict(dynamo=True, optimize=False)}
TOLERANCES = dict(gradients=1e-4, losses=1e-3)
SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=32,
             n_embd=32, n_layer=2, n_head=4, n_positions=32, n_ctx=32, n_inner=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
             encoder_ffn_dim=48, decoder_ffn_dim=48, ffn_dim=48, word_embed_proj_dim=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4,
             head_dim=8, rotary_dim=4, partial_rotary_factor=0.5, d_kv=8, d_ff=48, dim=32, n_layers=2, n_heads=4, hidden_dim=48, embedding_size=16, type_vocab_size=2, pad_token_id=0, bos_token_id=1,
             eos_token_id=2, tie_word_embeddings=True, max_position=32, attention_dropout=0.0, hidden_dropout=0.0, decoder_start_token_id=1, max_seq_len=32, expert_num=4,
             num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24, state_size=4, conv_kernel=4, time_step_rank=4, expand=2,
             new_decoder_architecture=False, multi_query=True, alibi=False, sliding_window=4, layer_norm_eps=1e-5, attn_implementation="eager", intermediate_dim=48)


class Output(torch.nn.Module):
    """Takes its inputs by position and gives one tensor."""

    def __init__(self, model, names, fixed):
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs):
        result = self.model(**dict(zip(self.names, inputs)), **self.fixed)
        if torch.is_tensor(result):
            return result
        for name in ("logits", "last_hidden_state", "predicted_depth"):
            if getattr(result, name, None) is not None:
                return getattr(result, name)
        return result[0]


def configured(config, options):
    """Of the options those that the class of configurations knows."""
    known = set()
    for kind in config.__mro__:
        known |= set(getattr(kind, "__annotations__", {})) | set(inspect.signature(kind.__init__).parameters if "__init__" in vars(kind) else ())
    known |= set(getattr(config, "attribute_map", {}))
    taken = {key: value for key, value in {**SMALL, **options}.items() if key in known or key in options or key == "attn_implementation"}
    for alias, name in getattr(config, "attribute_map", {}).items():
        if alias in taken and name in taken:
            del taken[name if alias in options else alias]
    return config(**taken)


def from_transformers(kind, model="AutoModelForCausalLM", inputs=("input_ids",), fixed=None, **options):
    def build():
        config = configured(type(transformers.AutoConfig.for_model(kind)), options)
        names = list(inputs)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"  # the other one knows no doubles
        built = getattr(transformers, model).from_config(config, **({"attn_implementation": "eager"} if "attn_implementation" not in options else {}))
        known = inspect.signature(built.forward).parameters
        if model == "AutoModelForCausalLM":  # without them the older exporter fails
            names += [name for name in ("attention_mask", "position_ids") if name in known]
        more = {"use_cache": False} if "use_cache" in known else {}
        return Output(built, names, {**more, **(fixed or {})}), names, sample_inputs(names)
    return build


def sample_inputs(names):
    """Each with all samples, by the name of the input."""
    count = STEPS * BATCH
    makers = {"input_ids": lambda: torch.randint(3, VOCABULARY, (count, LENGTH)), "decoder_input_ids": lambda: torch.randint(3, VOCABULARY, (count, LENGTH)),
              "position_ids": lambda: torch.arange(LENGTH).repeat(count, 1),
              "attention_mask": lambda: torch.ones(count, LENGTH, dtype=torch.int64), "pixel_values": lambda: torch.randn(count, 3, 32, 32),
              "input_values": lambda: torch.randn(count, 400), "input_features": lambda: torch.randn(count, 8, 32), "x": lambda: torch.randn(count, 3, 16, 16), "image": lambda: torch.randn(count, 3, 64, 64),
              "words": lambda: torch.randint(0, VOCABULARY, (count, LENGTH)), "time": lambda: torch.rand(count),
              "is_image": lambda: torch.rand(count, LENGTH).argsort(1) < 4, "features": lambda: torch.randn(count, 4, 8), "mask": lambda: torch.rand(count, LENGTH) < 0.6}
    return {name: makers[name]() for name in names}


def module(kind, names):
    return lambda: (kind(), list(names), sample_inputs(names))


def from_timm(name, **options):
    def build():
        import timm
        return timm.create_model(name, num_classes=5, **options), ["image"], sample_inputs(["image"])
    return build


def from_torchvision(name, **options):
    def build():
        import torchvision
        model = getattr(torchvision.models, name)(num_classes=5, **options)
        for layer in model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
        return model, ["image"], sample_inputs(["image"])
    return build


class Pyramid(torch.nn.Module):
    """The body of a detector: ResNet-18's stages and a feature pyramid, with a head on every level."""

    def __init__(self):
        super().__init__()
        import torchvision
        body = torchvision.models.resnet18()
        self.stem = torch.nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
        self.stages = torch.nn.ModuleList([body.layer1, body.layer2, body.layer3])
        self.pyramid = torchvision.ops.FeaturePyramidNetwork([64, 128, 256], 16)
        self.head = torch.nn.Conv2d(16, 5, 3, padding=1)

    def forward(self, image):
        x, levels = self.stem(image), {}
        for i, stage in enumerate(self.stages):
            x = levels[str(i)] = stage(x)
        return torch.cat([self.head(level).flatten(2) for level in self.pyramid(levels).values()], 2).transpose(1, 2)


class Segmenter(torch.nn.Module):
    """A U-Net with BatchNorm and transposed convolutions."""

    def __init__(self):
        super().__init__()
        block = lambda n, m: torch.nn.Sequential(torch.nn.Conv2d(n, m, 3, padding=1), torch.nn.BatchNorm2d(m), torch.nn.ReLU(), torch.nn.Conv2d(m, m, 3, padding=1), torch.nn.ReLU())
        self.down, self.middle = torch.nn.ModuleList([block(3, 8), block(8, 16)]), block(16, 32)
        self.up, self.join = torch.nn.ModuleList([torch.nn.ConvTranspose2d(32, 16, 2, 2), torch.nn.ConvTranspose2d(16, 8, 2, 2)]), torch.nn.ModuleList([block(32, 16), block(16, 8)])
        self.head = torch.nn.Conv2d(8, 5, 1)

    def forward(self, image):
        x, kept = image, []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x).flatten(2).transpose(1, 2)


class Tagger(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 16)
        self.layers = kind(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(24, 5)

    def forward(self, words):
        return self.head(self.layers(self.table(words))[0])


class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 24, 4, stride=4)
        mlp = lambda n, m: torch.nn.Sequential(torch.nn.LayerNorm(n), torch.nn.Linear(n, m), torch.nn.GELU(), torch.nn.Linear(m, n))
        self.tokens, self.channels = torch.nn.ModuleList(mlp(16, 32) for _ in range(2)), torch.nn.ModuleList(mlp(24, 48) for _ in range(2))
        self.head = torch.nn.Linear(24, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2)
        for tokens, channels in zip(self.tokens, self.channels):
            x = x + tokens(x)
            x = x + channels(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(2))


class Block(torch.nn.Module):
    """Of a U-Net that knows how much noise there is."""

    def __init__(self, inner, outer):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(inner, outer, 3, padding=1), torch.nn.Conv2d(outer, outer, 3, padding=1)
        self.norms = torch.nn.ModuleList([torch.nn.GroupNorm(2, outer), torch.nn.GroupNorm(2, outer)])
        self.time = torch.nn.Linear(16, outer)
        self.skip = torch.nn.Conv2d(inner, outer, 1)

    def forward(self, x, time):
        y = torch.nn.functional.silu(self.norms[0](self.first(x))) + self.time(time)[:, :, None, None]
        return torch.nn.functional.silu(self.norms[1](self.second(y))) + self.skip(x)


class Diffusion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.time = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 16))
        self.down, self.middle, self.up = Block(3, 8), Block(8, 16), Block(24, 8)
        self.attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = torch.nn.Conv2d(8, 3, 1)

    def forward(self, x, time):
        angles = time[:, None] * torch.exp(-torch.arange(4, device=time.device, dtype=time.dtype))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        high = self.down(x, time)
        low = self.middle(torch.nn.functional.avg_pool2d(high, 2), time)
        rows = low.flatten(2).transpose(1, 2)
        low = low + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
        return self.head(self.up(torch.cat([high, torch.nn.functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)], 1), time))


class Warp(torch.nn.Module):
    """A spatial transformer."""

    def __init__(self):
        super().__init__()
        self.place = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5, stride=3), torch.nn.Flatten(), torch.nn.Linear(64, 6))
        self.body = torch.nn.Conv2d(3, 5, 3)

    def forward(self, x):
        base = torch.tensor([1.0, 0, 0, 0, 1.0, 0], dtype=x.dtype)
        grid = torch.nn.functional.affine_grid((base + 0.1 * self.place(x)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.body(torch.nn.functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)).mean((2, 3))


class Selecting(torch.nn.Module):
    """Takes rows by masks that are fed: images' features take the places of tokens, a head works on some positions and puts its results back."""

    def __init__(self):
        super().__init__()
        self.table, self.project = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(8, 16)
        self.body = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.head = torch.nn.Linear(16, 5)

    def forward(self, words, is_image, features, mask):
        x = self.table(words)
        x = x.masked_scatter(is_image.unsqueeze(-1).expand_as(x), self.project(features))
        rows = self.body(x[mask])
        x = torch.index_put(x, (mask,), rows)
        return self.head(x + rows.mean(0))


IMAGES = dict(model="AutoModelForImageClassification", inputs=("pixel_values",), image_size=32, num_labels=5)
ENCODER = dict(model="AutoModelForMaskedLM", inputs=("input_ids", "attention_mask"))
PAIR = dict(model="AutoModelForSeq2SeqLM", inputs=("input_ids", "decoder_input_ids"))
CONVOLUTIONS = dict(IMAGES, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
ZOO = {
    **{kind: from_transformers(kind) for kind in ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "phi", "gemma", "gemma2", "falcon", "bloom",
                                                  "stablelm", "mpt", "codegen", "olmo", "cohere", "starcoder2", "granite", "biogpt", "gpt_bigcode", "smollm3", "olmo2",
                                                  "mixtral", "qwen2_moe", "mamba")},
    **{kind: from_transformers(kind, **ENCODER) for kind in ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mpnet", "convbert", "xlm-roberta",
                                                             "camembert", "modernbert", "nystromformer", "roformer")},
    **{kind: from_transformers(kind, **PAIR) for kind in ("t5", "bart", "mbart", "pegasus", "marian", "blenderbot")},
    "whisper": from_transformers("whisper", model="AutoModelForSpeechSeq2Seq", inputs=("input_features", "decoder_input_ids"), num_mel_bins=8, max_source_positions=16, max_target_positions=32),
    "wav2vec2": from_transformers("wav2vec2", model="AutoModelForCTC", inputs=("input_values",), conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 8], num_feat_extract_layers=2,
                                  num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2),
    "hubert": from_transformers("hubert", model="AutoModelForCTC", inputs=("input_values",), conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 8], num_feat_extract_layers=2,
                                num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2),
    **{kind: from_transformers(kind, **IMAGES, patch_size=8) for kind in ("vit", "beit", "dinov2")},
    "swin": from_transformers("swin", **IMAGES, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "swinv2": from_transformers("swinv2", **IMAGES, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
    "resnet": from_transformers("resnet", **CONVOLUTIONS, embedding_size=8), "regnet": from_transformers("regnet", **CONVOLUTIONS, embedding_size=8, groups_width=8),
    "convnext": from_transformers("convnext", **CONVOLUTIONS), "convnextv2": from_transformers("convnextv2", **CONVOLUTIONS),
    "mobilenet_v2": from_transformers("mobilenet_v2", **IMAGES, depth_multiplier=0.25), "mobilenet_v1": from_transformers("mobilenet_v1", **IMAGES, depth_multiplier=0.25),
    "poolformer": from_transformers("poolformer", **IMAGES, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1]),
    "segformer": from_transformers("segformer", model="AutoModelForSemanticSegmentation", inputs=("pixel_values",), hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
                                   num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16, num_labels=5),
    "mobilevit": from_transformers("mobilevit", **IMAGES, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32]),
    "lstm": module(lambda: Tagger(torch.nn.LSTM), ["words"]), "gru": module(lambda: Tagger(torch.nn.GRU), ["words"]), "rnn": module(lambda: Tagger(torch.nn.RNN), ["words"]),
    "mixer": module(Mixer, ["x"]), "diffusion-unet": module(Diffusion, ["x", "time"]), "spatial-transformer": module(Warp, ["x"]),
    "selecting": module(Selecting, ["words", "is_image", "features", "mask"]),
    "unet": module(Segmenter, ["image"]), "feature-pyramid": module(Pyramid, ["image"]),
    **{f"timm {name}": from_timm(name) for name in ("efficientnet_lite0", "mobilenetv3_small_050", "ghostnet_050", "lcnet_035", "tinynet_e", "resnet10t", "edgenext_xx_small", "dla46_c",
                                                    "hardcorenas_a", "regnetx_002")},
    **{f"torchvision {name}": from_torchvision(name) for name in ("squeezenet1_1", "shufflenet_v2_x0_5", "densenet121", "mobilenet_v3_small")},
}
EXPERTS = ["--selects", "/model/model/layers.*/mlp/experts/NonZero=4"]  # in each batch all four are wanted, as in the one that was exported
ARGUMENTS = {"mixtral": EXPERTS, "qwen2_moe": EXPERTS}
CHOSEN = ("gpt2", "llama", "bert", "t5", "whisper", "vit", "resnet", "lstm", "unet", "timm mobilenetv3_small_050")  # of all kinds, in some minutes


def steps_of(model, inputs, labels, dtype=torch.float64):
    """PyTorch's gradients of the first step, by parameter, and the losses of all steps."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model.to(dtype)
    batch = lambda step: [value[step * BATCH:(step + 1) * BATCH] for value in inputs.values()]
    typed = lambda values: [value.to(dtype) if value.is_floating_point() else value for value in values]
    loss_of = lambda step: torch.nn.functional.mse_loss(model(*typed(batch(step))), labels[step * BATCH:(step + 1) * BATCH].to(dtype))
    model.zero_grad()
    loss_of(0).backward()
    gradients = {name: parameter.grad.clone().numpy() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0), []
    for step in range(STEPS):
        loss = loss_of(step)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.float().load_state_dict(start)
    return gradients, losses


def matched(ours, graph, model, gradients):
    """(ours, PyTorch's) of each of our gradients, matched by what the initializer holds; and the names of those that no parameter is. Of weights
    that were joined or divided, numbers that come only once are compared; of those from which others were computed at export, a part of the gradient
    belongs to these, and nothing is compared."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    values.update({node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in graph.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"})
    parameters = {name: parameter.detach().numpy() for name, parameter in model.named_parameters() if name in gradients}
    numbers = np.concatenate([parameter.ravel() for parameter in parameters.values()])
    slopes = np.concatenate([gradients[name].ravel() for name in parameters])
    unique, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    sources = {value.name: prop.value for value in graph.graph.value_info for prop in value.metadata_props if prop.key.endswith("folded_from")}
    pairs, others, whole_ones = [], [], []
    for name, gradient in ours.items():
        value = values.get(name)
        if value is None:
            others.append(name)
            continue
        whole = [(key, gradients[key]) for key, parameter in parameters.items() if parameter.size == value.size and np.array_equal(parameter.ravel(), value.ravel())]
        whole += [(key, gradients[key].T) for key, parameter in parameters.items() if parameter.ndim == 2 and parameter.T.shape == value.shape and np.array_equal(parameter.T, value)]
        if whole:
            whole_ones.append((gradient.ravel(), *whole[0]))
            continue
        at = np.minimum(np.searchsorted(unique, value.ravel()), len(unique) - 1)
        repeats = value.size - len(np.unique(value))  # of rows that were looked up at export
        if not np.array_equal(unique[at], value.ravel()) or repeats > value.size / 100:
            others.append(name)
            continue
        once = counts[at] == 1
        pairs.append((gradient.ravel()[once], slopes[first[at]][once]))
    used = "".join(sources.get(name, "") for name in others)
    return pairs + [(gradient, theirs.ravel()) for gradient, key, theirs in whole_ones if f"'{key}'" not in used], others


def far(actual, expected):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1e-30))


@contextlib.contextmanager
def silence():
    """Also of what is written by C++."""
    kept = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "w") as nowhere, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        try:
            yield
        finally:
            for number, old in zip((1, 2), kept):
                os.dup2(old, number)
                os.close(old)


def try_export(model, inputs, names, options, path):
    """None, or why it could not be exported."""
    example = tuple(value[:BATCH] for value in inputs.values())
    try:
        with silence():
            torch.onnx.export(model, example, path, input_names=names, output_names=["output"], verbose=False, **({"external_data": False} if options["dynamo"] else {"opset_version": 17}), **options)
        return None
    except Exception as e:  # whatever an exporter throws
        lines = [line for line in re.sub(r"\x1b\[\d+m", "", str(e)).splitlines() if line.strip()]
        return f"{type(e).__name__}: {lines[0] if lines else ''}"[:160]


def judge(program, path, folder, arrays, model, gradients, losses, own, more):
    """What a file does: dict(nodes, opset, result, gradients, losses). `own`: how far PyTorch's run in float32 is from that in double."""
    graph = onnx.load(path)
    row = dict(nodes=len(graph.graph.node), opset=graph.opset_import[0].version)
    fed = {value.name for value in graph.graph.input}
    data = folder / "data.npz"
    np.savez(data, labels=arrays["labels"], **{name: array for name, array in arrays.items() if name in fed})
    arguments = [path, "--data", data, "--loss", "mse", "--batch-size", BATCH, "--max-steps", STEPS, "--learning-rate", RATE, "--weight-decay", 0, "--lr-scheduler-type", "constant", "--no-shuffle",
                 "--save-gradients", folder / "gradients.safetensors", "--log-file", folder / "log.jsonl", "--output-dir", folder / "out", "--overwrite", *more]
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        message = [line for line in done.stderr.splitlines() if line.strip()]
        return dict(row, result="refused", reason=(message[-1] if message else f"exit {done.returncode}")[:400].replace(str(path), "model.onnx"))
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    pairs, others = matched(load_file(folder / "gradients.safetensors"), graph, model, gradients)
    row["gradients"] = far(np.concatenate([ours for ours, _ in pairs]), np.concatenate([theirs for _, theirs in pairs])) if pairs else float("nan")
    row["losses"] = max(abs(line["loss"] - loss) / abs(loss) for line, loss in zip([line for line in log if "step" in line], losses))
    beyond = [key for key, tolerance in TOLERANCES.items() if not row[key] <= tolerance and not (others and key == "losses")]
    good = all(row[key] <= 10 * own for key in beyond)
    notes = [f"{len(others)} weights in another form"] if others else []
    return dict(row, result="passed" if good else "WRONG", reason=", ".join(notes + [f"PyTorch in float32: {own:.1e}"] * bool(beyond)))


def examine(name, program, keep):
    torch.manual_seed(sum(map(ord, name)))
    model, names, inputs = ZOO[name]()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        output = model(*[value[:BATCH] for value in inputs.values()])
    labels = torch.randn(STEPS * BATCH, *output.shape[1:]) * output.std() + output.mean()
    gradients, losses = steps_of(model, inputs, labels)
    singles, single_losses = steps_of(model, inputs, labels, torch.float32)
    own = max(far(np.concatenate([singles[key].ravel() for key in gradients]), np.concatenate([gradients[key].ravel() for key in gradients])),
              *(abs(single - double) / abs(double) for single, double in zip(single_losses, losses)))
    arrays = {**{key: value.numpy() for key, value in inputs.items()}, "labels": labels.numpy()}
    rows = {}
    for export, options in EXPORTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(keep or scratch) / f"{name} {export}".replace(", ", "-").replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "model.onnx"
            why = try_export(model, inputs, names, options, str(path))
            rows[export] = dict(result="not exported", reason=why) if why else judge(program, path, folder, arrays, model, gradients, losses, own, ARGUMENTS.get(name, []))
    return rows


def examined(name, program, keep):
    try:
        return examine(name, program, keep)
    except Exception as e:
        return {"(none)": dict(result="not exported", reason=f"could not be built: {type(e).__name__}: {e}"[:200].replace("\n", " "))}


def write(results):
    """Puts the rows of these architectures into docs/zoo.md, beside those of others that it has."""
    page = ROOT / "docs" / "zoo.md"
    table, *sections = page.read_text().split("\n## ")  # zoo_exporters.py and finetune.py write the others
    known = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] in ZOO:
            known.setdefault(cells[0], []).append(line)
    for name, rows in results.items():
        known[name] = []
        for export, row in rows.items():
            number = lambda key: f"{row[key]:.1e}" if key in row else ""
            known[name].append(f"| {name} | {export} | {row.get('opset', '')} | {row.get('nodes', '')} | {number('gradients')} | {number('losses')} | {' '.join([row['result'], row['reason'] or '']).strip().replace('|', '/')} |")
    rows = [row for name in ZOO for row in known.get(name, [])]
    results = [row.strip("|").split("|")[6].split()[0] for row in rows]
    exported = len(results) - sum(result == "not" for result in results)
    lines = ["# Zoo", "", f"{len(known)} architectures in reduced sizes with random weights, each exported in four ways by PyTorch {torch.__version__.split('+')[0]} (transformers "
             f"{transformers.__version__}) and trained for ten steps beside PyTorch. **{results.count('passed')} of the {exported} files that the exporters make pass**: all gradients within "
             "1e-4 of PyTorch's (of their norm; PyTorch computes in double), the losses of ten steps of AdamW within 1e-3; or, where PyTorch's own run in float32 is further off than that, within ten times as much (the last column says how far: some deep networks with random weights multiply any rounding). Written by `models/zoo.py --write`.", "",
             "| architecture | exporter | opset | nodes | gradients | losses | |", "|---|---|---|---|---|---|---|", *rows]
    page.write_text("\n## ".join(["\n".join(lines) + "\n", *sections]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ort-train", default=os.environ.get("ORT_TRAIN", ROOT / "build" / "ort-train"))
    parser.add_argument("--write", action="store_true", help="the rows of docs/zoo.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="architectures at a time")
    parser.add_argument("--keep", help="a folder for the exported files and what was made of them")
    parser.add_argument("--some", action="store_true", help="ten of all kinds")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    names, results = options.names or list(CHOSEN if options.some else ZOO), {}
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for name, rows in zip(names, pool.map(examined, names, [str(options.ort_train)] * len(names), [options.keep] * len(names))):
            results[name] = rows
            for export, row in rows.items():
                numbers = " ".join(f"{key} {row[key]:.1e}" for key in ("gradients", "losses") if key in row)
                print(f"{name}, {export}: {row['result']} {numbers} {row['reason'] or ''}", flush=True)
    if options.write:
        write(results)
    return any(row["result"] in ("WRONG", "refused") for rows in results.values() for row in rows.values())


if __name__ == "__main__":
    sys.exit(main())
