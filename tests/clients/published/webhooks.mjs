// Verifies a delivery by the published packages. Argument: its secret, headers and body as JSON.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { Webhook } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(process.argv[2]);
const { type } = JSON.parse(body);
const client = new OpenAI({ apiKey: "none" });

assert.equal(new Webhook(secret).verify(body, headers).type, type);
assert.throws(() => new Webhook(secret).verify(`${body} `, headers));
assert.equal((await client.webhooks.unwrap(body, headers, secret)).type, type);
await assert.rejects(client.webhooks.unwrap(`${body} `, headers, secret));

const { webhooks } = new Anthropic({ apiKey: "none" }).beta;
assert.equal(webhooks.unwrap(body, { headers, key: secret }).type, type);
assert.throws(() => webhooks.unwrap(`${body} `, { headers, key: secret }));

const versionOf = (name) => JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version;
console.log(JSON.stringify(Object.fromEntries(["@anthropic-ai/sdk", "openai", "standardwebhooks"].map((name) => [name, versionOf(name)]))));
