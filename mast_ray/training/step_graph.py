"""Forward and backward of a step recorded once per shape as a CUDA graph, and replayed with one launch.

A detector's step at batch 32 is some two thousand small kernels: the host needs longer to launch them than the
device to run them. Recording needs fixed shapes (the feed pads boxes to a fixed number of slots) and a step
that never waits for the host. Drawing, augmentation and the optimizer stay outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

log = logging.getLogger("mast.training")

WARM_UPS = 3  # the compiler, cuDNN's search and the allocator settle before a graph is recorded
MOST_GRAPHS = 8  # each keeps its inputs and gradients

Found = TypeVar("Found")
Run = Callable[..., dict[str, Tensor]]  # inputs -> losses; leaves gradients on the parameters
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class StepGraphs:
    """One graph per shape of the inputs. A shape that cannot be recorded runs launch by launch, and says so."""

    def __init__(self, module: nn.Module, run: Run) -> None:
        self.module, self._run = module, run
        self._graphs: dict[Shapes, _StepGraph] = {}
        self._can_record = True

    def run(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Losses of a step; its gradients lie on the module's parameters until the next step."""
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if self._can_record and shapes not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            self._record(shapes, inputs)
        if shapes in self._graphs:
            return self._graphs[shapes].replay(inputs)
        return self._run(*inputs)

    @property
    def num_recorded(self) -> int:
        return len(self._graphs)

    def forget(self) -> None:
        """Drop all graphs: other parameters train from now on."""
        self._graphs.clear()

    def _record(self, shapes: Shapes, inputs: tuple[Tensor, ...]) -> None:
        static = tuple(tensor.clone() for tensor in inputs)
        self._warm_up(static)
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
        try:
            self._graphs[shapes] = _StepGraph(self.module, self._run, static, pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._can_record = False
            _give_up_recording()
            _drop_gradients(self.module)
            log.warning(
                "model.compile: the step could not be recorded as a CUDA graph, going on without (%s)",
                (str(error).strip().splitlines() or [type(error).__name__])[0],
            )

    def _warm_up(self, static: tuple[Tensor, ...]) -> None:
        """Steps whose gradients and running statistics are thrown away."""
        kept = [buffer.clone() for buffer in self.module.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                _drop_gradients(self.module)
                self._run(*static)
        torch.cuda.current_stream().wait_stream(stream)
        _drop_gradients(self.module)
        with torch.no_grad():
            for buffer, value in zip(self.module.buffers(), kept, strict=True):
                buffer.copy_(value)


class _StepGraph:
    """A recorded step: where it reads, and where it leaves losses and gradients."""

    def __init__(self, module: nn.Module, run: Run, static: tuple[Tensor, ...], pool: object) -> None:
        self._static, self.graph = static, torch.cuda.CUDAGraph()
        # Only this thread's calls are watched: the feed copies batches to the device meanwhile.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            losses = run(*static)
            self._values = torch.stack([value.float() for value in losses.values()])
        self._names = tuple(losses)
        self._gradients = [(p, p.grad) for p in module.parameters() if p.grad is not None]

    def replay(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Losses that later replays do not overwrite, and gradients that they do."""
        for own, given in zip(self._static, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return dict(zip(self._names, self._values.clone().unbind(), strict=True))


class InferenceGraphs(Generic[Found]):
    """The same for a function of tensors without gradients: one graph per shape of the first.

    What it returns is overwritten by the next call. Where it cannot be recorded it runs launch by launch.
    """

    def __init__(self, run: Callable[..., Found]) -> None:
        self._run = run
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, list[Tensor], Found]] = {}
        self._can_record = True

    def __call__(self, *values: Tensor) -> Found:
        shape = values[0].shape
        if self._can_record and shape not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            self._record(*values)
        if shape not in self._graphs:
            return self._run(*values)
        graph, own, outputs = self._graphs[shape]
        for mine, value in zip(own, values, strict=True):
            mine.copy_(value)
        graph.replay()
        return outputs

    def _record(self, *values: Tensor) -> None:
        own = [value.clone() for value in values]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._run(*own)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self._run(*own)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._can_record = False
            _give_up_recording()
            log.warning(
                "inference could not be recorded as a CUDA graph, going on without (%s)",
                (str(error).strip().splitlines() or [type(error).__name__])[0],
            )
            return
        self._graphs[values[0].shape] = graph, own, outputs


def _drop_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _give_up_recording() -> None:
    """After a recording that broke off: torch goes on taking this device's generator for one that is being recorded and
    refuses every draw from it (pytorch issue 171263), so it gets a copy of its state that is not.
    """
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
