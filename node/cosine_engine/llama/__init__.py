"""GGUF models, run by llama.cpp in lanes: rows of tokens and their trees become choices, as in `engine.base`."""
