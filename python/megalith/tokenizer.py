"""The library's own tokenizer, whose ids and texts equal those of the packages tokenizers and transformers."""

import json
import os

from .core import _megalith


class Tokenizer:
    """The tokenizer of a model folder (tokenizer.json, vocab.json with merges.txt, or tokenizer.model). Safe on threads."""

    def __init__(self, folder):
        self._core = _megalith.Tokenizer(os.fspath(folder))

    @classmethod
    def from_pretrained(cls, folder):
        """Reads a folder, or the downloaded files of a hub name."""
        return cls(folder)

    def __call__(self, text, add_special_tokens=True):
        """Returns {"input_ids": …, "attention_mask": …} of a text, or of each text of a list, as transformers does."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        batch = self._core.encode_batch(list(text), add_special_tokens)
        return {"input_ids": batch, "attention_mask": [[1] * len(ids) for ids in batch]}

    def encode(self, text, add_special_tokens=True):
        """Returns the ids of a text."""
        return self._core.encode(text, add_special_tokens)

    def decode(self, ids, skip_special_tokens=False):
        """Returns the text of ids: a list, or a tensor of one dimension."""
        return self._core.decode(ids.tolist() if hasattr(ids, "tolist") else list(ids), skip_special_tokens)

    def apply_chat_template(self, conversation, tools=None, add_generation_prompt=False, tokenize=True, **kwargs):
        """Returns the ids of a conversation, or its text without `tokenize`. Further arguments are variables of the template."""
        text, ids = self._core.apply_chat_template(
            json.dumps(conversation), json.dumps(tools), add_generation_prompt, json.dumps(kwargs)
        )
        return ids if tokenize else text

    def convert_tokens_to_ids(self, token):
        """Returns the id of a token, or None."""
        return self._core.id_of(token)

    def convert_ids_to_tokens(self, token_id):
        """Returns the token of an id, or None."""
        return self._core.token_of(token_id)

    def __len__(self):
        return self._core.vocab_size

    @property
    def bos_token_id(self):
        return self._core.bos_id

    @property
    def eos_token_id(self):
        return self._core.eos_id

    @property
    def pad_token_id(self):
        return self._core.pad_id
