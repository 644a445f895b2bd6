"""Decode many rows at once with a transformers model: flat batches, one key/value store, several adapters.

All tokens of a step (the prompts of new rows and one token of each running row) lie behind each other in one
sequence without padding, sorted by adapter. Everything in a decoder but attention works token by token and
does not mind; attention is ours (:func:`_attend`, registered with transformers) and looks only at a token's
own row. Rows of a whole model that was trained from the base model are computed in a pass of their own.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from unstable_stream.algorithms.learners.lora import language_model_class, no_progress_bar
from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import context_tokens, read_json
from unstable_stream.inference.tokenizer import end_token_ids
from unstable_stream.inference.transformers.lora import AdapterTable, Span

ATTENTION: Final = "unstable_stream_rows"
"""The name under which transformers knows our attention."""
SUPPORTED: Final = (
    "take a model with plain attention in every layer, such as Qwen3, Llama, Mistral, Gemma 3, Phi-3 or GPT-2"
)
_LENGTH_STEP = 64
"""Row lengths in the key/value store are multiples of this, so that it seldom grows."""


class _Probe:
    """Stands in for a batch once at start, to learn what the model asks of attention."""

    def __init__(self) -> None:
        self.key_shapes: dict[int, tuple[int, int]] = {}
        self.extras: set[str] = set()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        self.key_shapes[layer] = (k.shape[1], k.shape[2])
        if v.shape != k.shape:
            self.extras.add("values of another size than keys")
        return q.new_zeros((*q.shape[:2], v.shape[2]))


class _Batch:
    """The rows that one pass's tokens belong to: ``old`` rows go on, ``new`` rows bring their prompts."""

    def __init__(
        self, store: Tensor, old: list[tuple[int, int, int]], new: list[tuple[int, int, int]], total: int
    ) -> None:
        """Index the flat batch of ``total`` tokens.

        Of each row: its slot in the store, the place of its first token, and its length, without the new
        token. Slots ascend.
        """
        device = store.device
        self._store = store
        self._old, self._new = len(old), len(new)
        back = torch.empty(total, dtype=torch.long, device=device)
        if old:
            slots, places, lengths = zip(*old, strict=True)
            self._old_at = torch.tensor(places, device=device)
            self._slots = torch.tensor(slots, device=device)
            self._old_rows = _selected(slots, device)
            self._positions = torch.tensor(lengths, device=device)
            self._reach = max(lengths) + 1
            back[self._old_at] = torch.arange(self._old, device=device)
        if new:
            slots, places, lengths = zip(*new, strict=True)
            self._new_rows = _selected(slots, device)
            ends = torch.tensor(lengths, device=device)[:, None]
            self._longest = max(lengths)
            columns = torch.arange(self._longest, device=device)
            # Short prompts repeat their last token; what comes of it is read by nobody.
            self._new_at = torch.tensor(places, device=device)[:, None] + columns.minimum(ends - 1)
            valid = (columns < ends).flatten()
            cells = torch.arange(self._new * self._longest, device=device)
            back[self._new_at.flatten()[valid]] = self._old + cells[valid]
        self._back = back
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        """Store keys and values and attend within rows: (tokens, heads, size) in and out."""
        keys, values = self._store[layer]
        heads, size = q.shape[1:]
        parts = []
        if self._old:
            keys[self._slots, :, self._positions] = k[self._old_at]
            values[self._slots, :, self._positions] = v[self._old_at]
            # The query heads that share a key head stand in the place of query positions: no repeated keys.
            grouped = q[self._old_at].view(self._old, k.shape[1], -1, size)
            out = F.scaled_dot_product_attention(
                grouped,
                keys[self._old_rows, :, : self._reach],
                values[self._old_rows, :, : self._reach],
                attn_mask=self._old_mask(window),
                scale=scale,
            )
            parts.append(out.reshape(self._old, heads, size))
        if self._new:
            new_q, new_k, new_v = (x[self._new_at].transpose(1, 2) for x in (q, k, v))
            keys[self._new_rows, :, : self._longest] = new_k
            values[self._new_rows, :, : self._longest] = new_v
            local = window is not None and window < self._longest
            out = F.scaled_dot_product_attention(
                new_q,
                new_k,
                new_v,
                attn_mask=self._new_mask(window) if local else None,
                is_causal=not local,
                scale=scale,
                enable_gqa=new_q.shape[1] != new_k.shape[1],
            )
            parts.append(out.transpose(1, 2).reshape(-1, heads, size))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[self._back]

    def _old_mask(self, window: int | None) -> Tensor:
        """Shape (rows, 1, 1, reach): each row sees its own tokens up to the new one."""
        if window not in self._masks:
            columns = torch.arange(self._reach, device=self._store.device)
            latest = self._positions[:, None]
            mask = columns <= latest
            if window is not None:
                mask &= columns > latest - window
            self._masks[window] = mask[:, None, None]
        return self._masks[window]

    def _new_mask(self, window: int | None) -> Tensor:
        assert window is not None
        columns = torch.arange(self._longest, device=self._store.device)
        distance = columns[:, None] - columns
        return (distance >= 0) & (distance < window)


def _selected(slots: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return an index of the slots: a slice, with which nothing is copied, where no other is between them."""
    rows = slice(slots[0], slots[-1] + 1)
    return rows if rows.stop - rows.start == len(slots) else torch.tensor(slots, device=device)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_batch: _Batch | _Probe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' ``AttentionInterface`` calls it; shapes (1, heads, tokens, size)."""
    if isinstance(row_batch, _Probe):
        # Names of what only some models ask for; computing without it would be quietly wrong.
        row_batch.extras.update(name for name in ("softcap", "s_aux") if extras.get(name) is not None)
        if not getattr(module, "is_causal", True):
            row_batch.extras.add("attention to later tokens")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return row_batch.attend(layer, q, k, v, scale, sliding_window)[None], None


transformers.AttentionInterface.register(ATTENTION, _attend)


class RowDecoder:
    """A model on one device and the key/value store of the rows it is decoding. Not thread-safe."""

    def __init__(
        self,
        model_path: str,
        *,
        device: str,
        dtype: str,
        max_loras: int,
        max_rows: int,
        store_bytes: int | None,
        memory_fraction: float | None = None,
    ) -> None:
        """Load the model; see :class:`~unstable_stream.inference.transformers.engine.TransformersEngine`."""
        self._device = torch.device(device)
        if self._device.type == "cuda" and memory_fraction is not None:
            torch.cuda.set_per_process_memory_fraction(memory_fraction, self._device.index)
        self._model = _load_model(model_path, self._device, dtype)
        config = self._model.config.get_text_config()
        self.max_positions = context_tokens(
            self._model.config.to_dict(), read_json(Path(model_path) / "tokenizer_config.json")
        )
        """Most tokens of prompt and completion together; ``None``: the model does not say."""
        self.vocabulary = int(config.vocab_size)
        self.eos_token_ids = end_token_ids(model_path)
        head = self._model.get_output_embeddings()
        self.adapters = AdapterTable(self._model, head=head, max_loras=max_loras)
        self._last = torch.zeros(1, dtype=torch.long, device=self._device)
        head.register_forward_pre_hook(self._select_last)
        layers, heads, size = attention_shape(self._model, model_path)
        self._store = torch.zeros(
            (layers, 2, 0, heads, 0, size), dtype=next(self._model.parameters()).dtype, device=self._device
        )
        self._token_bytes = layers * 2 * heads * size * self._store.element_size()
        self._store_bytes = (
            _default_store_bytes(self._device, memory_fraction) if store_bytes is None else store_bytes
        )
        self.dtype = str(self._store.dtype).removeprefix("torch.")
        """The type that it computes in, such as ``bfloat16``."""
        self._max_rows = max_rows
        self._lengths: list[int] = []
        self._uids: list[str | None] = []

    def fits(self, rows: int, length: int) -> bool:
        """Whether ``rows`` rows of up to ``length`` tokens keep within the store's memory."""
        return rows * _rounded(length) * self._token_bytes <= self._store_bytes

    @torch.inference_mode()
    def step(
        self, tokens: Sequence[int], new: Sequence[tuple[Sequence[int], str | None]], reach: int
    ) -> Tensor:
        """Advance every row by its next token and take in new rows.

        ``tokens``: one per present row. ``new``: prompt and adapter uid of each row that joins, appended
        behind the present ones. ``reach``: the most tokens any row will ever hold. Returns next-token logits
        of all rows, shape (rows, vocabulary).
        """
        old = len(self._lengths)
        self._make_room(old + len(new), reach)
        texts = [[token] for token in tokens] + [list(prompt) for prompt, _ in new]
        begins = self._lengths + [0] * len(new)
        self._uids += [uid for _, uid in new]
        by_model: dict[str | None, list[int]] = {}
        for slot, uid in enumerate(self._uids):
            by_model.setdefault(uid if uid in self.adapters.whole else None, []).append(slot)
        parts = [self._advance(slots, texts, begins, old) for slots in by_model.values()]
        self._lengths = [begin + len(text) for begin, text in zip(begins, texts, strict=True)]
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([slot for slots in by_model.values() for slot in slots], device=self._device)
        return torch.cat(parts)[order.argsort()]

    def _advance(self, slots: list[int], texts: list[list[int]], begins: list[int], old: int) -> Tensor:
        """Compute the next tokens of these rows, all of one model; return the logits after the last of each.

        ``texts``, ``begins``: tokens and first position, by slot; rows from slot ``old`` on are new.
        """
        by_uid: dict[str | None, list[int]] = {}
        for slot in slots:
            by_uid.setdefault(self._uids[slot], []).append(slot)
        ids: list[int] = []
        positions: list[int] = []
        place: dict[int, int] = {}
        self.adapters.spans.clear()
        for uid, rows in by_uid.items():
            start = len(ids)
            for slot in rows:
                place[slot] = len(ids)
                ids += texts[slot]
                positions += range(begins[slot], begins[slot] + len(texts[slot]))
            self.adapters.spans.append(Span(uid, start, len(ids)))
        batch = _Batch(
            self._store,
            [(slot, place[slot], begins[slot]) for slot in slots if slot < old],
            [(slot, place[slot], len(texts[slot])) for slot in slots if slot >= old],
            len(ids),
        )
        self._last = torch.tensor([place[slot] + len(texts[slot]) - 1 for slot in slots], device=self._device)
        return self._forward(ids, positions, batch, self._uids[slots[0]])

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], uid: str | None
    ) -> list[list[float]]:
        """Return the log-probability at temperature 1 of each completion token, by (prompt, completion).

        It computes as :meth:`step` does with new rows, beside the rows that are being decoded.
        """
        ids: list[int] = []
        positions: list[int] = []
        starts: list[int] = []
        wanted: list[int] = []
        for prompt, completion in sequences:
            starts.append(len(ids))
            wanted += range(len(ids) + len(prompt) - 1, len(ids) + len(prompt) + len(completion) - 1)
            row = [*prompt, *completion[:-1]]
            ids += row
            positions += range(len(row))
        lengths = [end - start for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
        layers, two, _, heads, _, size = self._store.shape
        store = self._store.new_zeros((layers, two, len(sequences), heads, max(lengths), size))
        self.adapters.spans[:] = [Span(uid, 0, len(ids))]
        self._last = torch.tensor(wanted, device=self._device)
        rows = list(zip(range(len(starts)), starts, lengths, strict=True))
        logits = self._forward(ids, positions, _Batch(store, [], rows, len(ids)), uid)
        targets = [token for _, completion in sequences for token in completion]
        scores = logits.float().log_softmax(-1)[range(len(targets)), targets].tolist()
        bounds = np.cumsum([len(completion) for _, completion in sequences])
        return [scores[end - len(s[1]) : end] for end, s in zip(bounds, sequences, strict=True)]

    @torch.inference_mode()
    def drop(self, finished: Sequence[int], diverged: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Remove rows; returns the (from, to) moves by which the rest stays packed at the front.

        ``diverged``: those of them whose values are not finite.
        """
        if diverged:
            # Attention gives what lies beyond a row's end weight zero, but zero times NaN is NaN: left in the
            # store it would reach whoever gets the place next.
            self._store[:, :, list(diverged)] = 0
        gone = set(finished)
        kept = len(self._lengths) - len(gone)
        sources = [slot for slot in range(kept, len(self._lengths)) if slot not in gone]
        moves = list(zip(sources, sorted(slot for slot in gone if slot < kept), strict=True))
        if moves:
            reach = max(self._lengths[source] for source in sources)
            source_at, target_at = (
                torch.tensor(slots, device=self._device) for slots in zip(*moves, strict=True)
            )
            self._store[:, :, target_at, :, :reach] = self._store[:, :, source_at, :, :reach]
            for source, target in moves:
                self._lengths[target] = self._lengths[source]
                self._uids[target] = self._uids[source]
        del self._lengths[kept:]
        del self._uids[kept:]
        return moves

    def _forward(self, ids: list[int], positions: list[int], batch: _Batch, uid: str | None) -> Tensor:
        return _forward(self._model, ids, positions, batch, self.adapters.whole.get(uid))

    def _select_last(self, head: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        # Only each row's last token is asked for its successor: the vocabulary is the widest layer by far.
        return (args[0][:, self._last],)

    def _make_room(self, rows: int, reach: int) -> None:
        layers, two, slots, heads, length, size = self._store.shape
        if rows <= slots and reach <= length:
            return
        length = max(length, _rounded(reach))
        wanted = max(slots, min(self._max_rows, 1 << (rows - 1).bit_length()))
        if not self.fits(wanted, length):
            wanted, length = rows, _rounded(reach)
        # Zeroed, not empty: masked positions have weight zero, and zero times an uninitialised NaN is NaN.
        grown = self._store.new_zeros((layers, two, wanted, heads, length, size))
        old = len(self._lengths)
        used = max(self._lengths, default=0)
        grown[:, :, :old, :, :used] = self._store[:, :, :old, :, :used]
        self._store = grown


def _forward(
    model: Any,
    ids: list[int],
    positions: list[int],
    batch: _Batch | _Probe,
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """Return the logits; ``weights``: of another model of the same shape, by the names of the parameters."""
    device = next(model.parameters()).device
    given = {
        "input_ids": torch.tensor([ids], device=device),
        "position_ids": torch.tensor([positions], device=device),
        "use_cache": False,
        "row_batch": batch,
    }
    output = model(**given) if weights is None else functional_call(model, weights, (), given)
    logits: Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def attention_shape(model: Any, model_path: str) -> tuple[int, int, int]:  # a transformers model
    """Return layers, key heads and head size of a model, which may be on the device ``meta``.

    Raises:
        ConfigError: our attention would compute it wrong.
    """
    probe = _Probe()
    refused = f"{model_path}: the transformers engine cannot play {type(model).__name__}, which"
    try:
        _forward(model, [0], [0], probe)
    except (TypeError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"{refused} does not take other attention ({error}); {SUPPORTED}, or use the vLLM engine"
        ) from error
    layers = int(model.config.get_text_config().num_hidden_layers)
    shapes = set(probe.key_shapes.values())
    if any(isinstance(module, nn.Conv1d) for module in model.get_decoder().modules()):
        probe.extras.add("a state from token to token")
    if len(probe.key_shapes) != layers or len(shapes) != 1 or probe.extras:
        raise ConfigError(
            f"{refused} is not a stack of equal attention layers "
            f"({len(probe.key_shapes)} of {layers} layers attend, key shapes {sorted(shapes)}, "
            f"asks for {sorted(probe.extras) or 'nothing special'}); {SUPPORTED}, or use the vLLM engine"
        )
    heads, size = shapes.pop()
    return layers, heads, size


@torch.inference_mode()
def sample(
    logits: Tensor, temperature: Sequence[float], top_p: Sequence[float], uniform: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row; returns tokens and their natural log-probabilities under the distribution drawn
    from.

    ``logits``: (rows, vocabulary); the rest: one per row, ``uniform`` in [0, 1). Top-p keeps the fewest most
    probable tokens whose mass reaches ``top_p`` (Holtzman et al. 2020), ties in order of their ids. The draw
    inverts the cumulative distribution in the order of ids, in float64. Temperature 0 takes the most probable
    token, with its log-probability at temperature 1 and without top-p. A row with non-finite logits has NaN.
    """
    logprobs = logits.float()
    if any(value != 1 for value in temperature):
        logprobs = (
            logprobs / torch.tensor([value or 1.0 for value in temperature], device=logits.device)[:, None]
        )
    logprobs = logprobs.log_softmax(-1)
    if any(value < 1 for value in top_p):
        _apply_top_p(logprobs, temperature, top_p)
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.tensor(uniform, dtype=torch.float64, device=logits.device)[:, None] * total
    # Rounding may carry the product to the total itself, beyond every token.
    target = target.minimum(total.nextafter(torch.zeros_like(total)))
    choice = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    if 0 in temperature:
        greedy = torch.tensor([value == 0 for value in temperature], device=logits.device)
        choice[greedy] = logprobs[greedy].argmax(-1, keepdim=True)
    return choice[:, 0].tolist(), logprobs.gather(-1, choice)[:, 0].tolist()


def _apply_top_p(logprobs: Tensor, temperature: Sequence[float], top_p: Sequence[float]) -> None:
    pairs = zip(temperature, top_p, strict=True)
    rows = [row for row, (warmth, mass) in enumerate(pairs) if warmth > 0 and mass < 1]
    if not rows:
        return
    ordered, order = logprobs[rows].sort(dim=-1, descending=True, stable=True)
    probability = ordered.double().exp()
    mass = torch.tensor([[top_p[row]] for row in rows], dtype=torch.float64, device=logprobs.device)
    ordered[probability.cumsum(-1) - probability >= mass] = -math.inf
    ordered -= ordered.logsumexp(-1, keepdim=True)
    logprobs[rows] = torch.empty_like(ordered).scatter_(-1, order, ordered)


def _rounded(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _default_store_bytes(device: torch.device, fraction: float | None) -> int:
    """Half of what a CUDA device has free after loading, or of what is left of this process's fraction of it;
    on CPU 4 GiB, touched only as far as rows reach.
    """
    if device.type != "cuda":
        return 4 << 30
    free, total = torch.cuda.mem_get_info(device)
    if fraction is not None:
        free = min(free, int(total * fraction) - torch.cuda.memory_reserved(device))
    return max(0, free) // 2


def _load_model(model_path: str, device: torch.device, dtype: str) -> Any:
    """Raise :class:`~unstable_stream.errors.ConfigError` in one line for any failure of transformers."""
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    if Path(model_path).is_dir() and not (Path(model_path) / "config.json").is_file():
        raise ConfigError(f"{model_path} is no model directory: it has no config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(model_path)
        with no_progress_bar():
            model = language_model_class(config).from_pretrained(
                model_path, config=config, dtype=getattr(torch, dtype), attn_implementation=ATTENTION
            )
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"model {model_path!r} cannot be loaded: {reason}; expected a directory saved by transformers, "
            "or a hub name that is cached or reachable"
        ) from error
    return model.to(device).eval().requires_grad_(False)
