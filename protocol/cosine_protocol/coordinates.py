"""Network coordinates: points whose distances estimate round-trip times between peers. Pure.

A point has three axes and a height, the way from a machine to the well-connected part of the network, which every
path to it takes. After Vivaldi (Dabek et al., SIGCOMM 2004, section 5.4). Whole microseconds travel: a value is
never infinite, and always a number.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Whole

Axis = Annotated[int, Whole(limits.MAX_COORDINATE_US, -limits.MAX_COORDINATE_US)]


@dataclass(frozen=True, slots=True)
class NetworkCoordinate:
    """A peer's place by its own account, in microseconds of round-trip time from the origin.

    `error_permille` is how far estimates with it were off of late, in thousandths of what was measured; 1000 says
    that the place is a guess.
    """

    x_us: Axis
    y_us: Axis
    z_us: Axis
    height_us: Annotated[int, Whole(limits.MAX_COORDINATE_US)]
    error_permille: Annotated[int, Whole(1000)]

    def rtt_s(self, other: "NetworkCoordinate") -> float:
        """The estimated round-trip time to another peer, in seconds."""
        apart_us = math.dist((self.x_us, self.y_us, self.z_us), (other.x_us, other.y_us, other.z_us))
        return (apart_us + self.height_us + other.height_us) / 1e6
