"""The options of a run. Names, types and ranges are those of the option table (docs/options.md); arguments.pyi, which is made
from it, tells editors."""

import json
import os

from . import callbacks
from .core import _megalith


class TrainingArguments:
    """The options of a run, by the names of docs/options.md: `TrainingArguments(tensor_model_parallel_size=2, bf16=True)`.

    Every name and alias of the program is one here; what is wrong is refused with the program's own words, all at once.
    Options that are not given have the defaults of `megalith train`, but for two: without finetuning_type a model is trained
    in full, as McaTrainer does it, and not as an adapter; and do_train is on. Attributes read options, and setting one checks
    it.
    """

    def __init__(self, **options):
        named = {_megalith.canonical_name(name) for name in options}
        defaults = {"finetuning_type": "full", "do_train": True}
        self._keep({**{name: value for name, value in defaults.items() if name not in named}, **options}, None)

    @classmethod
    def from_file(cls, path, **options):
        """Reads a file of options, as `megalith train FILE` does; options that are given win over it."""
        self = cls.__new__(cls)
        self._keep(options, os.fspath(path))
        return self

    def _keep(self, options, file):
        # Services that the library does not know, and those that it only writes files for, are Hugging Face's callbacks.
        services, rest = callbacks.services_among(options)
        parsed = _megalith.Options(rest, file)
        self.__dict__.update(_given=dict(options), _file=file, _parsed=parsed, _services=services)

    @property
    def services(self):
        """The services of report_to that Hugging Face's callbacks report to."""
        return list(self._services)

    def given(self):
        """Returns the options that were given, under the names that were used."""
        return dict(self._given)

    def to_dict(self):
        """Returns every option with a value, defaults included."""
        return self._parsed.all()

    def to_sanitized_dict(self):
        """Returns to_dict() with texts in place of lists and dicts, as services take their parameters."""
        plain = (bool, int, float, str, type(None))
        return {name: value if isinstance(value, plain) else str(value) for name, value in self.to_dict().items()}

    def to_json_string(self):
        """Returns to_dict() as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_yaml(self):
        """Returns every option as the text of a file that from_file() and `megalith train` read."""
        return self._parsed.to_yaml()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._parsed.get(name)

    def __setattr__(self, name, value):
        # Other spellings of the option give way to the one that is set now.
        canonical = _megalith.canonical_name(name)
        kept = {key: old for key, old in self._given.items() if _megalith.canonical_name(key) != canonical}
        self._keep({**kept, name: value}, self._file)

    def __eq__(self, other):
        return isinstance(other, TrainingArguments) and self._parsed.same_as(other._parsed)

    __hash__ = None

    def __repr__(self):
        words = [repr(self._file)] if self._file else []
        words += [f"{name}={value!r}" for name, value in self._given.items()]
        return f"TrainingArguments({', '.join(words)})"


# The name that ROLL's examples use.
Seq2SeqTrainingArguments = TrainingArguments
