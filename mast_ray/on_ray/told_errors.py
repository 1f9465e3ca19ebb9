"""Where workers leave an error that ends their training. Its process imports this file: torch is not needed in it."""

from __future__ import annotations


class Heard:
    """The first error that no restart cures, as a worker told it."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, told: str) -> None:
        self._told = self._told or told

    def ask(self) -> str:
        return self._told
