"""torchvision and timm without torch's compiler.

Both import torch._dynamo, which takes longer than torch itself: torchvision for a function that its operators call on GPUs, timm for a decorator of
a model that is not used here. Every process that holds a detector paid for it at its start. While the two are imported, something else stands in for
the compiler: it answers these two, late, and gives the real one to whoever asks for anything else.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

COMPILER, TOOLS = "torch._dynamo", "torch._dynamo.utils"


class _StandIn(ModuleType):
    """A module that is imported when something of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # imports and `inspect` ask every module for such
            raise AttributeError(name)
        _leave()
        return getattr(importlib.import_module(self.__name__), name)


def _is_compile_supported(device_type: str) -> bool:
    """What torchvision asks before it compiles an operator."""
    return importlib.import_module(TOOLS).is_compile_supported(device_type)


def _disable(function: Callable[..., Any], *options: Any, **knobs: Any) -> Callable[..., Any]:
    """torch._dynamo.disable, asked for when the function is called."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        disable = importlib.import_module(COMPILER).disable
        return disable(function, *options, **knobs)(*arguments, **named)

    return called


def _leave() -> None:
    for name in (COMPILER, TOOLS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def import_lightly(*names: str) -> None:
    """Import packages, and of the compiler only what they use while they are imported: nothing, in the versions that are pinned."""
    if COMPILER in sys.modules:
        return
    compiler, tools = _StandIn(COMPILER), _StandIn(TOOLS)
    compiler.disable = _disable  # type: ignore[attr-defined]
    tools.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]
    sys.modules |= {COMPILER: compiler, TOOLS: tools}
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        _leave()
