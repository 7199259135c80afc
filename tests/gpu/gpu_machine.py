"""What bring_up and bench share: where a GPU machine has NVIDIA's libraries, and commands with a time limit."""

import os
import pathlib
import signal
import subprocess
import sys
import tarfile


def unpacked(build, folder):
    """The folder with the programs: `build` itself or, where it is a file that `pack` made, `folder`, into which that is unpacked."""
    if build.is_dir():
        return build.resolve()
    with tarfile.open(build) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder.resolve()


def library_folders():
    """Where an installed PyTorch has the libraries that the program opens."""
    folders = []
    for site in sys.path:
        for pattern in ("nvidia/*/lib", "torch/lib"):
            folders += [str(folder) for folder in pathlib.Path(site or ".").glob(pattern)
                        if any((folder / name).exists() for name in ("libcublasLt.so.13", "libcudnn.so.9"))]
    return folders


def environment(build):
    """In which the programs of that folder find their own library and NVIDIA's, wherever the folder was carried from."""
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, [str(build), os.environ.get("LD_LIBRARY_PATH", ""), *library_folders()]))}


def run(words, limit, variables, stop_after=None):
    """Returns (exit status, standard output and errors, whether it was killed after `limit` seconds). Killed with all that it has started,
    which would hold its output open; `stop_after`: killed then, as is meant. A program that isn't there ends with 127."""
    try:
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True, env=variables)
    except OSError as missing:
        return 127, str(missing), False
    try:
        output, _ = process.communicate(timeout=stop_after or limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not stop_after:
            return process.returncode, output + f"\n(killed after {limit:.0f} s)\n", True
    except BaseException:  # interrupted
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output, False
