import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

export const npmPackage = "openai";
const messages = [{ role: "user", content: "Say hello." }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const clientOf = (gateway) => new OpenAI({ baseURL: gateway.base("openai"), apiKey: gateway.key, maxRetries: 0 });

export const examples = {
  async chat(gateway) {
    const answer = await clientOf(gateway).chat.completions.create({ model: "gpt-5", messages });
    assert.equal(answer.choices[0].message.content, "Hello there");
  },
  async "chat stream"(gateway) {
    let text = "";
    for await (const chunk of await clientOf(gateway).chat.completions.create({ model: "gpt-5", messages, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(text, "Hello there");
  },
  async tools(gateway) {
    const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
    const answer = await clientOf(gateway).chat.completions.create({ model: "gpt-5", messages, tools });
    assert.equal(answer.choices[0].message.tool_calls[0].function.name, "get_weather");
  },
  async "structured output"(gateway) {
    const schema = { type: "object", properties: { name: { type: "string" }, day: { type: "string" } } };
    const answer = await clientOf(gateway).chat.completions.parse({
      model: "gpt-5",
      messages,
      response_format: { type: "json_schema", json_schema: { name: "event", schema } },
    });
    assert.deepEqual(JSON.parse(answer.choices[0].message.content), { name: "Fair", day: "Friday" });
  },
  async responses(gateway) {
    const answer = await clientOf(gateway).responses.create({ model: "gpt-5", input: "Say hello.", store: false });
    assert.equal(answer.output_text, "Hello there");
  },
  async "responses stream"(gateway) {
    const stream = await clientOf(gateway).responses.create({ model: "gpt-5", input: "Hi", store: false, stream: true });
    const types = [];
    for await (const event of stream) types.push(event.type);
    assert.equal(types.at(-1), "response.completed");
  },
  async embeddings(gateway) {
    const answer = await clientOf(gateway).embeddings.create({ model: "text-embedding-3-small", input: "a" });
    assert.deepEqual([...answer.data[0].embedding], [0.5, -0.25]);
  },
  async image(gateway) {
    const answer = await clientOf(gateway).images.generate({
      model: "gpt-image-1", prompt: "A cat", size: "1024x1024", quality: "low",
    });
    assert.equal(answer.data[0].b64_json, "aGVsbG8=");
  },
  async transcription(gateway) {
    const file = await toFile(new Uint8Array(3200), "speech.pcm");
    const answer = await clientOf(gateway).audio.transcriptions.create({ model: "gpt-4o-transcribe", file });
    assert.equal(answer.text, "Hello there");
  },
  async speech(gateway) {
    const answer = await clientOf(gateway).audio.speech.create({
      model: "gpt-4o-mini-tts", voice: "coral", input: "Hello there",
    });
    assert.equal(await answer.text(), "ID3 sound");
  },
  async models(gateway) {
    const names = [];
    for await (const model of clientOf(gateway).models.list()) names.push(model.id);
    assert.deepEqual(names, ["gpt-5"]);
  },
  async errors(gateway) {
    const client = clientOf(gateway);
    const unknown = new OpenAI({ baseURL: gateway.base("openai"), apiKey: "ak_wrong", maxRetries: 0 });
    await assert.rejects(unknown.models.list(), OpenAI.AuthenticationError);
    await assert.rejects(client.files.list(), OpenAI.PermissionDeniedError);
    const limited = [{ role: "user", content: "answer 429" }];
    await assert.rejects(client.chat.completions.create({ model: "gpt-5", messages: limited }), OpenAI.RateLimitError);
  },
};
