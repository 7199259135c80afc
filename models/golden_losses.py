"""Writes tests/golden/losses.safetensors: losses of random outputs and labels, and their gradients, by PyTorch in float64.

    python golden_losses.py [FILE]

For each case: CASE/outputs/i, CASE/labels/i, CASE/loss, and CASE/gradients/i, of the loss with respect to output i. The metadata have the text
of the loss, as `--loss` takes it, with the outputs named y0, y1, … and their labels l0, l1, … tests/loss_golden_test.cpp reads it.
"""
import os, sys
import torch
import torch.nn.functional as F
from golden import save_sorted

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(11)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64).float().double()


def classes(n, *shape, ignored=0.2):
    labels = torch.randint(0, n, shape)
    return torch.where(torch.rand(*shape) < ignored, torch.tensor(-100), labels)


def zero_or_one(*shape):
    return (torch.rand(*shape) < 0.4).double()


def shares(*shape):
    """Probabilities, some of them zero."""
    return F.normalize(torch.relu(numbers(*shape)) + 1e-3 * zero_or_one(*shape), p=1, dim=-1).float().double()


WEIGHTS = [0.5, 2.0, 1.0, 0.25, 3.0]
W = torch.tensor(WEIGHTS, dtype=torch.float64)
TEXT = str(WEIGHTS).replace(" ", "")


def focal(x, y, alpha, gamma):
    """torchvision.ops.sigmoid_focal_loss, reduction mean."""
    p, ce = torch.sigmoid(x), F.binary_cross_entropy_with_logits(x, y, reduction="none")
    loss = ce * (1 - (p * y + (1 - p) * (1 - y))) ** gamma
    return (loss * (alpha * y + (1 - alpha) * (1 - y)) if alpha >= 0 else loss).mean()


def dice(x, y, smooth=1e-5):
    """monai.losses.DiceLoss(sigmoid=True): of each sample and channel."""
    axes = tuple(range(2 if x.dim() > 2 else 1, x.dim()))
    p = torch.sigmoid(x)
    return (1 - (2 * (p * y).sum(axes) + smooth) / (p.sum(axes) + y.sum(axes) + smooth)).mean()


def info_nce(a, b, temperature):
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / temperature
    return F.cross_entropy(logits, torch.arange(len(a)))


def ctc(x, labels, lengths=None, **arguments):
    counts = (labels >= 0).sum(1)
    lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
    return F.ctc_loss(F.log_softmax(x, -1).transpose(0, 1), labels.clamp(min=0), lengths, counts, **arguments)


SEQUENCES = torch.tensor([[1, 2, 2, 3], [3, 3, -100, -100], [4, -100, -100, -100]])

CASES = {  # name: (--loss, outputs, labels, the loss of them)
    "cross_entropy": ("cross_entropy", [numbers(6, 5)], [classes(5, 6)], F.cross_entropy),
    "cross_entropy_weighted": (f"cross_entropy(weight={TEXT})", [numbers(4, 3, 5)], [classes(5, 4, 3)],
                               lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), weight=W)),
    "cross_entropy_weighted_smoothed": (f"cross_entropy(weight={TEXT}, label_smoothing=0.2)", [numbers(7, 5)], [classes(5, 7)],
                                        lambda x, y: F.cross_entropy(x, y, weight=W, label_smoothing=0.2)),
    "cross_entropy_axis": ("cross_entropy(axis=1,ignore_index=3)", [numbers(2, 5, 3, 4)], [classes(5, 2, 3, 4, ignored=0)],
                           lambda x, y: F.cross_entropy(x, y, ignore_index=3)),
    "nll": ("nll", [F.log_softmax(numbers(6, 5), -1).float().double()], [classes(5, 6)], F.nll_loss),
    "nll_weighted": (f"nll(weight={TEXT}, axis=1)", [numbers(3, 5, 4)], [classes(5, 3, 4)], lambda x, y: F.nll_loss(x, y, weight=W)),
    "mse": ("mse", [numbers(4, 3)], [numbers(4, 3)], F.mse_loss),
    "l1": ("l1", [numbers(4, 3)], [numbers(4, 3)], F.l1_loss),
    "smooth_l1": ("smooth_l1", [numbers(4, 9)], [numbers(4, 9)], F.smooth_l1_loss),
    "smooth_l1_beta": ("smooth_l1(beta=0.3)", [numbers(4, 9)], [numbers(4, 9)], lambda x, y: F.smooth_l1_loss(x, y, beta=0.3)),
    "smooth_l1_zero": ("smooth_l1(beta=0)", [numbers(4, 9)], [numbers(4, 9)], lambda x, y: F.smooth_l1_loss(x, y, beta=0)),
    "huber": ("huber", [numbers(4, 9)], [numbers(4, 9)], F.huber_loss),
    "huber_delta": ("huber(delta=0.4)", [numbers(4, 9)], [numbers(4, 9)], lambda x, y: F.huber_loss(x, y, delta=0.4)),
    "binary": ("binary_cross_entropy", [numbers(5, 4) * 5], [torch.rand(5, 4).double()], F.binary_cross_entropy_with_logits),
    "binary_weight": ("binary_cross_entropy(pos_weight=3)", [numbers(5, 4) * 5], [zero_or_one(5, 4)],
                      lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(3.0).double())),
    "binary_weights": (f"binary_cross_entropy(pos_weight={TEXT})", [numbers(3, 2, 5)], [zero_or_one(3, 2, 5)],
                       lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=W)),
    "focal": ("focal", [numbers(6, 5) * 3], [zero_or_one(6, 5)], lambda x, y: focal(x, y, 0.25, 2)),
    "focal_plain": ("focal(alpha=-1, gamma=1.5)", [numbers(6, 5)], [zero_or_one(6, 5)], lambda x, y: focal(x, y, -1, 1.5)),
    "dice": ("dice", [numbers(3, 2, 5, 4)], [zero_or_one(3, 2, 5, 4)], dice),
    "dice_flat": ("dice(smooth=1)", [numbers(3, 20)], [zero_or_one(3, 20)], lambda x, y: dice(x, y, 1)),
    "kl": ("kl", [numbers(4, 3, 6)], [shares(4, 3, 6)],
           lambda x, y: F.kl_div(F.log_softmax(x, -1).flatten(0, 1), y.flatten(0, 1), reduction="batchmean")),
    "cosine": ("y0+y1:cosine_embedding(margin=0.1)", [numbers(8, 5), numbers(8, 5)], [torch.where(torch.rand(8) < 0.5, 1, -1)],
               lambda a, b, y: F.cosine_embedding_loss(a, b, y, margin=0.1)),
    "info_nce": ("y0+y1:info_nce(temperature=0.2)", [numbers(7, 5), numbers(7, 5)], [], lambda a, b: info_nce(a, b, 0.2)),
    "info_nce_symmetric": ("y0+y1:info_nce(symmetric=1)", [numbers(7, 5), numbers(7, 5)], [],
                           lambda a, b: (info_nce(a, b, 0.07) + info_nce(b, a, 0.07)) / 2),
    "triplet": ("y0+y1+y2:triplet(margin=0.5)", [numbers(9, 4), numbers(9, 4), numbers(9, 4)], [],
                lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=0.5)),
    "ctc": ("ctc", [numbers(3, 9, 5)], [SEQUENCES], ctc),
    "ctc_lengths": ("ctc(blank=0)@l0+l1", [numbers(3, 9, 5)], [SEQUENCES, torch.tensor([9, 6, 3])], ctc),
    "ctc_blank": ("ctc(blank=4)", [numbers(2, 9, 5)], [SEQUENCES[:2]], lambda x, y: ctc(x, y, blank=4)),
    "ctc_impossible": ("ctc(zero_infinity=1)", [numbers(3, 4, 5)], [SEQUENCES], lambda x, y: ctc(x, y, zero_infinity=True)),
    "several": ("y0:cross_entropy*0.75@l0, y1:smooth_l1(beta=0.5)*2@l1", [numbers(6, 5), numbers(6, 4)], [classes(5, 6), numbers(6, 4)],
                lambda x, b, y, t: 0.75 * F.cross_entropy(x, y) + 2 * F.smooth_l1_loss(b, t, beta=0.5)),
    "output": ("output", [numbers(1)], [], lambda x: x.sum()),
}


def main(file):
    tensors, metadata = {}, {}
    for name, (text, outputs, labels, loss) in CASES.items():
        outputs = [x.clone().requires_grad_() for x in outputs]
        value = loss(*outputs, *labels)
        value.backward()
        metadata[name] = text
        tensors[f"{name}/loss"] = value.detach().reshape(1)
        for i, x in enumerate(outputs):
            tensors[f"{name}/outputs/{i}"], tensors[f"{name}/gradients/{i}"] = x.detach(), x.grad
        for i, y in enumerate(labels):
            tensors[f"{name}/labels/{i}"] = y.clone()
    save_sorted(tensors, file, metadata)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "golden", "losses.safetensors"))
