import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """From the fixtures of a module on: they load models."""
    torch.set_num_threads(1)
