"""Writes ../tests/weights/: small models of many families as PyTorch's two exporters write them, and which of their tensors are its parameters.

    python export_weight_sets.py                 # all of them; or their names: gpt2-dynamo resnet-torchscript-plain

Each model has random weights of which no two are alike, so that a tensor's elements tell where it comes from: a tensor all of whose elements are
found in a parameter is that parameter (transposed, reshaped, cut, looked up); one whose elements are found in a parameter's images (-exp(p), a
convolution's weight times BatchNorm's scale) was computed from it; all others are constants. `expected.json` has that for each file. What
training doesn't need is dropped from the files: metadata and types of what nodes compute. `NAME-dynamo` and `NAME-torchscript` are exported with
folding, as both exporters do by default, `NAME-dynamo-plain` and `NAME-torchscript-plain` without.
"""
import collections, copy, json, logging, os, sys, tempfile, warnings
import numpy as np
import onnx
import torch
import transformers as hf

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "weights")
VOCABULARY, BATCH, SEQUENCE = 13, 2, 5
Family = collections.namedtuple("Family", "model inputs kinds")  # a module, its inputs by name, which exports


class Output(torch.nn.Module):
    """One output, from inputs given by position."""

    def __init__(self, model, names, output="logits", **fixed):
        super().__init__()
        self.model, self.names, self.output, self.fixed = model, names, output, fixed

    def forward(self, *values):
        return getattr(self.model(**dict(zip(self.names, values)), **self.fixed), self.output)


class TwoInputs(Output):  # TorchScript wants named arguments
    def forward(self, first, second):
        return super().forward(first, second)


class OneInput(Output):
    def forward(self, first):
        return super().forward(first)


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = torch.nn.Embedding(VOCABULARY, 6), torch.nn.LSTM(6, 5, bidirectional=True, batch_first=True), torch.nn.Linear(10, 4)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class SmallUNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm, self.mid = torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, 8, 3, 1, 1)
        self.up, self.scale, self.out = torch.nn.ConvTranspose2d(8, 4, 2, 2), torch.nn.Parameter(torch.ones(1)), torch.nn.Conv2d(7, 2, 1)
        self.register_buffer("mean", torch.tensor([0.48, 0.45, 0.4]).reshape(1, 3, 1, 1))

    def forward(self, image):
        image = image - self.mean
        x = torch.nn.functional.silu(self.norm(self.down(image)))
        x = x + self.scale * self.mid(x)
        return self.out(torch.cat([self.up(x), image], 1))


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        n = torch.nn
        self.stem, self.norm0 = n.Conv2d(3, 4, 3, 2, 1, bias=False), n.BatchNorm2d(4)
        self.conv1, self.norm1 = n.Conv2d(4, 4, 3, 1, 1, bias=False), n.BatchNorm2d(4)
        self.conv2, self.norm2 = n.Conv2d(4, 4, 3, 1, 1, bias=False), n.BatchNorm2d(4)
        self.head = n.Linear(4, 3)

    def forward(self, image):
        x = torch.relu(self.norm0(self.stem(image)))
        x = torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))
        return self.head(x.mean((2, 3)))


class Inverted(torch.nn.Module):
    """MobileNet's block: pointwise, depthwise, squeeze and excite, pointwise; BatchNorm first, so that nothing takes it in."""

    def __init__(self):
        super().__init__()
        n = torch.nn
        self.norm = n.BatchNorm2d(3)
        self.widen, self.deep, self.squeeze, self.excite = n.Conv2d(3, 8, 1), n.Conv2d(8, 8, 3, 1, 1, groups=8), n.Conv2d(8, 2, 1), n.Conv2d(2, 8, 1)
        self.narrow, self.head = n.Conv2d(8, 4, 1), n.Linear(4, 3)

    def forward(self, image):
        x = torch.nn.functional.hardswish(self.deep(torch.nn.functional.relu6(self.widen(self.norm(image)))))
        x = x * torch.nn.functional.hardsigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head(self.narrow(x).mean((2, 3)))


def text(model, mask=True, **fixed):
    ids = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY
    if not mask:
        return OneInput(model, ["input_ids"], **fixed), dict(input_ids=ids)
    return TwoInputs(model, ["input_ids", "attention_mask"], **fixed), dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def picture(model, side, **fixed):
    return OneInput(model, ["pixel_values"], **fixed), dict(pixel_values=torch.randn(BATCH, 3, side, side))


def gpt2():
    return text(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=8)), use_cache=False)


def llama():
    return text(hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                                                   num_key_value_heads=1, max_position_embeddings=8)), use_cache=False)


def qwen2():
    return text(hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                                                   num_key_value_heads=1, max_position_embeddings=8, tie_word_embeddings=True)), use_cache=False)


def falcon():
    return text(hf.FalconForCausalLM(hf.FalconConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)), use_cache=False)


def bloom():
    return text(hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=1, n_head=4)), use_cache=False)


def mamba():
    return text(hf.MambaForCausalLM(hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, state_size=4)), mask=False, use_cache=False)


def bert():
    return text(hf.BertForSequenceClassification(hf.BertConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                                              intermediate_size=12, max_position_embeddings=8, num_labels=3)))


def t5():
    config = hf.T5Config(vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_decoder_layers=1, num_heads=2, relative_attention_num_buckets=8)
    ids = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY
    return TwoInputs(hf.T5ForConditionalGeneration(config), ["input_ids", "decoder_input_ids"], use_cache=False), dict(input_ids=ids, decoder_input_ids=ids + 1)


def whisper():
    config = hf.WhisperConfig(vocab_size=VOCABULARY, num_mel_bins=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                              encoder_ffn_dim=12, decoder_ffn_dim=12, d_model=8, max_source_positions=6, max_target_positions=8, pad_token_id=0, bos_token_id=1,
                              eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    ids = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY
    return (TwoInputs(hf.WhisperForConditionalGeneration(config), ["input_features", "decoder_input_ids"], use_cache=False),
            dict(input_features=torch.randn(BATCH, 4, 12), decoder_input_ids=ids))


def vit():
    return picture(hf.ViTForImageClassification(hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, image_size=8,
                                                             patch_size=4, num_labels=3)), 8)


def convnext():
    return picture(hf.ConvNextForImageClassification(hf.ConvNextConfig(num_stages=2, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3)), 16)


def swin():
    return picture(hf.SwinForImageClassification(hf.SwinConfig(image_size=16, patch_size=2, embed_dim=4, depths=[2], num_heads=[2], window_size=4, num_labels=3)), 16)


def plain(model, **inputs):
    return model, inputs


def resnet():
    return plain(Residual(), image=torch.randn(BATCH, 3, 8, 8))


def mobilenet():
    return plain(Inverted(), image=torch.randn(BATCH, 3, 8, 8))


def unet():
    return plain(SmallUNet(), image=torch.randn(BATCH, 3, 8, 8))


def lstm():
    return plain(Tagger(), ids=torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % VOCABULARY)


BOTH, ALL = ("dynamo", "torchscript"), ("dynamo", "torchscript", "dynamo-plain", "torchscript-plain")
FAMILIES = {"gpt2": (gpt2, ALL), "llama": (llama, ALL), "qwen2": (qwen2, BOTH), "falcon": (falcon, BOTH), "bloom": (bloom, BOTH), "mamba": (mamba, ALL),
            "bert": (bert, ALL), "t5": (t5, BOTH), "whisper": (whisper, BOTH), "vit": (vit, BOTH), "convnext": (convnext, BOTH), "swin": (swin, BOTH),
            "resnet": (resnet, ALL), "mobilenet": (mobilenet, ALL), "unet": (unet, ALL), "lstm": (lstm, BOTH)}


def build(make):
    torch.manual_seed(0)
    model, inputs = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model.eval(), inputs


def export(model, inputs, kind, path):
    model, arguments = copy.deepcopy(model), tuple(inputs.values())
    folds = not kind.endswith("plain")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("dynamo"):
            torch.onnx.export(model, arguments, path, dynamo=True, opset_version=20, input_names=list(inputs), output_names=["logits"], external_data=False,
                              verbose=False, optimize=folds)
        else:
            torch.onnx.export(model, arguments, path, dynamo=False, opset_version=17, input_names=list(inputs), output_names=["logits"], do_constant_folding=folds)


def strip(path):
    """Drops what says nothing of weights: most of a small file."""
    model = onnx.load(path)
    graph, ours = model.graph, {t.name for t in model.graph.initializer}
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for function in model.functions:
        function.ClearField("metadata_props")
        function.ClearField("value_info")
        for node in function.node:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
    described = [v for v in graph.value_info if v.name in ours and v.metadata_props]
    del graph.value_info[:]
    graph.value_info.extend(described)
    onnx.save(model, path)
    return model


def images(model):
    """Arrays computed from parameters, as folding computes them, and what they come from."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            yield [name], -torch.exp(parameter)
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.BatchNorm2d)]
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)}
    for name, norm in norms:
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        yield [name + ".weight", name + ".bias"], norm.bias - norm.running_mean * scale
        for other, convolution in convolutions.items():
            if len(convolution.weight) == len(scale):
                yield [other + ".weight", name + ".weight"], convolution.weight * scale.reshape(-1, 1, 1, 1)


def floating_tensors(graph):
    yield from ((t.name, onnx.numpy_helper.to_array(t)) for t in graph.initializer if t.data_type in (1, 11))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and attribute.t.data_type in (1, 11):
                value = onnx.numpy_helper.to_array(attribute.t)
                if value.size > 1:
                    yield node.output[0], value


def expected(model, inputs, graph):
    model = copy.deepcopy(model)
    model(*inputs.values()).sum().backward()
    reached = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    elements = {name: set(parameter.detach().numpy().ravel().tolist()) for name, parameter in model.named_parameters()}
    origin = {value: name for name, values in elements.items() for value in values}
    computed = [(sources, np.sort(image.detach().numpy().ravel())) for sources, image in images(model)]
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    tied = {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False) if first[id(parameter)] != name}
    result = {"parameters": reached, "tied": tied, "trained": {}, "computed": {}, "constants": []}
    used = {name for node in graph.node for name in node.input}
    for name, value in floating_tensors(graph):
        if name not in used:
            continue
        flat = value.ravel().tolist()
        whole = [parameter for parameter, values in elements.items() if values.issuperset(flat)]  # else several were joined
        sources = set(whole[:1]) or {origin.get(element) for element in flat}
        if flat and None not in sources:
            result["trained"][name] = sorted(sources)
            continue
        same = next((names for names, image in computed if image.size == value.size and np.allclose(np.sort(value.ravel()), image, rtol=1e-5, atol=1e-6)), None)
        if same:
            result["computed"][name] = same
        elif len(sources) > 1:
            raise SystemExit(f"'{name}' is made of {sources}: images() doesn't know it")
        else:
            result["constants"].append(name)
    return result


def main(wanted):
    logging.disable(logging.WARNING)
    os.makedirs(FOLDER, exist_ok=True)
    table = os.path.join(FOLDER, "expected.json")
    results = json.load(open(table)) if os.path.exists(table) else {}
    for family, (make, kinds) in FAMILIES.items():
        for kind in kinds:
            name = f"{family}-{kind}"
            if wanted and name not in wanted and family not in wanted:
                continue
            model, inputs = build(make)
            path = os.path.join(FOLDER, name + ".onnx")
            try:
                export(model, inputs, kind, path)
            except Exception as problem:
                print(f"{name}: can't be exported: {str(problem).strip().splitlines()[0][:150]}", flush=True)
                continue
            results[name] = expected(model, inputs, strip(path).graph)
            found = results[name]
            print(f"{name}: {os.path.getsize(path):,} bytes, {len(found['parameters'])} parameters, {len(found['trained'])} tensors of them, "
                  f"{len(found['computed'])} computed, {len(found['constants'])} constants", flush=True)
            with open(table, "w") as out:
                json.dump(results, out, indent=1, sort_keys=True)
                out.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
