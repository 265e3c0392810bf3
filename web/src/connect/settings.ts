// Settings of other programs for this gateway. They never contain the key.

export type Client = { name: string; where: string; text: string };

export function clientsOf(origin: string, hasKey: boolean): Client[] {
  const base = `${origin}/v1`;
  const key = hasKey ? "YOUR_KEY" : "none";
  return [
    {
      name: "Open WebUI",
      where: "Environment of its server, or Admin Panel, Settings, Connections",
      text: `OPENAI_API_BASE_URL=${base}\nOPENAI_API_KEY=${key}`,
    },
    {
      name: "Codex",
      where: "~/.codex/config.toml",
      text:
        `model = "cosine"\nmodel_provider = "swarm"\n\n[model_providers.swarm]\nname = "swarm"\n` +
        `base_url = "${base}"\nwire_api = "responses"` +
        (hasKey ? `\nenv_key = "COSINE_API_KEY"` : ""),
    },
    {
      name: "Continue",
      where: "~/.continue/config.yaml",
      text:
        `name: swarm\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: CoSine\n    provider: openai\n    model: cosine\n` +
        `    apiBase: ${base}\n    apiKey: ${key}\n    roles: [chat, edit, apply]`,
    },
    {
      name: "Cline",
      where: "Settings, API Provider: OpenAI Compatible",
      text: `Base URL: ${base}\nAPI Key: ${key}\nModel ID: cosine`,
    },
    {
      name: "LiteLLM",
      where: "config.yaml of its proxy",
      text:
        `model_list:\n  - model_name: cosine\n    litellm_params:\n      model: openai/cosine\n` +
        `      api_base: ${base}\n      api_key: ${key}`,
    },
    {
      name: "llm",
      where: "extra-openai-models.yaml in the folder that `llm logs path` names",
      text:
        `- model_id: swarm\n  model_name: cosine\n  api_base: ${base}\n  supports_schema: true\n  supports_tools: true`,
    },
    {
      name: "OpenAI for Python",
      where: "Your program",
      text: `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}", api_key="${key}")\n# then model="cosine"`,
    },
    {
      name: "curl",
      where: "A shell",
      text:
        `curl ${base}/chat/completions -H 'Content-Type: application/json' ` +
        (hasKey ? `-H "Authorization: Bearer $COSINE_API_KEY" ` : "") +
        `-d '{"model": "cosine", "messages": [{"role": "user", "content": "Tell me a story."}]}'`,
    },
  ];
}
