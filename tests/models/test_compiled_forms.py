"""Layers that a compiler gets in another form: the same values and gradients as layer by layer, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mast_ray.models.build import build_detector
from mast_ray.models.convolutions import FewChannelsConvolution, OneChannelConvolution, doubled
from mast_ray.models.detector import DetectorArchitecture
from mast_ray.models.layers import Gelu


def values_and_gradients(found: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    towards = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).reshape(found.shape)
    return [found, *torch.autograd.grad(found, inputs, towards)]


@pytest.mark.parametrize(
    ("layer", "form", "shape"),
    [
        (OneChannelConvolution(1, 6, (7, 7), 2, 3, bias=False), "over_phases", (2, 1, 64, 32)),
        (FewChannelsConvolution(16, 5, 3, padding=1), "by_eights", (2, 16, 8, 6)),
        (FewChannelsConvolution(16, 1, 3, padding=1), "by_eights", (2, 16, 8, 6)),
    ],
)
def test_a_convolution_in_another_form_is_that_convolution(
    layer: nn.Conv2d, form: str, shape: tuple[int, ...]
):
    layer = layer.double()
    maps = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    inputs = [maps, *layer.parameters()]
    torch.testing.assert_close(
        values_and_gradients(getattr(layer, form)(maps), inputs), values_and_gradients(layer(maps), inputs)
    )


def test_doubled_is_nearest_interpolation_with_channels_last():
    maps = torch.randn(2, 5, 4, 3, dtype=torch.float64, requires_grad=True)
    expected = functional.interpolate(maps, scale_factor=2, mode="nearest")
    torch.testing.assert_close(
        values_and_gradients(doubled(maps), [maps]), values_and_gradients(expected, [maps])
    )
    assert doubled(maps).is_contiguous(memory_format=torch.channels_last)


def test_gelu_in_few_steps_is_gelu_and_its_slope_is_the_slope_of_gelu():
    exact = torch.linspace(-9, 9, 20_001, dtype=torch.float64, requires_grad=True)
    values = exact.detach().float().requires_grad_()
    found, slope = values_and_gradients(Gelu().in_few_steps(values), [values])
    expected, wanted = values_and_gradients(functional.gelu(exact), [exact])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(slope.double(), wanted, rtol=0, atol=1e-6)


def test_a_compiled_detector_is_the_detector(monkeypatch):
    """Every parameter learns the same: a form whose gradient is lost on the way through the compiler gives values all the same."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.manual_seed(0)
    detector = build_detector(DetectorArchitecture(size="tiny", adapter="hybrid")).double().train()
    logmel = torch.randn(2, 1, 1024, 128, dtype=torch.float64)
    seen = []
    for forward in (detector, torch.compile(detector, backend="aot_eager")):
        outputs = forward(logmel)
        loss = sum(value.square().mean() for value in outputs)
        names, weights = zip(*detector.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        learned = {name: value for name, value in zip(names, gradients, strict=True) if value is not None}
        seen.append((list(outputs), learned))
    plain, compiled = seen
    torch.testing.assert_close(compiled[0], plain[0], rtol=1e-5, atol=1e-5, check_dtype=False)
    assert compiled[1].keys() == plain[1].keys() and "encoder.blocks.0.mlp.fc1.weight" in plain[1]
    for name, gradient in plain[1].items():
        assert (compiled[1][name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-9, name


def test_the_side_path_of_vit_b_begins_with_the_width_of_a_resnet():
    detector = build_detector(DetectorArchitecture(size="base", adapter="hybrid"))
    assert [len(detector.adapter.side[place].conv.weight) for place in (0, 2, 4)] == [64, 64, 256]
