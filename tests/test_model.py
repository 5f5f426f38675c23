"""The model, its loader and its sampling, held against transformers' LlamaForCausalLM."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import minipaged
from minipaged.cache_size import kv_bytes_per_token, kv_slots
from minipaged.generation import generate, greedy, next_inputs, sample
from minipaged.given.model import Model, ModelConfig

transformers = pytest.importorskip("transformers", reason="the oracle of these tests")

DATA = Path(minipaged.__file__).parent / "data"
STORY = "Once upon a time, there was a little fox named Pip."
OPT_13B = ModelConfig(
    num_layers=40,
    num_query_heads=40,
    num_kv_heads=40,
    head_dim=128,
    hidden_size=5120,
    vocab_size=50272,
    max_seq_len=2048,
)


class GrowingCache:
    """A cache of one sequence, its own oracle: masks by hand, and can be made full."""

    def __init__(self, num_layers: int, max_tokens: int = 10**6) -> None:
        self.kv: list = [None] * num_layers
        self.num_tokens, self.max_tokens = 0, max_tokens
        self.extended: list[int] = []
        self.calls = 0

    def extend(self, n: int) -> bool:
        if self.num_tokens + n > self.max_tokens:
            return False
        self.extended.append(n)
        self.num_tokens += n
        return True

    def attend(self, layer_idx, q, k, v):
        self.calls += 1
        kept = self.kv[layer_idx]
        k, v = (k, v) if kept is None else (torch.cat([kept[0], k]), torch.cat([kept[1], v]))
        self.kv[layer_idx] = k, v
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        allowed = torch.ones(scores.shape[1:]).tril(k.shape[0] - q.shape[0]).bool()
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.fixture(scope="module")
def story_model() -> Model:
    return Model.load()


def save_llama(folder: Path, dtype=torch.float32, max_shard_size="1GB", seed=0, **changes) -> Path:
    """Save a tiny random Llama in transformers' own way."""
    sizes = {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "bos_token_id": 0,
    } | changes
    torch.manual_seed(seed)
    hf_model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).to(dtype)
    for name, parameter in hf_model.named_parameters():
        if "norm" in name:  # ones at birth: they would hide a norm that is left out
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    hf_model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def oracle_logits(folder: Path, token_ids: list[int], dtype=torch.float32) -> torch.Tensor:
    hf_model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        return hf_model(torch.tensor([token_ids])).logits[0].float()


def edit_config(folder: Path, **changes) -> None:
    """Change keys of config.json; a value of ... removes the key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def random_ids(vocab_size: int, n: int, seed: int = 0) -> list[int]:
    return torch.randint(vocab_size, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


# Equality with transformers


def test_embedded_model_gives_the_logits_of_transformers(story_model):
    token_ids = story_model.tokenizer.encode(STORY) + random_ids(1024, 200)
    logits = story_model(token_ids, list(range(len(token_ids))))
    torch.testing.assert_close(logits, oracle_logits(DATA, token_ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 2},
        {"num_attention_heads": 8, "num_key_value_heads": 2},
        {"tie_word_embeddings": True},
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 14},
        {"rms_norm_eps": 0.1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ],
    ids=["group 1", "group 3", "group 4", "tied", "head_dim 14", "large eps", "theta 50"],
)
def test_random_model_gives_the_logits_of_transformers(tmp_path, shape):
    folder = save_llama(tmp_path, **shape)
    token_ids = random_ids(61, 40)
    logits = Model.load(folder)(token_ids, list(range(40)))
    torch.testing.assert_close(logits, oracle_logits(folder, token_ids), atol=1e-5, rtol=1e-5)


def test_shards_give_the_logits_of_transformers(tmp_path):
    folder = save_llama(tmp_path, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    token_ids = random_ids(61, 20)
    logits = Model.load(folder)(token_ids, list(range(20)))
    torch.testing.assert_close(logits, oracle_logits(folder, token_ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_of_any_float_dtype_are_computed_in_float32(tmp_path, stored):
    folder = save_llama(tmp_path, dtype=stored)
    token_ids = random_ids(61, 20)
    loaded = Model.load(folder)
    logits = loaded(token_ids, list(range(20)))
    assert loaded.dtype == loaded.layers[0].qkv.dtype == torch.float32
    torch.testing.assert_close(logits, oracle_logits(folder, token_ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_computing_in_half_precision_stays_near_float32_and_answers_in_it(dtype, tolerance):
    token_ids = Model.load().tokenizer.encode(STORY)
    positions = list(range(len(token_ids)))
    logits = Model.load(dtype=dtype)(token_ids, positions)
    due = Model.load()(token_ids, positions)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, due)
    assert (logits - due).abs().max() < tolerance * due.abs().max()


def test_float64_agrees_with_float32(story_model):
    token_ids = story_model.tokenizer.encode(STORY)
    positions = list(range(len(token_ids)))
    logits = Model.load(dtype=torch.float64)(token_ids, positions)
    torch.testing.assert_close(logits, story_model(token_ids, positions), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rope", ["rope_parameters", "rope_theta", "neither, theta 10000"])
def test_rope_theta_is_read_from_new_and_old_configs(tmp_path, rope):
    theta = 10000.0 if rope.startswith("neither") else 37.0
    folder = save_llama(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": theta})
    token_ids = random_ids(61, 40)
    due = oracle_logits(folder, token_ids)
    if rope == "rope_theta":
        edit_config(folder, rope_parameters=..., rope_theta=theta, rope_scaling=None)
    elif rope != "rope_parameters":
        edit_config(folder, rope_parameters=...)
    logits = Model.load(folder)(token_ids, list(range(40)))
    torch.testing.assert_close(logits, due, atol=1e-5, rtol=1e-5)


def test_greedy_text_is_that_of_transformers(story_model):
    prompt = story_model.tokenizer.encode(STORY)
    hf_model = transformers.LlamaForCausalLM.from_pretrained(DATA, dtype=torch.float32)
    due = hf_model.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0
    )
    assert generate(story_model, prompt, max_new_tokens=40) == due[0, len(prompt) :].tolist()


# The seam


def test_chunks_through_a_cache_give_the_logits_of_one_call(story_model):
    token_ids = random_ids(1024, 30)
    due = story_model(token_ids, list(range(30)))
    cache = GrowingCache(story_model.config.num_layers)
    chunks = [range(11), range(11, 12), range(12, 30)]
    rows = [story_model([token_ids[i] for i in chunk], list(chunk), cache) for chunk in chunks]
    torch.testing.assert_close(torch.cat(rows), due, atol=2e-5, rtol=1e-5)


def test_attend_gets_the_documented_shapes_once_a_layer_in_order(tmp_path):
    seen = []

    class Recorder:
        def attend(self, layer_idx, q, k, v):
            seen.append((layer_idx, q.shape, k.shape, v.shape, q.dtype))
            return q

    Model.load(save_llama(tmp_path))([3, 4, 5], [0, 1, 2], Recorder())
    shapes = (3, 6, 8), (3, 2, 8), (3, 2, 8), torch.float32
    assert seen == [(0, *shapes), (1, *shapes)]


def test_positions_and_not_the_order_of_rows_turn_the_heads(story_model):
    seen = []

    class Recorder:
        def attend(self, layer_idx, q, k, v):
            seen.append((q, k, v))
            return torch.zeros_like(q)

    story_model([7, 7, 7], [4, 9, 4], Recorder())
    q, k, v = seen[0]
    assert torch.equal(q[0], q[2])
    assert torch.equal(k[0], k[2])
    assert not torch.allclose(k[0], k[1])
    assert torch.equal(v[0], v[1])


def test_an_attend_of_the_wrong_shape_is_named(story_model):
    class Wrong:
        def attend(self, layer_idx, q, k, v):
            return v

    with pytest.raises(ValueError, match=r"attend returned \[2, 2, 32\].*\[2, 4, 32\]"):
        story_model([1, 2], [0, 1], Wrong())


@pytest.mark.parametrize("rows", [[0], [4, 1], [-1], [], torch.tensor([2, 2])])
def test_logit_rows_choose_rows_of_all_logits(story_model, rows):
    token_ids = random_ids(1024, 5)
    due = story_model(token_ids, list(range(5)))[torch.as_tensor(rows, dtype=torch.int64)]
    logits = story_model(token_ids, list(range(5)), logit_rows=rows)
    assert logits.shape == due.shape
    torch.testing.assert_close(logits, due, atol=1e-5, rtol=1e-5)


def test_lists_and_tensors_of_any_int_dtype_are_the_same_input(story_model):
    due = story_model([5, 6, 7], [0, 1, 2])
    for dtype in (torch.int32, torch.int64):
        ids, positions = torch.tensor([5, 6, 7], dtype=dtype), torch.arange(3, dtype=dtype)
        assert torch.equal(story_model(ids, positions), due)


def test_logits_need_no_grad():
    trained = Model.load()
    trained.embedding.requires_grad_()
    logits = trained([5], [0])
    assert logits.dtype == torch.float32
    assert not logits.requires_grad
    assert not logits.is_inference()


@pytest.mark.parametrize(
    ("token_ids", "positions", "rows", "message"),
    [
        ([], [], None, "token_ids is empty"),
        ([1, 2, 3], [0, 1], None, "3 token_ids but 2 positions"),
        ([1, 1024], [0, 1], None, r"token_ids\[1\] is 1024, it must be from 0 to 1023"),
        ([-1], [0], None, r"token_ids\[0\] is -1"),
        ([1, 2], [0, 1024], None, r"positions\[1\] is 1024, it must be from 0 to 1023"),
        ([1, 2], [-3, 0], None, r"positions\[0\] is -3"),
        ([1, 2], [0, 1], [2], r"logit_rows\[0\] is 2"),
        ([1, 2], [0, 1], [0, -3], r"logit_rows\[1\] is -3"),
        ([1.0, 2.0], [0, 1], None, "token_ids must be whole numbers, got torch.float32"),
        ([True], [0], None, "whole numbers, got torch.bool"),
        (["a"], [0], None, "token_ids must be whole numbers"),
        ([10**30], [0], None, "token_ids must be whole numbers"),
        ([[1, 2]], [[0, 1]], None, r"one dimension, got shape \[1, 2\]"),
        (torch.tensor([1, 5000]), [0, 1], None, r"token_ids\[1\] is 5000"),
        (torch.tensor([1, 2]), torch.tensor([0, -7]), None, r"positions\[1\] is -7"),
    ],
)
def test_a_refused_call_names_the_value_and_leaves_the_cache_alone(
    story_model, token_ids, positions, rows, message
):
    cache = GrowingCache(story_model.config.num_layers)
    with pytest.raises(ValueError, match=message):
        story_model(token_ids, positions, cache, logit_rows=rows)
    assert cache.calls == 0


# Configs


def llama_config(**changes) -> dict:
    config = json.loads((DATA / "config.json").read_text()) | changes
    return {key: value for key, value in config.items() if value is not ...}


def test_config_reads_the_embedded_sizes(story_model):
    config = story_model.config
    assert (config.num_layers, config.num_query_heads, config.num_kv_heads) == (4, 4, 2)
    assert (config.head_dim, config.hidden_size, config.intermediate_size) == (32, 128, 352)
    assert (config.vocab_size, config.max_seq_len, config.eos_token_id) == (1024, 1024, 0)
    assert config.tie_word_embeddings


def test_config_derives_what_old_files_leave_out():
    config = ModelConfig.from_dict(
        llama_config(head_dim=..., num_key_value_heads=..., tie_word_embeddings=...)
    )
    assert (config.head_dim, config.num_kv_heads, config.tie_word_embeddings) == (32, 4, False)


@pytest.mark.parametrize(
    ("eos", "first", "further"),
    [(2, 2, ()), ([3, 9], 3, (9,)), (None, None, ()), (..., None, ()), (0, 0, ())],
)
def test_config_reads_one_several_or_no_end_tokens(eos, first, further):
    config = ModelConfig.from_dict(llama_config(eos_token_id=eos))
    assert (config.eos_token_id, config.stop_token_ids) == (first, further)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "opt"}, "model_type is 'opt': only 'llama'"),
        ({"model_type": ...}, "model_type is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type is 'llama3'"),
        ({"rope_parameters": ..., "rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
        ({"rope_parameters": ..., "rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"hidden_size": ...}, "hidden_size must be a whole number from 1 up, got None"),
        ({"vocab_size": "many"}, "vocab_size must be .* got 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be .* got 0"),
        ({"num_key_value_heads": 3}, "num_query_heads 4 is not a multiple of num_kv_heads 3"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"head_dim": "7"}, "head_dim must be .* got '7'"),
        ({"head_dim": ..., "num_attention_heads": 0}, "num_attention_heads must be .* got 0"),
        ({"head_dim": ..., "num_attention_heads": 3}, "128 is not a multiple .* 3"),
    ],
)
def test_a_config_that_is_not_computed_here_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(llama_config(**changes))


def test_a_bare_config_with_an_impossible_size_is_refused():
    with pytest.raises(ValueError, match="num_layers must be a whole number from 1 up, got 0"):
        dataclasses.replace(OPT_13B, num_layers=0)


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPT_13B.num_layers = 3  # type: ignore[misc]


# Loading


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(DATA / name, tmp_path / name)
    return tmp_path


def edit_weights(folder: Path, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_weights_are_those_of_the_model_card():
    digest = hashlib.sha256((DATA / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (DATA / "MODEL_CARD.md").read_text()


def test_a_path_may_be_text_or_a_path(folder, story_model):
    due = story_model([5], [0])
    assert torch.equal(Model.load(folder)([5], [0]), due)
    assert torch.equal(Model.load(str(folder))([5], [0]), due)


def test_a_name_on_a_hub_is_not_downloaded():
    with pytest.raises(
        FileNotFoundError, match=r"some/llama is not a directory.*downloads nothing"
    ):
        Model.load("some/llama")


def test_a_missing_config_is_named(folder):
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        Model.load(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "must hold a JSON object, got list")]
)
def test_a_broken_config_is_named(folder, text, message):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.json {message}"):
        Model.load(folder)


def test_another_architecture_is_refused_with_its_file(folder):
    edit_config(folder, model_type="gpt2")
    with pytest.raises(ValueError, match=r"config\.json: model_type is 'gpt2'"):
        Model.load(folder)


def test_missing_weights_are_named_with_both_names(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor .*index\.json"):
        Model.load(folder)


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_damaged_weights_are_named(folder, damage):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-100], "text": b"version https://git-lfs", "empty": b""}[damage]
    )
    with pytest.raises(ValueError, match=r"model\.safetensors \(\d+ bytes\) is not a whole"):
        Model.load(folder)


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"))
    with pytest.raises(
        ValueError, match=r"model\.safetensors has no tensor model\.layers\.3\.mlp\.up_proj\.weight"
    ):
        Model.load(folder)


def test_an_untied_model_without_a_head_is_refused(folder):
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"no tensor lm_head\.weight"):
        Model.load(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    edit_config(folder, num_key_value_heads=1)
    with pytest.raises(ValueError, match=r"k_proj.*has shape \[64, 128\].*should be \[32, 128\]"):
        Model.load(folder)


def test_a_quantised_tensor_is_refused(folder):
    def quantise(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)

    edit_weights(folder, quantise)
    with pytest.raises(ValueError, match=r"model\.norm\.weight .* is torch\.int8"):
        Model.load(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = save_llama(tmp_path, max_shard_size="8KB")
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=f"{lost.name}, a shard that the index names"):
        Model.load(folder)


def test_a_shard_without_its_tensor_is_named(tmp_path):
    folder = save_llama(tmp_path, max_shard_size="8KB")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    other = next(
        shard
        for name, shard in index["weight_map"].items()
        if shard != index["weight_map"]["model.norm.weight"]
    )
    index["weight_map"]["model.norm.weight"] = other
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"{other} gives no tensor model\.norm\.weight"):
        Model.load(folder)


def test_an_index_without_a_map_is_named(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ValueError, match=r"index\.json has no weight_map"):
        Model.load(folder)


def test_computing_in_integers_is_refused():
    with pytest.raises(ValueError, match=r"torch\.int8"):
        Model.load(dtype=torch.int8)


def test_a_model_without_tokenizer_works_on_token_ids_and_says_what_text_needs(folder):
    (folder / "tokenizer.json").unlink()
    loaded = Model.load(folder)
    assert len(generate(loaded, [5, 6], max_new_tokens=2)) == 2
    for use in (
        lambda: loaded.tokenizer.encode("a"),
        lambda: loaded.tokenizer.decode([5]),
        lambda: generate(loaded, "a"),
    ):
        with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing.*token ids"):
            use()


def test_a_broken_tokenizer_is_named(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json"):
        Model.load(folder).tokenizer.encode("a")


def test_the_tokenizer_gives_back_the_text(story_model):
    token_ids = story_model.tokenizer.encode(STORY)
    assert all(isinstance(token_id, int) for token_id in token_ids)
    assert 0 not in token_ids
    assert story_model.tokenizer.decode(token_ids) == STORY
    assert story_model.tokenizer.decode(torch.tensor([*token_ids, 0])) == STORY


# The small functions


def test_greedy_takes_the_last_row():
    assert greedy(torch.tensor([[9.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.5, 3.0, 1.0]])) == 1


def test_opt_13b_takes_819_200_bytes_a_token():
    assert kv_bytes_per_token(OPT_13B, torch.float16) == 819_200
    assert kv_bytes_per_token(OPT_13B, torch.float32) == 2 * 819_200


def test_bytes_count_kv_heads_and_not_query_heads(story_model):
    assert kv_bytes_per_token(story_model.config, torch.float32) == 2 * 4 * 2 * 32 * 4


def test_twelve_gib_hold_15_728_slots_or_7_slabs_of_opt_13b():
    assert kv_slots(OPT_13B, torch.float16, 12 * 2**30, max_seq_len=2048) == (15_728, 7)


@pytest.mark.parametrize(("num_bytes", "due"), [(0, (0, 0)), (819_199, (0, 0)), (819_200, (1, 0))])
def test_only_whole_slots_count(num_bytes, due):
    assert kv_slots(OPT_13B, torch.float16, num_bytes, max_seq_len=2) == due


def test_next_inputs_are_the_uncached_tokens_at_their_true_positions():
    assert next_inputs([7, 8, 9], 0) == ([7, 8, 9], [0, 1, 2])
    assert next_inputs([7, 8, 9], 2) == ([9], [2])


# Sampling


def test_sampling_follows_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    row = torch.tensor([0.1, 0.2, 0.7]).log()
    draws = [sample(row, 1.0, generator) for _ in range(3000)]
    shares = [draws.count(i) / 3000 for i in range(3)]
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.04)
    sharp = [sample(row, 0.25, generator) for _ in range(500)]
    assert sharp.count(2) > 480  # 0.7 ** 4 against 0.2 ** 4 and 0.1 ** 4: 0.993


def test_a_tiny_temperature_is_greedy_and_not_nan():
    row = torch.tensor([1.0, 3.0, 2.0])
    assert sample(row, 5e-324, torch.Generator().manual_seed(0)) == 1


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_cannot_be_is_named(temperature):
    with pytest.raises(ValueError, match="temperature"):
        sample(torch.zeros(3), temperature, torch.Generator())


# generate


def test_greedy_generation_is_the_same_with_and_without_a_cache(story_model):
    cache = GrowingCache(story_model.config.num_layers)
    alone = generate(story_model, STORY, max_new_tokens=30)
    assert generate(story_model, STORY, cache, max_new_tokens=30) == alone
    assert len(alone) == 30


def test_a_seed_repeats_a_story_and_another_changes_it(story_model):
    def story(seed):
        return generate(story_model, STORY, max_new_tokens=20, temperature=1.0, seed=seed)

    assert story(1) == story(1)
    assert len({tuple(story(seed)) for seed in range(4)}) > 1
    assert len({tuple(story(None)) for _ in range(4)}) > 1


def test_drawing_leaves_the_global_generator_alone(story_model):
    torch.manual_seed(3)
    due = torch.rand(2)
    torch.manual_seed(3)
    generate(story_model, STORY, max_new_tokens=3, temperature=1.0, seed=1)
    assert torch.equal(torch.rand(2), due)


def test_the_cache_is_extended_once_a_pass_and_lacks_the_last_token_only(story_model):
    prompt = story_model.tokenizer.encode(STORY)
    cache = GrowingCache(story_model.config.num_layers)
    new = generate(story_model, prompt, cache, max_new_tokens=6)
    assert cache.extended == [len(prompt), 1, 1, 1, 1, 1]
    assert cache.num_tokens == len(prompt) + len(new) - 1


def test_generation_goes_on_where_it_stopped(story_model):
    prompt = story_model.tokenizer.encode(STORY)
    cache = GrowingCache(story_model.config.num_layers)
    first = generate(story_model, prompt, cache, max_new_tokens=8)
    second = generate(story_model, prompt + first, cache, max_new_tokens=8)
    assert first + second == generate(story_model, prompt, max_new_tokens=16)


def with_config(base: Model, **changes) -> Model:
    other = Model.__new__(Model)
    other.__dict__.update(base.__dict__)
    other.config = dataclasses.replace(base.config, **changes)
    return other


@pytest.mark.parametrize("field", ["eos_token_id", "stop_token_ids"])
def test_generation_stops_after_an_end_token_which_is_the_last(story_model, field):
    story = generate(story_model, STORY, max_new_tokens=20)
    stop = next(i for i in range(3, 20) if story[i] not in story[:i])
    end = story[stop] if field == "eos_token_id" else (story[stop],)
    cache = GrowingCache(story_model.config.num_layers)
    stopped = generate(with_config(story_model, **{field: end}), STORY, cache, max_new_tokens=20)
    assert stopped == story[: stop + 1]
    assert cache.num_tokens == len(story_model.tokenizer.encode(STORY)) + stop


def test_a_story_ends_by_itself(story_model):
    new = generate(story_model, STORY, GrowingCache(4), max_new_tokens=900)
    assert new[-1] == story_model.config.eos_token_id
    assert new.count(new[-1]) == 1


def test_generation_stops_at_max_seq_len(story_model):
    short = with_config(story_model, max_seq_len=20)
    prompt = story_model.tokenizer.encode(STORY)
    new = generate(short, prompt, max_new_tokens=100)
    assert len(prompt) + len(new) == 20
    assert generate(short, (prompt + new), max_new_tokens=100) == []


def test_no_new_tokens_touch_nothing(story_model):
    cache = GrowingCache(4)
    assert generate(story_model, STORY, cache, max_new_tokens=0) == []
    assert (cache.extended, cache.calls) == ([], 0)


def test_a_full_cache_is_said_with_both_counts_and_keeps_what_it_held(story_model):
    prompt = story_model.tokenizer.encode(STORY)
    small = GrowingCache(4, max_tokens=len(prompt) - 1)
    with pytest.raises(RuntimeError, match=f"holds 0 tokens and has no room for {len(prompt)}"):
        generate(story_model, prompt, small)
    assert (small.num_tokens, small.calls) == (0, 0)
    larger = GrowingCache(4, max_tokens=len(prompt) + 2)
    with pytest.raises(RuntimeError, match=f"holds {len(prompt) + 2} tokens .* for 1 more"):
        generate(story_model, prompt, larger)
    assert larger.num_tokens == len(larger.kv[0][0]) == len(prompt) + 2


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ("", {}, "the prompt has 0 tokens"),
        ([], {}, "the prompt has 0 tokens"),
        ([1] * 1025, {}, "the prompt has 1025 tokens.*max_seq_len 1024"),
        ([5, 1024], {}, r"prompt\[1\] is 1024"),
        ([5, -2], {}, r"prompt\[1\] is -2"),
        ([5], {"max_new_tokens": -1}, "max_new_tokens must be 0 or more, got -1"),
        ([5], {"temperature": -0.5}, "temperature must be .*, got -0.5"),
    ],
)
def test_a_refused_prompt_names_the_value_and_leaves_the_cache_alone(
    story_model, prompt, arguments, message
):
    cache = GrowingCache(4)
    with pytest.raises(ValueError, match=message):
        generate(story_model, prompt, cache, **arguments)
    assert (cache.extended, cache.calls) == ([], 0)


def test_a_cache_that_holds_the_whole_prompt_is_refused(story_model):
    cache = GrowingCache(4)
    generate(story_model, [5, 6, 7], cache, max_new_tokens=3)
    for length in (3, 5):
        with pytest.raises(ValueError, match=f"the cache holds 5 tokens, the prompt has {length}"):
            generate(story_model, [5] * length, cache)
    assert cache.num_tokens == 5
