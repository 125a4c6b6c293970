"""Megalith from Python: what `megalith train` does, with your own datasets, collators, losses and callbacks.

    from megalith import AutoModel, McaTrainer, TrainingArguments

    args = TrainingArguments(output_dir="out", bf16=True, max_steps=100)
    model = AutoModel.from_pretrained("Qwen/Qwen2.5-0.5B", args)
    trainer = McaTrainer(model=model, args=args, train_dataset=samples)
    trainer.train()
    trainer.save_model()

One process is one rank: start several with torchrun, srun, mpirun or megalith.launch. docs/python.md is the manual.
"""

# Names are imported when they are first used: `python -m megalith` and the program need neither torch nor the library.
_HOMES = {
    "AutoModel": "model",
    "Batch": "objective",
    "CommError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "DpoTrainer": "trainer",
    "Error": "errors",
    "InternalError": "errors",
    "McaTrainer": "trainer",
    "Model": "model",
    "ModelType": "pretraining",
    "Objective": "objective",
    "Seq2SeqTrainingArguments": "arguments",
    "Tokenizer": "tokenizer",
    "PretrainOutput": "pretraining",
    "TrainOutput": "trainer",
    "Trainer": "trainer",
    "TrainerCallback": "callbacks",
    "TrainerControl": "callbacks",
    "TrainerState": "callbacks",
    "TrainingArguments": "arguments",
    "Shard": "model",
    "convert": "program",
    "get_args": "pretraining",
    "gpt_model": "pretraining",
    "initialize_megatron": "ranks",
    "is_distribute_initialized": "ranks",
    "launch": "launcher",
    "log_to": "ranks",
    "plan": "program",
    "pretrain": "pretraining",
    "preview": "program",
    "program_path": "program",
    "quiet": "ranks",
    "rank": "ranks",
    "run_program": "program",
    "shutdown_megatron": "ranks",
    "world_size": "ranks",
}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name == "__version__":
        from ._version import version

        return version
    import importlib

    if name == "testing":  # a module, for `import megalith; megalith.testing.run_ranks(…)`
        return importlib.import_module(".testing", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module 'megalith' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return [*__all__, "__version__"]
