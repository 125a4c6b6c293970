"""A package with CUDA, on a GPU. Each test is a process of its own, since the others see no GPU."""

import pytest
from conftest import ON_THE_GPU, run_script
from megalith._version import cuda_version

if not cuda_version or run_script("import torch; print(torch.cuda.is_available())", env=ON_THE_GPU) != ["True\n"]:
    pytest.skip("needs a package with CUDA and a GPU", allow_module_level=True)


def test_a_run_on_the_gpu():
    run_script(
        """
        import megalith, torch

        def losses(use_cpu):
            args = megalith.TrainingArguments(**options(use_cpu=use_cpu))
            model = megalith.AutoModel.from_pretrained(str(MODEL), args)
            objective = lambda losses, batch: losses.sum()
            trainer = megalith.Trainer(model, args, train_dataset=counting_samples(), objective=objective)
            trainer.train()
            return [line["loss"] for line in trainer.state.log_history if "loss" in line], model

        found, model = losses(use_cpu=False)
        weights = model.state_dict()
        assert {tensor.device.type for tensor in weights.values()} == {"cuda"}
        model.load_state_dict({name: tensor.cpu() for name, tensor in weights.items()})
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.weights())
        megalith.shutdown_megatron()
        expected, _ = losses(use_cpu=True)
        assert found == pytest.approx(expected, rel=1e-3)
        """,
        env=ON_THE_GPU,
    )


def test_a_fork_of_a_process_that_used_cuda_is_refused():
    run_script(
        """
        import megalith, torch

        torch.zeros(1, device="cuda")
        with pytest.raises(megalith.ConfigError, match="this process has used CUDA"):
            megalith.launch(print)
        """,
        env=ON_THE_GPU,
    )
