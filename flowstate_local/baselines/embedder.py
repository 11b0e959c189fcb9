"""Texts as vectors, for the memories that search by meaning. One Protocol, and a small model that runs on a CPU."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from flowstate_local.errors import ModelError
from flowstate_local.models.folders import MINILM, fetch_folder
from flowstate_local.models.progress import Progress

Vector = list[float]


class Embedder(Protocol):
    """Turns texts into vectors of length 1. Deterministic: the same text gives the same vector, whatever stands
    beside it. May be called from any thread.
    """

    @property
    def name(self) -> str:
        """Of the model, for reports."""

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector for each text, in order."""


def cosine(a: Vector, b: Vector) -> float:
    """Of two vectors of length 1."""
    return sum(x * y for x, y in zip(a, b, strict=True))


class MiniLm:
    """all-MiniLM-L6-v2: the mean of its last hidden states, at length 1. See `Embedder`.

    The model reads 256 tokens at once. A longer text is read in windows of that size and the mean goes over all of
    them, so that its end counts too (our choice; sentence-transformers would cut the text).

    Args:
        folder: the model's files, as `minilm` fetches them.

    Raises:
        ModelError: the folder holds no model, or torch and transformers aren't installed.
    """

    name = MINILM.name
    WINDOW = 256
    """Tokens, the two special ones included: max_seq_length of the published model."""

    def __init__(self, folder: Path) -> None:
        missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
        if missing:
            raise ModelError(
                f"embedding texts needs {' and '.join(missing)}",
                hint="Install flowstate-local[cpu], [gpu] or [transformers].",
            )
        if not (folder / "model.safetensors").is_file():
            raise ModelError(f"{folder} holds no embedding model", hint="`minilm()` fetches it.")
        # torch takes seconds to import, and only this class needs it here.
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        self._model = model.to("cpu").eval()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="minilm")
        self._use_one_core()

    def _use_one_core(self) -> None:
        """Let torch compute on one core in this model's thread, and as before in all others.

        So small a model gains nothing from more, and where another program keeps the cores busy its parts wait for
        each other: measured on two busy cores, a text of 4,096 characters took 3 to 5 s on both and 0.5 s on one.
        """
        torch, before = self._torch, self._torch.get_num_threads()
        # A thread takes over the process's number at its first use of torch, so that has to come before.
        self._thread.submit(lambda: (torch.get_num_threads(), torch.set_num_threads(1))).result()
        torch.set_num_threads(before)

    @property
    def dimensions(self) -> int:
        """See `Embedder`."""
        return int(self._model.config.hidden_size)

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        return self._thread.submit(self._embed_all, list(texts)).result()

    def _embed_all(self, texts: Sequence[str]) -> list[Vector]:
        # One at a time: padding beside a longer text would change the last digits.
        with self._torch.inference_mode():
            return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> Vector:
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        size = self.WINDOW - 2
        windows = [ids[start : start + size] for start in range(0, len(ids), size)] or [[]]
        mean = self._torch.cat([self._states(window) for window in windows]).double().mean(dim=0)
        unit: Vector = self._torch.nn.functional.normalize(mean, dim=0).tolist()
        return unit

    def _states(self, window: Sequence[int]) -> Any:
        """The last hidden states: float32, shape (tokens, dimensions)."""
        row = self._torch.tensor([[self._tokenizer.cls_token_id, *window, self._tokenizer.sep_token_id]])
        return self._model(input_ids=row, attention_mask=self._torch.ones_like(row)).last_hidden_state[0]


def minilm(*, progress: Progress | None = None) -> MiniLm:
    """The embedder of the evaluation; its weights (91 MB) are fetched at the first use.

    Raises:
        ModelError: the weights can't be had, or torch and transformers aren't installed.
    """
    return MiniLm(fetch_folder(MINILM, progress=progress))
