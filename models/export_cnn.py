"""Exports a residual network with random weights to ONNX. Downloads nothing.

    python export_cnn.py resnet18.onnx --size resnet18 --training
    python export_cnn.py small.onnx --widths 8,16 --blocks 1 --image 12 --classes 5 --exporter torchscript --opset 17 --training

A convolution, a max pool, stages of residual blocks (two convolutions each, BatchNorm and ReLU), the mean over each plane, a linear layer.
Every parameter is perturbed, and the running statistics are made different: exporters merge tensors that happen to be equal. Input is
`image` (batch, 3, side, side), output `logits` (batch, classes). Both exporters fold BatchNorm into the convolution before it; with --training
it stays: TorchScript writes it in training mode, dynamo (which must not optimize then) in evaluation mode all the same, so that such a file wants
--batch-norm live. The file is checked, and ONNX Runtime's logits are compared with PyTorch's where they are those of evaluation mode.
"""
import argparse, logging, os, warnings
import onnx
import torch
import exporting

SIZES = {  # name: (widths of the stages, blocks of each, taps and stride of the first convolution, side of an image, classes)
    "tiny": ((8, 16), 1, 3, 1, 16, 10), "small": ((16, 32, 64), 1, 3, 1, 32, 10), "resnet18": ((64, 128, 256, 512), 2, 7, 2, 224, 1000)}


def convolution(start, end, taps, stride=1):
    return torch.nn.Conv2d(start, end, taps, stride, taps // 2, bias=False)


class Block(torch.nn.Module):
    def __init__(self, start, end, stride):
        super().__init__()
        self.conv1, self.conv2 = convolution(start, end, 3, stride), convolution(end, end, 3)
        self.bn1, self.bn2 = torch.nn.BatchNorm2d(end), torch.nn.BatchNorm2d(end)
        self.short = torch.nn.Identity()
        if stride > 1 or start != end:
            self.short = torch.nn.Sequential(convolution(start, end, 1, stride), torch.nn.BatchNorm2d(end))

    def forward(self, x):
        return torch.relu(self.short(x) + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Network(torch.nn.Module):
    def __init__(self, widths, blocks, taps, stride, classes):
        super().__init__()
        self.conv, self.norm = convolution(3, widths[0], taps, stride), torch.nn.BatchNorm2d(widths[0])
        self.pool = torch.nn.MaxPool2d(3, 2, 1)
        sizes = [w for w in widths for _ in range(blocks)]
        self.blocks = torch.nn.Sequential(*(Block(start, end, 1 if start == end else 2) for start, end in zip(sizes[:1] + sizes, sizes)))
        self.mean, self.head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(widths[-1], classes)

    def forward(self, image):
        x = self.blocks(self.pool(torch.relu(self.norm(self.conv(image)))))
        return self.head(self.mean(x).flatten(1))


def build(widths, blocks, taps, stride, classes, noise=0.02, seed=0):
    """A network in evaluation mode, no two of its tensors alike."""
    torch.manual_seed(seed)
    model = exporting.perturbed(Network(widths, blocks, taps, stride, classes), noise)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


def export(model, path, exporter="dynamo", opset=20, side=16, batch=2, training=False):
    """Writes `path`, the batch left open."""
    model.train(training)
    image = torch.randn(batch, 3, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            torch.onnx.export(model, (image,), path, dynamo=True, opset_version=opset, input_names=["image"], output_names=["logits"],
                              dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False, optimize=not training)
        else:
            mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
            torch.onnx.export(model, (image,), path, dynamo=False, opset_version=opset, input_names=["image"], output_names=["logits"],
                              dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}}, training=mode, do_constant_folding=not training)
    model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--widths", help="of the stages: 8,16")
    parser.add_argument("--blocks", type=int, help="of each stage")
    parser.add_argument("--image", type=int, help="its side")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--training", action="store_true", help="export it for training: BatchNorm stays")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    widths, blocks, taps, stride, side, classes = SIZES[o.size]
    widths, side = tuple(map(int, o.widths.split(","))) if o.widths else widths, o.image or side
    model = build(widths, o.blocks or blocks, taps, stride, o.classes or classes, seed=o.seed)
    export(model, o.path, o.exporter, o.opset, side, training=o.training)
    graph = onnx.load(o.path)
    onnx.checker.check_model(graph, full_check=True)
    norms = sum(n.op_type == "BatchNormalization" for n in graph.graph.node)
    line = (f"{o.path}: {o.exporter}, opset {graph.opset_import[0].version}, {len(graph.graph.node)} nodes ({norms} BatchNormalization), "
            f"{sum(p.numel() for p in model.parameters()):,} parameters, {os.path.getsize(o.path):,} bytes")
    if not o.training or o.exporter == "dynamo":
        error = exporting.difference(model, (torch.randn(3, 3, side, side),), o.path, ["image"])
        line += f", logits differ from PyTorch's by {error:.1e}"
        if not error < 1e-5:
            raise SystemExit(line)
    print(line)


if __name__ == "__main__":
    main()
