// Vercel's AI SDK through `@ai-sdk/openai-compatible`: texts whole and streamed, objects, tools. Its report is that of
// job.py. It runs where the packages are installed, and imports them from there.
import assert from 'node:assert/strict'
import { appendFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [report, url, model, key] = process.argv.slice(2)
const installed = createRequire(`${process.cwd()}/package.json`)
const load = name => import(pathToFileURL(installed.resolve(name)))
const { generateText, streamText, Output, stepCountIs, tool } = await load('ai')
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible')
const { z } = await load('zod')

const provider = createOpenAICompatible({
  name: 'cosine', baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true, includeUsage: true,
})
const asked = { model: provider(model), prompt: 'Name a river in France.', temperature: 0, maxOutputTokens: 64, maxRetries: 0 }
const river = z.object({ country: z.enum(['France', 'Italy', 'Norway']), isNavigable: z.boolean() })
const weather = tool({
  description: 'Forecast.',
  inputSchema: z.object({ city: z.enum(['Paris', 'Rome', 'Oslo']), days: z.number().int().min(1).max(7) }),
  execute: async ({ city }) => `Rain in ${city}.`,
})

const jobs = {
  'chat': async () => {
    const done = await generateText(asked)
    assert.ok(done.text && done.usage.outputTokens > 0)
    return `${done.usage.outputTokens} tokens by \`generateText\``
  },
  'stream': async () => {
    const pieces = []
    for await (const piece of streamText({ ...asked, onError: ({ error }) => { throw error } }).textStream) pieces.push(piece)
    assert.equal(pieces.join(''), (await generateText(asked)).text)
    return `the same text in ${pieces.length} pieces by \`streamText\``
  },
  'structured output': async () => {
    const { output } = await generateText({ ...asked, output: Output.object({ schema: river }) })
    river.parse(output)
    return '`Output.object` with a Zod schema'
  },
  'tools': async () => {
    for (const toolChoice of ['required', { type: 'tool', toolName: 'weather' }]) {
      const done = await generateText({ ...asked, tools: { weather }, toolChoice, stopWhen: stepCountIs(1) })
      assert.equal(done.toolResults[0].output, `Rain in ${done.toolCalls[0].input.city}.`)
    }
    // The second step reads the tool's answer and calls nothing.
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' })
    const streamed = streamText({ ...asked, tools: { weather }, prepareStep, stopWhen: stepCountIs(2) })
    const steps = await streamed.steps
    assert.equal(steps.length, 2)
    assert.equal(steps[0].toolResults[0].toolName, 'weather')
    assert.ok(steps[1].text)
    return '`required` and a named tool, which ran; streamed, its answer read, and a text after it'
  },
}

for (const [job, shown] of Object.entries(jobs)) {
  let outcome
  try {
    outcome = { job, shown: await shown() }
  } catch (error) {
    outcome = { job, failed: `${error.name}: ${error.responseBody ?? error.message}`.replace(/\s+/g, ' ').slice(0, 300) }
  }
  appendFileSync(report, `${JSON.stringify(outcome)}\n`)
}
