// The inspector on the command line.
import assert from "node:assert";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const npmPackage = "@modelcontextprotocol/inspector";

const launcher = `../node_modules/${npmPackage}/clients/launcher/build/index.js`;
const program = fileURLToPath(new URL(launcher, import.meta.url));

const inspect = async ({ url, key }, ...options) => {
  const folder = await mkdtemp(join(tmpdir(), "inspector-"));
  const args = [program, "--cli", `${url}/mcp`, "--transport", "http", "--header", `Authorization: Bearer ${key}`];
  const env = { ...process.env, HOME: folder };
  try {
    return JSON.parse((await promisify(execFile)(process.execPath, [...args, ...options], { env })).stdout);
  } finally {
    await rm(folder, { recursive: true });
  }
};

export const examples = {
  "list tools": async (gateway) => {
    const { tools } = await inspect(gateway, "--method", "tools/list", "--strict");
    assert.ok(tools.some(({ name }) => name === "transfer"));
  },
  "call a tool": async (gateway) => {
    const found = await inspect(gateway, "--method", "tools/call", "--tool-name", "get_balances");
    assert.equal(found.structuredContent.wallets.length, 1);
  },
};
