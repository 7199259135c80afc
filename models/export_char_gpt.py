"""Writes char-gpt.onnx and char-gpt.vocab.json: a GPT-2 over the 65 characters of tinyshakespeare.txt, to be trained from scratch.

    python export_char_gpt.py [--folder .]

The weights are GPT-2's own initialisation; only biases and norms are perturbed a little, so that the exporter merges none.
The causal mask and the positions are made from input_ids, the only input.
"""
import argparse, json, os, warnings
import numpy as np
import onnx
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from export_gpt2 import Logits
from exporting import retie_head

LAYERS, HEADS, WIDTH, POSITIONS, OPSET = 4, 4, 128, 256, 20


class CharGpt(Logits):
    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1])
        past = (positions[None, :] <= positions[:, None])[None, None]  # (1, 1, T, T)
        mask = torch.where(past, 0.0, torch.finfo(torch.float32).min)
        return self.model[0](input_ids=input_ids, attention_mask=mask, position_ids=positions[None]).logits


def build(vocabulary):
    torch.manual_seed(1337)
    model = GPT2LMHeadModel(GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, vocab_size=vocabulary, n_positions=POSITIONS, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        activation_function="gelu_pytorch_tanh", use_cache=False, attn_implementation="eager", bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
    return model


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=here)
    folder = parser.parse_args().folder
    with open(os.path.join(here, "tinyshakespeare.txt"), encoding="utf-8", newline="") as file:
        tokens = sorted(set(file.read()))
    with open(os.path.join(folder, "char-gpt.vocab.json"), "w", encoding="utf-8") as file:
        json.dump({"tokens": tokens}, file, ensure_ascii=False)
        file.write("\n")
    model, path = build(len(tokens)), os.path.join(folder, "char-gpt.onnx")
    wrapped = CharGpt(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(wrapped, (torch.randint(0, len(tokens), (2, 8)),), path, dynamo=True, opset_version=OPSET,
                          input_names=["input_ids"], output_names=["logits"], external_data=False, verbose=False,
                          dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")},))
    graph = onnx.load(path)
    retie_head(graph, folder)
    for message in (graph, graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output, *graph.graph.value_info, *graph.graph.initializer):
        message.ClearField("metadata_props")  # stack traces with the exporting machine's paths
        message.ClearField("doc_string")
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)

    import onnxruntime
    ids = torch.randint(0, len(tokens), (3, 31))
    actual = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"input_ids": ids.numpy()})[0]
    with torch.no_grad():
        expected = model(input_ids=ids).logits.numpy()  # transformers' own causal mask
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < 1e-5, error
    print(f"{path}: {sum(p.numel() for p in model.parameters()):,} parameters, {os.path.getsize(path):,} bytes, {len(graph.graph.node)} nodes, "
          f"logits differ from PyTorch's by {error:.1e}")


if __name__ == "__main__":
    main()
