"""Callbacks: what a program does while a run trains. Names and arguments are those of Hugging Face's Trainer."""

import dataclasses
import importlib.util
from typing import Optional


@dataclasses.dataclass
class TrainerState:
    """How far the run is. A copy that is brought up to date before each event; to change the run, use TrainerControl."""

    epoch: Optional[float] = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: Optional[int] = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0.0
    log_history: list = dataclasses.field(default_factory=list)
    best_metric: Optional[float] = None
    best_global_step: Optional[int] = None
    best_model_checkpoint: Optional[str] = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: Optional[str] = None
    trial_params: Optional[dict] = None

    def _take(self, fields):
        self.log_history.extend(fields.pop("new_lines"))
        for name, value in fields.items():
            setattr(self, name, value)


@dataclasses.dataclass
class TrainerControl:
    """What the run does next. A callback sets flags, on all ranks alike; the trainer clears them when it has done it."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False


class TrainerCallback:
    """Receives the events of a run. Each method does nothing unless it is overridden.

    Every rank calls its own callbacks; those that write files look at state.is_world_process_zero. A slow one delays the next
    step on all ranks.
    """

    def on_init_end(self, args, state, control, **kwargs):
        """The trainer is made."""

    def on_train_begin(self, args, state, control, **kwargs):
        """The state is that of the step where the run begins or continues."""

    def on_train_end(self, args, state, control, **kwargs):
        """After the last step, its line and its evaluation."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        """The first step of an epoch has been loaded."""

    def on_epoch_end(self, args, state, control, **kwargs):
        """Flags are acted on as after a step."""

    def on_step_begin(self, args, state, control, **kwargs):
        """Before the first micro-batch of a step."""

    def on_substep_end(self, args, state, control, **kwargs):
        """A micro-batch is done; not called with several pipeline stages."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        """The gradients are complete."""

    def on_optimizer_step(self, args, state, control, **kwargs):
        """The parameters are updated, or the update was skipped."""

    def on_step_end(self, args, state, control, **kwargs):
        """The step counts already; `metrics` has its numbers."""

    def on_evaluate(self, args, state, control, **kwargs):
        """`metrics` has the results."""

    def on_save(self, args, state, control, **kwargs):
        """A checkpoint is complete; `checkpoint` is its folder."""

    def on_log(self, args, state, control, **kwargs):
        """`logs` is the line, which is also the last of state.log_history."""


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


# What Hugging Face's callbacks report to, besides TensorBoard, whose files the library writes itself.
SERVICES = (
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "mlflow",
    "neptune",
    "swanlab",
    "trackio",
    "wandb",
)


def services_among(options):
    """Returns the services that Hugging Face's callbacks report to, and the options without them. Where transformers is not
    installed, the library keeps them all: it says what it cannot report to."""
    wanted = options.get("report_to")
    names = [wanted] if isinstance(wanted, str) else list(wanted or [])
    if not set(names) & set(SERVICES) or importlib.util.find_spec("transformers") is None:
        return [], options
    rest = [name for name in names if name not in SERVICES]
    return [name for name in names if name in SERVICES], {**options, "report_to": rest or "none"}


def reporters(services):
    """Returns Hugging Face's callbacks for services. Raises RuntimeError for one whose package is not installed."""
    if not services:
        return []
    from transformers.integrations import get_reporting_integration_callbacks

    return get_reporting_integration_callbacks(list(services))


def _overrides(callback, event):
    """Returns whether a callback does anything at an event. Callbacks of other libraries inherit from classes of theirs, whose
    own methods do nothing either."""
    method = getattr(type(callback), event, None)
    if method is None or method is getattr(TrainerCallback, event):
        return False
    home = next(each for each in type(callback).__mro__ if event in vars(each))
    return home.__name__ != "TrainerCallback"


class Bridge:
    """Delivers the events of the library to callbacks."""

    def __init__(self, callbacks, args, model, processing_class):
        made = [each() if isinstance(each, type) else each for each in callbacks]
        # A program that passes a service's callback as well gets one, its own.
        given = {type(each) for each in made}
        self.callbacks = made + [each() for each in reporters(getattr(args, "services", [])) if each not in given]
        self.state = TrainerState()
        self.wanted = {event for event in EVENTS if any(_overrides(each, event) for each in self.callbacks)}
        self._args = args
        self._kwargs = {"model": model, "processing_class": processing_class}

    @property
    def known_lines(self):
        """The lines of the log that the state has already."""
        return len(self.state.log_history)

    def event(self, name, fields, flags, metrics, folder):
        """Delivers an event, and returns the flags afterwards."""
        self.state._take(fields)
        control = TrainerControl(**flags)
        more = dict(self._kwargs)
        if name == "on_log":
            more["logs"] = metrics
        elif name in ("on_evaluate", "on_step_end"):
            more["metrics"] = metrics
        elif name == "on_save":
            more["checkpoint"] = folder
        for callback in self.callbacks:
            if _overrides(callback, name):
                # Hugging Face's callbacks may return another control.
                control = getattr(callback, name)(self._args, self.state, control, **more) or control
        return {flag: bool(getattr(control, flag)) for flag in flags}
