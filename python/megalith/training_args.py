"""TrainingArguments under the module name of mcore_adapter; see models.py."""

from .arguments import Seq2SeqTrainingArguments, TrainingArguments  # noqa: F401
