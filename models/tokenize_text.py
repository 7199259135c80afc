"""Writes a text as the token ids of a model's own tokenizer, for ort-train --data.

    python tokenize_text.py my-model my-text.txt tokens.bin

`my-model` is the directory with the tokenizer (tokenizer.json or what else AutoTokenizer reads; nothing is downloaded). The file has uint16
numbers where the vocabulary fits into them, else uint32: then ort-train needs --token-type uint32. It has no header, and no special tokens are
added. Long texts are read in pieces of 8 MB that end with a line.
"""
import argparse, os, sys
import numpy as np
from transformers import AutoTokenizer

PIECE = 8 << 20
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model")


def tokenizer_of(folder):
    if not os.path.isdir(folder):
        sys.exit(f"{folder}: is no directory; give the one that has the model's tokenizer")
    if not any(os.path.exists(os.path.join(folder, name)) for name in FILES):
        sys.exit(f"{folder}: has no tokenizer; save it there with tokenizer.save_pretrained(), or copy the Hub's files ({', '.join(FILES)}: those that there are)")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as problem:
        sys.exit(f"{folder}: its tokenizer can't be loaded: {' '.join(str(problem).split())}")


def pieces(text):
    while True:
        piece = text.read(PIECE)
        if not piece:
            return
        yield piece + text.readline()


def write(folder, text, path):
    """Writes `path`; gives a sentence that says what is in it."""
    if not os.path.isfile(text):
        sys.exit(f"{text}: there is no such file")
    tokenizer = tokenizer_of(folder)
    small = len(tokenizer) <= 1 << 16
    count = characters = 0
    with open(text, encoding="utf-8", newline="") as source, open(path, "wb") as out:
        for piece in pieces(source):
            ids = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            np.asarray(ids, np.uint16 if small else np.uint32).tofile(out)
            count += len(ids)
            characters += len(piece)
    if count == 0:
        sys.exit(f"{text}: has no text")
    return (f"{path}: {count:,} tokens of {characters:,} characters, {'uint16' if small else 'uint32 (train with --token-type uint32)'}, "
            f"vocabulary of {len(tokenizer):,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "text", "tokens"):
        parser.add_argument(name)
    o = parser.parse_args()
    print(write(o.folder, o.text, o.tokens))


if __name__ == "__main__":
    main()
