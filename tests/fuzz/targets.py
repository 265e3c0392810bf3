"""All fuzz targets by name."""

from typing import Final

from tests.fuzz import asking, constraints, files, serving, staging, weights, wire

TARGETS: Final = {
    **wire.TARGETS,
    **serving.TARGETS,
    **staging.TARGETS,
    **asking.TARGETS,
    **files.TARGETS,
    **constraints.TARGETS,
    **weights.TARGETS,
}
