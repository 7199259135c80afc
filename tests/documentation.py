"""What the documentation says of the program is so: every option and every exit code stands in docs/command-line.md with its default, examples
use options that exist, the README's C++ compiles, links lead somewhere."""
import os
import re
import subprocess

from program import PROGRAM, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")])
OPTIONS = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
HELP = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
NAME = r"--[a-z][a-z0-9-]*"


def known_options():
    """Name -> default, or None where the help shows none."""
    known = {}
    for line in HELP.splitlines():
        if re.match(r"  (-h,)?--", line):
            names, kind = re.match(r"\s+(\S+)(?: (\S+))?", line).groups()
            for name in re.findall(NAME, names):
                known[name] = kind.split("=", 1)[1] if kind and "=" in kind else None
    return known


def rows():
    """Of the table of options: (names, default)."""
    for line in OPTIONS.split("## Options", 1)[1].split("\n## ", 1)[0].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) > 3 and cells[1].startswith("`--"):
            yield re.findall(NAME, cells[1]), cells[2].replace("`", "")


def same(written, default):
    try:
        return float(written) == float(default)
    except ValueError:
        return written == default


def test_every_option_is_described():
    known = known_options()
    assert len(known) > 50, known
    text = OPTIONS.split("## Options", 1)[1]
    described = set(re.findall(NAME, text))
    assert set(known) - described == set(), "write a row in docs/command-line.md"
    assert {name for names, _ in rows() for name in names} - set(known) == set(), "docs/command-line.md has rows of options that don't exist"


def test_defaults():
    shown = {name: default for name, default in known_options().items() if default is not None}
    compared = set()
    for names, written in rows():
        values = written.split(", ")
        for name, value in zip(names, values * len(names) if len(values) == 1 else values):
            if value and name in shown:
                assert same(value, shown[name]), f"{name}: docs/command-line.md says {value}, the program {shown[name]}"
                compared.add(name)
    # Its row says it in words.
    assert shown.keys() - compared == {"--adafactor-beta1"}, "docs/command-line.md lacks these defaults"
    assert len(compared) > 45, compared


def test_examples_use_options_that_exist():
    known, seen = set(known_options()), 0
    for page in PAGES:
        for line in re.sub(r" \\\n\s*", " ", page.read_text(encoding="utf-8")).splitlines():
            if re.match(r"    (build/)?ort-train ", line):
                used = set(re.findall(r"(?<=\s)" + NAME, line.split("   #")[0]))
                assert used <= known, f"{page}: {line.strip()}: {used - known}"
                seen += 1
    assert seen > 5, seen


def test_exit_codes():
    footer = HELP.split("Exit codes: ", 1)[1]
    codes = {int(code) for code in re.findall(r"\b\d+\b", footer)}
    written = {int(code) for cells in re.findall(r"^\| ([\d, ]+) \|", OPTIONS.split("## Exit codes", 1)[1], re.MULTILINE) for code in cells.split(",")}
    assert codes == written


def test_own_model():
    """models/own_model.py runs these; it needs PyTorch, and minutes."""
    section = README.split("\n## Your own model\n", 1)[1].split("\n## ", 1)[0]
    commands = [line.strip() for line in re.search(r"(?:^    .+\n)+", section, re.MULTILINE)[0].splitlines()]
    assert [command.split()[0] for command in commands] == ["python", "ort-train", "ort-train", "ort-train", "python"]
    for command in commands:
        if command.startswith("python "):
            assert (ROOT / command.split()[1]).exists(), command


def test_length():
    assert len(README.splitlines()) <= 150


def test_cpp(tmp_path):
    code = re.search(r"```cpp\n(.*?)```", README, re.DOTALL)[1]
    assert len(code.splitlines()) <= 15
    (tmp_path / "example.cpp").write_text(code)
    (tmp_path / "ort_train").symlink_to(ROOT / "frontend")
    done = subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-fsyntax-only",
                           f"-I{tmp_path}", f"-I{ROOT}", str(tmp_path / "example.cpp")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def anchors(text):
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links():
    seen = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), f"{page.relative_to(ROOT)}: {target}"
            if anchor:
                assert anchor in anchors(there.read_text(encoding="utf-8")), f"{page.relative_to(ROOT)}: {target}"
            seen += 1
    assert seen > 20, seen
