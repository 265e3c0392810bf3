"""The embedded models: locations, prompts and measured acceptance rates. Needs no network."""

from cosine_engine.zoo.family import DOMAINS as DOMAINS
from cosine_engine.zoo.family import SCHEME as SCHEME
from cosine_engine.zoo.family import Family as Family
from cosine_engine.zoo.family import acceptance as acceptance
from cosine_engine.zoo.family import default_drafter as default_drafter
from cosine_engine.zoo.family import default_target as default_target
from cosine_engine.zoo.family import draft_head as draft_head
from cosine_engine.zoo.family import expertise as expertise
from cosine_engine.zoo.family import family_of as family_of
from cosine_engine.zoo.family import folder as folder
from cosine_engine.zoo.family import listed as listed
from cosine_engine.zoo.family import location as location
from cosine_engine.zoo.family import names as names
from cosine_engine.zoo.family import require as require
from cosine_engine.zoo.family import resolve as resolve
from cosine_engine.zoo.family import target_of as target_of
from cosine_engine.zoo.family import tokenizer_folder as tokenizer_folder
from cosine_engine.zoo.prompt_set import Prompt as Prompt
from cosine_engine.zoo.prompt_set import asked_by_people as asked_by_people
from cosine_engine.zoo.prompt_set import prompts as prompts
