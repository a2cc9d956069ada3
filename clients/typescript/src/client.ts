import { ApprovalDenied, UpstreamError, ValidationError, WaitTimeout } from "./errors.js";
import type { paths } from "./schema.js";
import { environment, errorOf, sleep, Transport } from "./transport.js";
import type { CallOptions, Input, Output, Result } from "./types.js";
import { bytesOf, verifyWebhook, type Event } from "./webhooks.js";

/** @ts-ignore The package is optional. */
type OpenAI = import("openai").default;
type Registration = paths["/v1/agents/register"]["post"];
type RegisterInput = NonNullable<Registration["requestBody"]>["content"]["application/json"];
type RegisterOutput = Registration["responses"][201]["content"]["application/json"];

/** The response to what moves money, or an id. */
export type Pending = string | Partial<Record<"funding_request_id" | "id" | "wallet_id", string>> & {
  transaction_id?: string | null;
  approval?: { id: string };
};

/** What `fetch` accepts besides the platform's own options. */
export type FetchInit = RequestInit &
  Omit<Input<"fetch_paid_resource", "wallet_id" | "max_amount_usd">, "url" | "method" | "headers" | "body" | "dry_run">;
type Paid = Pick<Extract<Result<"fetch_paid_resource">, { payment: unknown }>, "payment" | "truncated">;

type FaucetOrder = Record<"chain" | "currency" | "amount", string> & { address?: string; reference?: string };

/** A client of one service, with one key. */
export class Purser extends Transport {
  readonly verifyWebhook = verifyWebhook;
  readonly #unanswered = new Map<string, Input<"fetch_paid_resource">>();

  /** Register an agent. The client then acts as that agent, with its first wallet. */
  async register(args: RegisterInput = {}, options?: CallOptions): Promise<RegisterOutput> {
    const operation = { method: "POST", path: "/v1/agents/register", body: "members" } as const;
    const made: RegisterOutput = await this.call(operation, args, options);
    this.apiKey = made.apiKey;
    this.walletId = made.wallet.id;
    return made;
  }

  /** Get the balances of a wallet; `getBalance` is about credits. */
  balance(args: Input<"get_balances", "wallet_id"> = {}, options?: CallOptions): Promise<Output<"get_balances">> {
    return this.getBalances(args, options);
  }

  /** Wait until a transaction or funding request is no longer pending. An approval that it needs is awaited as well. */
  async wait(pending: Pending, { timeout = 600_000, signal }: CallOptions = {}): Promise<Output<"get_transaction">> {
    const end = Date.now() + timeout;
    let found: Exclude<Pending, string> = typeof pending === "string" ? { transaction_id: pending } : pending;
    for (let pause = 0.5; Date.now() < end; pause = Math.min(pause * 1.5, 5)) {
      if (found.approval) found = await this.#decided(found.approval.id, signal);
      if (!found.approval) {
        const transaction_id = found.transaction_id ?? found.funding_request_id ?? found.id;
        if (!transaction_id) throw new ValidationError("It names no transaction.", { code: "NOT_A_TRANSACTION" });
        const transaction = await this.getTransaction({ transaction_id, wallet_id: found.wallet_id }, { signal });
        if (transaction.status !== "pending") return transaction;
      }
      await sleep(pause, signal);
    }
    throw new WaitTimeout(`It is still pending after ${timeout} ms.`, { code: "WAIT_TIMEOUT", details: found });
  }

  async #decided(approval_id: string, signal?: AbortSignal): Promise<Exclude<Pending, string>> {
    const approval = await this.getApproval({ approval_id }, { signal });
    const { status, answer, transaction_id, wallet_id } = approval;
    if (status === "executed") return { transaction_id, wallet_id };
    if (status === "awaiting" || status === "approved") return { approval };
    const code = `APPROVAL_${status.toUpperCase()}`;
    throw new ApprovalDenied(`The payment was not approved: ${answer ?? status}.`, { code, details: approval });
  }

  /** Yield the agent's events, and wait for more without an end. */
  async *followEvents({ after, ...args }: Input<"list_events"> = {}, options?: CallOptions): AsyncGenerator<Event> {
    for (;;) {
      const page: Output<"list_events"> = await this.listEvents({ prefer: "wait=25", ...args, after }, options);
      yield* page.events;
      after = page.next_after;
    }
  }

  /** The platform's `fetch`, except that the wallet pays what the web service asks for by x402. Bodies are text. */
  readonly fetch = async (input: string | URL | Request, options: FetchInit = {}): Promise<Response & Paid> => {
    const { wallet_id, networks, session_id, approval_note, prefer, idempotency_key: given, ...rest } = options;
    const { max_amount_usd = this.options.maxAmountUsd, ...standard } = rest;
    const request = new Request(input, standard);
    const { url, method, signal } = request;
    const [headers, body] = [Object.fromEntries(request.headers), (await request.text()) || undefined];
    const limits = { wallet_id, networks, session_id, approval_note, prefer, max_amount_usd, dry_run: false };
    const name = JSON.stringify([given, url, method, body, limits]);
    const fresh = { ...limits, url, method, headers, body, idempotency_key: given ?? crypto.randomUUID() };
    // Repeated as it was, under its key, after no answer: libraries that repeat a request change its headers.
    const asked = this.#unanswered.get(name) ?? (fresh as Input<"fetch_paid_resource">);
    this.#unanswered.delete(name);
    try {
      const answer = (await this.fetchPaidResource(asked, { signal })) as Result<"fetch_paid_resource">;
      if ("approval" in answer)
        throw new ApprovalDenied(answer.message, { code: "APPROVAL_REQUIRED", status: 202, details: answer });
      const { status, payment, truncated, headers, body, body_encoding } = answer;
      if (status === null) throw new UpstreamError("The web service gave no answer.", { code: "NO_ANSWER", details: answer });
      const content = [204, 205, 304].includes(status) ? null : body_encoding === "base64" ? bytesOf(body ?? "") : body;
      return Object.assign(new Response(content, { status, headers }), { payment, truncated });
    } catch (error) {
      this.#unanswered.set(name, asked);
      throw Object.assign(error as Error, { idempotencyKey: asked.idempotency_key });
    }
  };

  /** Have a sandbox's faucet pay an address, by default the wallet's. A repeated `reference` is not paid again. */
  async faucet(args: FaucetOrder): Promise<{ reference: string; tx_hash: string }> {
    const url = this.options.faucetUrl ?? environment("PURSER_FAUCET_URL") ?? "http://127.0.0.1:18547";
    const addresses: Record<string, string> = args.address ? {} : (await this.getWallet()).addresses;
    const order = { address: addresses[args.chain], reference: crypto.randomUUID(), ...args };
    const response = await this.send(`${url}/pay`, { method: "POST", body: JSON.stringify(order) });
    const body = await response.json();
    if (!response.ok) throw errorOf(response, body);
    return body;
  }

  /** Make OpenAI's client with the gateway as its provider: of the given class, or of the installed package. */
  openaiClient<C extends new (options: any) => any>(Client: C, options?: ConstructorParameters<C>[0]): InstanceType<C>;
  openaiClient(): Promise<OpenAI>;
  openaiClient(Client?: new (options: any) => any, options: object = {}): unknown {
    const given = { baseURL: `${this.baseUrl}/v1/gateway/openai`, apiKey: this.apiKey, ...options };
    const name = "openai"; // a variable: bundlers do not look for it
    return Client ? new Client(given) : import(name).then((found) => new found.default(given));
  }
}
