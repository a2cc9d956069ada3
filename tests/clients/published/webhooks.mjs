// Verifies a delivery by the published packages. Argument: its secret, headers and body as JSON.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { Webhook } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(process.argv[2]);
const { type } = JSON.parse(body);
const client = new OpenAI({ apiKey: "none" });

assert.equal(new Webhook(secret).verify(body, headers).type, type);
assert.throws(() => new Webhook(secret).verify(`${body} `, headers));
assert.equal((await client.webhooks.unwrap(body, headers, secret)).type, type);
await assert.rejects(client.webhooks.unwrap(`${body} `, headers, secret));

const versionOf = (name) => JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version;
console.log(JSON.stringify(Object.fromEntries(["openai", "standardwebhooks"].map((name) => [name, versionOf(name)]))));
