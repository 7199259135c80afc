"""Benchmarks that lack something say so before they start anything: one sentence each, with the command that provides it."""
import os
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parent / "bench"


def lacks(script, folder, *arguments, path=None):
    """What it says; that it left nothing behind."""
    done = subprocess.run([sys.executable, str(BENCH / script), "--build", str(folder / "build"), "--work", str(folder / "work"), *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, env={**os.environ, **({"PATH": path} if path else {})})
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    assert not (folder / "work").exists()
    return done.stderr


def built(folder, *names):
    (folder / "build").mkdir()
    for name in names:
        (folder / "build" / name).write_text("#!/bin/sh\n")
        (folder / "build" / name).chmod(0o755)


def test_programs_that_are_not_built(tmp_path):
    message = lacks("peers.py", tmp_path)
    assert "has no ort-train and no bench-matmul_bench: run `make build-bench`" in message, message
    built(tmp_path, "ort-train")
    message = lacks("peers.py", tmp_path)
    assert "has no bench-matmul_bench: run" in message and "ort-train and" not in message, message
    assert "has no bench-disk_bench: run `make build-bench`" in lacks("streaming.py", tmp_path)
    (tmp_path / "build" / "ort-train").unlink()
    assert "has no ort-train: run `make build-bench`" in lacks("scaling.py", tmp_path)


def test_fio(tmp_path):
    (tmp_path / "empty").mkdir()
    message = lacks("streaming.py", tmp_path, path=str(tmp_path / "empty"))
    assert "fio is not installed: run `apt-get install fio`" in message and "make build-bench" in message, message


def test_environment(tmp_path):
    (tmp_path / "python").write_text(f"#!/bin/sh\nexec {sys.executable} -S -E \"$@\"\n")  # -S: without site-packages
    (tmp_path / "python").chmod(0o755)
    message = lacks("streaming.py", tmp_path, "--python", tmp_path / "python")
    assert f"has no torch, transformers, onnx, onnxscript, onnxruntime: run `{tmp_path / 'python'} -m pip install -r models/requirements.txt`" in message, message
    assert "can't be run" in lacks("streaming.py", tmp_path, "--python", tmp_path / "none")


@pytest.mark.parametrize("script, option", [("peers.py", "--only"), ("peers.py", "--models"), ("streaming.py", "--only"), ("anatomy.py", "--rows")])
def test_parts(tmp_path, script, option):
    assert f"{option} knows" in lacks(script, tmp_path, option, "everything")


def test_revisions(tmp_path):
    message = lacks("compare.py", tmp_path, "no-such-revision", "--jobs", "gpt3")
    assert "has no revision no-such-revision: give" in message and "--jobs knows gpt2, gpt2-60, bert, cnn, products, not gpt3" in message, message
    assert "has no ort-train and no bench-matmul_bench: run `make build-bench`" in message, message


def test_make_builds_what_they_run():
    makefile = (BENCH.parent.parent / "Makefile").read_text()
    rule = makefile.split("\nbuild-bench:", 1)[1].split("\n\n", 1)[0]
    assert "--target ort-train benchmarks" in rule, rule
    for program in "matmul_bench", "disk_bench":
        assert (BENCH / f"{program}.cpp").exists(), program
