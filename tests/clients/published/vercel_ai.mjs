// The AI SDK with its provider for OpenAI, which uses the Responses API.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, embed, generateImage, generateText, jsonSchema, Output, streamText, tool } from "ai";

export const npmPackage = "ai";
const providerOf = (gateway, apiKey = gateway.key) => createOpenAI({ baseURL: gateway.base("openai"), apiKey });
const text = (gateway, more = {}) =>
  generateText({ model: providerOf(gateway)("gpt-5"), prompt: "Say hello.", maxRetries: 0, ...more });

export const examples = {
  async "generate text"(gateway) {
    assert.equal((await text(gateway)).text, "Hello there");
  },
  async "generate text by chat completions"(gateway) {
    assert.equal((await text(gateway, { model: providerOf(gateway).chat("gpt-5") })).text, "Hello there");
  },
  async "stream text"(gateway) {
    let said = "";
    const { textStream } = streamText({ model: providerOf(gateway)("gpt-5"), prompt: "Say hello." });
    for await (const piece of textStream) said += piece;
    assert.equal(said, "Hello there");
  },
  async tools(gateway) {
    const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } } });
    const answer = await text(gateway, { tools: { get_weather: tool({ inputSchema }) } });
    assert.deepEqual(answer.toolCalls[0].input, { city: "Paris" });
  },
  async "structured output"(gateway) {
    const schema = jsonSchema({ type: "object", properties: { name: { type: "string" }, day: { type: "string" } } });
    const answer = await text(gateway, { output: Output.object({ schema }) });
    assert.deepEqual(answer.output, { name: "Fair", day: "Friday" });
  },
  async embed(gateway) {
    const model = providerOf(gateway).embedding("text-embedding-3-small");
    assert.deepEqual((await embed({ model, value: "a" })).embedding, [0.5, -0.25]);
  },
  async image(gateway) {
    const answer = await generateImage({ model: providerOf(gateway).image("gpt-image-1"), prompt: "A cat", size: "1024x1024" });
    assert.equal(answer.image.base64, "aGVsbG8=");
  },
  async "one base URL for all models"(gateway) {
    const provider = createOpenAI({ baseURL: `${gateway.url}/v1`, apiKey: gateway.key });
    assert.equal((await text(gateway, { model: provider.chat("groq/llama-3.3-70b-versatile") })).text, "Hello there");
    let said = "";
    for await (const piece of streamText({ model: provider("openai/gpt-5"), prompt: "Say hello." }).textStream) said += piece;
    assert.equal(said, "Hello there");
  },
  async errors(gateway) {
    const has = (status) => (error) => APICallError.isInstance(error) && error.statusCode === status;
    await assert.rejects(text(gateway, { model: providerOf(gateway, "ak_wrong")("gpt-5") }), has(401));
    await assert.rejects(text(gateway, { prompt: "answer 429" }), has(429));
  },
};
