"""Starts the tiny policy with heads that copy, since learning them from nothing takes longer than all the rest.

Two heads of the first layer look at the token before (their biases make the score depend on the distance alone,
through the rotary embedding), two heads of the second look for an earlier place whose token before is the present
token, and write the token found there: what is known as induction heads (Olsson et al., arXiv 2209.11895). Everything
stays trainable. Dimension suffixes: D head size, H hidden size, B batch, T time, V vocabulary.
"""

import random

import torch
from transformers import LlamaForCausalLM

HEADS = 2
"""Heads that copy; one more looks two tokens back, where a list's entry before stands."""

EMBEDDING = 0.1
"""Standard deviation of the embeddings: large enough that a copied token's logit stands out."""

DISTANCE_GAIN, MATCH_GAIN, SHIFT_GAIN = 7.0, 2.75, 0.2
"""Sharpness of looking back by one, sharpness of matching, and how loudly the token before is written down."""


def _orthogonal(rows: int, columns: int) -> torch.Tensor:
    return torch.nn.init.orthogonal_(torch.empty(rows, columns))


@torch.no_grad()
def wire(model: LlamaForCausalLM) -> None:
    """Set the copying heads in place; the model needs attention biases and two layers at least."""
    hidden = model.config.hidden_size
    size = hidden // model.config.num_attention_heads
    model.model.embed_tokens.weight.normal_(0.0, EMBEDDING)
    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    for head in range(HEADS + 1):
        rows = slice(head * size, (head + 1) * size)
        value_DH, out_HD = _orthogonal(size, hidden), _orthogonal(hidden, size)
        first.v_proj.weight[rows], first.o_proj.weight[:, rows] = value_DH, SHIFT_GAIN * out_HD
        first.q_proj.weight[rows], first.k_proj.weight[rows] = 0.0, 0.0
        first.q_proj.bias[rows], first.k_proj.bias[rows] = _look_back(size, 1 if head < HEADS else 2)
        if head == HEADS:
            break
        second.q_proj.weight[rows], second.k_proj.weight[rows] = _match(value_DH, out_HD)
        copy_DH = _orthogonal(size, hidden)
        second.v_proj.weight[rows], second.o_proj.weight[:, rows] = copy_DH, copy_DH.T


def _look_back(size: int, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Biases of query and key whose product, after rotation, is greatest `distance` positions back."""
    half = size // 2
    frequency = 10000.0 ** (-torch.arange(half) / half)
    fast = DISTANCE_GAIN * (torch.arange(half) < half // 2)
    query = torch.cat([fast, torch.zeros(half)])
    key = torch.cat([fast * (distance * frequency).cos(), fast * (distance * frequency).sin()])
    return query, key


def _match(value_DH: torch.Tensor, out_HD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Query (the present token) and key (the token before), compared in the slowly rotating dimensions."""
    size = value_DH.shape[0]
    slow = [*range(size // 4, size // 2), *range(3 * size // 4, size)]
    query_DH, key_DH = torch.zeros_like(value_DH), torch.zeros_like(value_DH)
    query_DH[slow] = MATCH_GAIN * value_DH[: size // 2]
    key_DH[slow] = MATCH_GAIN * out_HD[:, : size // 2].T
    return query_DH, key_DH


def repeats(
    rng: random.Random, vocabulary: range, rows: int = 24, width: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids that repeat with a period of their own in each row, and which of them can be foreseen."""
    ids, known = [], []
    for _ in range(rows):
        period = rng.randint(4, 20)
        once = [rng.choice(vocabulary) for _ in range(period)]
        ids.append((once * (width // period + 1))[:width])
        known.append([t >= period for t in range(width)])
    return torch.tensor(ids), torch.tensor(known)


def copying_loss(model: LlamaForCausalLM, ids_BT: torch.Tensor, known_BT: torch.Tensor) -> torch.Tensor:
    """Mean loss of the tokens that a copy of what came before would foresee."""
    logits_BTV = model(input_ids=ids_BT).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits_BTV[known_BT[:, 1:]], ids_BT[:, 1:][known_BT[:, 1:]])
