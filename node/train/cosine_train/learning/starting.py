"""Creates the learner of a starting drafter: the entry point of `join --learn`."""

from functools import partial

from cosine_engine.models.model import ServedModel, load_weights
from cosine_node.serving.learner import LearnerMaker
from cosine_node.serving.node_options import NodeOptions
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.errors import UsageError
from cosine_train.learning.home import LearnerHome, home_folder, write_about
from cosine_train.learning.learner import Learner
from cosine_train.learning.served_weights import check_can_learn, gguf_kind
from cosine_train.learning.stream_store import MIN_BYTES


def learner_maker(kept_bytes: int) -> LearnerMaker:
    """Return a maker of learners that keep at most `kept_bytes` of texts. Raises `UsageError` for too few."""
    if kept_bytes < MIN_BYTES:
        raise UsageError(f"--learn-memory takes a size of {MIN_BYTES >> 20}MiB or more.")
    return partial(_learner_of, kept_bytes)


def _learner_of(kept_bytes: int, served: ServedModel, options: NodeOptions, peer_id: str) -> Learner:
    """Return the learner of a loaded drafter, with the weights of earlier runs. Blocks.

    Raises `UsageError` for a drafter that cannot learn.
    """
    shipped = check_can_learn(options.source.model, served.folder, served.engine)
    folder = home_folder(
        peer_id=peer_id,
        model_name=served.names.model_name,
        content_digest=HeldWeights.read(shipped).content_digest,
        target_digest=served.names.facts.digest(),
    )
    write_about(folder, peer_id=peer_id, model_name=served.names.model_name, target_name=served.names.target_name)
    home = LearnerHome(
        folder=folder,
        model_name=served.names.model_name,
        shipped=shipped,
        kind=gguf_kind(shipped),
        target=served.names.folder,
        expertise=options.expertise,
        max_bytes=kept_bytes,
    )
    return Learner(
        home,
        served.engine,
        lambda weights: load_weights(options.source, weights, served.names.folder),
        target_digest=served.names.facts.digest(),
    )
