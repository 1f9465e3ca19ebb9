"""Short calls are looked for once more in stretched halves of a chunk."""

import torch
from torch import nn

from mast_ray.boxes.batch import Detections
from mast_ray.inference.close_look import CloseLook, has_parts, looking
from mast_ray.models.baselines.energy import EnergyDetector

FRAMES, BINS = 1024, 128


class Bright(nn.Module):
    """Boxes every stretch of bright frames that is long enough for it, over all bins: as a coarse detector does."""

    least_frames = 8

    def __init__(self):
        super().__init__()
        self.ends = []

    def detect(self, logmel, score_floor, nms_overlap, max_detections, end_frames=None, with_parts=False):
        self.ends.append(end_frames)
        corners = torch.zeros(len(logmel), 8, 4)
        score, is_valid = torch.zeros(len(logmel), 8), torch.zeros(len(logmel), 8, dtype=torch.bool)
        for row, chunk in enumerate(logmel[:, 0]):
            bright = torch.cat((torch.zeros(1), (chunk[:, 0] > 0.5).float(), torch.zeros(1))).diff()
            spans = zip(bright.eq(1).nonzero()[:, 0], bright.eq(-1).nonzero()[:, 0], strict=True)
            long = [(float(begin), float(end)) for begin, end in spans if end - begin >= self.least_frames]
            for place, (begin, end) in enumerate(long):
                corners[row, place] = torch.tensor([begin, 0.0, end, BINS])
                score[row, place], is_valid[row, place] = 0.9, True
        parts = torch.stack((score, score), dim=-1) if with_parts else None
        return Detections(corners, score, is_valid, parts)


def chunk(*spans):
    logmel = torch.zeros(1, 1, FRAMES, BINS)
    for begin, end in spans:
        logmel[:, :, begin:end] = 1.0
    return logmel


def spans_of(found):
    return sorted((float(box[0]), float(box[2])) for box in found.corners[0][found.is_valid[0]])


def test_what_is_too_short_for_a_detector_is_found_stretched_and_lies_where_it_was():
    logmel = chunk((100, 106), (700, 706), (300, 400))
    assert spans_of(Bright().detect(logmel, 0.01, 0.5, 300)) == [(300.0, 400.0)]
    found = CloseLook(Bright(), 0.0).detect(logmel)
    assert [tuple(map(round, span)) for span in spans_of(found)] == [(100, 106), (300, 400), (700, 706)]


def test_longer_calls_and_those_at_the_cut_are_taken_from_the_whole_chunk_alone():
    found = CloseLook(Bright(), 0.0).detect(chunk((100, 130), (500, 600), (505, 511)))
    assert spans_of(found) == [(100.0, 130.0), (500.0, 600.0)], "nothing twice, no half of a call"
    at_the_cut = CloseLook(Bright(), 0.0).detect(chunk((506, 511)))
    assert not at_the_cut.is_valid.any()


def test_parts_of_scores_stay_with_their_boxes_and_the_end_of_the_sound_is_that_of_the_half():
    inner = Bright()
    found = CloseLook(inner, 0.0).detect(
        chunk((100, 106), (300, 400)), end_frames=torch.tensor([600.0]), with_parts=True
    )
    assert found.parts is not None
    assert torch.equal(found.parts[0][found.is_valid[0]], torch.full((2, 2), 0.9))
    assert [end.item() for end in inner.ends] == [600.0, 1024.0, 176.0]


def test_a_detector_without_a_network_looks_once():
    energy = EnergyDetector()
    assert looking(energy, True, 0.0) is energy
    network = Bright()
    assert looking(network, False, 0.0) is network
    assert isinstance(looking(network, True, 0.0), CloseLook) and not has_parts(looking(network, True, 0.0))
