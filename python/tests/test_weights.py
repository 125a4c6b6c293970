"""Weights in memory: from a model in any layout to tensors under Hugging Face's names, and back."""

import json
import struct

import megalith
import pytest
import torch
from conftest import ROOT, options
from megalith.testing import run_ranks

GOLDEN = ROOT / "tests" / "data" / "golden" / "hf"


def stored(folder):
    """The tensors of a model folder, read without any package."""
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        if not file.name.startswith("model"):
            continue
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, info in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = info["data_offsets"]
            values = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=types[info["dtype"]])
            tensors[name] = values.reshape(info["shape"])
    return tensors


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def load(folder, **more):
    args = megalith.TrainingArguments(**options(**more))
    return megalith.AutoModel.from_pretrained(str(folder), args)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


LAYOUTS = [
    ("llama", 4, dict(tp=2, pp=2)),
    ("llama", 4, dict(tp=2, cp=2, sequence_parallel=True)),
    ("qwen3_moe", 4, dict(tp=2, ep=2, sequence_parallel=True)),
    ("mixtral", 4, dict(ep=2, pp=2)),
    ("gpt2", 2, dict(tp=2)),  # transposed and fused
    ("qwen2", 2, dict(pp=2)),  # a tied head, on another stage than the embedding
    ("qwen3_next", 2, dict(tp=2)),  # depthwise convolutions
    ("qwen3_vl_moe", 2, dict(tp=2)),  # stacked experts; a tower with a kernel of five dimensions
    ("qwen3_omni_moe", 2, dict(tp=2)),  # parts that are not trained come from the original files
]


@pytest.mark.parametrize("family, size, layout", LAYOUTS, ids=[f"{each[0]}-{each[2]}" for each in LAYOUTS])
def test_every_layout_gives_the_tensors_of_the_file(family, size, layout):
    folder = GOLDEN / family

    def gather():
        model = load(folder, **layout)
        names = [name for name, _ in model.weights(batch_bytes=5000)]  # many batches
        alone = model.state_dict(rank=1)
        return names, model.state_dict(), alone, model.state_dict(dtype=torch.bfloat16)

    expected = stored(folder)
    for number, (names, found, alone, rounded) in enumerate(run_ranks(size, gather)):
        assert names == list(found)
        assert_same(found, expected)
        assert_same(alone, expected if number == 1 else {})
        assert all(torch.equal(rounded[name], expected[name].to(torch.bfloat16)) for name in expected)


def test_what_is_loaded_is_what_comes_out():
    folder = GOLDEN / "llama"
    changed = {name: tensor * 2 + 1 for name, tensor in stored(folder).items()}
    changed["model.norm.weight"][0] = -0.0

    def exchange():
        model = load(folder, tp=2, pp=2)
        before = model.state_dict(sharded=True)
        copies = {name: [each._replace(tensor=each.tensor.clone()) for each in shards] for name, shards in before.items()}
        assert model.load_state_dict(changed) == ([], [])
        found = model.state_dict()
        assert model.load_state_dict(copies, strict=False).unexpected_keys == []
        return found, model.state_dict(), before

    for found, restored, shards in run_ranks(4, exchange):
        assert_same(found, changed)
        assert torch.equal(bits(found["model.norm.weight"]), bits(changed["model.norm.weight"]))
        assert_same(restored, stored(folder))
        for name, parts in shards.items():
            for part in parts:
                assert part.shape == tuple(changed[name].shape)
                assert all(o + s <= whole for o, s, whole in zip(part.offset, part.tensor.shape, part.shape))


def test_shards_are_the_memory_of_the_model(model_folder):
    model = load(model_folder)
    shards = model.state_dict(sharded=True)
    (shard,) = shards["model.norm.weight"]
    shard.tensor.fill_(3)
    assert torch.equal(model.state_dict()["model.norm.weight"], torch.full(shard.shape, 3.0))


def test_wrong_tensors_are_named_and_change_nothing(model_folder):
    model = load(model_folder)
    weights = model.state_dict()
    some = dict(weights)
    del some["model.norm.weight"]
    some["lm_head.bias"] = torch.zeros(3)
    with pytest.raises(megalith.DataError, match="missing: model.norm.weight\n.*unexpected: lm_head.bias"):
        model.load_state_dict(some)
    loose = model.load_state_dict(some, strict=False)
    assert loose.missing_keys == ["model.norm.weight"] and loose.unexpected_keys == ["lm_head.bias"]
    with pytest.raises(megalith.DataError, match=r"model.norm.weight: \[1\] was given, and the model has \["):
        model.load_state_dict({**weights, "model.norm.weight": torch.zeros(1)})
    with pytest.raises(megalith.DataError, match="model.norm.weight: Long was given"):
        model.load_state_dict({**weights, "model.norm.weight": weights["model.norm.weight"].long()})
    assert_same(model.state_dict(), weights)
    with pytest.raises(megalith.DataError, match="hold NaN or infinities: model.norm.weight"):
        model.load_state_dict({**weights, "model.norm.weight": weights["model.norm.weight"] * float("nan")})
    with pytest.raises(megalith.ConfigError, match="rank 3 is to receive"):
        model.state_dict(rank=3)
    with pytest.raises(megalith.ConfigError, match="no adapter"):
        model.state_dict(of="adapter")
    with pytest.raises(megalith.ConfigError, match='weights of "everything"'):
        model.state_dict(of="everything")
    with pytest.raises(megalith.ConfigError, match="dtype is a str"):
        model.state_dict(dtype="bf16")


@pytest.mark.parametrize("bf16", [False, True])
def test_training_continues_from_loaded_weights(model_folder, samples, bf16):
    """In bf16 the optimizer trains fp32 copies of its own, which have to follow."""
    original = {name: tensor.clone() for name, tensor in load(model_folder, bf16=bf16).state_dict().items()}
    losses = []

    class Reset(megalith.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, metrics=None, **kwargs):
            losses.append(metrics["loss"])
            model.load_state_dict(original)

    model = load(model_folder, bf16=bf16, learning_rate=1e-2, optim="sgd")
    same = [samples[i % 4] for i in range(16)]  # each step has the same samples
    megalith.Trainer(model, model.args, train_dataset=same, callbacks=[Reset()]).train()
    assert len(losses) == 4 and len(set(losses)) == 1
    assert_same(model.state_dict(), original)


def test_pushed_weights_are_those_of_the_step(model_folder, samples):
    """As an engine gets them for the next rollouts: in a callback, with parameters that are still being gathered."""

    def train():
        pushed = []

        class Push(megalith.TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                pushed.append({name: tensor for name, tensor in model.weights()})

        model = load(model_folder, use_distributed_optimizer=True, overlap_param_gather=True, overlap_grad_reduce=True)
        trainer = megalith.Trainer(model, model.args, train_dataset=samples, callbacks=[Push()])
        trainer.train()
        return pushed, model.state_dict()

    results = run_ranks(2, train)
    (pushed, last), (other, _) = results
    assert len(pushed) == 4
    assert_same(pushed[-1], last)
    for here, there in zip(pushed, other):
        assert_same(here, there)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(pushed[0][name], pushed[1][name])


def test_adapters_come_merged_alone_or_not_at_all(tmp_path, model_folder, samples):
    def train():
        model = load(model_folder, finetuning_type="lora", lora_target="all", tp=2, learning_rate=0.1)
        trainer = megalith.Trainer(model, model.args, train_dataset=samples)
        trainer.train()
        merged = model.state_dict()
        base = model.state_dict(of="base")
        adapter = model.state_dict(of="adapter")
        with pytest.raises(megalith.ConfigError, match="merged only where whole tensors are made"):
            model.state_dict(sharded=True)
        assert model.state_dict(sharded=True, of="adapter").keys() <= adapter.keys()
        return merged, base, adapter, model.state_dict(of="base")

    for merged, base, adapter, after in run_ranks(2, train):
        assert_same(base, stored(GOLDEN / "llama"))
        assert_same(after, base)
        name = "layers.0.mlp.up_proj"
        (a,) = [tensor for key, tensor in adapter.items() if f"{name}.lora_A" in key]
        (b,) = [tensor for key, tensor in adapter.items() if f"{name}.lora_B" in key]
        scale = 2.0  # lora_alpha / lora_rank
        change = merged[f"model.{name}.weight"] - base[f"model.{name}.weight"]
        assert change.abs().max() > 1e-4
        torch.testing.assert_close(change, scale * (b @ a), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sharded", [False, True])
def test_an_adapter_goes_from_one_model_into_another(model_folder, samples, sharded):
    def train():
        options = dict(finetuning_type="lora", lora_target="all", tp=2)
        trained = load(model_folder, learning_rate=0.1, **options)
        megalith.Trainer(trained, trained.args, train_dataset=samples).train()
        adapter = trained.state_dict(of="adapter", sharded=sharded)
        merged = trained.state_dict()
        fresh = load(model_folder, **options)
        names = fresh.load_state_dict(adapter, of="adapter")
        assert not names.missing_keys and not names.unexpected_keys
        some = dict(list(adapter.items())[:2])
        with pytest.raises(megalith.DataError, match="missing: base_model.model.model.layers"):
            fresh.load_state_dict(some, of="adapter")
        with pytest.raises(megalith.DataError, match="unexpected: model.norm.weight"):
            fresh.load_state_dict({**adapter, "model.norm.weight": torch.ones(64)}, of="adapter")
        return merged, fresh.state_dict(), fresh.state_dict(of="base")

    for merged, loaded, base in run_ranks(2, train):
        assert_same(loaded, merged)
        assert_same(base, stored(GOLDEN / "llama"))


def test_an_adapter_of_peft_is_taken(model_folder, samples):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False))
    model = load(model_folder, finetuning_type="lora", lora_target="all", lora_rank=8, lora_alpha=16)
    model.load_state_dict(peft.get_peft_model_state_dict(theirs), of="adapter")
    ids = torch.tensor([samples[0]["input_ids"]])
    labels = torch.tensor([samples[0]["labels"]])
    loss = theirs(input_ids=ids, labels=labels).loss.item()
    ours = megalith.Trainer(model, model.args, eval_dataset=samples[:1]).evaluate()["eval_loss"]
    assert loss == pytest.approx(ours, rel=1e-5)


def test_a_model_of_transformers_takes_the_weights(model_folder, samples):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model = load(model_folder)
    megalith.Trainer(model, model.args, train_dataset=samples).train()
    theirs.load_state_dict(model.state_dict())
    ids = torch.tensor([samples[0]["input_ids"]])
    labels = torch.tensor([samples[0]["labels"]])
    loss = theirs(input_ids=ids, labels=labels).loss.item()
    ours = megalith.Trainer(model, model.args, eval_dataset=samples[:1]).evaluate()["eval_loss"]
    assert loss == pytest.approx(ours, rel=1e-5)
