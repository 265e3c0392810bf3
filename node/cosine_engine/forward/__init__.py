"""Forward passes of transformers models over paged keys and values.

The input is the rows of a pass in their trees; the output is logits, or activations that leave a part of a model.
"""
