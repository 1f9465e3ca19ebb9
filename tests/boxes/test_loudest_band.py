"""Where a call without frequencies is sought, and what its points and their neighbours learn."""

from dataclasses import replace

import pytest
import torch

from mast_ray.boxes.assignment import atss, centre_sampling
from mast_ray.boxes.batch import PaddedBoxes, pad_boxes
from mast_ray.boxes.loudest_band import loudest_band, with_loudest_band
from mast_ray.boxes.points import pyramid_levels, pyramid_points

LEVELS = pyramid_levels(4, (8, 4))
POINTS = pyramid_points(LEVELS)


def sound(*calls: tuple[int, int, int, int], noise: float = 0.0) -> torch.Tensor:
    """(1, 1, 1024, 128) of zeros in which every (begin, low, end, high) is 3 loud."""
    logmel = noise * torch.randn((1, 1, 1024, 128), generator=torch.Generator().manual_seed(0))
    for begin, low, end, high in calls:
        logmel[:, :, begin:end, low:high] += 3.0
    return logmel


def in_time(*spans: tuple[float, float]) -> PaddedBoxes:
    """Calls over the whole band whose frequencies are unknown: both flags."""
    boxes = pad_boxes([torch.tensor([[begin, 0.0, end, 128.0] for begin, end in spans])])
    return replace(boxes, is_ignored=boxes.is_object.clone())


def test_the_band_reaches_from_the_loudest_bin_to_where_the_gain_has_halved():
    """Smoothed over five bins, a flat band of 90 to 110 falls to 3/5 and 2/5 of its height at 90 and 89, and at its end."""
    low, high = loudest_band(torch.tensor([[[200.0, 0.0, 300.0, 128.0]]]), sound((200, 90, 300, 110))[:, 0])
    assert (low.item(), high.item()) == (90.0, 110.0)


@pytest.mark.parametrize(
    ("span", "frame"),
    [((200.5, 202.0), 200), ((299.0, 300.5), 300), ((0.0, 2.0), 0), ((1022.0, 1024.0), 1023), ((100.0, 100.0), 100),
     ((1023.6, 1023.9), 1023)],
)  # fmt: skip
def test_every_frame_that_a_call_touches_is_listened_to(span, frame):
    logmel = sound(*[(frame, 90, frame + 1, 110)] * 2, noise=0.3)
    logmel[:, :, max(frame - 3, 0) : frame, 20:40] += 9.0  # its neighbours say another thing
    logmel[:, :, frame + 1 : frame + 4, 40:60] += 9.0
    if span[1] - span[0] > 1:  # what is inside says nothing
        logmel[:, :, int(span[0]) : int(span[1] + 0.9), 20:60] = 0.0
    low, high = loudest_band(torch.tensor([[[span[0], 0.0, span[1], 128.0]]]), logmel[:, 0])
    assert abs(low.item() - 90) <= 2 and abs(high.item() - 110) <= 2


def test_what_sounds_all_the_time_is_not_what_begins_with_the_call():
    """A hum at 10 to 30 is as loud, but as loud before and after."""
    hum = sound((0, 10, 1024, 30), (200, 90, 300, 110), noise=0.3)
    low, high = loudest_band(torch.tensor([[[200.0, 0.0, 300.0, 128.0]]]), hum[:, 0])
    assert abs(low.item() - 90) <= 2 and abs(high.item() - 110) <= 2


@pytest.mark.parametrize("padded_from", [1024, 500, 320])
@pytest.mark.parametrize("added", [0.0, 0.1])
def test_in_a_clip_that_was_padded_the_band_is_the_same(padded_from, added):
    """Against silence all bins gain alike, and a hum most: a clip of five seconds is half silence."""
    clip = sound((0, 10, 1024, 30), (200, 90, 300, 110), noise=0.5)
    clip[:, :, padded_from:] = -6.0
    clip += added * torch.randn(clip.shape, generator=torch.Generator().manual_seed(1))
    low, high = loudest_band(torch.tensor([[[200.0, 0.0, 300.0, 128.0]]]), clip[:, 0])
    assert abs(low.item() - 90) <= 2 and abs(high.item() - 110) <= 2


@pytest.mark.parametrize(
    ("band", "wanted"), [((60, 62), (57, 65)), ((0, 1), (0, 8)), ((127, 128), (120, 128))]
)
def test_a_narrow_band_is_widened_to_two_cells_inside_the_spectrum(band, wanted):
    found = loudest_band(
        torch.tensor([[[200.0, 0.0, 300.0, 128.0]]]), sound((200, band[0], 300, band[1]))[:, 0]
    )
    low, high = (value.item() for value in found)
    assert high - low == 8 and low <= band[0] and high >= band[1]
    assert (low, high) == wanted


def test_calls_with_a_band_and_empty_slots_stay_as_they_are():
    boxes = pad_boxes([torch.tensor([[200.0, 5.0, 300.0, 20.0]])])
    assert with_loudest_band(boxes, sound((200, 90, 300, 110))).corners.equal(boxes.corners)


@pytest.mark.parametrize("assign", [atss, centre_sampling])
def test_the_points_that_hear_the_call_learn_it_and_the_rest_of_its_time_is_ignored(assign):
    boxes = in_time((200.0, 280.0), (600.0, 680.0))
    logmel = sound((200, 96, 280, 116), (600, 8, 680, 28))
    found = assign(with_loudest_band(boxes, logmel), LEVELS)
    for slot, (begin, low) in enumerate(((200, 96), (600, 8))):
        learns = POINTS.centres[found.box_index[0] == slot]
        assert len(learns) and ((learns > torch.tensor([begin, low])).all(1) & (learns < torch.tensor([begin + 80, low + 20])).all(1)).all()  # fmt: skip
    time = POINTS.centres[:, 0]
    during = ((time >= 200) & (time < 280)) | ((time >= 600) & (time < 680))
    assert found.is_ignored[0].equal(during & (found.box_index[0] < 0))
    # without the sound every call would be learned in the middle of the spectrum, far from where it is heard
    unheard = POINTS.centres[assign(boxes, LEVELS).box_index[0] == 0]
    assert ((unheard[:, 1] > 40) & (unheard[:, 1] < 90)).all()
