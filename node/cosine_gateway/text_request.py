"""Requests for text: what the four APIs have in common once their bodies are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import Body, flag, nested, stated_text, whole_field
from cosine_gateway.text_options import NO_BOUND, OPTION_FIELDS, read_options
from cosine_p2p.request.chat import Chat
from cosine_p2p.request.options import GenerationOptions, Prompt, choice_seed
from cosine_p2p.text.prompt import encode_prompt, read_prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.request import MAX_SEED

MAX_CHOICES: Final = 64
"""Bounds the work of one request: four times a gateway's default number of concurrent generations."""
COMMON_FIELDS: Final = OPTION_FIELDS | {"cache_salt", "model", "n", "seed", "stream", "stream_options"}
"""The fields that `text_request` reads. No API has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChoice:
    """One text to generate: number `index` of the request, number `number` of its prompt."""

    index: int
    number: int
    prompt: Prompt
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A request whose body is checked.

    model: Default: the gateway's own.
    prompt_field: The body's field for the prompt, for errors.
    n: The number of texts for each prompt.
    asked: The generation options in the body. Defaults come from the model's generation config, then `otherwise`.
    seed: Default: random.
    is_echoed: The text begins with the prompt.
    tells_provenance: The reply has the origin of each token and the proof.
    adds_special_tokens: The tokenizer adds its special tokens to prompts.
    cache_salt: Only requests with the same salt share cached prefixes.
    wishes: Options of the chat template that are dropped if it does not read them.
    ignored: Unknown fields of the body, which cannot change the text.
    template_fields: The body's field for each option of the chat template. Default: `chat_template_kwargs`.
    """

    model: str | None
    prompt_field: str
    prompts: tuple[Prompt, ...]
    n: int
    asked: Mapping[str, Any]
    otherwise: GenerationOptions
    seed: int | None
    is_streamed: bool
    includes_usage: bool
    is_echoed: bool = False
    tells_provenance: bool = False
    adds_special_tokens: bool = True
    cache_salt: str = ""
    wishes: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    template_fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_generating(self) -> bool:
        """False if no tokens are requested after the prompt."""
        return self.asked.get("max_new_tokens") != 0

    @property
    def is_plain(self) -> bool:
        """True if each choice is only the text after a prompt in the target's usual encoding."""
        return self.is_generating and self.adds_special_tokens and not self.is_echoed

    @property
    def depends_on_template(self) -> bool:
        """True if the chat template decides whether the request can be served."""
        chats = (prompt for prompt in self.prompts if isinstance(prompt, Chat))
        return any(chat.template_options or chat.documents or self.wishes for chat in chats)

    def fitted(self, codec: TextTokenizer) -> "TextRequest":
        """Return the request with those wishes that the chat template reads added to the template options.

        Raises `ApiError` if the template does not read another option of a chat, such as documents, which would be
        ignored silently.
        """
        return replace(self, prompts=tuple(self._fitted(prompt, codec) for prompt in self.prompts))

    def _fitted(self, chat: Prompt, codec: TextTokenizer) -> Prompt:
        if not isinstance(chat, Chat):
            return chat
        template = codec.chat_template(chat.template, has_tools=chat.tools is not None)
        for name, value in {**chat.template_options, "documents": chat.documents}.items():
            if value and value != "none" and name not in template:
                place = self.template_fields.get(name, "chat_template_kwargs")
                raise unsupported(
                    place, f"{place} is not supported here: the target's template does not read {name}."
                )
        read = {name: value for name, value in self.wishes.items() if name in template}
        return replace(chat, template_options={**chat.template_options, **read})

    def prompt_tokens(self, codec: TextTokenizer) -> int:
        """Count the tokens of all prompts. Raises `ApiError` and `PromptRefused`."""
        return sum(len(encode_prompt(codec, read_prompt(prompt))) for prompt in self.fitted(codec).prompts)

    def choices(self, seed: int) -> tuple[RequestedChoice, ...]:
        """All texts to generate: `n` for each prompt in turn, with the same seeds for each prompt."""
        return tuple(
            RequestedChoice(
                index=row * self.n + number, number=number, prompt=prompt, seed=choice_seed(seed, number)
            )
            for row, prompt in enumerate(self.prompts)
            for number in range(self.n)
        )


Parse = Callable[[Body], TextRequest]


def text_request(
    body: Body, *, prompts: tuple[Prompt, ...], asked: Mapping[str, Any], least_tokens: int = 1, **own: Any
) -> TextRequest:
    """Read the fields that bodies of all APIs share. Raises `ApiError`.

    `asked` are further generation options, `own` further fields of the `TextRequest` that the API determines.
    """
    n = whole_field(body, "n", 1, low=1, high=MAX_CHOICES)
    if n * len(prompts) > MAX_CHOICES:
        raise bad_value("n", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    seed = whole_field(body, "seed", NO_BOUND, low=NO_BOUND, high=MAX_SEED)
    is_streamed = bool(flag(body, "stream"))
    # Obfuscation only pads messages, so that their sizes do not reveal the length of the text.
    known = ("include_usage", "include_obfuscation")
    options = nested(body, "stream_options", known=known, neutral=(None, False))
    if body.get("stream_options") is not None and not is_streamed:
        raise bad_value("stream_options", "stream_options is only for stream true.")
    return TextRequest(
        model=stated_text(body, "model"),
        prompts=prompts,
        n=n,
        asked={**read_options(body, least_tokens=least_tokens), **asked},
        seed=None if seed == NO_BOUND else seed,
        is_streamed=is_streamed,
        includes_usage=bool(flag(options, "include_usage")),
        cache_salt=stated_text(body, "cache_salt") or "",
        **own,
    )
