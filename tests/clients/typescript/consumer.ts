// Type-checked with the installed package, and never run.
import { LimitExceeded, Purser, PurserError, verifyWebhook } from "purser-sdk";
import type { ErrorCode, Event, components } from "purser-sdk";

export async function use(purser: Purser): Promise<string> {
  const made = await purser.register({ name: "walker" });
  const wallet: string = made.wallet.id;
  const payment = { chain: "base", currency: "USDC", amount: "12.5", to: made.wallet.addresses.base } as const;
  const sent = await purser.transfer(payment);
  const named = await purser.transfer({ ...payment, wallet_id: wallet, idempotency_key: "invoice-7", prefer: "wait=5" });
  const quote = await purser.transfer({ ...payment, dry_run: true });
  const isQuote: boolean = quote.dry_run;
  const settled: "pending" | "confirmed" | "failed" = (await purser.wait(sent)).status;
  await purser.wait(await purser.fund({ chain: "base", currency: "USDC", amount: "25" }));
  await purser.wait(named);
  if ("approval" in sent) return sent.approval.url;
  const id: string = sent.transaction_id;
  await purser.topUp({ chain: "base", amount: "1" });
  await purser.listTransactions({ limit: 5, type: "transfer" });
  await purser.callPerpdex({ action: "ticker", symbol: "ETH" });
  const answer: Response = await purser.forwardPost({ provider: "alchemy", path: "base", body: { id: 1 } });
  const paid = await purser.fetch("https://api.example.com/report", { method: "POST", body: "{}", max_amount_usd: 0.05 });
  const state: "pending" | "paid" | "expired" | undefined = paid.payment?.state;
  for await (const event of purser.followEvents({ types: "transaction.*" })) return event.id;

  // @ts-expect-error a recipient is missing
  await purser.transfer({ chain: "base", currency: "USDC", amount: "1" });
  // @ts-expect-error a misspelt name would move money
  await purser.transfer({ ...payment, dryrun: true });
  // @ts-expect-error not a chain
  await purser.fund({ chain: "bitcoin", currency: "USDC", amount: "1" });
  // @ts-expect-error which wallet to delete is never left out
  await purser.deleteWallet({});
  return [wallet, isQuote, settled, id, answer.status, state].join();
}

export function explain(error: unknown): number | undefined {
  if (error instanceof LimitExceeded) return error.details.remaining_usd;
  const code: ErrorCode | undefined = error instanceof PurserError && error.code === "NOT_FOUND" ? "NOT_FOUND" : undefined;
  return code?.length;
}

export async function receive(request: Request, secret: string): Promise<Event> {
  return verifyWebhook(await request.text(), request.headers, secret);
}

export type Wallet = components["schemas"]["Wallet"];
