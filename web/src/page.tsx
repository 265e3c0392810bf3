// The page: four views of one gateway.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Chat } from "./chat/view";
import type { Message } from "./chat/conversation";
import { Connect } from "./connect/view";
import { apiKey, keepApiKey } from "./gateway";
import { name } from "./harmless";
import { type Given, ProofView } from "./proof/view";
import { useSwarm } from "./swarm/state";
import { SwarmView } from "./swarm/view";

const VIEWS = [
  ["chat", "Chat"],
  ["swarm", "Swarm"],
  ["proof", "Proof"],
  ["join", "Join"],
] as const;
type ViewName = (typeof VIEWS)[number][0];
const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

const viewInAddress = (): ViewName => VIEWS.find(([view]) => location.hash === `#${view}`)?.[0] ?? "chat";

function keptTheme(): Theme {
  const kept = localStorage.getItem("cosine.theme");
  return THEMES.find((theme) => theme === kept) ?? "system";
}

const isDark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme(theme: Theme): void {
  document.documentElement.dataset["theme"] = theme === "system" ? (isDark.matches ? "dark" : "light") : theme;
}

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(keptTheme);
  useEffect(() => {
    const apply = () => applyTheme(theme);
    apply();
    localStorage.setItem("cosine.theme", theme);
    isDark.addEventListener("change", apply);
    return () => isDark.removeEventListener("change", apply);
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!)];
}

function KeyForm({ onKey }: { onKey: () => void }) {
  const [typed, setTyped] = useState("");
  return (
    <form
      class="key-form"
      onSubmit={(event) => {
        event.preventDefault();
        keepApiKey(typed.trim());
        onKey();
      }}
    >
      <label>
        <span role="status">
          {apiKey() ? "The gateway refused this key; enter another." : "This gateway asks for a key. It stays in this tab."}
        </span>
        <input type="password" autocomplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      </label>
      <button class="main" disabled={!typed.trim()}>
        Use it
      </button>
    </form>
  );
}

function Page() {
  const [view, setView] = useState<ViewName>(viewInAddress);
  const [given, setGiven] = useState<Given | null>(null);
  const [attempt, setAttempt] = useState(0);
  const [theme, nextTheme] = useTheme();
  const feed = useSwarm(attempt);
  useEffect(() => {
    const moved = () => setView(viewInAddress());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    document.title = `${VIEWS.find(([each]) => each === view)![1]} · CoSine P2P`;
    scrollTo(0, 0);
  }, [view]);
  function prove(message: Message) {
    if (!message.account) return;
    setGiven({ proof: message.account.proof, from: "this chat", text: message.content });
    location.hash = "#proof";
  }
  const model = feed.swarm?.target ?? "";
  const count = feed.swarm?.nodes.filter((node) => !node.reason).length ?? 0;
  const state = feed.isLive ? `${count} node${count === 1 ? "" : "s"}` : feed.problem ? "not connected" : "connecting";
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>
        To the content
      </a>
      <header class="top">
        <a class="brand" href="#chat">
          <img src="/page/mark.svg" alt="" width={26} height={26} />
          <b>CoSine</b>
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([each, title]) => (
            <a href={`#${each}`} aria-current={view === each ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <span class="grow" />
        <span class={`live ${feed.isLive ? "on" : feed.problem ? "off" : ""}`} title={name(feed.problem || model, 300)}>
          <i aria-hidden="true" />
          <span>{state}</span>
        </span>
        <button type="button" class="quiet theme" onClick={nextTheme} aria-label={`Theme: ${theme}; change it`} title={`Theme: ${theme}`}>
          <span aria-hidden="true">{{ system: "◐", light: "○", dark: "●" }[theme]}</span>
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {feed.needsKey && <KeyForm onKey={() => setAttempt(attempt + 1)} />}
        <div hidden={view !== "chat"}>
          <Chat model={model} prove={prove} />
        </div>
        {view === "swarm" && <SwarmView feed={feed} />}
        {view === "proof" && <ProofView given={given} onGiven={setGiven} />}
        {view === "join" && <Connect swarm={feed.swarm} hasKey={apiKey() !== ""} />}
      </main>
    </>
  );
}

// Set the theme before anything is drawn, so that the other one never flashes.
applyTheme(keptTheme());
render(<Page />, document.getElementById("page")!);
