"""Prompts are tokenised once, with the chat template where there is one."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lookahead_bench.data import encode_turn, load_prompts
from lookahead_bench.errors import InputError
from lookahead_bench.models import ModelSource, load_tokenizer
from lookahead_bench.records import Prompt

pytestmark = pytest.mark.unit

WORDS = ("<unk>", "<s>", "user", "assistant", "hello", "there", "bye", "again")
TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.fixture(params=[TEMPLATE, None], ids=["template", "plain"])
def bos_tokenizer(request, tmp_path):
    """A tokenizer that puts BOS before every text, with a template that does so too; saved and loaded."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")
    made.chat_template = request.param
    made.save_pretrained(tmp_path)
    return load_tokenizer(ModelSource("tiny", str(tmp_path), "", chat=True))


def ask(*turns: str, **more) -> Prompt:
    return Prompt("p1", "own", turns=turns, **more)


def words(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def test_one_bos_although_template_and_tokenizer_both_add_it(bos_tokenizer):
    ids = encode_turn(ask("hello there"), 0, (), bos_tokenizer)
    if bos_tokenizer.chat_template:
        assert words(ids) == "<s> user hello there assistant"
    else:
        assert words(ids) == "<s> hello there"


def test_one_bos_although_the_text_begins_with_it(bos_tokenizer):
    ids = encode_turn(ask("<s> hello", chat=False), 0, (), bos_tokenizer)
    assert words(ids) == "<s> hello"


def test_the_second_turn_holds_the_first_answer(bos_tokenizer):
    ids = encode_turn(ask("hello", "again"), 1, ("bye",), bos_tokenizer)
    if bos_tokenizer.chat_template:
        assert words(ids) == "<s> user hello assistant bye user again assistant"
    else:
        assert words(ids) == "<s> hello bye again"


def test_ids_are_plain_integers(bos_tokenizer):
    ids = encode_turn(ask("hello"), 0, (), bos_tokenizer)
    assert type(ids) is tuple and {type(token) for token in ids} == {int}


def test_given_ids_are_passed_on(bos_tokenizer):
    assert encode_turn(Prompt("p", "own", token_ids=(1, 1, 4)), 0, (), bos_tokenizer) == (1, 1, 4)


@pytest.mark.parametrize(
    "prompt", [ask(""), ask("", chat=False), Prompt("p1", "own", token_ids=()), Prompt("p1", "own")]
)
def test_an_empty_prompt_is_refused(bos_tokenizer, prompt):
    with pytest.raises(InputError, match="prompt 'p1' of data set own is empty"):
        encode_turn(prompt, 0, (), bos_tokenizer)


def test_what_a_template_refuses_is_one_line(bos_tokenizer):
    bos_tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(InputError, match="chat template refuses prompt 'p1' of data set own: no such role"):
        encode_turn(ask("hello"), 0, (), bos_tokenizer)


@pytest.mark.parametrize(("turn", "answers"), [(1, ("x",)), (-1, ()), (0, ("x",))])
def test_turns_and_answers_must_fit(bos_tokenizer, turn, answers):
    with pytest.raises(ValueError):
        encode_turn(ask("hello"), turn, answers, bos_tokenizer)


@pytest.mark.model
def test_humaneval_with_and_without_the_model_s_template(packaged_sources, model_source, tokenizer):
    prompt = load_prompts({"sources": packaged_sources, "limit": 1}, 0)["humaneval"][0]
    chat = tokenizer.decode(encode_turn(prompt, 0, (), tokenizer))
    assert chat.startswith("<|im_start|>system\n") and chat.endswith("<|im_start|>assistant\n")
    assert f"```python\n{prompt.metadata['prompt'].rstrip()}\n```" in chat
    base = load_tokenizer(ModelSource(model_source.name, model_source.path, model_source.digest, chat=False))
    assert base.decode(encode_turn(prompt, 0, (), base)) == prompt.metadata["prompt"]
