"""Every kind of augmentation at once."""

EVERY_AUGMENTATION: dict[str, object] = {
    "augment.most_per_example": 5,
    "augment.gain_db": 12.0,
    "augment.equaliser_db": 6.0,
    "augment.mix_style": 0.7,
    "augment.background": 1.0,
    "augment.background_from": "pool",
    "augment.zoom": 2.0,
    "augment.reverse": 0.5,
    "augment.bend": 0.6,
}
