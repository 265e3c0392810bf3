"""Engines on libraries whose memory stores paths, such as llama.cpp and vLLM: trees as lanes, choices by logits."""
