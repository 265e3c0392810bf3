"""All fuzz targets by name."""

from typing import Final

from . import asking, files, serving, wire

TARGETS: Final = {**wire.TARGETS, **serving.TARGETS, **asking.TARGETS, **files.TARGETS}
