// The tools of LangChain: with a key.
import assert from "node:assert";
import { MultiServerMCPClient } from "@langchain/mcp-adapters";

export const npmPackage = "@langchain/mcp-adapters";

export const examples = {
  "call a tool": async ({ url, key }) => {
    const purser = { transport: "http", url: `${url}/mcp`, headers: { Authorization: `Bearer ${key}` } };
    const client = new MultiServerMCPClient({ mcpServers: { purser } });
    const tools = await client.getTools();
    const balances = tools.find(({ name }) => name === "get_balances");
    assert.match(JSON.stringify(await balances.invoke({})), /wallets/);
    await client.close();
  },
};
