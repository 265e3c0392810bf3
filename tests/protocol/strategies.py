"""Wire classes, and strategies for their values."""

from typing import Final

from hypothesis import strategies as st

from cosine_protocol import messages as m
from cosine_protocol.limits import MAX_COORDINATE_US
from cosine_protocol.manifest import Manifest, ManifestPart, ManifestTensor
from cosine_protocol.protocols import TAGS
from cosine_protocol.records import NodeRecord, StageOffer

BODIES: Final = (
    *(m.Draft, m.Account, m.Mandate, m.Transcript),
    *(m.Certificate, m.Revocations),
    *(m.AuditFinding, m.AuditVerdict),
    *(m.NetworkCoordinate, NodeRecord, StageOffer),
    *(Manifest, ManifestPart, ManifestTensor),
)
WIRE_CLASSES: Final = (*TAGS.values(), *BODIES)

_PLACES: Final = st.integers(-MAX_COORDINATE_US, MAX_COORDINATE_US)
COORDINATES: Final = st.builds(
    m.NetworkCoordinate, _PLACES, _PLACES, _PLACES, st.integers(0, MAX_COORDINATE_US), st.integers(0, 1000)
)
