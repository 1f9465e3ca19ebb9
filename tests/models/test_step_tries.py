"""What benchmarks/step_tries.py times in place of the first convolution is that convolution."""

import pytest
import torch
from step_tries import TRIES, as_product, over_four_channels, tried
from torch.nn import functional

from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture, MastDetector


@pytest.mark.parametrize("convolve", [over_four_channels, as_product])
def test_another_way_to_the_first_convolution_gives_its_values_and_gradients(convolve):
    torch.manual_seed(0)
    logmel, kernel = torch.randn(2, 1, 64, 32), torch.randn(6, 1, 7, 7, requires_grad=True)
    found, expected = convolve(logmel, kernel), functional.conv2d(logmel, kernel, stride=2, padding=3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    towards = torch.randn_like(expected)
    of = [torch.autograd.grad(value, kernel, towards)[0] for value in (found, expected)]
    torch.testing.assert_close(*of, rtol=1e-4, atol=1e-3)


def test_tries_change_what_they_say_and_nothing_else():
    logmel = torch.randn(1, 1, 1024, 128)
    detectors = []
    for names in ("as-is", "+".join(TRIES)):
        torch.manual_seed(0)
        with tried(names) as change:
            detector = build_detector(DetectorArchitecture(size="small", adapter="hybrid"))
            assert isinstance(detector, MastDetector)
            change(detector)
        detectors.append(detector.eval())
    plain, changed = detectors
    # of ViT-S the first maps are 64 wide already: the weights are drawn anew, their shapes are the same
    assert [value.shape for value in plain.parameters()] == [value.shape for value in changed.parameters()]
    changed.load_state_dict(plain.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(
            changed(logmel).score_logit, plain(logmel).score_logit, rtol=1e-3, atol=1e-3
        )


def test_a_narrow_side_path_of_vit_b_begins_with_the_width_of_a_resnet():
    detector = build_detector(DetectorArchitecture(size="base", adapter="hybrid"))
    with tried("narrow") as change:
        change(detector)
    assert [len(detector.adapter.side[place].conv.weight) for place in (0, 2, 4)] == [64, 64, 256]
