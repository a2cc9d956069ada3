import assert from "node:assert/strict";
import Groq from "groq-sdk";

export const npmPackage = "groq-sdk";
const asked = { model: "llama-3.3-70b-versatile", messages: [{ role: "user", content: "Say hello." }] };
const clientOf = (gateway) => new Groq({ baseURL: gateway.base("groq"), apiKey: gateway.key, maxRetries: 0 });

export const examples = {
  async chat(gateway) {
    const answer = await clientOf(gateway).chat.completions.create(asked);
    assert.equal(answer.choices[0].message.content, "Hello there");
  },
  async "chat stream"(gateway) {
    let text = "";
    for await (const chunk of await clientOf(gateway).chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(text, "Hello there");
  },
  async models(gateway) {
    assert.deepEqual((await clientOf(gateway).models.list()).data.map((model) => model.id), [asked.model]);
  },
  async errors(gateway) {
    const unknown = new Groq({ baseURL: gateway.base("groq"), apiKey: "ak_wrong", maxRetries: 0 });
    await assert.rejects(unknown.models.list(), Groq.AuthenticationError);
    const limited = { ...asked, messages: [{ role: "user", content: "answer 429" }] };
    await assert.rejects(clientOf(gateway).chat.completions.create(limited), Groq.RateLimitError);
  },
};
