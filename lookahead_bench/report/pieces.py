"""Output tokens as the text that each one adds, laid out on lines of fixed width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

NEWLINE = "↵"
MISSING = "□"


@dataclass(frozen=True, slots=True)
class Placed:
    """A token's text, or a part of it, on a line.

    Attributes:
        token: its place in the output.
        text: what is shown there, of one line.
        line, column, width: in characters.
        begins: whether the token begins here.
    """

    token: int
    text: str
    line: int
    column: int
    begins: bool

    @property
    def width(self) -> int:
        return len(self.text)


def pieces(token_ids: Sequence[int], model_path: str | None) -> list[str]:
    """What each token adds to the text; its number in brackets where the model's tokenizer is not at hand.

    A token that holds only a part of a character adds "", and the last one of them the whole character.
    """
    tokenizer = Path(model_path or "") / "tokenizer.json"
    if not model_path or not tokenizer.is_file():
        return [f"[{token}]" for token in token_ids]
    from tokenizers import Tokenizer

    decode = Tokenizer.from_file(str(tokenizer)).decode
    texts, before = [], ""
    for count in range(1, len(token_ids) + 1):
        after = decode(list(token_ids[:count]), skip_special_tokens=False)
        if after.endswith("\N{REPLACEMENT CHARACTER}") and count < len(token_ids):
            after = before
        texts.append(after[len(before) :])
        before = after
    return texts


def laid_out(texts: Sequence[str], width: int, lines: int) -> list[Placed]:
    """Place the texts one after the other on lines of ``width`` characters, as many as fit on ``lines``.

    A line ends after NEWLINE, which stands for a line break in the text, and where a text no longer fits.
    """
    placed, line, column = [], 0, 0
    for token, text in enumerate(texts):
        begins = True
        for part in text.expandtabs(4).replace("\n", f"{NEWLINE}\n").splitlines():
            if column and column + len(part) > width:
                line, column = line + 1, 0
            for start in range(0, max(1, len(part)), width):
                piece = "".join(map(_drawable, part[start : start + width]))
                if line >= lines:
                    return placed
                placed.append(Placed(token, piece, line, column, begins))
                begins, column = False, column + len(piece)
                if piece.endswith(NEWLINE) or start + width < len(part):
                    line, column = line + 1, 0
    return placed


def _drawable(character: str) -> str:
    return character if ord(character) in _characters() else MISSING


@cache
def _characters() -> frozenset[int]:
    """What the font of the figures has."""
    return frozenset(FT2Font(font_manager.findfont("DejaVu Sans Mono")).get_charmap())
