// The login of the SDK: metadata, registration, consent of an owner without scripts, tokens and a call of a tool.
import assert from "node:assert";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

export const npmPackage = "@modelcontextprotocol/sdk";

class OwnerBrowser {
  cookies = new Map();

  constructor(url) {
    this.url = url;
  }

  async open(address, fields) {
    const headers = { Cookie: [...this.cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    const options = fields ? { method: "POST", body: new URLSearchParams(fields) } : {};
    const answer = await fetch(new URL(address, this.url), { ...options, headers, redirect: "manual" });
    for (const cookie of answer.headers.getSetCookie()) {
      const [, name, value] = cookie.match(/^([^=]+)=([^;]*)/);
      this.cookies.set(name, value);
    }
    return answer;
  }

  async json(path, body) {
    const headers = { "Content-Type": "application/json" };
    return (await fetch(this.url + path, { method: "POST", headers, body: JSON.stringify(body) })).json();
  }

  async consent(address) {
    const made = await this.json("/v1/agents/register", {});
    const { ownerKey } = await this.json("/v1/device/claim", { code: made.claimCode });
    const hidden = (page) => [...page.matchAll(/<input type="hidden" name="([^"]*)" value="([^"]*)"/g)].map(([, ...field]) => field);
    const [, consent] = (await (await this.open(address)).text()).match(/href="(\/owner\/connect\/[^"]+)"/);
    const signIn = await this.open((await this.open(consent)).headers.get("Location"));
    await this.open("/owner/sign-in", [...hidden(await signIn.text()), ["owner_key", ownerKey]]);
    const form = await (await this.open(consent)).text();
    const [, account] = form.match(/name="account" value="([^"]+)"/);
    const chosen = [["account", account], ["scope", "wallet:read"], ["days", "7"], ["decision", "allow"]];
    const answer = await this.open(consent, [...hidden(form), ...chosen]);
    assert.equal(answer.status, 303, await answer.text());
    return new URL(answer.headers.get("Location")).searchParams;
  }
}

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
    this.answer = await this.owner.consent(address.href);
  }
}

export const examples = {
  "log in and call a tool": async ({ url }) => {
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
    await transport.finishAuth(authProvider.answer.get("code"));
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
};
