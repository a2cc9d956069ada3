import assert from "node:assert/strict";
import { ApiError, GoogleGenAI, Type } from "@google/genai";

export const npmPackage = "@google/genai";
const asked = { model: "gemini-2.5-flash", contents: "Say hello." };
const clientOf = (gateway, apiKey = gateway.key) =>
  new GoogleGenAI({ apiKey, httpOptions: { baseUrl: gateway.base("gemini") } });

export const examples = {
  async "generate content"(gateway) {
    assert.equal((await clientOf(gateway).models.generateContent(asked)).text, "Hello there");
  },
  async stream(gateway) {
    let text = "";
    for await (const chunk of await clientOf(gateway).models.generateContentStream(asked)) text += chunk.text;
    assert.equal(text, "Hello there");
  },
  async tools(gateway) {
    const parameters = { type: Type.OBJECT, properties: { city: { type: Type.STRING } } };
    const tools = [{ functionDeclarations: [{ name: "get_weather", parameters }] }];
    const answer = await clientOf(gateway).models.generateContent({ ...asked, config: { tools } });
    assert.deepEqual(answer.functionCalls[0].args, { city: "Paris" });
  },
  async "structured output"(gateway) {
    const responseSchema = { type: Type.OBJECT, properties: { name: { type: Type.STRING } } };
    const config = { responseMimeType: "application/json", responseSchema };
    const answer = await clientOf(gateway).models.generateContent({ ...asked, config });
    assert.deepEqual(JSON.parse(answer.text), { name: "Fair", day: "Friday" });
  },
  async "token counting"(gateway) {
    assert.equal((await clientOf(gateway).models.countTokens(asked)).totalTokens, 20);
  },
  async embeddings(gateway) {
    const answer = await clientOf(gateway).models.embedContent({ model: "gemini-embedding-001", contents: "a" });
    assert.deepEqual(answer.embeddings[0].values, [0.5, -0.25]);
  },
  async models(gateway) {
    const names = [];
    for await (const each of await clientOf(gateway).models.list()) names.push(each.name);
    assert.deepEqual(names, ["models/gemini-2.5-flash"]);
  },
  async errors(gateway) {
    const has = (status) => (error) => error instanceof ApiError && error.status === status;
    await assert.rejects(clientOf(gateway, "ak_wrong").models.generateContent(asked), has(401));
    await assert.rejects(clientOf(gateway).files.list(), has(403));
    await assert.rejects(clientOf(gateway).models.generateContent({ ...asked, contents: "answer 429" }), has(429));
  },
};
