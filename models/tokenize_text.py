"""Writes a text, or samples of text, as the token ids of a model's own tokenizer, for ort-train --data.

    python tokenize_text.py my-model my-text.txt tokens.bin
    python tokenize_text.py my-model my-samples.jsonl tokens.jsonl [--max-length 1024]

`my-model` is the directory with the tokenizer (tokenizer.json or what else AutoTokenizer reads; nothing is downloaded).

A text becomes uint16 numbers where the vocabulary fits into them, else uint32: then ort-train needs --token-type uint32. The file has no header, and
no special tokens are added. Long texts are read in pieces of 8 MB that end with a line.

Samples are JSON objects, one a line, as trl's SFTTrainer takes them:

    {"text": …}                           all of it is learned
    {"prompt": …, "completion": …}        the completion is learned; both are texts, or both are lists of messages
    {"messages": [{"role": …, "content": …}, …]}    what the assistant says is learned; the tokenizer's chat template makes a text of it
    {"instruction": …, "input": …, "output": …}     the output is learned, after Alpaca's prompt; "input" may be missing

They become lines of {"input_ids": […], "labels": […]}, with the label -100 for what isn't learned. The end-of-sequence token follows texts and
completions. With --max-length, what is behind so many tokens is cut. Samples with nothing to learn are left out.
"""
import argparse, json, os, re, sys
import numpy as np

PIECE = 8 << 20
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model")
LINES = (".jsonl", ".ndjson")
IGNORED = -100
# github.com/tatsu-lab/stanford_alpaca, train.py
ALPACA = ("Below is an instruction that describes a task{with_input}. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n{input}### Response:")
GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")  # where a chat template says itself what the assistant says


def tokenizer_of(folder):
    if not os.path.isdir(folder):
        sys.exit(f"{folder}: is no directory; give the one that has the model's tokenizer")
    if not any(os.path.exists(os.path.join(folder, name)) for name in FILES):
        sys.exit(f"{folder}: has no tokenizer; save it there with tokenizer.save_pretrained(), or copy the Hub's files ({', '.join(FILES)}: those that there are)")
    from transformers import AutoTokenizer
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


class Wrong(Exception):
    """What is wrong with a sample, as the end of a sentence."""


def checked_text(record, key):
    if not isinstance(record[key], str):
        raise Wrong(f"'{key}' is no text")
    return record[key]


def checked_messages(record, key):
    messages = record[key]
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise Wrong(f"'{key}' is no list of messages such as {{\"role\": \"user\", \"content\": \"Hello\"}}")
    return messages


def common(a, b):
    """How many elements both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Samples:
    """Makes token ids and labels of samples."""

    def __init__(self, tokenizer, folder):
        self.tokenizer, self.folder = tokenizer, folder

    def ids(self, text, special):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Wrong("has half of a surrogate pair (\\ud800 to \\udfff), which is no character") from None
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def of(self, record):
        """(ids, labels)"""
        if not isinstance(record, dict):
            raise Wrong("is no JSON object")
        if "messages" in record:
            messages = checked_messages(record, "messages")
            return self.conversation(messages, record.get("tools"), [i for i, m in enumerate(messages) if m["role"] == "assistant"])
        if "prompt" in record and "completion" in record:
            if isinstance(record["prompt"], list):
                prompt, completion = checked_messages(record, "prompt"), checked_messages(record, "completion")
                return self.conversation(prompt + completion, record.get("tools"), range(len(prompt), len(prompt) + len(completion)))
            return self.completion(checked_text(record, "prompt"), checked_text(record, "completion"))
        if "instruction" in record and "output" in record:
            given = checked_text(record, "input") if record.get("input") else ""
            prompt = ALPACA.format(with_input=", paired with an input that provides further context" if given else "",
                                   instruction=checked_text(record, "instruction"), input=f"### Input:\n{given}\n\n" if given else "")
            return self.completion(prompt, checked_text(record, "output"))
        if "text" in record:
            text = checked_text(record, "text")
            return self.completion("", text) if text else ([], [])
        raise Wrong(f"has neither 'text', 'prompt' and 'completion', 'messages' nor 'instruction' and 'output'; it has {', '.join(map(repr, record)) or 'nothing'}")

    def completion(self, prompt, completion):
        """Of two texts; as in trl they are tokenized together, and a token that has something of both is learned."""
        ids = self.ids(prompt + completion, special=True)
        end = self.tokenizer.eos_token_id
        if end is None:
            sys.exit(f"{self.folder}: its tokenizer has no end-of-sequence token, by which a model learns where to stop: set eos_token in tokenizer_config.json")
        masked = common(self.ids(prompt, special=True), ids) if prompt else 0
        if not ids or ids[-1] != end:
            ids.append(end)
        return ids, [IGNORED] * masked + ids[masked:]

    def render(self, messages, tools, **options):
        try:
            return self.tokenizer.apply_chat_template(messages, tools=tools, **options)
        except Exception as problem:  # a template may raise anything
            raise Wrong(f"the chat template refuses it: {' '.join(str(problem).split())}") from None

    def conversation(self, messages, tools, learned):
        """`learned`: numbers of messages."""
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            sys.exit(f"{self.folder}: its tokenizer has no chat template, which makes a text of messages: give samples of prompt and completion, or add the model's chat_template.jinja")
        by_role = all((i in learned) == (m["role"] == "assistant") for i, m in enumerate(messages))
        if by_role and isinstance(template, str) and GENERATION.search(template):
            made = self.render(messages, tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            ids = list(made["input_ids"])
            return ids, [token if counts else IGNORED for token, counts in zip(ids, made["assistant_masks"])]
        whole = self.render(messages, tools, tokenize=False)
        ids = self.ids(whole, special=False)  # the template has written them
        labels = [IGNORED] * len(ids)
        for i in learned:
            begin, end = self.span(messages[:i], messages[:i + 1], tools, whole)
            first, last = (common(self.ids(whole[:at], special=False), ids) if at < len(whole) else len(ids) for at in (begin, end))
            labels[first:last] = ids[first:last]
        return ids, labels

    def span(self, before, through, tools, whole):
        """Where in the text of a conversation its last message but what introduces it stands: [begin, end)."""
        text = self.render(through, tools, tokenize=False)
        introduced = self.render(before, tools, tokenize=False, add_generation_prompt=True) if before else ""
        alone = self.render(before, tools, tokenize=False) if before else ""
        if not whole.startswith(text) or not text.startswith(alone):
            raise Wrong("the chat template renders the beginning of a conversation otherwise than the whole, so that the assistant's part can't be told: "
                        "divide it into samples that end with the assistant, of 'prompt' and 'completion' as lists of messages, or mark that part in the template "
                        "by {% generation %}")
        if through[-1]["role"] != "assistant":
            return len(alone), len(text)
        return common(introduced, text), len(text)


def records(text):
    """(number of the line, object) of JSON lines."""
    with open(text, encoding="utf-8-sig") as source:
        try:
            for number, line in enumerate(source, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    sys.exit(f"{text}: line {number}: is not JSON")
                yield number, record
        except UnicodeDecodeError:
            sys.exit(f"{text}: is not UTF-8 text")


def write_samples(folder, text, path, longest=0):
    """Writes `path`, samples of at most `longest` tokens; gives a sentence that says what is in it."""
    if not os.path.isfile(text):
        sys.exit(f"{text}: there is no such file")
    if not path.endswith(LINES):
        sys.exit(f"{path}: samples are written as JSON lines: give it the ending .jsonl")
    if os.path.exists(path) and os.path.samefile(text, path):
        sys.exit(f"{path}: is the text itself: give the tokens another name")
    samples = Samples(tokenizer_of(folder), folder)
    lengths, learned, empty, cut = [], 0, 0, 0
    part = path + ".part"
    try:
        with open(part, "w", encoding="utf-8") as out:
            for number, record in records(text):
                try:
                    ids, labels = samples.of(record)
                except Wrong as problem:
                    sys.exit(f"{text}: line {number}: {problem}")
                if longest and len(ids) > longest:
                    ids, labels, cut = ids[:longest], labels[:longest], cut + 1
                count = sum(label != IGNORED for label in labels[1:])  # what comes first follows nothing
                if count == 0:
                    empty += 1
                    continue
                out.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")
                lengths.append(len(ids))
                learned += count
        if not lengths:
            sys.exit(f"{text}: has no sample with something to learn" + (f" in its first {longest} tokens" if longest else ""))
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)
    return (f"{path}: {len(lengths):,} samples of {min(lengths):,} to {max(lengths):,} tokens, {sum(lengths):,} in all, of which {learned:,} are learned"
            + (f"; {cut:,} are cut" if cut else "") + (f"; {empty:,} with nothing to learn are left out" if empty else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "text", "tokens"):
        parser.add_argument(name)
    parser.add_argument("--max-length", type=int, default=0, help="of samples: the most tokens that one may have")
    o = parser.parse_args()
    if o.max_length < 0:
        parser.error("--max-length is at least 1")
    if o.text.endswith(LINES):
        print(write_samples(o.folder, o.text, o.tokens, o.max_length))
    elif o.max_length:
        parser.error("--max-length is for samples, which are .jsonl; a text is cut by ort-train --seq-length")
    else:
        print(write(o.folder, o.text, o.tokens))


if __name__ == "__main__":
    main()
