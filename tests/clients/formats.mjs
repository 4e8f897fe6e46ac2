// The real openai, Anthropic and AI SDK clients of Node, unaware of the gateway before them.
//
// usage: node formats.mjs BASE_URL played|engine MODEL
// Played: the models are those of formats.py. Engine: one chat with the demo model. Any failed expectation throws.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [baseUrl, mode, engineModel] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function collect(stream, pick) {
  let text = "";
  for await (const part of stream) text += pick(part) ?? "";
  return text;
}

async function played() {
  const whole = await openai.chat.completions.create({ model: "chat-whole", messages });
  assert.equal(whole.choices[0].message.content, "Hello world");
  const stream = await openai.chat.completions.create({ model: "chat-stream", messages, stream: true });
  assert.equal(await collect(stream, (chunk) => chunk.choices[0].delta.content), "Hello world");
  const response = await openai.responses.create({ model: "responses-whole", input: "Say hello." });
  assert.equal(response.output_text, "Hello world");
  const events = await openai.responses.create({ model: "responses-stream", input: "Say hello.", stream: true });
  assert.equal(await collect(events, (event) => event.type.endsWith("output_text.delta") && event.delta || ""), "Hello world");

  const anthropic = new Anthropic({ baseURL: baseUrl, apiKey: "none", maxRetries: 0 });
  const message = await anthropic.messages.create({ model: "messages-whole", messages, max_tokens: 16 });
  assert.equal(message.content[1].text, "Hello world");
  const ended = await anthropic.messages.stream({ model: "messages-stream", messages, max_tokens: 16 }).finalMessage();
  assert.equal(ended.content[1].text, "Hello world");
  assert.equal(ended.usage.output_tokens, 5);

  const byOpenai = createOpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "none" });
  const byAnthropic = createAnthropic({ baseURL: `${baseUrl}/v1`, apiKey: "none" });
  const prompt = "Say hello.";
  assert.equal((await generateText({ model: byOpenai.chat("chat-whole"), prompt, maxRetries: 0 })).text, "Hello world");
  const chat = streamText({ model: byOpenai.chat("chat-stream"), prompt, maxRetries: 0 });
  assert.equal(await collect(chat.textStream, (text) => text), "Hello world");
  const responses = streamText({ model: byOpenai.responses("responses-stream"), prompt, maxRetries: 0 });
  assert.equal(await collect(responses.textStream, (text) => text), "Hello world");
  const claude = streamText({ model: byAnthropic("messages-stream"), prompt, maxRetries: 0 });
  assert.equal(await collect(claude.textStream, (text) => text), "Hello world");
}

async function engine() {
  const asked = { model: engineModel, messages, temperature: 0, max_tokens: 32 };
  const whole = await openai.chat.completions.create(asked);
  assert.match(whole.choices[0].message.content, /Paris/);
  assert.ok(whole.metrics.time_to_first_token_ms > 0);
  const stream = await openai.chat.completions.create({ ...asked, stream: true });
  assert.equal(await collect(stream, (chunk) => chunk.choices[0].delta.content), whole.choices[0].message.content);
  const model = createOpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "none" }).chat(engineModel);
  const { textStream } = streamText({ model, messages, temperature: 0, maxOutputTokens: 32, maxRetries: 0 });
  assert.equal(await collect(textStream, (text) => text), whole.choices[0].message.content);
}

await (mode === "played" ? played() : engine());
