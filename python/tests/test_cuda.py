"""A package with CUDA, on a GPU."""

import megalith
import pytest
import torch
from conftest import counting_samples, options
from megalith._version import cuda_version

if not cuda_version or not torch.cuda.is_available():
    pytest.skip("needs a package with CUDA and a GPU", allow_module_level=True)


def losses(model_folder, **more):
    args = megalith.TrainingArguments(**options(use_cpu=more.pop("use_cpu", False), **more))
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    trainer = megalith.Trainer(model, args, train_dataset=counting_samples(), objective=lambda losses, batch: losses.sum())
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line], model


def test_a_run_on_the_gpu(model_folder):
    found, model = losses(model_folder)
    weights = model.state_dict()
    assert {tensor.device.type for tensor in weights.values()} == {"cuda"}
    model.load_state_dict({name: tensor.cpu() for name, tensor in weights.items()})
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.weights())
    megalith.shutdown_megatron()
    expected, _ = losses(model_folder, use_cpu=True)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_fork_of_a_process_that_used_cuda_is_refused():
    torch.zeros(1, device="cuda")
    with pytest.raises(megalith.ConfigError, match="this process has used CUDA"):
        megalith.launch(print)
