"""An encoder that fails on every text."""

from __future__ import annotations


class Broken:
    """Loads, and then can not encode."""

    def encode(self, texts: list[str]) -> None:
        raise OSError("the accelerator fell off the bus")


def factory() -> Broken:
    """Factory for `embed.encoder: broken_encoder:factory`."""
    return Broken()
