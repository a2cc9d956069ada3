// Runs the documented examples of npm packages. Arguments: the gateway's address, a key, and modules beside this one.
// A module exports the name of its `npmPackage` and `examples`: titles with functions that assert what they get.
import { readFileSync } from "node:fs";

const [url, key, ...names] = process.argv.slice(2);
const gateway = { url, key, base: (provider) => `${url}/v1/gateway/${provider}` };
const rows = [];
for (const name of names) {
  const { npmPackage, examples } = await import(`./${name}.mjs`);
  const { version } = JSON.parse(readFileSync(new URL(`../node_modules/${npmPackage}/package.json`, import.meta.url)));
  const failed = {};
  for (const [title, example] of Object.entries(examples)) {
    try {
      await example(gateway);
    } catch (error) {
      failed[title] = `${error.stack}`;
    }
  }
  rows.push({ registry: "npm", package: npmPackage, version, examples: Object.keys(examples), failed });
}
console.log(JSON.stringify(rows));
