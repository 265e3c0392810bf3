import { useEffect, useRef, useState } from "preact/hooks";
import { name, prose } from "../harmless";
import { Copy, count, useMedia } from "../parts";
import { Line, Made } from "./account";
import { type Conversation, keep, keptConversation, type Message, NO_OPTIONS, type Options, requestOf } from "./conversation";
import { follow, framed } from "./generation";
import { Reply } from "./reply";

const NUMBERS: [keyof Options, string, string][] = [
  ["temperature", "Temperature", "the model’s own"],
  ["top_p", "Top p", "the model’s own"],
  ["top_k", "Top k", "the model’s own"],
  ["min_p", "Min p", "the model’s own"],
  ["repetition_penalty", "Repetition penalty", "the model’s own"],
  ["max_tokens", "Most tokens", "the model’s own"],
  ["seed", "Seed", "drawn"],
];

function Settings({ options, change }: { options: Options; change: (options: Options) => void }) {
  const set = (field: keyof Options) => (event: Event) =>
    change({ ...options, [field]: (event.target as HTMLInputElement).value });
  return (
    <form class="settings" aria-label="Settings of replies" onSubmit={(event) => event.preventDefault()}>
      <label class="whole">
        <span>System prompt</span>
        <textarea rows={3} value={options.system} onInput={set("system")} placeholder="none" />
      </label>
      {NUMBERS.map(([field, label, none]) => (
        <label>
          <span>{label}</span>
          <input inputMode="decimal" autocomplete="off" value={options[field]} onInput={set(field)} placeholder={none} />
        </label>
      ))}
      <label class="whole">
        <span>Stop texts, one a line</span>
        <textarea rows={2} value={options.stop} onInput={set("stop")} placeholder="none" />
      </label>
      <button type="button" class="quiet" onClick={() => change(NO_OPTIONS)}>
        Reset
      </button>
    </form>
  );
}

type ItemProps = {
  message: Message;
  isColoured: boolean;
  isBusy: boolean;
  isChosen: boolean;
  onChoose: () => void;
  onRetry: () => void;
  onEdit: (content: string) => void;
};

function Said({ message, isBusy, onEdit }: ItemProps) {
  const [draft, setDraft] = useState<string | null>(null);
  if (draft !== null) {
    return (
      <form
        class="message said editing"
        onSubmit={(event) => {
          event.preventDefault();
          setDraft(null);
          onEdit(draft);
        }}
      >
        <textarea
          aria-label="Your message"
          rows={Math.min(12, draft.split("\n").length + 1)}
          value={draft}
          ref={(area) => area?.focus()}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && setDraft(null)}
        />
        <div class="row">
          <button class="main" disabled={!draft.trim() || isBusy}>
            Send again
          </button>
          <button type="button" class="quiet" onClick={() => setDraft(null)}>
            Cancel
          </button>
        </div>
      </form>
    );
  }
  return (
    <article class="message said" aria-label="You">
      <p class="typed">{prose(message.content)}</p>
      <div class="row">
        <Copy text={message.content} />
        <button type="button" class="quiet" disabled={isBusy} onClick={() => setDraft(message.content)}>
          Edit
        </button>
      </div>
    </article>
  );
}

function Answer({ message, isColoured, isBusy, isChosen, onChoose, onRetry }: ItemProps) {
  const isWaiting = isBusy && isChosen && !message.content && !message.reasoning && !message.error;
  return (
    <article class={`message answer${isChosen ? " chosen" : ""}`} aria-label="Reply">
      {message.reasoning && (
        <details class="reasoning">
          <summary>Reasoning, {count(message.reasoning.length, "letter")}</summary>
          <p class="typed">{prose(message.reasoning)}</p>
        </details>
      )}
      {isWaiting && (
        <p class="waiting" role="status">
          Asking the swarm <i />
          <i />
          <i />
        </p>
      )}
      <Reply message={message} isColoured={isColoured} />
      {message.error && (
        <p class="problem" role="alert">
          {prose(message.error.slice(0, 2000))}
        </p>
      )}
      <div class="row">
        {message.account ? <Line account={message.account} /> : message.isStopped && <span class="line">stopped</span>}
        <span class="grow" />
        <Copy text={message.content} />
        <button type="button" class="quiet" disabled={isBusy} onClick={onRetry}>
          Retry
        </button>
        <button type="button" class="quiet" aria-pressed={isChosen} onClick={onChoose}>
          Details
        </button>
      </div>
    </article>
  );
}

/** The chat view; `prove` shows the proof of a reply. */
export function Chat({ model, prove }: { model: string; prove: (message: Message) => void }) {
  const [conversation, setConversation] = useState<Conversation>(keptConversation);
  const [typed, setTyped] = useState("");
  const [stopping, setStopping] = useState<AbortController | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const [isColoured, setColoured] = useState(localStorage.getItem("cosine.colours") !== "off");
  const [areSettingsOpen, setSettingsOpen] = useState(false);
  const isWide = useMedia("(min-width: 70rem)");
  const end = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const { messages, options } = conversation;
  const isBusy = stopping !== null;
  const last = messages.length - 1;
  const shown = chosen !== null && messages[chosen]?.role === "assistant" ? chosen : isWide || isBusy ? last : null;

  useEffect(() => {
    if (follows.current) end.current?.scrollIntoView({ block: "end" });
  }, [conversation]);
  useEffect(() => {
    if (chosen !== null) document.querySelector(".messages > .made")?.scrollIntoView({ block: "start" });
  }, [chosen]);
  useEffect(() => {
    const scrolled = () => {
      const { scrollHeight } = document.documentElement;
      follows.current = scrollHeight - scrollY - innerHeight < 160;
    };
    addEventListener("scroll", scrolled, { passive: true });
    return () => removeEventListener("scroll", scrolled);
  }, []);

  async function ask(before: Message[]) {
    const stop = new AbortController();
    const asked = { messages: before, options };
    const show = (message: Message) => setConversation({ options, messages: [...before, message] });
    show({ role: "assistant", content: "" });
    setStopping(stop);
    setChosen(null);
    follows.current = true;
    const message = await follow(requestOf(asked), stop.signal, framed(show));
    requestAnimationFrame(() => {
      show(message);
      keep({ options, messages: [...before, message] });
      setStopping(null);
    });
  }
  const send = () => {
    if (!typed.trim() || isBusy) return;
    setTyped("");
    void ask([...messages, { role: "user", content: typed }]);
  };
  const toggleColours = () => {
    localStorage.setItem("cosine.colours", isColoured ? "off" : "on");
    setColoured(!isColoured);
  };
  const begin = () => {
    stopping?.abort();
    const empty = { messages: [], options };
    setConversation(empty);
    keep(empty);
    setChosen(null);
  };
  const made = shown !== null && messages[shown]?.role === "assistant" ? messages[shown]! : null;
  const aside = made && <Made message={made} onProve={() => prove(made)} />;
  return (
    <div class={`chat${messages.length ? "" : " empty"}`}>
      <div class="conversation">
        {messages.length > 0 && <h1 class="unseen">Chat</h1>}
        {!messages.length && (
          <header class="hello">
            <h1>Ask the swarm</h1>
            <p>
              Small models guess, <b>{name(model, 80) || "the target"}</b> decides every token. You see whose each word
              was, and can check that the text is the target’s.
            </p>
          </header>
        )}
        <div class="messages" role="log" aria-label="Conversation" aria-live="off">
          {messages.map((message, index) => {
            const Item = message.role === "user" ? Said : Answer;
            return (
              <>
                <Item
                  key={index}
                  message={message}
                  isColoured={isColoured}
                  isBusy={isBusy}
                  isChosen={index === shown}
                  onChoose={() => setChosen(chosen === index && !isWide ? null : index)}
                  onRetry={() => void ask(messages.slice(0, index))}
                  onEdit={(content) => void ask([...messages.slice(0, index), { role: "user", content }])}
                />
                {!isWide && index === chosen && aside}
              </>
            );
          })}
        </div>
        <form
          class="composer"
          onSubmit={(event) => {
            event.preventDefault();
            send();
          }}
        >
          <textarea
            rows={Math.min(8, Math.max(2, typed.split("\n").length))}
            aria-label="Message"
            placeholder="Write a message"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                send();
              }
            }}
          />
          <div class="row">
            <button type="button" class="quiet" aria-expanded={areSettingsOpen} onClick={() => setSettingsOpen(!areSettingsOpen)}>
              Settings
            </button>
            <label class="switch">
              <input type="checkbox" role="switch" checked={isColoured} onChange={toggleColours} />
              <span>Whose words</span>
            </label>
            <span class="grow" />
            {messages.length > 0 && (
              <button type="button" class="quiet" onClick={begin}>
                New
              </button>
            )}
            {isBusy ? (
              <button type="button" class="main stop" onClick={() => stopping.abort()}>
                Stop
              </button>
            ) : (
              <button class="main" disabled={!typed.trim()}>
                Send
              </button>
            )}
          </div>
          {areSettingsOpen && (
            <Settings
              options={options}
              change={(changed) => {
                setConversation({ messages, options: changed });
                keep({ messages, options: changed });
              }}
            />
          )}
          <p class="faint">Kept in this browser alone. Enter sends, Shift and Enter breaks a line.</p>
        </form>
        <div ref={end} />
      </div>
      {isWide && made && <aside>{aside}</aside>}
    </div>
  );
}
