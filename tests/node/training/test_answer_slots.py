import torch
import torch.nn.functional as F

from cosine_node.training.local_target import BLOCK_TOKENS, AnswerSlots

WIDTH, SCALE = 8, 0.3


def test_tokens_one_by_one_see_what_all_at_once_see() -> None:
    torch.manual_seed(0)
    lengths, total = (BLOCK_TOKENS - 2, 2), BLOCK_TOKENS + 3
    query = torch.randn(2, 6, total, WIDTH)
    key, value = torch.randn(2, 2, total, WIDTH), torch.randn(2, 2, total, WIDTH)
    whole = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE, enable_gqa=True)
    room = AnswerSlots(slots=2, device=torch.device("cpu"))
    with room.filling([1, 0]):
        flipped = [part.flip(0)[:, :, : max(lengths)] for part in (query, key, value)]
        first = room.attend(0, flipped[0], flipped[1], flipped[2], scale=SCALE).flip(0)
    for slot, length in enumerate(lengths):
        assert torch.allclose(first[slot, :length], whole[slot, :, :length].transpose(0, 1), atol=1e-5)
    room.positions[:] = torch.tensor(lengths)
    for _ in range(total - max(lengths)):
        at = (torch.arange(2), slice(None), room.positions)
        found = room.attend(0, query[at][:, :, None], key[at][:, :, None], value[at][:, :, None], scale=SCALE)
        assert torch.allclose(found[:, 0], whole[at], atol=1e-5)
        room.positions += 1
