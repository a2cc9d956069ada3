import assert from "node:assert";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

export const npmPackage = "@modelcontextprotocol/sdk";

async function connected({ url, key }, use) {
  const requestInit = { headers: { Authorization: `Bearer ${key}` } };
  const client = new Client({ name: "example", version: "1.0.0" });
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit }));
  try {
    await use(client);
  } finally {
    await client.close();
  }
}

export const examples = {
  "list tools": (gateway) =>
    connected(gateway, async (client) => {
      const { tools } = await client.listTools();
      assert(tools.find(({ name }) => name === "get_balances").annotations.readOnlyHint);
      // As AJV and LangChain.js compile them.
      JSON.stringify(tools, (name, value) => (name === "pattern" ? new RegExp(value, "u").source : value));
    }),
  "call a tool": (gateway) =>
    connected(gateway, async (client) => {
      await client.listTools();
      const { structuredContent } = await client.callTool({ name: "get_balances", arguments: {} });
      assert.equal(structuredContent.wallets.length, 1);
    }),
  refusal: (gateway) =>
    connected(gateway, async (client) => {
      const result = await client.callTool({ name: "get_controls", arguments: { wallet_id: "none" } });
      assert(result.isError);
      assert.equal(result.structuredContent.code, "NOT_FOUND");
    }),
  "read a resource": (gateway) =>
    connected(gateway, async (client) => {
      const { resources } = await client.listResources();
      const { uri } = resources.find(({ name }) => name === "instructions");
      const { contents } = await client.readResource({ uri });
      assert(contents[0].text.startsWith("# Purser"));
    }),
};
