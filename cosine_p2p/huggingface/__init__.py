"""A swarm with the interface of a model of Hugging Face transformers.

from cosine_p2p.huggingface import SwarmModelForCausalLM

with SwarmModelForCausalLM.from_pretrained("zoo:target", initial_peers=[...]) as model:
    output = model.generate(**tokenizer(["Once upon a time"], return_tensors="pt"), max_new_tokens=64)
"""

from cosine_p2p.huggingface.model import GenerateOutput, SwarmModelForCausalLM

__all__ = ["GenerateOutput", "SwarmModelForCausalLM"]
