"""models/tokenize_text.py: samples of text become token ids, and what isn't to be learned is masked. The tokenizer here is a small one of our own,
with ids as transformers' have; where that package is installed, its own are tried, too. The program trains on what comes out."""
import json
import sys

import numpy as np
import pytest

from program import CHAR_GPT, ROOT, log, run

sys.path.insert(0, str(ROOT / "models"))
import tokenize_text  # noqa: E402

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{{ m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


class Characters:
    """Each character is a token, & for unknown ones; the two of "qu" are one. Special ones are written in capital letters."""
    chat_template = "{{ messages }}"

    def __init__(self):
        self.characters = json.loads(CHAR_GPT.with_suffix(".vocab.json").read_text())["tokens"]
        self.eos_token_id = self.id_of("Z")

    def id_of(self, text):
        return len(self.characters) if text == "qu" else self.characters.index(text if text in self.characters else "&")

    def __len__(self):
        return len(self.characters) + 1

    def __call__(self, text, add_special_tokens=True, verbose=True):
        parts = (["B"] if add_special_tokens else []) + list(text.replace("qu", "\0"))
        return {"input_ids": [self.id_of("qu" if part == "\0" else part) for part in parts]}

    def apply_chat_template(self, messages, tools=None, tokenize=False, add_generation_prompt=False):
        for m in messages:
            if m["role"] == "robot":
                raise ValueError("unknown\nrole robot")
        text = "B" + "".join(m["role"][0].upper() + m["content"] + ("E" if m["role"] == "assistant" else "") for m in messages)
        return text + ("A" if add_generation_prompt else "")


@pytest.fixture
def characters(monkeypatch):
    tokenizer = Characters()
    monkeypatch.setattr(tokenize_text, "tokenizer_of", lambda folder: tokenizer)
    return tokenizer


def written(folder, records, longest=0):
    """The samples as pairs of texts, with dots for labels that are masked; the sentence."""
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    said = tokenize_text.write_samples("my-model", str(folder / "in.jsonl"), str(folder / "out.jsonl"), longest)
    tokens = Characters().characters + ["qu"]
    samples = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert all(list(sample) == ["input_ids", "labels"] for sample in samples)
    texts = [tuple("".join("." if token == -100 else tokens[token] for token in sample[key]) for key in sample) for sample in samples]
    return texts, said


def test_texts_are_learned(tmp_path, characters):
    texts, said = written(tmp_path, [{"text": "to be"}, {"text": "or noZ", "source": 3}])
    assert texts == [("Bto beZ", "Bto beZ"), ("Bor noZ", "Bor noZ")]
    assert said == f"{tmp_path}/out.jsonl: 2 samples of 7 to 7 tokens, 14 in all, of which 12 are learned"


def test_completions_are_learned(tmp_path, characters):
    texts, said = written(tmp_path, [{"prompt": "to ", "completion": "be"}, {"prompt": "q", "completion": "uit"}, {"prompt": "", "completion": "no"}])
    assert texts == [("Bto beZ", "....beZ"), ("BquitZ", ".quitZ"), ("BnoZ", "BnoZ")]  # "qu" has something of the completion
    alpaca, _ = written(tmp_path, [{"instruction": "Say no", "input": "", "output": "no"}, {"instruction": "Say", "input": "yes", "output": "yes"}])
    assert alpaca[0][0].endswith("completes the request.\n\n&&& Instruction:\nSay no\n\n&&& Response:noZ")
    assert alpaca[1][0].endswith("&&& Instruction:\nSay\n\n&&& Input:\nyes\n\n&&& Response:yesZ")
    assert [labels.strip(".") for _, labels in alpaca] == ["noZ", "yesZ"]


def test_assistants_are_learned(tmp_path, characters):
    user, assistant = ({"role": role, "content": content} for role, content in (("user", "hi"), ("assistant", "yes")))
    texts, _ = written(tmp_path, [{"messages": [user, assistant, user, assistant]}, {"messages": [{"role": "system", "content": "be"}, user, assistant]},
                                  {"prompt": [user, assistant, user], "completion": [assistant]}])
    assert texts == [("BUhiAyesEUhiAyesE", ".....yesE....yesE"), ("BSbeUhiAyesE", "........yesE"), ("BUhiAyesEUhiAyesE", ".............yesE")]


def test_templates_may_say_what_is_learned(tmp_path, characters):
    characters.chat_template = "{%- generation -%}"
    plain = characters.apply_chat_template

    def with_masks(messages, tools=None, tokenize=False, return_dict=False, return_assistant_tokens_mask=False, **options):
        assert tokenize and return_dict and return_assistant_tokens_mask
        ids = characters(plain(messages), add_special_tokens=False)["input_ids"]
        return {"input_ids": ids, "assistant_masks": [0] * (len(ids) - 2) + [1, 1]}

    characters.apply_chat_template = with_masks
    texts, _ = written(tmp_path, [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}])
    assert texts == [("BUhiAyesE", ".......sE")]


def test_samples_are_cut(tmp_path, characters):
    samples = [{"prompt": "to ", "completion": "be"}, {"prompt": "long prompt", "completion": "no"}, {"text": ""}]
    texts, said = written(tmp_path, samples, longest=5)
    assert texts == [("Bto b", "....b")]
    assert said.endswith("out.jsonl: 1 samples of 5 to 5 tokens, 5 in all, of which 1 are learned; 2 are cut; 2 with nothing to learn are left out")


@pytest.mark.parametrize("line, sentence", [
    ('{"text": ', "line 2: is not JSON"),
    ("[1]", "line 2: is no JSON object"),
    ('{"text": 3}', "line 2: 'text' is no text"),
    ('{"prompt": "a", "completion": ["b"]}', "line 2: 'completion' is no text"),
    ('{"prompt": "a", "answer": "b"}', "line 2: has neither 'text', 'prompt' and 'completion', 'messages' nor 'instruction' and 'output'; it has 'prompt', 'answer'"),
    ("{}", "; it has nothing"),
    ('{"messages": "hi"}', "line 2: 'messages' is no list of messages such as {\"role\": \"user\", \"content\": \"Hello\"}"),
    ('{"messages": [{"role": "robot", "content": "hi"}, {"role": "assistant", "content": "hi"}]}', "line 2: the chat template refuses it: unknown role robot"),
    ('{"text": "\\ud800"}', "line 2: has half of a surrogate pair"),
])
def test_wrong_samples_are_named(tmp_path, characters, line, sentence):
    (tmp_path / "in.jsonl").write_text('{"text": "to be"}\n' + line + "\n")
    with pytest.raises(SystemExit) as refused:
        tokenize_text.write_samples("my-model", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert sentence in refused.value.code and refused.value.code.startswith(f"{tmp_path}/in.jsonl: "), refused.value.code
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_what_cannot_be_done_is_said(tmp_path, characters):
    def refusal(records, out="out.jsonl", longest=0):
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        with pytest.raises(SystemExit) as refused:
            tokenize_text.write_samples("my-model", str(tmp_path / "in.jsonl"), str(tmp_path / out), longest)
        return refused.value.code

    assert refusal([{"text": "to be"}], out="out.bin").endswith("out.bin: samples are written as JSON lines: give it the ending .jsonl")
    assert refusal([{"text": "to be"}], out="in.jsonl").endswith("in.jsonl: is the text itself: give the tokens another name")
    assert refusal([{"prompt": "to be", "completion": "or"}], longest=4).endswith("in.jsonl: has no sample with something to learn in its first 4 tokens")
    assert refusal([]).endswith("in.jsonl: has no sample with something to learn")
    characters.apply_chat_template = lambda messages, **options: "B" + str(len(messages))
    assert "renders the beginning of a conversation otherwise than the whole" in refusal([{"messages": [{"role": "assistant", "content": "hi"}] * 2}])
    characters.chat_template = None
    assert refusal([{"messages": [{"role": "assistant", "content": "hi"}]}]).startswith("my-model: its tokenizer has no chat template")
    characters.eos_token_id = None
    assert refusal([{"text": "to be"}]).startswith("my-model: its tokenizer has no end-of-sequence token")


def test_the_program_trains_on_them(tmp_path, characters):
    words = ["to be", "or not to be", "that is the rub"]
    written(tmp_path, [{"prompt": words[i % 3] + "\n", "completion": words[(i + 1) % 3]} for i in range(24)])
    said = run(tmp_path, CHAR_GPT, "--data", "out.jsonl", "--task", "causal-lm", "--batch-size", 4, "--max-steps", 30, "--learning-rate", "5e-3",
               "--length-buckets", "16,24", "--eval-steps", 10, "--log-file", "log.jsonl")
    assert "out.jsonl: samples have 20 to 30 tokens, and are padded to 30" in said.out + said.err
    losses = [line["loss"] for line in log(tmp_path / "log.jsonl")[0]]
    assert len(losses) == 30 and np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3]), losses


def test_texts_are_sent_to_the_script(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    said = run(tmp_path, CHAR_GPT, "--data", "texts.jsonl", "--task", "causal-lm", code=5)
    assert said.err == ("error: texts.jsonl: line 1: 'messages' is text; models/tokenize_text.py makes token ids of it with the model's own tokenizer\n")


def test_tokenizers_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = {word: i for i, word in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "user", "assistant", "hi", "yes", "no", "\n", "?"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    conversation = {"messages": [{"role": role, "content": content} for role, content in
                                 [("user", "hi"), ("assistant", "yes"), ("user", "hi"), ("assistant", "no")]]}
    (tmp_path / "in.jsonl").write_text(json.dumps(conversation) + "\n" + json.dumps({"text": "hi"}) + "\n")
    expected = [-100] * 9 + [6, 2, 8] + [-100] * 9 + [7, 2, 8]
    marked = CHATML.replace("{{ m['content'] + '<|im_end|>' + '\n' }}", "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' + '\n' }}"
                            "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' + '\n' }}{% endif %}")
    for template in CHATML, marked:
        fast.chat_template = template
        fast.save_pretrained(tmp_path / "my-model")
        tokenize_text.write_samples(str(tmp_path / "my-model"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
        samples = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert samples[0]["labels"] == expected, (template, samples)
        assert samples[1] == {"input_ids": [5, 0], "labels": [5, 0]}
