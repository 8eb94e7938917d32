"""A model's tokenizer as the engine uses it: text to ids and back, and which tokens are special or end a turn."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from rollway_gateway.tree.messages import SLICE
from rollway_wire.problems import Unprocessable
from rollway_wire.tokens import IDS


class Vocabulary:
    """Wraps ``tokenizer.json``; tokens that only ``tokenizer_config.json`` declares are added to it."""

    def __init__(self, tokenizer: Tokenizer, config: dict[str, Any], stop_ids: Iterable[int] = ()) -> None:
        """
        Args:
            config: the content of ``tokenizer_config.json``.
            stop_ids: ids the engine ends a turn with besides the tokenizer's own end-of-sequence token
                (``eos_token_id`` of ``generation_config.json`` and ``config.json``).

        Raises:
            Unprocessable: the two files disagree about a token's id.
        """
        self._tokenizer = tokenizer
        _declare(tokenizer, config.get("added_tokens_decoder") or {})
        self.special_tokens = {
            key: text for key, value in config.items() if key.endswith("_token") and (text := _text(value)) is not None
        }
        """Named special tokens (``bos_token``, ``eos_token``, ...), as templates see them."""
        more = (config.get(key) or () for key in ("additional_special_tokens", "extra_special_tokens"))
        extra = [
            text for v in more for e in (v.values() if isinstance(v, dict) else v) if (text := _text(e)) is not None
        ]
        self.special_texts = frozenset([*self.special_tokens.values(), *extra])
        """Texts of the special tokens that have a name or a place in the configuration's list."""
        eos = self.id_of(self.special_tokens.get("eos_token", ""))
        self.stop_ids = frozenset(stop_ids) | (frozenset() if eos is None else {eos})
        """What the engine ends a turn with."""
        self._space_mark = _space_mark(tokenizer.pre_tokenizer)
        self.added_ids = frozenset(tokenizer.get_added_tokens_decoder())
        """Tokens matched in text before any merging: nothing merges across one of them."""

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """From a model folder.

        Raises:
            Unprocessable: no ``tokenizer.json``, or one that cannot be read.
        """
        path, config = folder / "tokenizer.json", read_json(folder / "tokenizer_config.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
            if stale := _stale(tokenizer, config):
                tokenizer = Tokenizer.from_str(_renamed(read_json(path), stale))
        except Exception as e:  # the library raises bare Exception, for a missing file too
            raise Unprocessable(f"{path} is not a fast tokenizer: {e}") from e
        stops: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = read_json(folder / name).get("eos_token_id")
            stops.update(value if isinstance(value, list) else [] if value is None else [value])
        return cls(tokenizer, config, stops)

    def encode(self, text: str) -> array[int]:
        """Ids of a rendered text: special tokens in it count as such, none is added (as vLLM encodes a chat). Other
        threads run meanwhile: only the library's batches let them, and a long list is copied in slices."""
        found = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        ids = array(IDS)
        for at in range(0, len(found), SLICE):
            part = found[at : at + SLICE]
            ids.frombytes(struct.pack(f"{len(part)}i", *part))  # in half the time of `extend`
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def shown(self, ids: Iterable[int], *, special: bool) -> str:
        """The text of sampled ids as an engine shows it, with special tokens or without."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def spelled(self, token_id: int) -> str:
        """One token's text by itself, with the leading spaces that decoding a word's first piece leaves out."""
        text: str = self.decode([token_id])
        if self._space_mark is None:
            return text
        piece: str = self._tokenizer.id_to_token(token_id) or ""
        wanted = len(piece) - len(piece.lstrip(self._space_mark))
        return " " * (wanted - (len(text) - len(text.lstrip(" ")))) + text

    def id_of(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str:
        """The token's own text.

        Raises:
            KeyError: no such id.
        """
        found: str | None = self._tokenizer.id_to_token(token_id)
        if found is None:
            raise KeyError(token_id)
        return found


def _space_mark(pre: Any) -> str | None:
    """What stands for a space at a piece's beginning, in vocabularies whose decoder strips it there."""
    steps: list[Any] = [*pre] if isinstance(pre, pre_tokenizers.Sequence) else [pre]  # type: ignore[misc]
    return next((step.replacement for step in steps if isinstance(step, pre_tokenizers.Metaspace)), None)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where the file is absent.

    Raises:
        Unprocessable: not a JSON object.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise Unprocessable(f"{path} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise Unprocessable(f"{path} is not a JSON object")
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _stale(tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, str]:
    """Vocabulary entries that hold a place for a token the config declares (``[UNUSED_TOKEN_145]``), with its text."""
    declared = {int(k): v["content"] for k, v in (config.get("added_tokens_decoder") or {}).items()}
    held = {tokenizer.id_to_token(i): text for i, text in declared.items() if tokenizer.token_to_id(text) is None}
    return {old: text for old, text in held.items() if old is not None}


def _renamed(file: dict[str, Any], names: dict[str, str]) -> str:
    vocabulary = file["model"]["vocab"]
    file["model"]["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
    return json.dumps(file)


def _declare(tokenizer: Tokenizer, declared: dict[str, dict[str, Any]]) -> None:
    have = tokenizer.get_added_tokens_decoder()
    for token_id, spec in sorted((int(k), v) for k, v in declared.items()):
        if token_id in have:
            continue
        flags = {k: bool(spec.get(k)) for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokenizer.add_tokens([AddedToken(spec["content"], **flags)])
        got = tokenizer.token_to_id(spec["content"])
        if got != token_id:
            raise Unprocessable(f"tokenizer_config.json gives {spec['content']!r} id {token_id}, tokenizer.json {got}")
