"""Runs a model in ONNX Runtime and compares its outputs with expected ones.

    python compare_runtime.py model.onnx inputs.safetensors [expected.safetensors] [--tolerance 1e-5] [--rows N]

Inputs and expected outputs are arrays under the model's own names, in .npz or .safetensors files; without a second file both
are in the first. Other arrays are ignored; --rows takes the first N samples of each input. Prints one line of JSON with
the norm-wise error |actual - expected| / |expected| of every output; exit 1 where one is above the tolerance.
"""
import argparse, json, sys
import numpy as np
import onnxruntime


def load(path):
    if path.endswith(".safetensors"):
        from safetensors.numpy import load_file
        return load_file(path)
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("expected", nargs="?")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--threads", type=int, default=0)
    o = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = o.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(o.model, options, providers=["CPUExecutionProvider"])
    given = load(o.inputs)
    expected = load(o.expected) if o.expected else given
    missing = [i.name for i in session.get_inputs() if i.name not in given]
    names = [x.name for x in session.get_outputs() if x.name in expected]
    if missing or not names:
        sys.exit(f"{o.inputs} has no {', '.join(missing)}" if missing else f"none of the outputs {', '.join(x.name for x in session.get_outputs())} is expected")
    actual = session.run(names, {i.name: given[i.name][:o.rows] for i in session.get_inputs()})
    errors = {}
    for name, got in zip(names, actual):
        want = expected[name].astype(np.float64)
        if got.size != want.size:
            sys.exit(f"{name} is {got.shape}, expected {want.shape}")
        difference = got.astype(np.float64).reshape(want.shape) - want
        errors[name] = float(np.linalg.norm(difference) / max(np.linalg.norm(want), 1e-30))
    passed = all(error <= o.tolerance for error in errors.values())  # a NaN does not pass
    print(json.dumps(dict(model=o.model, errors=errors, tolerance=o.tolerance, passed=passed)))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
