"""The models of peers.py, each an entry of a table: how PyTorch builds it, its inputs, its labels, and how it is exported.

Every model is a module that takes its inputs by position and gives logits, with random weights of a seed. Importing this needs nothing but the
standard library; building needs PyTorch and transformers.
"""
import dataclasses
import os
import sys
import typing

from runs import ROOT


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    build: typing.Callable  # attention -> the module; "eager" for the export, "sdpa" for PyTorch's own run
    inputs: dict            # name: (shape, how many ids there are; 0: normal numbers)
    classes: int
    labels: tuple           # their shape
    axis: int = -1          # of the classes in the logits
    causal: bool = False    # the labels are the only input, shifted by one
    export: typing.Callable = None  # (module, path), where shapes stay open
    rate: float = 1e-4
    options: tuple = ()     # of ort-train

    @property
    def images(self):
        return any(len(shape) == 4 for shape, _ in self.inputs.values())

    @property
    def causal_shape(self):
        return next(iter(self.inputs.values()))[0]


def scripts():
    """Those that export."""
    path = os.path.join(ROOT, "models")
    if path not in sys.path:
        sys.path.insert(0, path)


def distinct(model):
    """No two of its tensors alike: exporters merge those that are."""
    import exporting, torch
    exporting.perturbed(model, 0.02)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def of_transformers(kind, configuration, attends=True, **options):
    def build(attention):
        scripts()
        import torch, transformers
        torch.manual_seed(0)

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = getattr(transformers, kind)._from_config(getattr(transformers, configuration)(**options), attn_implementation=attention if attends else "eager")

            def forward(self, *inputs):
                return self.model(*inputs).logits

        return distinct(Logits())
    return build


# --- text -----------------------------------------------------------------------------------------------------------------------------

def gpt2(attention):
    scripts()
    import export_gpt2
    return of_ids(export_gpt2.build(*export_gpt2.SIZES["124M"], attention=attention))


def char_gpt(attention):
    scripts()
    import export_char_gpt
    model = export_char_gpt.build(65)
    model.config._attn_implementation = attention
    return of_ids(model)


def of_ids(model):
    import torch

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(input_ids=ids).logits

    return Logits()


def export_gpt2(module, path):
    import export_gpt2 as script
    script.export(module.model, path, "dynamo", 20)


def export_char_gpt(module, path):
    import export_char_gpt as script, exporting
    exporting.export_module(script.CharGpt(module.model), script_ids(), path, ["input_ids"], "dynamo", 20, static=False, external=False, fold=False, tied=True)


def script_ids():
    import torch
    return (torch.randint(0, 65, (2, 8)),)


def tagger(_):
    scripts()
    import torch
    torch.manual_seed(0)

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(10000, 128)
            self.layers = torch.nn.LSTM(128, 256, num_layers=2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(512, 20)

        def forward(self, words):
            return self.head(self.layers(self.table(words))[0])

    return distinct(Tagger())


# --- images ---------------------------------------------------------------------------------------------------------------------------

def mobilenet_v3(_):
    """MobileNetV3-Large (arXiv:1905.02244, table 1)."""
    scripts()
    import torch
    from torch import nn
    torch.manual_seed(0)
    plain, hard = nn.ReLU, nn.Hardswish
    rows = ((3, 16, 16, False, plain, 1), (3, 64, 24, False, plain, 2), (3, 72, 24, False, plain, 1), (5, 72, 40, True, plain, 2), (5, 120, 40, True, plain, 1),
            (5, 120, 40, True, plain, 1), (3, 240, 80, False, hard, 2), (3, 200, 80, False, hard, 1), (3, 184, 80, False, hard, 1), (3, 184, 80, False, hard, 1),
            (3, 480, 112, True, hard, 1), (3, 672, 112, True, hard, 1), (5, 672, 160, True, hard, 2), (5, 960, 160, True, hard, 1), (5, 960, 160, True, hard, 1))

    def layer(start, end, taps, stride=1, groups=1, activation=None):
        parts = [nn.Conv2d(start, end, taps, stride, taps // 2, groups=groups, bias=False), nn.BatchNorm2d(end, eps=1e-3, momentum=0.01)]
        return nn.Sequential(*parts, *([activation()] if activation else []))

    class Squeeze(nn.Module):
        def __init__(self, width):
            super().__init__()
            inner = (width // 4 + 7) // 8 * 8
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(), nn.Conv2d(inner, width, 1), nn.Hardsigmoid())

        def forward(self, x):
            return x * self.gate(x)

    class Block(nn.Module):
        def __init__(self, start, taps, inner, end, squeezes, activation, stride):
            super().__init__()
            self.short = stride == 1 and start == end
            self.body = nn.Sequential(*([layer(start, inner, 1, activation=activation)] if inner != start else []),
                                      layer(inner, inner, taps, stride, inner, activation), *([Squeeze(inner)] if squeezes else []), layer(inner, end, 1))

        def forward(self, x):
            return x + self.body(x) if self.short else self.body(x)

    starts = [16] + [row[2] for row in rows]
    return distinct(nn.Sequential(layer(3, 16, 3, 2, activation=hard), *(Block(start, *row) for start, row in zip(starts, rows)),
                                  layer(160, 960, 1, activation=hard), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)))


def unet(_):
    scripts()
    import torch
    from torch import nn
    torch.manual_seed(0)
    widths = (32, 64, 128, 256, 512)
    half = lambda n, m: [nn.Conv2d(n, m, 3, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU()]
    block = lambda n, m: nn.Sequential(*half(n, m), *half(m, m))

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList(block(n, m) for n, m in zip((3,) + widths, widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(m, n, 2, 2) for n, m in zip(widths[-2::-1], widths[:0:-1]))
            self.join = nn.ModuleList(block(2 * n, n) for n in widths[-2::-1])
            self.head = nn.Conv2d(widths[0], 21, 1)

        def forward(self, image):
            x, kept = self.down[0](image), []
            for stage in self.down[1:]:
                kept.append(x)
                x = stage(nn.functional.max_pool2d(x, 2))
            for up, join in zip(self.up, self.join):
                x = join(torch.cat([kept.pop(), up(x)], 1))
            return self.head(x)

    return distinct(Segmenter())


PICTURES, LIVE = {"image": ((8, 3, 224, 224), 0)}, ("--batch-norm", "live")


def text(batch, tokens, vocabulary):
    return dict(inputs={"input_ids": ((batch, tokens), vocabulary)}, labels=(batch, tokens), classes=vocabulary)


def pictures(title, build, options=(), rate=1e-5):
    return Model(title + ", 8 x 224", build, PICTURES, 1000, (8,), rate=rate, options=options)


def resnet(**options):
    return of_transformers("ResNetForImageClassification", "ResNetConfig", attends=False, num_labels=1000, **options)


BERT = of_transformers("BertForMaskedLM", "BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MODELS = {
    "gpt2-1x256": Model("GPT-2 124M, 1 x 256", gpt2, **text(1, 256, 50257), causal=True, export=export_gpt2),
    "gpt2-4x512": Model("GPT-2 124M, 4 x 512", gpt2, **text(4, 512, 50257), causal=True, export=export_gpt2),
    "bert-8x128": Model("BERT-base, 8 x 128", BERT, **text(8, 128, 30522)),
    "bert-4x512": Model("BERT-base, 4 x 512", BERT, **text(4, 512, 30522)),
    "char-gpt": Model("char-GPT, 16 x 64", char_gpt, **text(16, 64, 65), causal=True, export=export_char_gpt),
    "lstm": Model("LSTM tagger, 32 x 64", tagger, {"words": ((32, 64), 10000)}, 20, (32, 64)),
    "vit-s": pictures("ViT-S/16", of_transformers("ViTForImageClassification", "ViTConfig", hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000)),
    "resnet18": pictures("ResNet-18", resnet(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"), LIVE),
    "resnet50": pictures("ResNet-50", resnet(), LIVE, rate=1e-7),  # random weights multiply any rounding
    "mobilenet": pictures("MobileNetV3-Large", mobilenet_v3, LIVE),
    "convnext": pictures("ConvNeXt-T", of_transformers("ConvNextForImageClassification", "ConvNextConfig", attends=False, num_labels=1000)),
    "unet": Model("U-Net, 4 x 256 x 256", unet, {"image": ((4, 3, 256, 256), 0)}, 21, (4, 256, 256), axis=1, rate=1e-5,
                  options=(*LIVE, "--loss", "cross_entropy(axis=1)")),
}
