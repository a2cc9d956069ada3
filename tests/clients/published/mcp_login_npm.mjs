// The login of the SDK: metadata, registration, consent of an owner without scripts, tokens and a call of a tool.
import assert from "node:assert";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { OwnerBrowser } from "./owner_browser.mjs";

export const npmPackage = "@modelcontextprotocol/sdk";

class Provider {
  redirectUrl = "http://127.0.0.1:1/callback";
  clientMetadata = { client_name: "Example", redirect_uris: [this.redirectUrl], token_endpoint_auth_method: "none" };

  constructor(owner) {
    this.owner = owner;
  }
  clientInformation() {
    return this.client;
  }
  saveClientInformation(client) {
    this.client = client;
  }
  tokens() {
    return this.saved;
  }
  saveTokens(tokens) {
    this.saved = tokens;
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
  async redirectToAuthorization(address) {
    this.answer = (await this.owner.consent(address.href)).searchParams;
  }
}

export const logIn = (sdk, finish) => ({
  "log in and call a tool": async ({ url }) => {
    const { Client, StreamableHTTPClientTransport, UnauthorizedError } = sdk;
    const authProvider = new Provider(new OwnerBrowser(url));
    const connect = async () => {
      const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { authProvider });
      const client = new Client({ name: "example", version: "1.0.0" });
      await client.connect(transport);
      return { client, transport };
    };
    const { client, transport } = await connect();
    // Listing needs no key; the first call of a tool begins the login.
    await client.listTools();
    const call = { name: "get_balances", arguments: {} };
    await assert.rejects(client.callTool(call), UnauthorizedError);
    assert.equal(authProvider.answer.get("iss"), url);
    await finish(transport, authProvider.answer);
    await client.close();
    const second = await connect();
    const { structuredContent } = await second.client.callTool(call);
    assert.equal(structuredContent.wallets.length, 1);
    // With an access token that is not valid any more, the client refreshes it.
    const before = authProvider.saved;
    authProvider.saved = { ...before, access_token: `at_${"x".repeat(43)}` };
    const again = await second.client.callTool(call);
    assert.equal(again.structuredContent.wallets.length, 1);
    assert.notEqual(authProvider.saved.refresh_token, before.refresh_token);
    await second.client.close();
  },
});

const sdk = { Client, StreamableHTTPClientTransport, UnauthorizedError };
export const examples = logIn(sdk, (transport, answer) => transport.finishAuth(answer.get("code")));
