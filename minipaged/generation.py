"""Lesson 0: from logits to text, a token at a time.

Follows `given/model.py`, which gives the logits. The likeliest token, or one drawn by its
probability; what to feed the model where a cache holds the rest (lesson 1); and `generate`, which
puts them together for one sequence. Leaves out batches of prompts (the engine of lesson 7).
"""

import math
from collections.abc import Sequence

import torch

from .given.model import Model, SequenceCache, to_ints


def greedy(logits: torch.Tensor) -> int:
    """Choose the next token: the likeliest one after the last token.

    Args:
        logits: float32 [num_rows, vocab_size], one row a token, in the order of the text.

    Returns:
        A token id.

    >>> greedy(torch.tensor([[0.0, 5.0, 1.0], [3.0, 2.0, 4.0]]))
    2
    """
    return int(logits[-1].argmax())


def next_inputs(token_ids: list[int], num_cached: int) -> tuple[list[int], list[int]]:
    """Choose what to feed the model: the tokens that are not cached yet, at their true positions.

    Args:
        token_ids: the whole sequence so far.
        num_cached: how many of its first tokens have their keys and values in the cache; 0 if
            there is no cache, and always fewer than there are tokens.

    Returns:
        The token ids to feed, and the position of each in the whole sequence, from 0.

    >>> next_inputs([70, 31, 9, 44, 58], num_cached=3)
    ([44, 58], [3, 4])
    """
    return token_ids[num_cached:], list(range(num_cached, len(token_ids)))


def sample(logits_row: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """Draw the next token by its probability.

    Args:
        logits_row: [vocab_size].
        temperature: above 0; low values keep to the likeliest tokens, 1 is the model's own.
        generator: a CPU generator; the same state draws the same token.

    Raises:
        ValueError: naming a temperature that is not above 0 or not finite.
    """
    check_temperature(temperature)
    if temperature == 0:
        raise ValueError("temperature is 0: that is `greedy`")
    row = logits_row.double().cpu()
    probabilities = torch.softmax((row - row.max()) / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def check_temperature(temperature: float) -> None:
    """Raise ValueError naming a temperature below 0, or not finite."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be 0 or more and finite, got {temperature}")


def generate(
    model: Model,
    prompt: str | Sequence[int],
    cache: SequenceCache | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int | None = None,
) -> list[int]:
    """Continue a prompt, one token at a time.

    Stops after max_new_tokens, after an end-of-text token, or when prompt and new tokens together
    reach max_seq_len. Afterwards the cache holds every token but the last new one, which was never
    fed; so `generate(model, prompt + new, cache)` goes on where this stopped.

    Args:
        model: the model.
        prompt: text, or token ids.
        cache: of one sequence; tokens it holds already must be the first ones of the prompt. Its
            `extend` is called once before each forward pass. None: the whole text is computed again
            for each token.
        max_new_tokens: at most so many; 0 gives [].
        temperature: 0 takes the likeliest token each time, more draws from the probabilities.
        seed: of the drawing; None draws differently each time.

    Returns:
        The new token ids alone; an end-of-text token, if it came, is the last of them.

    Raises:
        ValueError: an empty prompt, one longer than max_seq_len, a token id outside the vocabulary,
            a cache that holds the whole prompt already, a negative max_new_tokens or temperature.
        RuntimeError: the cache is full. It holds what it held before the refused step.

    >>> model = Model.load()
    >>> len(generate(model, "Once upon a time", max_new_tokens=5))
    5
    """
    given = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    token_ids = to_ints("prompt", given, 0, model.config.vocab_size).tolist()
    prompt_len, max_seq_len = len(token_ids), model.config.max_seq_len
    if not 1 <= prompt_len <= max_seq_len:
        raise ValueError(
            f"the prompt has {prompt_len} tokens, it must have from 1 to max_seq_len {max_seq_len}"
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, got {max_new_tokens}")
    if cache is not None and cache.num_tokens >= prompt_len:
        raise ValueError(
            f"the cache holds {cache.num_tokens} tokens, the prompt has {prompt_len}: at least one "
            "must be left to feed; a new prompt needs a new cache"
        )
    check_temperature(temperature)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    end_ids = {model.config.eos_token_id, *model.config.stop_token_ids}

    while len(token_ids) < min(prompt_len + max_new_tokens, max_seq_len):
        num_cached = 0 if cache is None else cache.num_tokens
        fed_ids, positions = next_inputs(token_ids, num_cached)
        if cache is not None and not cache.extend(len(fed_ids)):
            raise RuntimeError(
                f"the cache is full: it holds {num_cached} tokens and has no room for "
                f"{len(fed_ids)} more"
            )
        logits = model(fed_ids, positions, cache, logit_rows=[-1])
        token_id = greedy(logits) if temperature == 0 else sample(logits[0], temperature, generator)
        token_ids.append(token_id)
        if token_id in end_ids:
            break
    return token_ids[prompt_len:]
