"""Where workers leave an error that ends their training. Its process imports this file: torch is not needed in it."""

from __future__ import annotations


class Heard:
    """The first error of each training that no restart cures, as a worker told it."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def tell(self, training: str, told: str) -> None:
        self._told.setdefault(training, told)

    def ask(self, training: str) -> str:
        return self._told.get(training, "")
