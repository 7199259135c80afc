"""Writes tests/golden/: small models and what PyTorch computes with them.

    python golden.py [--folder ../tests/golden] [NAME...]

tests/golden/README.md says what is in the files. Gradients are computed in double; an initializer is matched with its
parameter by content, so that one that the exporter renamed, transposed or stored twice gets its gradient under its own name
and in its own layout.
"""
import argparse, json, os, tempfile, warnings
import numpy as np
import onnx
import torch
from safetensors.torch import save
from transformers import get_scheduler
import export_bert, export_cnn
from export_gpt2 import INPUTS, build, example, export

STEPS, RATE, WARMUP = 10, 1e-3, 3

# name: (model, export, batch, tokens, task, padded). causal-lm: labels are the inputs shifted by one.
ODD = dict(layers=1, heads=3, width=48, vocabulary=101, positions=24)
TWO = dict(layers=2, heads=2, width=32, vocabulary=61, positions=16)
ONE = dict(layers=1, heads=2, width=32, vocabulary=61, positions=16)
GPT2 = {
    "gpt2-dynamo-17-eager": (dict(TWO, attention="eager"), dict(exporter="dynamo", opset=17), 2, 12, "cross_entropy", False),
    "gpt2-dynamo-20-sdpa-odd": (dict(ODD, attention="sdpa"), dict(exporter="dynamo", opset=20), 3, 17, "causal-lm", False),
    "gpt2-dynamo-20-folded": (dict(ONE, attention="eager"), dict(exporter="dynamo", opset=20, fold=True), 2, 16, "causal-lm", False),
    "gpt2-dynamo-21-gelu": (dict(ONE, attention="sdpa", activation="gelu_pytorch_tanh"),
                            dict(exporter="dynamo", opset=21, inputs=("input_ids",)), 2, 13, "cross_entropy", False),
    "gpt2-dynamo-23-sdpa": (dict(TWO, attention="sdpa"), dict(exporter="dynamo", opset=23), 2, 12, "cross_entropy", True),
    "gpt2-torchscript-17-sdpa": (dict(ONE, attention="sdpa"), dict(exporter="torchscript", opset=17), 2, 12, "cross_entropy", True),
    "gpt2-torchscript-18-folded": (dict(ONE, attention="eager"), dict(exporter="torchscript", opset=18, fold=True), 2, 9, "causal-lm", False),
    "gpt2-torchscript-20-untied": (dict(ONE, attention="eager", tied=False), dict(exporter="torchscript", opset=20), 3, 11, "cross_entropy", False),
    "gpt2-torchscript-23-eager": (dict(ONE, attention="eager"), dict(exporter="torchscript", opset=23, inputs=INPUTS[:2]), 1, 16, "causal-lm", False),
}

# name: (model, export, batch, tokens). Some positions of each sample have labels; every other sample is padded.
BERT = {
    "bert-dynamo-18-masked": (dict(TWO, attention="sdpa"), dict(exporter="dynamo", opset=18), 3, 12),
    "bert-dynamo-20-classes": (dict(ONE, head="classification", attention="eager"), dict(exporter="dynamo", opset=20), 4, 10),
    "bert-torchscript-17-masked": (dict(ONE, attention="eager"), dict(exporter="torchscript", opset=17), 2, 14),
    "bert-torchscript-20-classes": (dict(ONE, head="classification", attention="sdpa"), dict(exporter="torchscript", opset=20), 3, 9),
}
# name: (network, export, side of an image, batch, live, --batch-norm that makes it so).
SMALL = dict(widths=(6, 10), blocks=1, taps=3, stride=1, classes=5)
CNN = {
    "cnn-torchscript-17-live": (dict(widths=(16, 28), blocks=1, taps=3, stride=1, classes=7), dict(exporter="torchscript", opset=17, training=True),
                                8, 4, True, "model"),
    "cnn-dynamo-20-live": (SMALL, dict(exporter="dynamo", opset=20, training=True), 8, 3, True, "live"),
    "cnn-dynamo-18-frozen": (SMALL, dict(exporter="dynamo", opset=18, training=True), 8, 3, False, "model"),
}
# Models in training mode, whose masks are ours: the file alone, in the folder `dropout`.
DROPOUT = {
    "bert-torchscript-17": (dict(TWO, attention="eager", dropout=0.1), dict(exporter="torchscript", opset=17, training=True)),
    "bert-dynamo-20": (dict(ONE, head="classification", attention="sdpa", dropout=0.2), dict(exporter="dynamo", opset=20, training=True)),
}


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(7, 24), torch.nn.Linear(24, 3)

    def forward(self, x):
        return self.out(torch.nn.functional.gelu(self.hidden(x)))


class OwnLoss(torch.nn.Module):
    """Its only output is a loss: the root of the mean squared error, weighted by a second output of the network."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.mean, self.scale = torch.nn.Linear(6, 20), torch.nn.LayerNorm(20), torch.nn.Linear(20, 4), torch.nn.Linear(20, 4)

    def forward(self, x, target):
        h = self.norm(torch.tanh(self.body(x)))
        scale = torch.sigmoid(self.scale(h)) + 0.1
        error = (self.mean(h) - target) / scale
        return torch.sqrt((error * error).mean() + 1e-3) + torch.log(scale).mean()


def gpt2(name):
    shape, options, batch, tokens, task, padded = GPT2[name]
    model = build(**shape, seed=list(GPT2).index(name) + 1)
    inputs = options.setdefault("inputs", INPUTS)
    samples = STEPS * batch
    data = dict(zip(inputs, example(inputs, model.config.vocab_size, samples, tokens)))
    labels = torch.cat([data["input_ids"][:, 1:], torch.full((samples, 1), -100)], 1)
    if task != "causal-lm":
        labels[torch.rand(labels.shape) < 0.2] = -100
        labels[:, 1] = data["input_ids"][:, 2]  # never none at all
    if padded:
        for row in range(0, samples, 2):  # every other sample ends early
            end = tokens - 1 - row % 5
            data["attention_mask"][row, end:] = 0
            labels[row, end - 1:] = -100

    def loss(m, batch):
        output = m(**{k: batch[k] for k in inputs}).logits
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100), output

    return model, lambda path: export(model, path, batch=batch, sequence=tokens, **options), dict(data, labels=labels), loss, batch, task, "logits"


def bert(name):
    shape, options, batch, tokens = BERT[name]
    model = export_bert.build(**shape, seed=list(BERT).index(name) + 101)
    samples = STEPS * batch
    data = dict(zip(export_bert.INPUTS, export_bert.example(export_bert.INPUTS, model.config.vocab_size, samples, tokens)))
    for row in range(0, samples, 2):
        data["attention_mask"][row, tokens - 1 - row % 5:] = 0
    if shape.get("head") == "classification":
        labels = torch.randint(0, model.config.num_labels, (samples,))
    else:
        labels = torch.where((torch.rand(samples, tokens) < 0.3) & (data["attention_mask"] > 0), data["input_ids"], -100)
        labels[:, 1] = data["input_ids"][:, 1]  # never none at all

    def loss(m, batch):
        output = m(**{k: batch[k] for k in export_bert.INPUTS}).logits
        return torch.nn.functional.cross_entropy(output.flatten(0, -2), batch["labels"].flatten(), ignore_index=-100), output

    return model, lambda path: export_bert.export(model, path, batch=batch, sequence=tokens, **options), dict(data, labels=labels), loss, batch, "cross_entropy", "logits"


class OnnxNorm(torch.nn.BatchNorm2d):
    """PyTorch's layer, but that the running variance takes in the biased variance, as ONNX says."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        with torch.no_grad():
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
            self.running_var.mul_(1 - self.momentum).add_(variance, alpha=self.momentum)
        return torch.nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def convolutions(name):
    shape, options, side, batch, live, batch_norm = CNN[name]
    model = export_cnn.build(**shape, seed=list(CNN).index(name) + 301)

    def write_model(path):
        export_cnn.export(model, path, side=side, **options)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.__class__ = OnnxNorm
        model.batch_norm, model.live = batch_norm, live

    samples = STEPS * batch
    data = dict(image=torch.randn(samples, 3, side, side), labels=torch.randint(0, shape["classes"], (samples,)))

    def loss(m, batch):
        output = m(batch["image"])
        return torch.nn.functional.cross_entropy(output, batch["labels"]), output

    return model, write_model, data, loss, batch, "cross_entropy", "logits"


REGRESSION = {"mlp-mse": "mse", "mlp-l1": "l1", "mlp-smooth-l1": "smooth_l1", "mlp-binary": "binary_cross_entropy", "mlp-smoothed": "cross_entropy"}
TERMS = {"mlp-smoothed": dict(label_smoothing=0.2, z_loss=0.05)}


def regression(name):
    torch.manual_seed(77)
    model, batch, task = Regression().eval(), 5, REGRESSION[name]
    data = dict(x=torch.randn(STEPS * batch, 7), y=torch.randn(STEPS * batch, 3))
    if task == "binary_cross_entropy":
        data["y"] = torch.rand(STEPS * batch, 3).round(decimals=1)
    if task == "cross_entropy":
        data["y"] = torch.randint(0, 3, (STEPS * batch,))
        data["y"][::7] = -100

    def cross_entropy(logits, labels):
        z_losses = torch.logsumexp(logits, -1)[labels != -100] ** 2
        smoothing, z_loss = TERMS[name]["label_smoothing"], TERMS[name]["z_loss"]
        return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing) + z_loss * z_losses.mean()

    function = {"cross_entropy": cross_entropy, "mse": torch.nn.functional.mse_loss, "l1": torch.nn.functional.l1_loss, "smooth_l1": torch.nn.functional.smooth_l1_loss,
                "binary_cross_entropy": torch.nn.functional.binary_cross_entropy_with_logits}[task]

    def loss(m, batch):
        output = m(batch["x"])
        return function(output, batch["y"]), output

    return model, lambda path: export_plain(model, path, dict(x=data["x"][:batch]), "prediction", 18), data, loss, batch, task, "prediction"


def own_loss(name):
    torch.manual_seed(78)
    model, batch = OwnLoss().eval(), 6
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    data = dict(x=torch.randn(STEPS * batch, 6), target=torch.randn(STEPS * batch, 4))

    def loss(m, batch):
        output = m(batch["x"], batch["target"])
        return output, output

    return model, lambda path: export_plain(model, path, {k: v[:batch] for k, v in data.items()}, "loss", 20), data, loss, batch, "output", "loss"


class Tagger(torch.nn.Module):
    """Two layers of an LSTM in both directions and a GRU above them, a class for each word."""

    def __init__(self, words=41, width=8, classes=5):
        super().__init__()
        self.table = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(12, 10, batch_first=True)
        self.head = torch.nn.Linear(10, classes)

    def forward(self, words):
        return self.head(self.gru(self.lstm(self.table(words))[0])[0])


class Upward(torch.nn.Module):
    """A small U-Net: strides down, a transposed convolution and bilinear interpolation up, norms of groups and instances."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.Conv2d
        self.first, self.down, self.deep = layer(2, 6, 3, padding=1), layer(6, 8, 3, stride=2, padding=1, bias=False), layer(8, 8, 3, padding=1)
        self.groups, self.instances = torch.nn.GroupNorm(2, 6), torch.nn.InstanceNorm2d(8, affine=True)
        self.up, self.last = torch.nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1), layer(14, 3, 1)

    def forward(self, image):
        function = torch.nn.functional
        high = function.silu(self.groups(self.first(image)))
        low = function.mish(self.instances(self.down(high)))
        low = low + function.interpolate(function.avg_pool2d(self.deep(low), 2), scale_factor=2, mode="bilinear", align_corners=False)
        both = torch.cat([self.up(low), function.interpolate(low, size=image.shape[2:], mode="nearest")], 1)
        return self.last(both)


def perturbed(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def tagger(name):
    torch.manual_seed(79)
    model, batch, length = perturbed(Tagger(), 79), 4, 7
    model.decayed = lambda name, p: p.dim() >= 2 or ".bias_" in name  # in the file, the biases of all gates are one tensor of rank 2
    data = dict(words=torch.randint(0, 41, (STEPS * batch, length)), labels=torch.randint(0, 5, (STEPS * batch, length)))

    def loss(m, batch):
        output = m(batch["words"])
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten()), output

    def write_model(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (data["words"][:batch],), path, dynamo=False, opset_version=17, input_names=["words"], output_names=["logits"],
                              dynamic_axes={"words": {0: "batch"}, "logits": {0: "batch"}}, do_constant_folding=True)

    return model, write_model, data, loss, batch, "cross_entropy", "logits"


def upward(name):
    torch.manual_seed(80)
    model, batch = perturbed(Upward(), 80), 3
    data = dict(image=torch.randn(STEPS * batch, 2, 8, 8), y=torch.randn(STEPS * batch, 3, 8, 8))

    def loss(m, batch):
        output = m(batch["image"])
        return torch.nn.functional.mse_loss(output, batch["y"]), output

    return model, lambda path: export_plain(model, path, dict(image=data["image"][:batch]), "prediction", 20), data, loss, batch, "mse", "prediction"


def export_plain(model, path, arguments, output, opset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, tuple(arguments.values()), path, dynamo=True, opset_version=opset, input_names=list(arguments), output_names=[output],
                          dynamic_shapes=({0: torch.export.Dim("batch")},) * len(arguments), external_data=False, verbose=False)


CASES = dict({name: gpt2 for name in GPT2}, **{name: bert for name in BERT}, **{name: convolutions for name in CNN}, **{name: regression for name in REGRESSION}, **{"mlp-own-loss": own_loss, "recurrent-tagger": tagger, "unet-mse": upward})


def slim(graph):
    """Drops what only people read: the files are committed."""
    graph.doc_string = graph.graph.doc_string = ""
    for message in (graph, graph.graph, *graph.graph.node, *graph.graph.initializer, *graph.graph.input, *graph.graph.output, *graph.graph.value_info):
        message.ClearField("doc_string")
        message.ClearField("metadata_props")
    del graph.graph.value_info[:]
    return graph


def running_statistics(graph):
    """The initializers that BatchNormalization nodes take for running mean and variance."""
    return {name for node in graph.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}


def running_values(graph, model, start):
    """What they are now: each initializer is matched with its buffer by what that was at the start."""
    found = {}
    for tensor in graph.graph.initializer:
        if tensor.name in running_statistics(graph):
            value = onnx.numpy_helper.to_array(tensor)
            names = [n for n, b in start.items() if tuple(b.shape) == value.shape and np.array_equal(b.float().numpy(), value)]
            if len(names) != 1:
                raise SystemExit(f"initializer {tensor.name} is the running statistic of {names}")
            found[tensor.name] = model.state_dict()[names[0]]
    return found


def gradients(graph, model):
    """Each parameter's gradient under the name and in the layout of every initializer that holds it, whole or (LSTM, GRU) with others."""
    numbers = torch.cat([p.detach().flatten() for p in model.parameters()]).float().numpy()
    slopes = torch.cat([p.grad.flatten() for p in model.parameters()])
    owner = np.repeat(np.arange(len(list(model.parameters()))), [p.numel() for p in model.parameters()])
    order = np.argsort(numbers, kind="stable")
    found, parameters = {}, {n: p.detach().float().numpy() for n, p in model.named_parameters()}
    missing, running = set(parameters), running_statistics(graph)
    running |= {name for node in graph.graph.node if node.op_type == "Resize" for name in node.input[1:]}  # scales
    for tensor in graph.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        if value.dtype != np.float32 or value.ndim == 0 or tensor.name in running or np.ptp(value) == 0:  # ones that stand for no scale
            continue
        for name, parameter in parameters.items():
            gradient = model.get_parameter(name).grad
            if value.shape == parameter.shape and np.array_equal(value, parameter):
                found[tensor.name] = gradient
            elif value.ndim == 2 and value.shape == parameter.T.shape and np.array_equal(value, parameter.T):
                found[tensor.name] = gradient.T
            else:
                continue
            missing.discard(name)
            break
        else:
            at = np.searchsorted(numbers[order], value.flatten())
            if not np.array_equal(numbers[order][np.minimum(at, len(order) - 1)], value.flatten()) or len(np.unique(numbers)) < len(numbers):
                raise SystemExit(f"initializer {tensor.name} {value.shape} is no parameter of the model")
            found[tensor.name] = slopes[order[at]].reshape(value.shape)
            missing -= {list(parameters)[i] for i in set(owner[order[at]])}
    if missing:
        raise SystemExit(f"no initializer holds {sorted(missing)}")
    return found


def train(model, loss, batches, schedule):
    """Losses, gradient norms before clipping and learning rates of ten steps of AdamW."""
    parameters = list(model.parameters())
    decayed = getattr(model, "decayed", lambda name, p: p.dim() >= 2)
    groups = [[p for n, p in model.named_parameters() if bool(decayed(n, p)) == wanted] for wanted in (True, False)]
    optimizer = torch.optim.AdamW([dict(params=groups[0], weight_decay=0.01), dict(params=groups[1], weight_decay=0.0)], lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=WARMUP if schedule == "linear" else 0, num_training_steps=STEPS)
    rows = []
    for batch in batches:
        optimizer.zero_grad()
        value, _ = loss(model, batch)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        rows.append((value.item(), norm.item(), scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()


def save_sorted(tensors, path, metadata=None):
    """The library writes the metadata in random order; sorted, the same values give the same file."""
    content = save(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + content[end:])


def write(name, folder):
    model, exporter, data, loss, batch_size, task, output = CASES[name](name)
    path = os.path.join(folder, name + ".onnx")
    with tempfile.TemporaryDirectory() as scratch:
        raw = os.path.join(scratch, "model.onnx")
        exporter(raw)
        graph = slim(onnx.load(raw))
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)
    data = {k: v[torch.arange(STEPS * batch_size) % (3 * batch_size)].contiguous() for k, v in data.items()}  # three batches, in turn
    batches = [{k: v[i:i + batch_size] for k, v in data.items()} for i in range(0, STEPS * batch_size, batch_size)]
    doubles = [{k: v.double() if v.is_floating_point() else v for k, v in b.items()} for b in batches]
    start = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        value, result = loss(model, batches[0])
    golden = {"loss": value.reshape(1)}
    if output != "loss":
        golden[output] = result
    live = getattr(model, "live", False)
    if live:  # the output is that of the evaluation, the loss that of training
        model.train()
        with torch.no_grad():
            golden["loss"] = loss(model, batches[0])[0].reshape(1)
        model.load_state_dict(start)
    model.double()
    value = loss(model, doubles[0])[0]
    value.backward()
    golden["loss/float64"] = value.detach().reshape(1)
    for key, gradient in gradients(graph, model).items():
        golden["gradient/" + key] = gradient.float()
    for schedule in ("constant", "linear"):
        for kind, list_ in (("float64", doubles), ("float32", batches)):
            model.to(torch.float64 if kind == "float64" else torch.float32).load_state_dict(start)
            rows = train(model, loss, list_, schedule)
            if live and kind == "float64":
                golden.update({f"running/{schedule}/{key}": value.float() for key, value in running_values(graph, model, start).items()})
            golden[f"losses/{schedule}/{kind}"] = rows[0]
            if kind == "float64":
                golden[f"grad_norms/{schedule}"], golden[f"learning_rates/{schedule}"] = rows[1], rows[2]
    metadata = dict(task=task, output=output, batch_size=str(batch_size), steps=str(STEPS), learning_rate=str(RATE), warmup_steps=str(WARMUP),
                    weight_decay="0.01", betas="0.9,0.999", epsilon="1e-8", max_grad_norm="1.0", opset=str(graph.opset_import[0].version),
                    producer=f"{graph.producer_name} {graph.producer_version}", labels="y" if name in REGRESSION or task == "mse" else "" if task == "output" else "labels")
    metadata.update({key: str(value) for key, value in TERMS.get(name, {}).items()})
    if name in CNN:
        metadata["batch_norm"] = model.batch_norm
    save_sorted(data, os.path.join(folder, name + ".data.safetensors"))
    save_sorted({k: v.detach().contiguous() for k, v in golden.items()}, os.path.join(folder, name + ".golden.safetensors"), metadata)
    gap = max(float((golden[f"losses/{s}/float64"] - golden[f"losses/{s}/float32"]).abs().max()) for s in ("constant", "linear"))
    size = sum(os.path.getsize(os.path.join(folder, name + end)) for end in (".onnx", ".data.safetensors", ".golden.safetensors"))
    losses = golden["losses/constant/float64"]
    print(f"{name}: model {os.path.getsize(path):,} bytes, all {size:,}; loss {losses[0]:.4f} -> {losses[-1]:.4f}, float32 off by {gap:.1e}", flush=True)


def write_dropout(name, folder):
    shape, options = DROPOUT[name]
    path = os.path.join(folder, "dropout", name + ".onnx")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        raw = os.path.join(scratch, "model.onnx")
        export_bert.export(export_bert.build(**shape, seed=201), raw, **options)
        graph = slim(onnx.load(raw))
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)
    print(f"dropout/{name}: model {os.path.getsize(path):,} bytes, {sum(n.op_type == 'Dropout' for n in graph.graph.node)} Dropout nodes", flush=True)


def arguments(description):
    """The folder, and the names of cases (none: all), of a script whose numbers are one thread's."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    torch.set_num_threads(1)
    return parser.parse_args()


def main():
    options = arguments(__doc__)
    for name in options.names or [*CASES, *DROPOUT]:
        (write_dropout if name in DROPOUT else write)(name, options.folder)


if __name__ == "__main__":
    main()
