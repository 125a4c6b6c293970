"""Losses written in PyTorch. The library computes -log p of every token, in every layout; a loss continues from there."""

import dataclasses
from typing import Optional

import torch


@dataclasses.dataclass
class Batch:
    """What a loss may look at: one micro-batch on this rank. t is the number of its tokens here; a context-parallel rank has a
    slice of them."""

    extras: dict  # the tensors that extra_keys names, on the device of the losses
    loss_tokens: int  # tokens with a label, over all context-parallel ranks
    samples: int
    cumulative_lengths: list  # ends of the sequences, from 0
    microbatch: int  # its number in the step
    training: bool  # False in an evaluation
    labels: Optional[torch.Tensor] = None  # int64 [t], at the tokens that predict them; -100 where nothing is predicted


class Objective:
    """What is trained. Override loss(), and name what it reads and reports.

    Every rank of the last pipeline stage calls loss() for each micro-batch, tensor-parallel ranks with the same tensors. The
    result must not depend on anything that differs between ranks.
    """

    extra_keys = ()  # extra tensors that loss() reads: keys of samples, or of what data_collator returns
    metrics_keys = ()  # metrics that loss() reports besides the loss
    has_perplexity = False  # whether the loss is a mean of -log p

    def loss(self, token_losses, batch):
        """Returns the sum of the losses of this rank's tokens, a tensor that autograd can follow to `token_losses` (fp32 [t], 0
        where there is no label).

        The library divides by the number of labels. A dict has more to say: {"loss": sum, "count": what it is divided by, over
        all context-parallel ranks, "metrics": {name: (sum, weight)}}.
        """
        return token_losses.sum()


class Bridge:
    """Calls an objective, or a function in place of one, for the library."""

    def __init__(self, objective):
        function = not isinstance(objective, Objective)
        self._loss = objective if function else objective.loss
        self.extra_keys = list(getattr(objective, "extra_keys", ()))
        self.metrics_keys = list(getattr(objective, "metrics_keys", ()))
        self.has_perplexity = bool(getattr(objective, "has_perplexity", False))

    def call(self, token_losses, view):
        return self._loss(token_losses, Batch(**view))
