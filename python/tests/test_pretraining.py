"""pretrain() with Megatron's providers and forward step."""

import sys

import megalith
import pytest
import torch
from megalith.testing import run_ranks

OPTIONS = dict(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    seq_length=16,
    max_position_embeddings=16,
    micro_batch_size=2,
    global_batch_size=8,
    train_iters=6,
    eval_interval=100,
    eval_iters=1,
    lr=1e-2,
    log_interval=1,
    tokenizer_type="NullTokenizer",
    vocab_size=63,
    use_cpu=True,
    seed=7,
    attention_dropout=0,
    hidden_dropout=0,
)


class Counting(torch.utils.data.Dataset):
    """Items of Megatron's datasets: rows of seq_length tokens, and the tokens after them as labels."""

    def __init__(self, count, weight=None):
        self.count = count
        self.weight = weight

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.tensor([5 + (index + k) % 8 for k in range(17)])
        mask = torch.ones(16)
        mask[0] = 0
        item = {"tokens": tokens[:-1], "labels": tokens[1:], "loss_mask": mask, "position_ids": torch.arange(16)}
        item["attention_mask"] = torch.ones(1, 16, 16, dtype=torch.bool)
        return item if self.weight is None else {**item, "weight": torch.full((16,), self.weight)}


def datasets(samples):
    assert samples[0] == 48 and samples[1] == 8
    return Counting(samples[0]), Counting(8), None


def model_provider(pre_process=True, post_process=True):
    return megalith.gpt_model(pre_process, post_process)


def loss_func(loss_mask, output):
    losses = output.float().view(-1)
    mask = loss_mask.view(-1).float()
    return (losses * mask).sum(), int(mask.sum()), {"lm loss": (losses.detach().sum(), mask.sum())}


def forward_step(data_iterator, model):
    """As in pretrain_gpt.py."""
    data = next(data_iterator)
    output = model(data["tokens"], data["position_ids"], data["attention_mask"], labels=data["labels"])
    mask = data["loss_mask"]
    if model.post_process:
        assert data["tokens"].shape == data["labels"].shape == mask.shape == output.shape
    return output, lambda tensor: loss_func(mask, tensor)


class Lines(megalith.TrainerCallback):
    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])


def run(forward=forward_step, provider=datasets, layout=None, **more):
    lines = Lines()
    output = megalith.pretrain(
        provider,
        model_provider,
        megalith.ModelType.encoder_or_decoder,
        forward,
        args={**OPTIONS, **(layout or {})},
        callbacks=[lines],
        **more,
    )
    return lines.losses, output


def test_a_forward_step_in_python_equals_the_librarys():
    theirs, output = run(forward=None)
    assert len(theirs) == 6 and theirs[-1] < theirs[0]
    assert output.end == "finished" and output.global_step == 6 and output.validation["eval_loss"] > 0
    ours, again = run()
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert again.validation["eval_loss"] == pytest.approx(output.validation["eval_loss"], rel=1e-6)


LAYOUTS = [(2, {"pipeline_model_parallel_size": 2}), (4, {"tensor_model_parallel_size": 2, "context_parallel_size": 2})]


@pytest.mark.parametrize("size, layout", LAYOUTS, ids=str)
def test_every_layout(size, layout):
    alone, _ = run()
    results = run_ranks(size, lambda: run(layout=layout)[0])
    assert results[0] == pytest.approx(alone, rel=1e-5)
    assert all(each == results[0] for each in results)


def test_logits_and_extra_keys():
    def provider(samples):
        return Counting(samples[0], weight=2.0), None, None

    def own_loss(data_iterator, model):
        data = next(data_iterator)
        logits = model(data["tokens"], data["position_ids"], None)
        labels, mask = data["labels"], data["loss_mask"]

        def loss(output):
            logits = output.float().flatten(0, -2)[:, :64]  # without the columns that pad the vocabulary
            losses = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=-100)
            weighted = losses * data["weight"].flatten()
            return weighted.sum(), int(mask.sum()), {"plain": torch.stack([losses.detach().sum(), mask.sum()])}

        return logits, loss

    plain, _ = run(forward=None)
    found = {}

    class Plain(megalith.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            found.setdefault("plain", logs.get("plain"))

    lines = Lines()
    megalith.pretrain(
        provider, None, None, own_loss, args=OPTIONS, extra_keys=["weight"], report_keys=["plain"], callbacks=[lines, Plain()]
    )
    assert lines.losses[0] == pytest.approx(2 * plain[0], rel=1e-4)
    assert found["plain"] == pytest.approx(plain[0], rel=1e-4)


def test_arguments_of_the_program(monkeypatch):
    seen = {}

    def extra(parser):
        parser.add_argument("--my-weight", type=float, default=1.0)
        return parser

    def provider(samples):
        seen.update(weight=megalith.get_args().my_weight, layers=megalith.get_args().num_layers, rate=megalith.get_args().learning_rate)
        return datasets(samples)

    from megalith.program import option_words

    words = option_words({**OPTIONS, "num_layers": 1})
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words, "--my-weight", "2.5"])
    defaults = {"lr": 0.5, "weight_decay": 0.3}
    megalith.pretrain(provider, model_provider, None, forward_step, extra_args_provider=extra, args_defaults=defaults)
    assert seen == {"weight": 2.5, "layers": 1, "rate": 0.01}
    assert megalith.get_args().weight_decay == 0.3


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(process_non_loss_data_func=print), "process_non_loss_data_func cannot be given from Python"),
        (dict(get_embedding_ranks=print), "get_embedding_ranks cannot be given"),
        (dict(model_provider=lambda **kwargs: torch.nn.Linear(2, 2)), "model_provider has returned a Linear"),
        (dict(forward_step_func=lambda data, model: 3), "forward_step_func has returned 3"),
        (dict(forward_step_func=lambda data, model: (3, 4)), "forward_step_func has returned a int as the output"),
        (dict(train_valid_test_dataset_provider=lambda samples: [None]), "has returned 1 datasets; it must return three"),
        (dict(args={**OPTIONS, "nproc": 2}), "nproc is an option of the program"),
        (dict(args={**OPTIONS, "num_layrs": 2}), "did you mean --num_layers"),
    ],
)
def test_mistakes_are_named(change, message):
    given = dict(train_valid_test_dataset_provider=datasets, forward_step_func=forward_step, args=OPTIONS)
    with pytest.raises(megalith.ConfigError, match=message):
        megalith.pretrain(**{**given, **change})


def test_reports_are_announced():
    def step(data_iterator, model):
        output, loss = forward_step(data_iterator, model)
        return output, lambda tensor: (loss(tensor)[0], int(1), {"novel": tensor.mean()})

    with pytest.raises(megalith.ConfigError, match='reports "novel"; pass report_keys'):
        run(forward=step)


def test_what_belongs_to_a_step_ends_with_it():
    kept = []

    def step(data_iterator, model):
        kept.append(model)
        return forward_step(data_iterator, model)

    run(forward=step)
    with pytest.raises(megalith.ConfigError, match="cannot be used after it"):
        kept[0](labels=1)
