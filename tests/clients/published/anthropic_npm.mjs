import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

export const npmPackage = "@anthropic-ai/sdk";
const model = "claude-sonnet-4-6";
const messages = [{ role: "user", content: "Say hello." }];
const asked = { model, max_tokens: 100, messages };
const clientOf = (gateway) =>
  new Anthropic({ baseURL: gateway.base("anthropic"), apiKey: gateway.key, maxRetries: 0 });

export const examples = {
  async message(gateway) {
    const answer = await clientOf(gateway).messages.create(asked);
    assert.equal(answer.content[0].text, "Hello there");
  },
  async stream(gateway) {
    let text = "";
    const stream = clientOf(gateway).messages.stream(asked).on("text", (piece) => (text += piece));
    assert.equal((await stream.finalMessage()).usage.output_tokens, 10);
    assert.equal(text, "Hello there");
  },
  async tools(gateway) {
    const properties = { city: { type: "string" } };
    const tools = [{ name: "get_weather", input_schema: { type: "object", properties } }];
    const answer = await clientOf(gateway).messages.create({ ...asked, tools });
    assert.deepEqual(answer.content[0].input, { city: "Paris" });
  },
  async "token counting"(gateway) {
    assert.equal((await clientOf(gateway).messages.countTokens({ model, messages })).input_tokens, 20);
  },
  async models(gateway) {
    const names = [];
    for await (const each of clientOf(gateway).models.list()) names.push(each.id);
    assert.deepEqual(names, [model]);
  },
  async errors(gateway) {
    const client = clientOf(gateway);
    const unknown = new Anthropic({ baseURL: gateway.base("anthropic"), apiKey: "ak_wrong", maxRetries: 0 });
    await assert.rejects(unknown.messages.create(asked), Anthropic.AuthenticationError);
    await assert.rejects(client.messages.batches.list(), Anthropic.PermissionDeniedError);
    const limited = { ...asked, messages: [{ role: "user", content: "answer 429" }] };
    await assert.rejects(client.messages.create(limited), Anthropic.RateLimitError);
  },
};
