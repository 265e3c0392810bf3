"""The learner of a drafter that is about to start."""

from cosine_node.learning.home import LearnerHome, home_folder, write_about
from cosine_node.learning.learner import Learner
from cosine_node.learning.served_weights import check_can_learn, gguf_kind
from cosine_node.learning.stream_store import DEFAULT_BYTES
from cosine_node.models.model import ServedModel, load_weights
from cosine_node.serving.node_options import NodeOptions
from cosine_p2p.text.target import identify_target


def learner_of(served: ServedModel, options: NodeOptions, *, peer_id: str) -> Learner:
    """The learner of a drafter that was loaded; it loads what was learned in earlier runs. Blocks.

    Raises `UsageError` for a drafter that cannot learn.
    """
    model = options.source.model
    shipped = check_can_learn(model, served.folder, served.engine)
    folder = home_folder(
        peer_id=peer_id,
        model_name=served.model_name,
        content_digest=identify_target(shipped, name=served.model_name).content_digest,
        target_digest=served.facts.digest(),
    )
    write_about(folder, peer_id=peer_id, model_name=served.model_name, target_name=served.target_name)
    home = LearnerHome(
        folder=folder,
        model_name=served.model_name,
        shipped=shipped,
        kind=gguf_kind(shipped),
        target=served.tokenizer_folder,
        expertise=options.expertise,
        max_bytes=options.learn_bytes or DEFAULT_BYTES,
    )
    return Learner(
        home,
        served.engine,
        lambda weights: load_weights(options.source, weights, served.tokenizer_folder),
        target_digest=served.facts.digest(),
    )
