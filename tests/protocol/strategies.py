"""Wire classes, and strategies for their values."""

from typing import Final

from hypothesis import strategies as st

from cosine_protocol.audit import AuditFinding, AuditVerdict
from cosine_protocol.codec import TAGS
from cosine_protocol.draft import Draft, Mandate
from cosine_protocol.membership import Certificate, Revocations
from cosine_protocol.records import MAX_COORDINATE_US, NetworkCoordinate, NodeRecord, StageOffer
from cosine_protocol.stream import Account
from cosine_protocol.verify import Transcript
from cosine_protocol.weights import Manifest, ManifestPart, ManifestTensor

BODIES: Final = (
    *(Draft, Account, Mandate, Transcript),
    *(Certificate, Revocations),
    *(AuditFinding, AuditVerdict),
    *(NetworkCoordinate, NodeRecord, StageOffer),
    *(Manifest, ManifestPart, ManifestTensor),
)
WIRE_CLASSES: Final = (*TAGS.values(), *BODIES)

_PLACES: Final = st.integers(-MAX_COORDINATE_US, MAX_COORDINATE_US)
COORDINATES: Final = st.builds(
    NetworkCoordinate, _PLACES, _PLACES, _PLACES, st.integers(0, MAX_COORDINATE_US), st.integers(0, 1000)
)
