"""What a benchmark lacks, said before it starts: one sentence each, with the command that provides it. Imports nothing but the standard library."""
import importlib.util
import os
import shutil
import subprocess
import sys

REQUIREMENTS = os.path.join("models", "requirements.txt")


def programs(build, names):
    """Of ours, in the build folder."""
    missing = [name for name in names if not os.access(os.path.join(build, name), os.X_OK)]
    if missing:
        yield f"{build} has no {' and no '.join(missing)}: run `make build-bench`, or name another folder with --build"


def tool(name, package):
    if shutil.which(name) is None:
        yield f"{name} is not installed: run `apt-get install {package}`"


def packages(python, names):
    """In an environment that the user names; without one, a virtual environment is going to be made."""
    if not python:
        if importlib.util.find_spec("ensurepip") is None:
            yield "Python can't make virtual environments: run `apt-get install python3-venv`"
        return
    if shutil.which(python) is None:
        yield f"--python {python} can't be run: give the python of an environment with PyTorch, or leave it out and one is made"
        return
    code = f"import importlib.util as u; print(*(n for n in {list(names)!r} if u.find_spec(n) is None))"
    missing = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if missing:
        yield f"{python} has no {', '.join(missing)}: run `{python} -m pip install -r {REQUIREMENTS}`"


def choices(option, given, known):
    """Of an option with commas."""
    wrong = [name for name in given if name not in known]
    if wrong:
        yield f"{option} knows {', '.join(known)}, not {', '.join(wrong)}"


def space(folder, wanted):
    """Bytes on the file system that has the folder, or will have it."""
    there = os.path.abspath(folder)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    free = shutil.disk_usage(there).free
    if free < wanted:
        yield f"{folder} has {free / 1e9:.1f} GB free of the {wanted / 1e9:.0f} GB that are needed: make room, or name another folder"


def check(*lacks):
    """Ends the program where something is missing."""
    sentences = [sentence for lack in lacks for sentence in lack]
    if sentences:
        sys.exit("\n".join(sentences))
