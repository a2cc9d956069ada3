/** Registers an agent with each generated client, and lists its wallets. */
import createClient from "openapi-fetch";
import { listWallets, register } from "./sdk";
import type { paths } from "./types";

declare const process: { argv: string[]; stdout: { write(text: string): void } };

async function main(baseUrl: string): Promise<Record<string, string[]>> {
  const typed = createClient<paths>({ baseUrl });
  const first = await typed.POST("/v1/agents/register", { body: { name: "typed" } });
  if (!first.data) throw new Error(first.error.error);
  const found = await typed.GET("/v1/wallets", { headers: { "X-API-Key": first.data.apiKey } });
  if (!found.data) throw new Error("no wallets");

  const second = await register({ baseUrl, body: { name: "generated" }, throwOnError: true });
  const listed = await listWallets({ baseUrl, auth: second.data.apiKey, throwOnError: true });
  return {
    "openapi-typescript": [first.data.wallet.id, ...found.data.wallets.map((each) => each.id)],
    "openapi-ts": [second.data.wallet.id, ...listed.data.wallets.map((each) => each.id)],
  };
}

main(process.argv[2] ?? "").then((done) => process.stdout.write(JSON.stringify(done)));
