"""Runs first in each of the ancestor's processes, and leaves modules out that most of them do not use.

Python imports a module of this name before anything else, if it finds one. What the ancestor imports from
``vllm`` and from its own ``unstable.learners`` is put back where it is used; see ``ancestor_port``. Never
used are ``pynvml``, which its terminal view asks about GPUs, and ``wandb``, which its tracker uses for a
project that is not given here.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = {
    "pynvml": (),
    "unstable.learners": ("A2CLearner", "REINFORCELearner"),
    "vllm": ("EngineArgs", "LLMEngine", "SamplingParams"),
    "vllm.lora": (),
    "vllm.lora.request": ("LoRARequest",),
    "wandb": (),
}

for name, imported in NAMES.items():
    module = sys.modules[name] = ModuleType(name, __doc__)
    module.__spec__ = ModuleSpec(name, None)  # libraries that ask whether a module is there look at it
    for each in imported:
        setattr(module, each, None)
