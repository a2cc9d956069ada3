// The bridge for clients without HTTP: it opens the owner's browser, waits for the code, and calls with the token.
import assert from "node:assert";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { OwnerBrowser } from "./owner_browser.mjs";

export const npmPackage = "mcp-remote";

export const examples = {
  "log in and call a tool": async ({ url }) => {
    const folder = await mkdtemp(join(tmpdir(), "mcp-remote-"));
    const program = fileURLToPath(new URL("../node_modules/mcp-remote/dist/proxy.js", import.meta.url));
    // The program that it opens as a browser does nothing: the owner follows what it prints.
    const env = { ...process.env, MCP_REMOTE_CONFIG_DIR: folder, BROWSER: "true" };
    const args = [program, `${url}/mcp`, "--allow-http", "--transport", "http-only"];
    const transport = new StdioClientTransport({ command: process.execPath, args, env, stderr: "pipe" });
    const owner = new OwnerBrowser(url);
    const client = new Client({ name: "example", version: "1.0.0" });
    let logins = 0;
    const printed = [];
    createInterface({ input: transport.stderr }).on("line", async (line) => {
      printed.push(line);
      const [address] = line.match(/https?:\/\/\S+\/oauth\/authorize\?\S+/) ?? [];
      if (address && !logins++) await fetch(await owner.consent(address));
    });
    try {
      await client.connect(transport);
      const { structuredContent } = await client.callTool({ name: "get_balances", arguments: {} });
      assert.equal(structuredContent.wallets.length, 1);
      assert.equal(logins, 1);
    } catch (error) {
      throw new Error(printed.join("\n"), { cause: error });
    } finally {
      await client.close();
      await rm(folder, { recursive: true });
    }
  },
};
